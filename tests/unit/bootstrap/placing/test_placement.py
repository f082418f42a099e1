"""The order of ranks: golden maps of the shapes that people run, and what must hold for every shape."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_bootstrap.contract import PodGroup
from vllm_bootstrap.placing.placement import RayNode, changed_nodes, missing_nodes, order_ranks


def bundles(*nodes: str) -> dict[int, str]:
    return dict(enumerate(nodes))


def rows(node_of: dict[int, str], lead: str, tensor: int, pipeline: int) -> list[tuple[int, str, int, int, int]]:
    places = order_ranks(node_of, lead=lead, tensor=tensor, pipeline=pipeline)
    return [(place.bundle, place.node, place.tp, place.pp, place.local_rank) for place in places]


def test_tensor_8_pipeline_2_over_two_nodes_of_8():
    node_of = bundles(*["b"] * 8, *["a"] * 8)
    places = order_ranks(node_of, lead="a", tensor=8, pipeline=2)
    assert [place.node for place in places] == ["a"] * 8 + ["b"] * 8
    assert [place.bundle for place in places] == [*range(8, 16), *range(8)]
    assert [place.tp for place in places] == [*range(8), *range(8)]
    assert [place.pp for place in places] == [0] * 8 + [1] * 8
    assert [place.local_rank for place in places] == [*range(8), *range(8)]
    assert [place.rank for place in places if place.driver] == [0, 8]
    assert [place.rank for place in places if place.output] == [8]


def test_tensor_2_pipeline_2_over_four_nodes_of_1():
    assert rows(bundles("c", "a", "d", "b"), "d", 2, 2) == [
        (2, "d", 0, 0, 0),
        (0, "c", 1, 0, 0),
        (1, "a", 0, 1, 0),
        (3, "b", 1, 1, 0),
    ]
    assert [p.output for p in order_ranks(bundles("c", "a", "d", "b"), lead="d", tensor=2, pipeline=2)] == [
        False,
        False,
        True,
        False,
    ]


def test_pipeline_6_over_4_and_2():
    assert rows(bundles("w", "l", "l", "w", "l", "l"), "l", 1, 6) == [
        (1, "l", 0, 0, 0),
        (2, "l", 0, 1, 1),
        (4, "l", 0, 2, 2),
        (5, "l", 0, 3, 3),
        (0, "w", 0, 4, 0),
        (3, "w", 0, 5, 1),
    ]


def test_pipeline_6_over_2_and_4_with_the_lead_on_the_small_node():
    assert [row[1] for row in rows(bundles("w", "l", "l", "w", "w", "w"), "l", 1, 6)] == ["l", "l", "w", "w", "w", "w"]


def test_a_tensor_group_that_the_lead_begins_is_completed_by_the_node_that_fits():
    node_of = bundles("big", "big", "big", "big", "lead", "lead", "small", "small")
    assert [row[1] for row in rows(node_of, "lead", 4, 2)] == ["lead"] * 2 + ["small"] * 2 + ["big"] * 4


def test_all_on_one_node():
    assert [row[0] for row in rows(bundles("a", "a"), "a", 2, 1)] == [0, 1]


@pytest.mark.parametrize(("tensor", "pipeline", "lead"), [(2, 2, "a"), (1, 2, "x")])
def test_refuses_what_cannot_be(tensor: int, pipeline: int, lead: str):
    with pytest.raises(ValueError, match="bundle"):
        order_ranks(bundles("a", "a"), lead=lead, tensor=tensor, pipeline=pipeline)


@st.composite
def placed(draw: st.DrawFn) -> tuple[dict[int, str], str, int, int]:
    tensor, pipeline = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    nodes = draw(st.lists(st.sampled_from("abcdefgh"), min_size=tensor * pipeline, max_size=tensor * pipeline))
    return bundles(*nodes), draw(st.sampled_from(sorted(set(nodes)))), tensor, pipeline


@given(placed())
def test_every_order_can_start(case: tuple[dict[int, str], str, int, int]):
    node_of, lead, tensor, pipeline = case
    places = order_ranks(node_of, lead=lead, tensor=tensor, pipeline=pipeline)
    assert [place.rank for place in places] == list(range(tensor * pipeline))
    assert sorted(place.bundle for place in places) == sorted(node_of), "each bundle once"
    assert all(node_of[place.bundle] == place.node for place in places)
    lead_ranks = [place.rank for place in places if place.node == lead]
    assert lead_ranks == list(range(len(lead_ranks))), "the driver node's ranks are exactly the first ones"
    runs = [node for node, _ in groupby(place.node for place in places)]
    assert len(runs) == len(set(runs)), "a node's ranks stay together"
    for node in set(runs):
        assert [place.local_rank for place in places if place.node == node] == list(
            range(sum(1 for place in places if place.node == node))
        )
    assert [place.rank for place in places if place.output] == [tensor * (pipeline - 1)]
    assert [place.rank for place in places if place.driver] == [tensor * stage for stage in range(pipeline)]


@given(st.integers(1, 8), st.lists(st.integers(1, 4), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_tensor_group_stays_on_one_node_where_pods_are_big_enough(tensor: int, multiples: list[int], random):
    nodes = [f"n{i}" for i, multiple in enumerate(multiples) for _ in range(multiple * tensor)]
    random.shuffle(nodes)
    places = order_ranks(bundles(*nodes), lead="n0", tensor=tensor, pipeline=sum(multiples))
    for stage in range(sum(multiples)):
        assert len({place.node for place in places if place.pp == stage}) == 1


def node(name: str, gpus: int, *, lead: bool = False) -> RayNode:
    return RayNode(id=name, address=f"10.0.0.{name}", gpus=gpus, lead=lead)


GROUPS = (PodGroup(name="lead", pods=1, gpus=4), PodGroup(name="worker-1", pods=2, gpus=2))


@pytest.mark.parametrize(
    ("nodes", "fault"),
    [
        ([node("1", 4, lead=True), node("2", 2), node("3", 2), node("9", 0)], ""),
        ([node("1", 4, lead=True), node("2", 2)], "1 of 2 worker pods with 2 GPUs of group worker-1 have joined Ray"),
        ([node("2", 2), node("3", 2)], "the lead pod with 4 GPUs is expected, alive: none"),
        (
            [node("1", 4, lead=True), node("2", 2), node("3", 2), node("4", 2)],
            "3 of 2 worker pods with 2 GPUs of group worker-1 have joined Ray",
        ),
        (
            [node("1", 4, lead=True), node("2", 2), node("3", 2), node("4", 4)],
            "1 of 0 worker pods with 4 GPUs have joined Ray",
        ),
        (
            [node("1", 4, lead=True), node("5", 4, lead=True), node("2", 2), node("3", 2)],
            "the lead pod with 4 GPUs is expected, alive: 10.0.0.1 with 4 GPUs, 10.0.0.5 with 4 GPUs",
        ),
    ],
)
def test_missing_nodes(nodes: list[RayNode], fault: str):
    assert missing_nodes(GROUPS, nodes) == fault


@pytest.mark.parametrize(
    ("after", "fault"),
    [
        ([node("1", 4), node("2", 2), node("head", 0)], ""),
        ([node("2", 2), node("1", 4)], ""),
        ([node("1", 4)], "10.0.0.2 is gone"),
        ([node("1", 4), node("2", 2), node("3", 2)], "10.0.0.3 has joined"),
        ([node("1", 4), node("3", 2)], "10.0.0.2 is gone; 10.0.0.3 has joined"),
    ],
)
def test_nodes_that_changed(after: list[RayNode], fault: str):
    assert changed_nodes([node("1", 4), node("2", 2)], after) == fault


def test_two_groups_of_one_size_are_counted_together():
    groups = (
        PodGroup(name="lead", pods=1, gpus=1),
        PodGroup(name="a", pods=1, gpus=1),
        PodGroup(name="b", pods=2, gpus=1),
    )
    nodes = [node("1", 1, lead=True), node("2", 1), node("3", 1)]
    assert missing_nodes(groups, nodes) == "2 of 3 worker pods with 1 GPUs of group a, b have joined Ray"
