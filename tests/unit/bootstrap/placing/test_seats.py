"""An engine on a shared Ray cluster sees its seats, and nothing else of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vllm_bootstrap import contract
from vllm_bootstrap.contract import EnginePlan, Seat
from vllm_bootstrap.placing.groups import group_requests
from vllm_bootstrap.placing.placement import RayNode, missing_seats, seen_nodes
from vllm_bootstrap.placing.preflight import BundleFacts, name_pod

MakePlan = Callable[..., EnginePlan]
NODES = [
    RayNode(id="head", address="10.0.0.1", gpus=0),
    RayNode(id="a", address="10.0.0.2", gpus=8, cpus=8),
    RayNode(id="b", address="10.0.0.3", gpus=4, cpus=4),
    RayNode(id="c", address="10.0.0.4", gpus=4, cpus=4),
]
SEATS = (Seat(pod="pod-b", address="10.0.0.3", gpus=2, node="n1"), Seat(pod="pod-a", address="10.0.0.2", gpus=1))


def test_of_its_nodes_it_sees_the_gpus_that_it_was_promised_the_lead_first(make_plan: MakePlan) -> None:
    seen = seen_nodes(make_plan(seats=SEATS), NODES)
    assert [(node.id, node.gpus, node.lead) for node in seen] == [("b", 2, True), ("a", 1, False)]
    assert seen_nodes(make_plan(), NODES) == NODES


def test_extra_nodes_do_not_matter_and_missing_ones_are_named(make_plan: MakePlan) -> None:
    plan = make_plan(seats=SEATS)
    assert missing_seats(plan, seen_nodes(plan, NODES)) == ""
    assert "pod-a (10.0.0.2)" in missing_seats(plan, seen_nodes(plan, NODES[2:]))


def test_every_bundle_is_pinned_to_a_seat(make_plan: MakePlan) -> None:
    plan = make_plan(seats=SEATS, tensor=3, pipeline=1)
    (request,) = group_requests(plan, seen_nodes(plan, NODES))
    assert request.nodes == ("b", "b", "a")
    assert [dict(bundle) for bundle in request.bundles] == [{"GPU": 1.0}] * 3


def test_data_parallel_ranks_get_their_cores_beside_them(make_plan: MakePlan) -> None:
    plan = make_plan(seats=SEATS, tensor=1, pipeline=1, data=3, placement_group="x-dp0")
    requests = group_requests(plan, seen_nodes(plan, NODES))
    assert [request.nodes for request in requests] == [("b", "b"), ("b", "b"), ("a", "a")]


def test_a_pod_that_does_not_know_its_name_is_named_by_the_plan(make_plan: MakePlan) -> None:
    bundle = BundleFacts(bundle=0, ray_node="b", address="10.0.0.3", gpu=0)
    named = name_pod(make_plan(seats=SEATS), bundle)
    assert (named.pod, named.node) == ("pod-b", "n1")
    assert name_pod(make_plan(), bundle) == bundle


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("demo-12345678-engine-0-dp0", "demo-12345678-engine-0"),
        ("a-b-deadbeef-engine-12-dp3", "a-b-deadbeef-engine-12"),
        ("demo-0-aabbccdd-dp0", ""),  # of an engine with a cluster of its own
        ("demo-1234567-engine-0-dp0", ""),
        ("theirs", ""),
        ("", ""),
    ],
)
def test_groups_of_ours_are_told_by_their_names(name: str, stem: str) -> None:
    match = contract.GROUP_NAME.fullmatch(name)
    assert (match["stem"] if match else "") == stem
