"""CPU, memory, storage and pod slots: a pod goes where all it asks for is left, and the reason says what is short."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planning.host_oracle import Box, possible

from vllm_operator.api.placement import Strategy
from vllm_operator.planning.demand import Demand, hold_all, prove_demand
from vllm_operator.planning.eligibility import PodRules
from vllm_operator.planning.hosts import HostNeeds
from vllm_operator.planning.inventory import GpuNode, hold_rooms, read_nodes
from vllm_operator.planning.proof import Verdict, prove
from vllm_operator.planning.quantity import amounts
from vllm_operator.planning.requests import Room, held_amounts, pod_requests

ANY = PodRules()


def node(name: str, gpus: int, held: dict[str, Any] | None = None, **has: Any) -> GpuNode:
    """Give a node; of what is left out it has plenty."""
    plenty = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "110"}
    return GpuNode(name=name, gpus=gpus, room=Room(allocatable=amounts(plenty | has), held=amounts(held or {})))


def needs(head: dict[str, Any] | None = None, head_rules: PodRules = ANY, **pod: Any) -> HostNeeds:
    return HostNeeds(
        pod=amounts({**pod, "pods": 1}), head=amounts({**(head or {"cpu": "1"}), "pods": 1}), head_rules=head_rules
    )


LARGE = needs(memory="480Gi")
TAINTED = PodRules(node_selector={"pool": "cpu"})


@pytest.mark.parametrize(
    ("sizes", "nodes", "need", "verdict", "words"),
    [
        ([8], (node("gpu-a", 8),), LARGE, Verdict.FITS, "1 pod (1 x 8 GPUs) on 1 node"),
        (
            [8],
            (node("gpu-a", 8, {"memory": "212Gi"}), node("gpu-b", 4)),
            LARGE,
            Verdict.NOT_NOW,
            "PACK of 8 GPUs does not fit now: no node with 8 free GPUs has 480Gi of memory left, which pod.resources "
            "asks for; gpu-a has 300Gi of 512Gi",
        ),
        (
            [8],
            (node("gpu-a", 8, memory="300Gi"),),
            LARGE,
            Verdict.NEVER,
            "PACK of 8 GPUs cannot fit: no node with 8 GPUs has 480Gi of memory, which pod.resources asks for; "
            "gpu-a has 300Gi",
        ),
        (
            [2, 2],
            (node("gpu-a", 8),),
            LARGE,
            Verdict.NEVER,
            "each pod asks for 480Gi of memory (pod.resources); gpu-a has 512Gi",
        ),
        (
            [4],
            (node("gpu-a", 4, {"cpu": "60"}),),
            needs(cpu="4500m"),
            Verdict.NOT_NOW,
            "has 4500m of cpu left, which pod.resources asks for; gpu-a has 4 of 64",
        ),
        (
            [1],
            (node("gpu-a", 4, **{"ephemeral-storage": "1Gi"}),),
            needs(**{"ephemeral-storage": "2Gi"}),
            Verdict.NEVER,
            "has 2Gi of ephemeral-storage, which pod.resources asks for; gpu-a has 1Gi",
        ),
        ([1], (node("gpu-a", 4, {"pods": 110}),), needs(), Verdict.NOT_NOW, "has 1 pod slots left"),
        ([1], (node("gpu-a", 4),), needs(**{"rdma/ib": 1}), Verdict.NEVER, "1 of rdma/ib, which pod.resources"),
        ([1], (node("gpu-a", 4, **{"rdma/ib": 1}),), needs(**{"rdma/ib": 1}), Verdict.FITS, ""),
        (
            [1, 1],
            (node("gpu-a", 4, cpu="3"), node("gpu-b", 4, memory="3Gi")),
            needs(cpu="2", memory="2Gi"),
            Verdict.FITS,
            "2 pods (2 x 1 GPU) on 2 nodes",
        ),
        (
            [1, 1, 1],
            (node("gpu-a", 4, cpu="3"), node("gpu-b", 4, memory="3Gi")),
            needs(cpu="2", memory="2Gi"),
            Verdict.NEVER,
            "a pod asks for 2 of cpu and 2Gi of memory and 1 pod slots, and there is room on gpu-a for 1, gpu-b for 1",
        ),
        # too few GPUs is said as before, whatever else is short
        ([16], (node("gpu-a", 8),), LARGE, Verdict.NEVER, "the largest node, gpu-a, has 8, a pod needs 16"),
        # the head
        ([4], (node("gpu-a", 4, cpu="5"),), needs(cpu="4"), Verdict.FITS, ""),
        (
            [4],
            (node("gpu-a", 4, cpu="4"),),
            needs(cpu="4"),
            Verdict.NEVER,
            "the Ray head has no place: no node that it may go to has 1 of cpu and 1 pod slots beside the GPU pods",
        ),
        ([4], (node("gpu-a", 4, cpu="4"), node("cpu", 0)), needs(cpu="4"), Verdict.FITS, ""),
        (
            [4],
            (node("gpu-a", 4), node("cpu", 0, {"memory": "510Gi"})),
            needs(head={"memory": "4Gi"}, memory="510Gi"),
            Verdict.NOT_NOW,
            "no node that it may go to has 4Gi of memory and 1 pod slots left beside the GPU pods",
        ),
        (
            [4],
            (node("gpu-a", 4),),
            needs(head={"memory": "4Ti"}),
            Verdict.NEVER,
            "no node that it may go to has 4Ti of memory, which rayHead.resources asks for; gpu-a has 512Gi",
        ),
        (
            [4],
            (node("gpu-a", 4),),
            needs(head_rules=TAINTED),
            Verdict.NEVER,
            "rayHead's nodeSelector, affinity and tolerations allow no node",
        ),
        (
            [4],
            (node("gpu-a", 4), replace(node("c", 0), labels={"pool": "cpu"})),
            needs(head_rules=TAINTED),
            Verdict.FITS,
            "",
        ),
        (
            [4],
            (node("gpu-a", 4), replace(node("c", 0), labels={"pool": "cpu"}, schedulable=False)),
            needs(head_rules=TAINTED),
            Verdict.NOT_NOW,
            "the Ray head has no place",
        ),
        # the GPU pod gives way to the head
        (
            [4],
            (node("a", 4), node("b", 4, memory="6Gi")),
            needs(head={"memory": "500Gi"}, memory="6Gi"),
            Verdict.FITS,
            "",
        ),
        # nothing is known of the nodes: nothing limits
        ([8], (GpuNode(name="gpu-a", gpus=8),), needs(head_rules=TAINTED, memory="480Gi"), Verdict.FITS, ""),
    ],
)
def test_verdict(sizes: list[int], nodes: tuple[GpuNode, ...], need: HostNeeds, verdict: Verdict, words: str) -> None:
    proof = prove(sizes, Strategy.PACK, nodes, ANY, need)
    assert (proof.verdict, bool(proof.seats)) == (verdict, verdict is Verdict.FITS)
    assert words in proof.reason


def test_the_pod_for_the_rest_finds_a_slot() -> None:
    nodes = (node("a", 6, pods="2"), node("b", 2, pods="5"), node("c", 1, pods="5"))
    assert prove([2, 2, 2, 1], Strategy.PACK, nodes, ANY, needs(head={})).seats == ("a", "a", "b", "c")
    assert prove([2, 2, 2, 2], Strategy.PACK, nodes, ANY, needs(head={})).verdict is Verdict.NEVER


shapes = st.builds(
    lambda size, count, rest: [size] * count + ([min(rest, size - 1)] if rest and size > 1 else []),
    size=st.integers(1, 4),
    count=st.integers(1, 3),
    rest=st.integers(0, 3),
)
hosts = st.builds(
    lambda gpus, used, cpu, memory, pods, held, schedulable, pool: (
        min(used, gpus),
        GpuNode(
            name="",
            gpus=gpus,
            used=min(used, gpus),
            schedulable=schedulable,
            labels={"pool": pool},
            room=Room(
                allocatable={"cpu": cpu, "memory": memory, "pods": pods},
                held={"cpu": min(held, cpu), "memory": min(held, memory), "pods": min(held, pods)},
            ),
        ),
    )[1],
    gpus=st.integers(0, 6),
    used=st.integers(0, 2),
    cpu=st.integers(0, 6),
    memory=st.integers(0, 6),
    pods=st.integers(0, 4),
    held=st.integers(0, 3),
    schedulable=st.sampled_from([True, True, True, False]),
    pool=st.sampled_from(["cpu", "gpu"]),
)
fleets = st.lists(hosts, min_size=1, max_size=4).map(
    lambda found: tuple(replace(item, name=f"n{index}") for index, item in enumerate(found))
)
asked = st.builds(
    lambda pod, head, rules: HostNeeds(
        pod={"cpu": pod[0], "memory": pod[1], "pods": 1},
        head={"cpu": head[0], "memory": head[1], "pods": 1},
        head_rules=rules,
    ),
    pod=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    head=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    rules=st.sampled_from([ANY, ANY, TAINTED]),
)


def boxes(nodes: tuple[GpuNode, ...], needs: HostNeeds, *, empty: bool) -> list[Box]:
    found = []
    for item in nodes:
        assert item.room
        there = {"gpu": item.gpus if empty else item.free}
        there |= {name: value - (0 if empty else item.room.held[name]) for name, value in item.room.allocatable.items()}
        open_ = item.schedulable or empty
        selected = needs.head_rules.node_selector.items() <= item.labels.items()
        found.append(Box(has=there, takes_gpu_pods=open_, takes_head=open_ and selected))
    return found


@given(sizes=shapes, nodes=fleets, needs=asked, strategy=st.sampled_from([Strategy.PACK, Strategy.STRICT_SPREAD]))
def test_the_oracle_agrees(sizes: list[int], nodes: tuple[GpuNode, ...], needs: HostNeeds, strategy: Strategy) -> None:
    apart = strategy is Strategy.STRICT_SPREAD
    sizes = [1] * len(sizes) if apart else sizes
    proof = prove(sizes, strategy, nodes, ANY, needs)
    now, ever = (
        possible(sizes, needs.pod, needs.head, boxes(nodes, needs, empty=empty), apart=apart) for empty in (False, True)
    )
    assert proof.verdict is (Verdict.FITS if now else Verdict.NOT_NOW if ever else Verdict.NEVER), proof.reason
    for item in nodes:
        mine = [size for size, seat in zip(sizes, proof.seats, strict=False) if seat == item.name]
        assert sum(mine) <= item.free
        assert item.room
        assert not mine or all(need * len(mine) <= (item.room.left(name) or 0) for name, need in needs.pod.items())


@given(sizes=shapes, nodes=fleets, needs=asked)
def test_asking_for_less_never_hurts(sizes: list[int], nodes: tuple[GpuNode, ...], needs: HostNeeds) -> None:
    if prove(sizes, Strategy.PACK, nodes, ANY, needs).verdict is Verdict.FITS:
        less = replace(needs, pod={"pods": 1}, head={"pods": 1}, head_rules=ANY)
        assert prove(sizes, Strategy.PACK, nodes, ANY, less).verdict is Verdict.FITS


def test_pods_that_are_promised_a_seat_hold_what_they_ask_for() -> None:
    nodes = (node("a", 4), node("b", 4), node("c", 0, memory="4Gi"))
    first = Demand(
        holder="x", sizes=(1,), rules=ANY, strategy=Strategy.PACK, needs=needs(head={"memory": "8Gi"}, memory="300Gi")
    )
    left = hold_all(nodes, [first, first])
    assert [item.room and item.room.left("memory") for item in left] == [196 * 2**30, 212 * 2**30, 4 * 2**30]
    assert [item.room and item.room.left("pods") for item in left] == [107, 109, 110]
    assert prove_demand(left, first).verdict is Verdict.NOT_NOW
    assert hold_all(left, [first]) == left


# ---- what pods ask for, and what they hold --------------------------------------------------------------------------


def container(**requests: str) -> dict[str, Any]:
    return {"resources": {"requests": requests}}


SIDECAR = {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("spec", "asked_for"),
    [
        ({"containers": [container(cpu="1"), container(cpu="500m", memory="1Gi")]}, {"cpu": 1500, "memory": 2**30}),
        ({"containers": [{"resources": {"limits": {"cpu": "2"}}}]}, {"cpu": 2000}),
        ({"containers": [{"resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}}]}, {"cpu": 1000}),
        ({"containers": [container(cpu="1")], "initContainers": [container(cpu="3")]}, {"cpu": 3000}),
        ({"containers": [container(cpu="1")], "initContainers": [container(cpu="3") | SIDECAR]}, {"cpu": 4000}),
        # a step after a sidecar runs beside it, one before it does not
        (
            {"containers": [container(cpu="1")], "initContainers": [container(cpu="1") | SIDECAR, container(cpu="3")]},
            {"cpu": 4000},
        ),
        (
            {"containers": [container(cpu="1")], "initContainers": [container(cpu="3"), container(cpu="1") | SIDECAR]},
            {"cpu": 3000},
        ),
        ({"containers": [container(cpu="1")], "overhead": {"cpu": "250m"}}, {"cpu": 1250}),
        ({"containers": [container(cpu="1")], "resources": {"requests": {"cpu": "4"}}}, {"cpu": 4000}),
        ({}, {}),
        ({"containers": "x", "initContainers": [3], "overhead": 1, "resources": []}, {}),
        ({"containers": [{"resources": {"requests": [], "limits": {"cpu": "much"}}}]}, {"cpu": 0}),
    ],
)
def test_a_pod_asks_for_what_the_scheduler_counts(spec: dict[str, Any], asked_for: dict[str, int]) -> None:
    assert pod_requests(spec) == asked_for


def test_limits_are_counted_alike() -> None:
    spec = {"containers": [{"resources": {"limits": {"memory": "2Gi"}}}, container(memory="1Gi")]}
    assert pod_requests(spec, "limits") == {"memory": 2 * 2**30}


def test_nodes_have_what_pods_leave_of_them() -> None:
    body = {"metadata": {"name": "a"}, "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "10"}}}

    def pod(where: str | None, phase: str = "Running") -> dict[str, Any]:
        spec = {"containers": [container(cpu="1500m", memory="4Gi")]} | ({"nodeName": where} if where else {})
        return {"metadata": {"name": "p"}, "spec": spec, "status": {"phase": phase}}

    pods = [pod("a"), pod("a", "Pending"), pod("a", "Succeeded"), pod("a", "Failed"), pod(None, "Pending"), pod("b")]
    [found] = hold_rooms(read_nodes([body]), held_amounts(pods))
    assert found.room
    left = [found.room.left(name) for name in ("cpu", "memory", "pods", "ephemeral-storage", "rdma/ib")]
    assert left == [5000, 24 * 2**30, 8, None, 0]
    assert found.room.left("cpu", empty=True) == 8000
