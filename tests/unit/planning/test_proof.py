"""What is said to fit fits, what is said to be impossible is, and the reason names what is there."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planning.oracle import possible

from vllm_operator.api.placement import Strategy
from vllm_operator.planning.eligibility import PodRules
from vllm_operator.planning.inventory import GpuNode, Taint
from vllm_operator.planning.proof import Verdict, prove, seat

ANY = PodRules()
FOUR = (GpuNode(name="gpu-a", gpus=4), GpuNode(name="gpu-b", gpus=4))
SPOT = Taint(key="spot", value="true")


@pytest.mark.parametrize(
    ("sizes", "strategy", "nodes", "verdict", "words"),
    [
        (
            [6],
            Strategy.STRICT_PACK,
            FOUR,
            Verdict.NEVER,
            "STRICT_PACK of 6 GPUs cannot fit: the largest node, gpu-a, has 4, a pod needs 6",
        ),
        ([4, 2], Strategy.PACK, FOUR, Verdict.FITS, "2 pods (1 x 4 GPUs + 1 x 2 GPUs) on 2 nodes"),
        ([1, 1], Strategy.STRICT_SPREAD, FOUR, Verdict.FITS, "2 pods (2 x 1 GPU) on 2 nodes"),
        ([1, 1, 1], Strategy.STRICT_SPREAD, FOUR, Verdict.NEVER, "3 nodes are needed, 2 have a GPU (gpu-a, gpu-b)"),
        ([4, 4, 4], Strategy.PACK, FOUR, Verdict.NEVER, "do not go into gpu-a 4, gpu-b 4"),
        (
            [4],
            Strategy.PACK,
            (replace(FOUR[0], used=1), replace(FOUR[1], used=2)),
            Verdict.NOT_NOW,
            "PACK of 4 GPUs does not fit now: the largest node, gpu-a, has 3, a pod needs 4; "
            "held by other pods: gpu-a 1 of 4, gpu-b 2 of 4",
        ),
        (
            [4],
            Strategy.PACK,
            (replace(FOUR[0], schedulable=False),),
            Verdict.NOT_NOW,
            "no GPU is left for it; gpu-a: the node is cordoned",
        ),
        (
            [4],
            Strategy.PACK,
            (replace(FOUR[0], taints=(SPOT,)), replace(FOUR[1], taints=(SPOT,))),
            Verdict.NEVER,
            "2 nodes left out: taint spot=true:NoSchedule is not tolerated",
        ),
        (
            [4],
            Strategy.PACK,
            (replace(FOUR[0], taints=(Taint(key="node.kubernetes.io/not-ready"),)),),
            Verdict.NOT_NOW,
            "gpu-a: taint node.kubernetes.io/not-ready:NoSchedule is not tolerated",
        ),
        ([1], Strategy.PACK, (), Verdict.NEVER, "no GPU is left for it"),
        ([1], Strategy.PACK, (GpuNode(name="cpu", gpus=0),), Verdict.NEVER, "no GPU is left for it"),
    ],
)
def test_verdict(
    sizes: list[int], strategy: Strategy, nodes: tuple[GpuNode, ...], verdict: Verdict, words: str
) -> None:
    proof = prove(sizes, strategy, nodes, ANY)
    assert (proof.verdict, bool(proof.seats)) == (verdict, verdict is Verdict.FITS)
    assert words in proof.reason


def test_many_nodes_are_counted() -> None:
    nodes = tuple(GpuNode(name=f"n{index}", gpus=1) for index in range(9))
    assert re.search(r"n0 1, n1 1, n2 1, n3 1 and 5 more", prove([1] * 10, Strategy.PACK, nodes, ANY).reason)


shapes = st.builds(
    lambda size, count, rest: [size] * count + ([min(rest, size - 1)] if rest and size > 1 else []),
    size=st.integers(1, 8),
    count=st.integers(1, 4),
    rest=st.integers(0, 7),
)
fleets = st.lists(
    st.builds(
        lambda gpus, used, schedulable: (gpus, min(used, gpus), schedulable),
        gpus=st.integers(0, 8),
        used=st.integers(0, 8),
        schedulable=st.sampled_from([True, True, True, False]),
    ),
    max_size=5,
).map(
    lambda rows: tuple(
        GpuNode(name=f"n{index}", gpus=gpus, used=used, schedulable=schedulable)
        for index, (gpus, used, schedulable) in enumerate(rows)
    )
)


@given(sizes=shapes, nodes=fleets, strategy=st.sampled_from([Strategy.PACK, Strategy.STRICT_SPREAD]))
def test_the_oracle_agrees(sizes: list[int], nodes: tuple[GpuNode, ...], strategy: Strategy) -> None:
    apart = strategy is Strategy.STRICT_SPREAD
    if apart:
        sizes = [1] * len(sizes)
    verdict = prove(sizes, strategy, nodes, ANY).verdict
    now = possible(sizes, [node.free for node in nodes if node.schedulable], apart=apart)
    ever = possible(sizes, [node.gpus for node in nodes], apart=apart)
    assert verdict is (Verdict.FITS if now else Verdict.NOT_NOW if ever else Verdict.NEVER)


@given(sizes=shapes, nodes=fleets, more=st.integers(0, 8))
def test_a_free_node_more_never_hurts(sizes: list[int], nodes: tuple[GpuNode, ...], more: int) -> None:
    if prove(sizes, Strategy.PACK, nodes, ANY).verdict is Verdict.FITS:
        grown = (*nodes, GpuNode(name="more", gpus=more))
        assert prove(sizes, Strategy.PACK, grown, ANY).verdict is Verdict.FITS


@given(sizes=shapes, nodes=fleets)
def test_no_node_is_overfilled_and_the_answer_is_always_the_same(sizes: list[int], nodes: tuple[GpuNode, ...]) -> None:
    free = {node.name: node.free for node in nodes}
    seats = seat(sizes, free, apart=False)
    assert seats == seat(sizes, dict(reversed(free.items())), apart=False)
    for name in set(seats):
        assert sum(size for size, chosen in zip(sizes, seats, strict=True) if chosen == name) <= free[name]
