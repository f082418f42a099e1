"""Data parallel: shown beside what is chosen, never chosen, and planned as the user asks for it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planning import models

from vllm_bootstrap.placing.seating import seat_engines
from vllm_operator.api.placement import Strategy
from vllm_operator.planning.candidate import Candidate
from vllm_operator.planning.catalogue import BUILT_IN
from vllm_operator.planning.choose import choose
from vllm_operator.planning.facts import read_config
from vllm_operator.planning.inventory import GIB, GpuNode
from vllm_operator.planning.proof import Verdict
from vllm_operator.planning.sizing import Load, Sizing
from vllm_operator.planning.wish import Wish

LOAD = Load(max_model_len=8192)
NODES = [GpuNode(name=f"h100-{index}", gpus=8, product="NVIDIA-H100-80GB-HBM3", memory=80 * GIB) for index in range(16)]


def data_parallel(config: dict[str, Any], wish: Wish, nodes: list[GpuNode]) -> list[Candidate]:
    found = choose(wish, read_config(config), LOAD, nodes, BUILT_IN)
    assert found.best is None or found.best.data == 1, "nobody asked for it"
    return [item for item in found.candidates if item.data > 1]


@pytest.mark.parametrize(
    ("config", "wish", "data", "gpus"),
    [
        pytest.param(models.MIXTRAL, Wish(), 2, 2, id="what two GPUs hold"),
        pytest.param(models.DEEPSEEK_V3, Wish(), 16, 16, id="latent attention is repeated, 256 experts are divided"),
        pytest.param(models.DEEPSEEK_V3, Wish(tensor=4), 4, 16, id="inside the tensor size that the user gave"),
    ],
)
def test_the_smallest_layout_is_shown(config: dict[str, Any], wish: Wish, data: int, gpus: int) -> None:
    [shown] = data_parallel(config, wish, NODES)
    assert (shown.data, shown.gpus, shown.pipeline, shown.verdict) == (data, gpus, 1, Verdict.FITS)
    assert "taken only when parallelism.data asks for it" in shown.warning


@pytest.mark.parametrize(
    ("config", "wish", "nodes"),
    [
        pytest.param(models.LLAMA_8B, Wish(), NODES, id="a dense model gains nothing that replicas do not"),
        pytest.param(models.MIXTRAL, Wish(pipeline=2), NODES, id="the user wants pipeline parallel"),
        pytest.param(models.MIXTRAL, Wish(tensor=3), NODES, id="a tensor size that vLLM refuses"),
        pytest.param(models.MIXTRAL, Wish(), [GpuNode(name="a", gpus=8, product="X")], id="memory is not known"),
    ],
)
def test_none_is_shown(config: dict[str, Any], wish: Wish, nodes: list[GpuNode]) -> None:
    assert data_parallel(config, wish, nodes) == []


@pytest.mark.parametrize("config", [models.MIXTRAL, models.DEEPSEEK_V3, models.QWEN3_30B])
def test_data_parallel_divides_experts_and_repeats_the_rest(config: dict[str, Any]) -> None:
    facts = read_config(config)
    weights = {data: Sizing(facts, LOAD, 1, data).needs(1)[0].weights for data in (1, 2, 4)}
    experts = 2 * (weights[1] - weights[2])
    assert weights[4] == pytest.approx(weights[1] - experts * 3 / 4)
    assert 0.8 < experts / weights[1] < 1, "most of these models are experts"


def nodes_of(*gpus: int) -> list[GpuNode]:
    return [GpuNode(name=f"n{index}", gpus=count, product="X") for index, count in enumerate(gpus)]


@pytest.mark.parametrize(
    ("wish", "gpus", "sizes"),
    [
        (Wish(data=2), (1, 1), (1, 1)),
        (Wish(data=2), (4,), (2,)),
        (Wish(tensor=2, data=2), (2, 2), (2, 2)),
        (Wish(tensor=2, data=3), (4, 2), (4, 2)),
        (Wish(tensor=2, data=3, gpus_per_pod=2), (8,), (2, 2, 2)),
        (Wish(tensor=2, pipeline=2, data=2), (6, 6), (4, 4)),
        (Wish(tensor=2, pipeline=2, data=2), (2, 2, 2, 2), (2, 2, 2, 2)),
        (Wish(tensor=2, data=2, strategy=Strategy.STRICT_PACK), (2, 2), (2, 2)),
        (Wish(tensor=2, data=3, strategy=Strategy.STRICT_PACK), (5, 2), (4, 2)),
        (Wish(tensor=2, data=2, strategy=Strategy.STRICT_SPREAD), (1, 1, 1, 1), (1, 1, 1, 1)),
        (Wish(tensor=2, data=2, strategy=Strategy.STRICT_SPREAD), (2, 2), (2, 2)),
        (Wish(tensor=2, data=2, strategy=Strategy.SPREAD), (4,), (1, 1, 1, 1)),
    ],
)
def test_pods_of_what_is_asked_for(wish: Wish, gpus: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    best = choose(wish, None, LOAD, nodes_of(*gpus), BUILT_IN).best
    assert best is not None
    assert (best.verdict, best.sizes, best.data, best.gpus) == (Verdict.FITS, sizes, wish.data, sum(sizes))


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(2, 5),
    st.sampled_from(list(Strategy)),
    st.lists(st.integers(1, 8), min_size=1, max_size=8),
)
def test_what_is_planned_can_be_seated_by_the_ray_side(
    tensor: int, pipeline: int, data: int, strategy: Strategy, gpus: list[int]
) -> None:
    wish = Wish(tensor=tensor, pipeline=pipeline, data=data, strategy=strategy)
    best = choose(wish, None, LOAD, nodes_of(*gpus), BUILT_IN).best
    if best is None:
        return
    pods = {f"pod-{index}": size for index, size in enumerate(best.sizes)}
    sizes = {"data": data, "tensor": tensor, "pipeline": pipeline}
    assert len(seat_engines(pods, lead="pod-0", strategy=strategy, **sizes)) == data


def test_gpus_of_all_data_parallel_ranks_are_needed() -> None:
    found = choose(Wish(tensor=2, data=3), None, LOAD, nodes_of(4, 1), BUILT_IN)
    assert found.best is None
    assert "PACK of 6 GPUs cannot fit" in found.reason


@pytest.mark.parametrize(
    ("config", "wish", "fault"),
    [
        (models.LLAMA_8B, Wish(expert=True, data=2), "parallelism.expert is for a mixture of experts"),
        (models.MIXTRAL, Wish(tensor=1, data=3), "tensor 1 x data 3 does not divide the experts' intermediate size"),
        (models.MIXTRAL, Wish(tensor=2, data=8, expert=True), "tensor 2 x data 8 ranks is more than the 8 experts"),
        (models.QWEN3_30B, Wish(tensor=4, data=5), "use parallelism.expert"),
    ],
)
def test_vllms_rules_come_before_a_gpu_is_held(config: dict[str, Any], wish: Wish, fault: str) -> None:
    found = choose(wish, read_config(config), LOAD, NODES, BUILT_IN)
    assert found.best is None
    assert fault in found.reason


def test_memory_is_that_of_the_data_parallel_size() -> None:
    alone, wide = (
        choose(Wish(tensor=1, pipeline=1, data=data, expert=True), read_config(models.MIXTRAL), LOAD, NODES, BUILT_IN)
        for data in (1, 4)
    )
    assert "the weights of a rank" in alone.reason, "it is not for one GPU"
    assert wide.best is not None
    assert wide.best.need is not None
    assert wide.best.need.weights < 40 * GIB


def test_a_dense_model_is_copied() -> None:
    facts = read_config(models.LLAMA_8B)
    one, two = (choose(Wish(data=data), facts, LOAD, NODES, BUILT_IN).best for data in (1, 2))
    assert one is not None
    assert two is not None
    assert (two.tensor, two.gpus, two.cost) == (one.tensor, 2 * one.gpus, 2 * one.cost)
    assert one.need is not None
    assert two.need is not None
    assert two.need.weights == one.need.weights
