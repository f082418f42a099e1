"""From sizes and strategy to pods, and what is refused because it could never be placed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planning import models

from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.planning.catalogue import BUILT_IN
from vllm_operator.planning.facts import FactsError
from vllm_operator.planning.inventory import GIB, GpuNode
from vllm_operator.planning.plan import GPUsTakenError, NoSuchGPUsError, describe, load_of, plan, stated_facts
from vllm_operator.planning.shapes import Shape

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


def plan_shape(spec: VLLMDeploymentSpec, nodes: Sequence[GpuNode]) -> Shape:
    return plan(spec, nodes, BUILT_IN).shape


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
        (asked(), [], ["no node has a GPU"]),
        (
            asked(6, strategy="STRICT_PACK"),
            [4, 2],
            ["STRICT_PACK of 6 GPUs cannot fit", "node-0, has 4, a pod needs 6", "PACK would fit: 2 pods"],
        ),
        (asked(4, per_pod=4), [2, 2], ["node-0, has 2, a pod needs 4", "PACK without placement.gpusPerPod would fit"]),
        (
            asked(3, strategy="STRICT_SPREAD"),
            [8, 8],
            ["3 nodes are needed, 2 have a GPU (node-0, node-1)", "SPREAD would fit: 3 pods"],
        ),
        (asked(9), [4, 4], ["3 pods (2 x 4 GPUs + 1 x 1 GPU) do not go into node-0 4, node-1 4", "add nodes"]),
        (asked(3, strategy="SPREAD"), [1, 1], ["3 pods (3 x 1 GPU) do not go into"]),
        (asked(8, per_pod=3), [4, 4], ["3 pods (2 x 3 GPUs + 1 x 2 GPUs) do not go into"]),
        (
            asked(32, strategy="STRICT_SPREAD"),
            [1] * 10,
            ["32 nodes are needed, 10 have a GPU (node-0, node-1, node-2, node-3 and 6 more)"],
        ),
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
    with pytest.raises(NoSuchGPUsError, match="3 nodes left out: nodeSelector pool=none does not match"):
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


def shapes_asked(spec: VLLMDeploymentSpec, largest: int) -> list[list[int]]:
    """Give the pods that the rules of the documentation allow, for the oracle."""
    world = spec.tensor * spec.pipeline
    rule = {"STRICT_PACK": [world], "SPREAD": [1], "STRICT_SPREAD": [1], "PACK": range(1, largest + 1)}
    shapes = []
    for size in [spec.placement.gpus_per_pod] if spec.placement.gpus_per_pod else rule[spec.placement.strategy]:
        pods = [size] * (world // size) if size <= world else []
        shapes.append([*pods, *([world - sum(pods)] if sum(pods) < world else [])])
    return shapes


@given(specs, inventories)
def test_what_is_refused_fits_nowhere_and_what_fits_is_not_refused(spec: VLLMDeploymentSpec, gpus: list[int]) -> None:
    there = [count for count in gpus if count]
    apart = spec.placement.strategy == "STRICT_SPREAD"
    possible = bool(there) and any(fits(pods, there, apart=apart) for pods in shapes_asked(spec, max(there)))
    try:
        plan_shape(spec, cluster(*gpus))
    except NoSuchGPUsError:
        assert not possible
    else:
        assert possible


# ---- what the model asks for ---------------------------------------------------------------------------------------

A100, RTX = "NVIDIA-A100-SXM4-80GB", "NVIDIA-GeForce-RTX-3090"
LABEL = "nvidia.com/gpu.product"
MIXED = [
    GpuNode(name="a", gpus=8, product=A100, memory=80 * GIB, labels={LABEL: A100}),
    GpuNode(name="r", gpus=2, product=RTX, memory=24 * GIB, labels={LABEL: RTX}),
]


def of_model(facts: dict[str, Any] | None, **more: Any) -> VLLMDeploymentSpec:
    return VLLMDeploymentSpec.model_validate({"model": {"uri": "file:///m", "facts": facts}, **more})


@pytest.mark.parametrize(
    ("facts", "more", "product", "sizes"),
    [
        ({"parameters": "7B"}, {}, RTX, (1, 1)),
        ({"parameters": "14B"}, {}, RTX, (2, 1)),
        ({"parameters": "70B"}, {}, A100, (2, 1)),
        ({"parameters": "70B", "precision": "int4"}, {}, A100, (1, 1)),
        ({"parameters": "7B"}, {"vllmConfig": {"dtype": "float32"}}, RTX, (2, 1)),
        ({"parameters": "14B"}, {"vllmConfig": {"quantization": "fp8"}}, RTX, (1, 1)),
        ({"parameters": "7B"}, {"accelerators": [{"product": "*A100*"}]}, A100, (1, 1)),
        ({"parameters": "7B"}, {"accelerators": [{"class": "datacenter"}]}, A100, (1, 1)),
        ({"parameters": "7B"}, {"accelerators": [{"memoryGiB": 40}]}, A100, (1, 1)),
        ({"parameters": "7B"}, {"parallelism": {"tensor": 4}}, A100, (4, 1)),
        ({"config": models.LLAMA_70B}, {"vllmConfig": {"maxModelLen": 8192}}, A100, (2, 1)),
        ({"config": models.LLAMA_70B}, {}, A100, (4, 1)),  # one request of 131072 tokens takes 40 GiB
    ],
)
def test_sizes_and_gpus_follow_from_the_model(
    facts: dict[str, Any], more: dict[str, Any], product: str, sizes: tuple[int, int]
) -> None:
    found = plan(of_model(facts, **more), MIXED, BUILT_IN)
    assert (found.chosen.product, (found.shape.tensor, found.shape.pipeline)) == (product, sizes)
    assert found.shape.node_selector == {LABEL: product}


def test_nodes_of_one_product_are_not_selected_by_it() -> None:
    assert plan(of_model(None), MIXED[:1], BUILT_IN).shape.node_selector == {}
    assert plan(of_model(None), [GpuNode(name="a", gpus=1)], BUILT_IN).shape.node_selector == {}


def test_gpus_without_a_product_are_not_mixed_with_others() -> None:
    plain = GpuNode(name="plain", gpus=4)
    chosen = plan(asked(4), [replace(MIXED[0], gpus=2), plain], BUILT_IN).shape
    assert (chosen.node_selector, chosen.without_label) == ({}, LABEL)
    assert plan(asked(4), [plain], BUILT_IN).shape.without_label == ""
    assert plan(of_model(None), MIXED, BUILT_IN).shape.without_label == ""


def test_a_resource_that_has_one_product_selects_by_itself() -> None:
    resource, product = "nvidia.com/mig-1g.10gb", f"{A100}-MIG-1g.10gb"
    label = {f"{resource}.product": product}
    sliced = GpuNode(name="m", gpus=7, product=product, memory=9 * GIB, resource=resource, labels=label)
    shape = plan(of_model({"parameters": "1B"}, accelerators=[{"product": "*MIG*"}]), [*MIXED, sliced], BUILT_IN).shape
    assert (shape.resource, shape.node_selector, shape.sizes) == (resource, {}, [1])
    other = GpuNode(name="h", gpus=7, product="H-MIG-1g.10gb", memory=9 * GIB, resource=resource)
    assert plan(of_model({"parameters": "1B"}), [sliced, other], BUILT_IN).shape.node_selector == label


def test_pods_of_unlike_sizes_are_steered_to_their_nodes() -> None:
    nodes = [GpuNode(name="a", gpus=4, used=1), GpuNode(name="b", gpus=4)]
    shape = plan(asked(1, 6), nodes, BUILT_IN).shape
    assert [(group.gpus, group.nodes) for group in shape.groups] == [(4, ("b",)), (2, ("a",))]
    alike = plan(asked(1, 2, per_pod=1), nodes, BUILT_IN).shape
    assert [group.nodes for group in alike.groups] == [(), ()]


def test_a_cordon_is_waited_for() -> None:
    with pytest.raises(GPUsTakenError, match="node-0: the node is cordoned"):
        plan(asked(4), cluster(4, schedulable=False), BUILT_IN)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"config": {"hidden_size": 1}}, "num_attention_heads"),
        ({"config": {}}, "hidden_size"),
        ({"parameters": "9" * 60 + "T"}, "is no number of weights that a model has"),
    ],
)
def test_facts_that_cannot_be_read(facts: dict[str, Any], words: str) -> None:
    with pytest.raises(FactsError, match=words):
        plan(of_model(facts), MIXED, BUILT_IN)


def test_what_is_planned_for() -> None:
    facts = stated_facts(of_model({"parameters": "7B", "contextLength": 4096, "checkpointBytes": 10**9}))
    assert facts
    assert (facts.context, facts.checkpoint_bytes) == (4096, 10**9)
    given = of_model(None, vllmConfig={"maxNumSeqs": 8, "gpuMemoryUtilization": 0.5, "kvCacheDtype": "fp8"})
    load = load_of(given, facts)
    assert (load.max_model_len, load.max_num_seqs, load.gpu_memory_utilization, load.cache_bytes) == (4096, 8, 0.5, 1)
    assert load_of(of_model(None), None).max_model_len == 8192
    assert stated_facts(of_model(None)) is None


def test_a_plan_in_the_words_of_status() -> None:
    told = describe(plan(of_model({"parameters": "7B"}), MIXED, BUILT_IN))
    assert (told["accelerator"], told["gpus"], told["warning"]) == (RTX, 1, "")
    assert [(item["accelerator"], item["gpus"], item["fits"]) for item in told["candidates"][:3]] == [
        (RTX, 1, True),
        (RTX, 2, True),
        (A100, 1, True),
    ]
    assert told["memory"]["weightsMiB"] == 13351
    assert told["memory"]["cachedTokens"] > 8192
    assert told["memory"]["guessed"] == "layers, heads and hidden size: from the number of weights"


def test_a_number_that_the_status_cannot_hold_is_cut() -> None:
    config = models.LLAMA_8B | {"max_position_embeddings": 2**39}
    spec = of_model({"config": config}, parallelism={"tensor": 1, "pipeline": 1})
    told = describe(plan(spec, MIXED[:1], BUILT_IN))
    assert told["memory"]["maxModelLen"] == 2**31 - 1
    assert "one request of 549755813888 tokens" in told["warning"]
