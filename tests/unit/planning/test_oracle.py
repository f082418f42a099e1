"""What is planned, beside every way to place an engine: for all strategies, sizes given or left out, any nodes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.planning import models, oracle, worlds
from tests.unit.planning.test_inventory_file import load

from vllm_operator.api.placement import Strategy
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.planning.catalogue import BUILT_IN
from vllm_operator.planning.choose import choose
from vllm_operator.planning.facts import read_config
from vllm_operator.planning.inventory import GIB, GpuNode
from vllm_operator.planning.plan import GPUsTakenError, NoSuchGPUsError, Survey, plan, survey, wish_of
from vllm_operator.planning.proof import Verdict
from vllm_operator.planning.sizing import Load
from vllm_operator.planning.wish import Wish

Nodes = Sequence[GpuNode]
RANK = {Verdict.NEVER: 0, Verdict.NOT_NOW: 1, Verdict.FITS: 2}


def look(spec: VLLMDeploymentSpec, nodes: Nodes) -> Survey:
    return survey(spec, nodes, BUILT_IN)


def rank(spec: VLLMDeploymentSpec, nodes: Nodes) -> int:
    return RANK[look(spec, nodes).choice.verdict]


@settings(max_examples=1000)
@given(worlds.specs, worlds.fleets)
def test_the_oracle_agrees(spec: VLLMDeploymentSpec, nodes: tuple[GpuNode, ...]) -> None:
    seen = look(spec, nodes)
    assert seen.choice.verdict is oracle.verdict(wish_of(spec), seen.facts, seen.load, nodes), seen.choice.reason


@settings(max_examples=300)
@given(worlds.specs, worlds.fleets)
def test_a_plan_exceeds_no_node_and_tears_no_tensor_group_silently(
    spec: VLLMDeploymentSpec, nodes: tuple[GpuNode, ...]
) -> None:
    if look(spec, nodes).choice.verdict is not Verdict.FITS:
        with pytest.raises((NoSuchGPUsError, GPUsTakenError), match=r"\w+ \w+"):
            plan(spec, nodes, BUILT_IN)
        return
    planned = plan(spec, nodes, BUILT_IN)
    chosen, shape = planned.chosen, planned.shape
    there = {node.name: node for node in nodes}
    held: Counter[str] = Counter()
    for gpus, seat in zip(chosen.sizes, chosen.seats, strict=True):
        held[seat] += gpus
        assert there[seat].product == chosen.product
        assert there[seat].schedulable
    assert all(gpus <= there[name].free for name, gpus in held.items())
    assert shape.tensor * shape.pipeline == sum(shape.sizes) == sum(chosen.sizes)
    if spec.placement.strategy is Strategy.STRICT_SPREAD:
        assert len(held) == len(chosen.seats)
    # Ranks go to pods in order: a pod that holds no whole groups shares one with the next pod.
    torn = any(size % shape.tensor for size in chosen.sizes)
    assert torn is ("lies in more than one pod" in chosen.warning)


@settings(max_examples=300)
@given(worlds.specs, worlds.fleets, st.randoms(use_true_random=False))
def test_the_order_of_nodes_changes_nothing(
    spec: VLLMDeploymentSpec, nodes: tuple[GpuNode, ...], chance: random.Random
) -> None:
    shuffled = list(nodes)
    chance.shuffle(shuffled)
    assert look(spec, nodes) == look(spec, nodes) == look(spec, shuffled)


def freed(nodes: Nodes, index: int) -> list[GpuNode]:
    return [replace(node, used=0) if place == index else node for place, node in enumerate(nodes)]


def uncordoned(nodes: Nodes, index: int) -> list[GpuNode]:
    return [replace(node, schedulable=True) if place == index else node for place, node in enumerate(nodes)]


def untainted(nodes: Nodes, index: int) -> list[GpuNode]:
    return [replace(node, taints=()) if place == index else node for place, node in enumerate(nodes)]


def grown(nodes: Nodes, index: int) -> list[GpuNode]:
    """Add a free node like one that is there, with another number of GPUs."""
    if not nodes:
        return []
    like = nodes[index % len(nodes)]
    return [*nodes, replace(like, name="more", gpus=1 + index * 2, used=0, taints=(), schedulable=True)]


@pytest.mark.parametrize("better", [freed, uncordoned, untainted, grown])
@settings(max_examples=200)
@given(spec=worlds.specs, nodes=worlds.fleets, index=st.integers(0, 4))
def test_what_is_better_for_all_is_worse_for_none(
    better: Callable[[Nodes, int], list[GpuNode]],
    spec: VLLMDeploymentSpec,
    nodes: tuple[GpuNode, ...],
    index: int,
) -> None:
    assert rank(spec, better(nodes, index)) >= rank(spec, nodes)


@pytest.mark.parametrize("name", ["Llama 3.1 70B", "Qwen3 235B A22B", "DeepSeek V3", "gpt-oss 120B"])
@pytest.mark.parametrize("strategy", Strategy)
def test_nor_for_real_models_on_whole_inventories(name: str, strategy: Strategy) -> None:
    spec = VLLMDeploymentSpec.model_validate(
        {
            "model": {"uri": "file:///m", "facts": {"config": models.PARAMETERS[name][0]}},
            "placement": {"strategy": strategy},
            "vllmConfig": {"maxModelLen": 8192},
        }
    )
    for nodes in map(load, ("mixed", "four-plus-four", "one-machine", "h100-pods")):
        for better, index in product((freed, uncordoned, untainted, grown), (0, len(nodes) - 1)):
            assert rank(spec, better(nodes, index)) >= rank(spec, nodes), better


# ---- what the oracle found -----------------------------------------------------------------------------------------

LLAMA_70B = read_config(models.LLAMA_70B)


def boxes(count: int, gpus: int, gib: int) -> list[GpuNode]:
    return [
        GpuNode(name=f"n{index}", gpus=gpus, product=worlds.PRODUCTS[0], memory=gib * GIB) for index in range(count)
    ]


@pytest.mark.parametrize(
    ("wish", "nodes", "sizes", "pods"),
    [
        pytest.param(
            Wish(strategy=Strategy.STRICT_SPREAD), boxes(6, 8, 32), (1, 6), (1,) * 6, id="a GPU of each node is enough"
        ),
        pytest.param(Wish(gpus_per_pod=4), boxes(2, 4, 80), (2, 1), (2,), id="one node is enough"),
        pytest.param(
            Wish(),
            [*boxes(1, 1, 48), replace(boxes(1, 8, 48)[0], name="held", used=4)],
            (4, 1),
            (4,),
            id="what is left of a node is enough",
        ),
        pytest.param(Wish(pipeline=1), boxes(3, 2, 48), (4, 1), (2, 2), id="no pipeline is wanted, no node is enough"),
        pytest.param(
            Wish(pipeline=1, strategy=Strategy.SPREAD), boxes(8, 1, 48), (4, 1), (1,) * 4, id="tensor over nodes"
        ),
    ],
)
def test_sizes_are_found_wherever_there_are_any(
    wish: Wish, nodes: list[GpuNode], sizes: tuple[int, int], pods: tuple[int, ...]
) -> None:
    load = Load(max_model_len=8192)
    best = choose(wish, LLAMA_70B, load, nodes, BUILT_IN).best
    assert best
    assert (best.verdict, (best.tensor, best.pipeline), best.sizes) == (Verdict.FITS, sizes, pods)
    assert oracle.verdict(wish, LLAMA_70B, load, nodes) is Verdict.FITS
