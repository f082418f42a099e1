"""An engine inside one domain: which one, and why none."""

from __future__ import annotations

import pytest

from vllm_operator.api.placement import Strategy
from vllm_operator.planning.eligibility import PodRules
from vllm_operator.planning.inventory import GpuNode
from vllm_operator.planning.proof import Verdict
from vllm_operator.planning.topology import seating_of

RACK = "example.com/rack"


def node(name: str, rack: str, gpus: int = 4, used: int = 0, *, cordoned: bool = False) -> GpuNode:
    labels = {RACK: rack} if rack else {}
    return GpuNode(name=name, gpus=gpus, used=used, labels=labels, schedulable=not cordoned)


@pytest.mark.parametrize(
    ("nodes", "sizes", "verdict", "told"),
    [
        pytest.param(
            [node("a1", "a"), node("a2", "a"), node("b1", "b")],
            (4, 4),
            Verdict.FITS,
            "example.com/rack=a",
            id="only one rack has two nodes",
        ),
        pytest.param(
            [node("a1", "a"), node("b1", "b")],
            (4, 4),
            Verdict.NEVER,
            "inside one example.com/rack: a: PACK of 8 GPUs cannot fit",
            id="enough GPUs, but in two racks",
        ),
        pytest.param(
            [node("a1", "a"), node("a2", "a", used=1), node("b1", "b")],
            (4, 4),
            Verdict.NOT_NOW,
            "held by other pods: a2 1 of 4",
            id="the rack is busy",
        ),
        pytest.param(
            [node("a1", "a", used=2), node("a2", "a"), node("b1", "b"), node("b2", "b")],
            (2,),
            Verdict.FITS,
            "example.com/rack=a",
            id="the rack with less room leaves the other to larger engines",
        ),
        pytest.param(
            [node("a1", ""), node("a2", "")], (4,), Verdict.NEVER, "has the label", id="no node has the label"
        ),
        pytest.param(
            [node("a1", "a", cordoned=True), node("b1", "b", gpus=2)],
            (4,),
            Verdict.NOT_NOW,
            "the node is cordoned",
            id="the only rack that could is away",
        ),
    ],
)
def test_one_domain_holds_the_engine(nodes: list[GpuNode], sizes: tuple[int, ...], verdict: Verdict, told: str) -> None:
    proof = seating_of(nodes, PodRules(), RACK).prove(sizes, Strategy.PACK)
    assert (proof.verdict, told in proof.reason) == (verdict, True), proof.reason
    racks = {item.labels[RACK] for item in nodes if item.name in proof.seats}
    assert len(racks) == (1 if verdict is Verdict.FITS else 0)
