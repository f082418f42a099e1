"""Data parallel layouts of mixtures of experts: shown beside what is chosen, with their own sizes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.planning import models

from vllm_operator.planning.catalogue import BUILT_IN
from vllm_operator.planning.choose import Candidate, Wish, choose
from vllm_operator.planning.facts import read_config
from vllm_operator.planning.inventory import GIB, GpuNode
from vllm_operator.planning.proof import Verdict
from vllm_operator.planning.sizing import Load, Sizing

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
