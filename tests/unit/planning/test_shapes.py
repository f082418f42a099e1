"""From sizes and strategy to pods, and what is refused because it could never be placed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.planning.inventory import GpuNode
from vllm_operator.planning.shapes import NoSuchGPUsError, Shape, plan_shape

STRATEGIES = ("PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD")


def cluster(*gpus: int, **more: Any) -> list[GpuNode]:
    return [GpuNode(name=f"node-{index}", gpus=count, **more) for index, count in enumerate(gpus)]


def asked(
    tensor: int = 1, pipeline: int = 1, strategy: str = "PACK", per_pod: int | None = None, **pod: Any
) -> VLLMDeploymentSpec:
    placement = {"strategy": strategy} | ({"gpusPerPod": per_pod} if per_pod else {})
    return VLLMDeploymentSpec.model_validate(
        {
            "model": {"uri": "file:///m"},
            "parallelism": {"tensor": tensor, "pipeline": pipeline},
            "placement": placement,
            "pod": pod,
        }
    )


def groups(shape: Shape) -> list[tuple[str, int, int]]:
    return [(group.name, group.pods, group.gpus) for group in shape.groups]


@pytest.mark.parametrize(
    ("spec", "nodes", "pods"),
    [
        # mission S5: six GPUs over 4 + 4
        (asked(6), [4, 4], [("lead", 1, 4), ("gpu2", 1, 2)]),
        (asked(1, 6), [4, 4], [("lead", 1, 4), ("gpu2", 1, 2)]),
        (asked(), [4], [("lead", 1, 1)]),
        (asked(4), [4], [("lead", 1, 4)]),
        (asked(8, 2), [8, 8], [("lead", 1, 8), ("gpu8", 1, 8)]),
        (asked(8, 4), [8, 8, 8, 8], [("lead", 1, 8), ("gpu8", 3, 8)]),
        (asked(2, 2), [8], [("lead", 1, 4)]),
        (asked(10), [8, 4], [("lead", 1, 8), ("gpu2", 1, 2)]),
        (asked(1, 2, per_pod=1), [8], [("lead", 1, 1), ("gpu1", 1, 1)]),
        (asked(8, per_pod=3), [8], [("lead", 1, 3), ("gpu3", 1, 3), ("gpu2", 1, 2)]),
        (asked(2, per_pod=8), [4], [("lead", 1, 2)]),
        # kserve#4946: tensor 2 over nodes of one GPU is two pods, not a group of one
        (asked(2), [1, 1], [("lead", 1, 1), ("gpu1", 1, 1)]),
        (asked(6, strategy="STRICT_PACK"), [8], [("lead", 1, 6)]),
        (asked(2, strategy="STRICT_PACK", per_pod=4), [4], [("lead", 1, 2)]),
        (asked(3, strategy="SPREAD"), [4, 4], [("lead", 1, 1), ("gpu1", 2, 1)]),
        (asked(4, strategy="SPREAD", per_pod=2), [4], [("lead", 1, 2), ("gpu2", 1, 2)]),
        (asked(2, strategy="STRICT_SPREAD"), [4, 1], [("lead", 1, 1), ("gpu1", 1, 1)]),
        (asked(1, strategy="STRICT_SPREAD"), [1], [("lead", 1, 1)]),
    ],
)
def test_pods(spec: VLLMDeploymentSpec, nodes: list[int], pods: list[tuple[str, int, int]]) -> None:
    assert groups(plan_shape(spec, cluster(*nodes))) == pods


@pytest.mark.parametrize(
    ("spec", "nodes", "words"),
    [
        (asked(), [], ["a pod of 1 GPU: no usable node has a GPU", "add nodes"]),
        (asked(6, strategy="STRICT_PACK"), [4, 2], ["STRICT_PACK needs a pod of 6 GPUs", "node-0, has 4"]),
        (asked(4, per_pod=4), [2, 2], ["a pod of 4 GPUs", "node-0, has 2", "placement.gpusPerPod"]),
        (
            asked(3, strategy="STRICT_SPREAD"),
            [8, 8],
            ["STRICT_SPREAD needs 3 nodes with a GPU", "there are 2", "node-0 8, node-1 8", "use SPREAD"],
        ),
        (asked(9), [4, 4], ["3 pods (4 + 4 + 1 GPUs) do not fit", "node-0 4, node-1 4"]),
        (asked(3, strategy="SPREAD"), [1, 1], ["3 pods (1 + 1 + 1 GPUs) do not fit"]),
        (asked(8, per_pod=3), [4, 4], ["3 pods (3 + 3 + 2 GPUs) do not fit"]),
        (asked(32, strategy="STRICT_SPREAD"), [1] * 10, ["node-7 1 and 2 more"]),
    ],
)
def test_refusals_say_what_is_asked_what_is_there_and_what_helps(
    spec: VLLMDeploymentSpec, nodes: list[int], words: list[str]
) -> None:
    with pytest.raises(NoSuchGPUsError) as refusal:
        plan_shape(spec, cluster(*nodes))
    for word in words:
        assert word in str(refusal.value)


def test_node_selector_counts() -> None:
    nodes = [*cluster(2, 2, labels={"pool": "small"}), GpuNode(name="big", gpus=8, labels={"pool": "big"})]
    assert groups(plan_shape(asked(4), nodes)) == [("lead", 1, 4)]
    assert groups(plan_shape(asked(4, nodeSelector={"pool": "small"}), nodes)) == [("lead", 1, 2), ("gpu2", 1, 2)]
    with pytest.raises(NoSuchGPUsError, match="no usable node has a GPU"):
        plan_shape(asked(nodeSelector={"pool": "none"}), nodes)


def test_cordoned_nodes_do_not_count() -> None:
    nodes = [GpuNode(name="a", gpus=8, schedulable=False), GpuNode(name="b", gpus=2), GpuNode(name="c", gpus=2)]
    assert groups(plan_shape(asked(4), nodes)) == [("lead", 1, 2), ("gpu2", 1, 2)]


def fits(pods: Sequence[int], nodes: Sequence[int], *, apart: bool) -> bool:
    """Try every way of putting pods on nodes: slow, and without a thought of the planner's."""

    @cache
    def place(left: tuple[int, ...], free: tuple[int, ...]) -> bool:
        if not left:
            return True
        first, rest = left[0], left[1:]
        return any(
            place(rest, tuple(sorted((*free[:index], *(() if apart else (room - first,)), *free[index + 1 :]))))
            for index, room in enumerate(free)
            if room >= first
        )

    return place(tuple(pods), tuple(sorted(nodes)))


specs = st.builds(
    asked,
    tensor=st.integers(1, 6),
    pipeline=st.integers(1, 3),
    strategy=st.sampled_from(["PACK", "SPREAD"]),
    per_pod=st.one_of(st.none(), st.integers(1, 6)),
) | st.builds(
    asked,
    tensor=st.integers(1, 6),
    pipeline=st.integers(1, 2),
    strategy=st.sampled_from(["STRICT_PACK", "STRICT_SPREAD"]),
)
inventories = st.lists(st.integers(0, 8), max_size=5)


@given(specs, inventories)
def test_a_shape_holds_the_world_and_can_exist(spec: VLLMDeploymentSpec, gpus: list[int]) -> None:
    nodes = cluster(*gpus)
    try:
        shape = plan_shape(spec, nodes)
    except NoSuchGPUsError:
        return
    pods = [group.gpus for group in shape.groups for _ in range(group.pods)]
    assert sum(pods) == spec.tensor * spec.pipeline
    assert pods == sorted(pods, reverse=True) == shape.sizes
    assert shape.pods == len(pods)
    assert min(pods) > 0
    assert pods[0] <= max(gpus)
    assert shape.groups[0].name == "lead"
    assert shape.groups[0].pods == 1
    assert len({group.name for group in shape.groups}) == len(shape.groups)
    assert shape == plan_shape(spec, list(reversed(nodes)))
    assert fits(pods, gpus, apart=spec.placement.strategy == "STRICT_SPREAD")


def sizes_asked(spec: VLLMDeploymentSpec, largest: int) -> list[int]:
    """Give the pods by the rule of the documentation, for the oracle."""
    world = spec.tensor * spec.pipeline
    rule = {"STRICT_PACK": world, "SPREAD": 1, "STRICT_SPREAD": 1, "PACK": largest}
    size = spec.placement.gpus_per_pod or rule[spec.placement.strategy]
    pods = [size] * (world // size) if size <= world else []
    return [*pods, *([world - sum(pods)] if sum(pods) < world else [])]


@given(specs, inventories)
def test_what_is_refused_fits_nowhere_and_what_fits_is_not_refused(spec: VLLMDeploymentSpec, gpus: list[int]) -> None:
    there = [count for count in gpus if count]
    possible = bool(there) and fits(
        sizes_asked(spec, max(there)), there, apart=spec.placement.strategy == "STRICT_SPREAD"
    )
    try:
        plan_shape(spec, cluster(*gpus))
    except NoSuchGPUsError:
        assert not possible
    else:
        assert possible
