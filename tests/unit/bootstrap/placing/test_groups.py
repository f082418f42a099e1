"""The placement groups of an engine: what is asked of Ray, what is taken over, and which rank gets which bundle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from vllm_bootstrap.contract import EnginePlan
from vllm_bootstrap.placing.groups import (
    GroupRequest,
    describe_shortage,
    group_requests,
    is_of_engine,
    place_ranks,
    unfit,
)
from vllm_bootstrap.placing.placement import Group, RayNode
from vllm_bootstrap.placing.preflight import BundleFacts
from vllm_bootstrap.placing.rank_map import describe_ranks

MakePlan = Callable[..., EnginePlan]

GPU, CPU = {"GPU": 1.0}, {"CPU": 1.0}
LEAD = RayNode(id="l", address="10.0.0.1", gpus=2, cpus=2, lead=True)
WORKER = RayNode(id="w", address="10.0.0.2", gpus=2, cpus=2)
HEAD = RayNode(id="h", address="10.0.0.9", gpus=0)


def made(request: GroupRequest, number: int = 1) -> Group:
    """The group as Ray has it when it did what was asked."""
    return Group(
        name=request.name,
        id=f"{number:02x}",
        state="CREATED",
        strategy=request.strategy,
        bundles=request.bundles,
        node_of=dict(enumerate(request.nodes)),
    )


def test_path_a_asks_for_one_group_and_leaves_the_nodes_to_ray(make_plan: MakePlan):
    assert group_requests(make_plan(strategy="STRICT_SPREAD"), [LEAD, WORKER]) == (
        GroupRequest(name="demo-engine-0", strategy="STRICT_SPREAD", bundles=(GPU, GPU)),
    )


def test_data_parallel_asks_for_a_pinned_group_a_rank_with_a_control_bundle_beside_its_rank_0(make_plan: MakePlan):
    plan = make_plan(placement_group="c-dp0", tensor=2, pipeline=1, data=2)
    assert group_requests(plan, [HEAD, WORKER, LEAD]) == (
        GroupRequest(name="c-dp0", strategy="PACK", bundles=(GPU, GPU, CPU), nodes=("l", "l", "l")),
        GroupRequest(name="c-dp1", strategy="PACK", bundles=(GPU, GPU, CPU), nodes=("w", "w", "w")),
    )


@pytest.mark.parametrize(
    ("strategy", "of_ray"),
    [("PACK", "PACK"), ("STRICT_PACK", "STRICT_PACK"), ("SPREAD", "SPREAD"), ("STRICT_SPREAD", "SPREAD")],
)
def test_a_control_bundle_is_no_breach_of_the_strategy(make_plan: MakePlan, strategy: str, of_ray: str):
    plan = make_plan(tensor=2, pipeline=1, data=2, strategy=strategy)
    requests = group_requests(plan, [LEAD, WORKER])
    assert {request.strategy for request in requests} == {of_ray}
    assert {len(set(request.nodes)) for request in requests} == ({1} if "PACK" in strategy else {2})


def test_each_engine_core_needs_a_cpu_beside_its_rank_0(make_plan: MakePlan):
    plan = make_plan(tensor=1, pipeline=1, data=4)
    with pytest.raises(ValueError, match=r"2 engine cores need one CPU each on 10\.0\.0\.2, Ray counts 1 there"):
        group_requests(plan, [LEAD, replace(WORKER, cpus=1)])


@pytest.mark.parametrize(
    ("name", "ours"),
    [("c-dp0", True), ("c-dp1", True), ("c-dp12", True), ("c-dp", False), ("cc-dp0", False), ("c-dp0-dp1", False)],
)
def test_which_groups_are_of_an_engine(make_plan: MakePlan, name: str, ours: bool):
    assert is_of_engine(make_plan(placement_group="c-dp0"), name) is ours


FREE = GroupRequest(name="g", strategy="PACK", bundles=(GPU, GPU))
PINNED = GroupRequest(name="g", strategy="PACK", bundles=(GPU, CPU), nodes=("l", "l"))
GROUP = replace(made(FREE), node_of={0: "l", 1: "w"})


@pytest.mark.parametrize(
    ("request_", "group", "fault"),
    [
        (FREE, GROUP, ""),
        (FREE, replace(GROUP, state="PENDING", node_of={}), ""),
        (FREE, replace(GROUP, state="RESCHEDULING"), "it is RESCHEDULING"),
        (FREE, replace(GROUP, strategy="SPREAD"), "its strategy is SPREAD, not PACK"),
        (FREE, replace(GROUP, bundles=(GPU,)), "its bundles are others"),
        (FREE, replace(GROUP, bundles=(GPU, {"GPU": 2.0})), "its bundles are others"),
        (FREE, replace(GROUP, node_of={0: "l", 1: "z"}), "its nodes z are gone"),
        (PINNED, made(PINNED), ""),
        (PINNED, replace(made(PINNED), node_of={0: "w", 1: "w"}), "its bundles 0, 1 are on other nodes"),
        (
            PINNED,
            replace(made(PINNED), state="PENDING", node_of={}),
            "it is not placed, and where it is pinned to is not known",
        ),
    ],
)
def test_a_group_is_adopted_only_when_it_is_what_would_be_made(request_: GroupRequest, group: Group, fault: str):
    assert unfit(request_, group, [LEAD, WORKER]) == fault


def test_bundles_of_path_a_are_ordered_after_they_were_placed(make_plan: MakePlan):
    plan = make_plan(pipeline=2)
    requests = group_requests(plan, [LEAD, WORKER])
    group = replace(made(requests[0]), node_of={0: "w", 1: "l"})
    ranks = place_ranks(plan, requests, [group], "l")
    assert [(place.rank, place.bundle, place.node) for place in ranks] == [(0, 1, "l"), (1, 0, "w")]


def test_the_rank_map_of_data_parallel(make_plan: MakePlan):
    plan = make_plan(placement_group="c-dp0", tensor=2, pipeline=1, data=2, instance_id="i")
    requests = group_requests(plan, [LEAD, WORKER])
    groups = [made(request, number) for number, request in enumerate(requests)]
    places = place_ranks(plan, requests, groups, "l")
    # Ray gives the second group the GPUs of its pod the other way round.
    found = [
        BundleFacts(bundle=place.bundle, dp=place.dp, ray_node=place.node, address="", gpu=1 - place.bundle)
        for place in places
    ]
    assert [
        (r.rank, r.dp, r.pp, r.tp, r.bundle, r.ray_node, r.gpu_index, r.actor, r.driver, r.output)
        for r in describe_ranks(plan, places, found)
    ] == [
        (0, 0, 0, 0, 0, "l", 0, "vllm_Worker_i_dp0_TP0", True, True),
        (1, 0, 0, 1, 1, "l", 1, "vllm_Worker_i_dp0_TP1", False, False),
        (2, 1, 0, 0, 0, "w", 0, "vllm_Worker_i_dp1_TP0", True, True),
        (3, 1, 0, 1, 1, "w", 1, "vllm_Worker_i_dp1_TP1", False, False),
    ]


def test_two_data_parallel_ranks_in_one_pod_have_gpus_of_their_own(make_plan: MakePlan):
    plan = make_plan(tensor=2, pipeline=1, data=2)
    lead = replace(LEAD, gpus=4, cpus=4)
    requests = group_requests(plan, [lead])
    places = place_ranks(plan, requests, [made(request) for request in requests], "l")
    given = {(0, 0): 3, (0, 1): 0, (1, 0): 2, (1, 1): 1}
    found = [BundleFacts(bundle=p.bundle, dp=p.dp, ray_node="l", address="", gpu=given[p.dp, p.bundle]) for p in places]
    assert [rank.gpu_index for rank in describe_ranks(plan, places, found)] == [0, 3, 1, 2]


def test_the_first_rank_is_beside_the_server(make_plan: MakePlan):
    plan = make_plan(tensor=1, pipeline=1, data=2)
    requests = [replace(PINNED, nodes=(node, node)) for node in ("w", "l")]
    with pytest.raises(ValueError, match="the first rank is not on the lead node l"):
        place_ranks(plan, requests, [made(request) for request in requests], "l")


def test_bundles_that_are_not_where_they_were_pinned_are_not_launched_on(make_plan: MakePlan):
    plan = make_plan(tensor=2, pipeline=1, data=2)
    requests = group_requests(plan, [LEAD, WORKER])
    groups = [made(request) for request in requests]
    groups[1] = replace(groups[1], node_of={0: "w", 1: "w", 2: "l"})
    with pytest.raises(ValueError, match=r"placement group demo-engine-0-dp1: its bundles 2 are on other nodes"):
        place_ranks(plan, requests, groups, "l")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (replace(FREE, strategy="STRICT_PACK"), "STRICT_PACK of 2 bundles of 1 GPU"),
        (PINNED, "PACK of 1 bundle of 1 GPU and 1 bundle of 1 CPU on 10.0.0.1"),
    ],
)
def test_a_shortage_names_what_each_node_has(asked: GroupRequest, words: str):
    assert describe_shortage([asked], [WORKER, LEAD, HEAD], {"l": 0.0, "w": 1.0}) == (
        f"{words} was not placed; 10.0.0.1: 0 of 2 GPUs free, 10.0.0.2: 1 of 2 GPUs free"
    )
