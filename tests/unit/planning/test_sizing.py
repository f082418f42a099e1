"""What a rank needs, by running sums over layers, beside the same counted layer by layer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.planning import models, worlds

from vllm_operator.planning.estimate import estimate
from vllm_operator.planning.facts import LayerKind, ModelFacts, read_config
from vllm_operator.planning.parameters import layer_split, model_bytes, part_bytes, rank_part, stage_layers
from vllm_operator.planning.sizing import Load, RankNeed, rank_needs

LOAD = Load(max_model_len=8192, max_num_batched_tokens=2048)


def counted(facts: ModelFacts, load: Load, *, tensor: int, pipeline: int, stage: int) -> tuple[float, float, float]:
    """Give weights, cache of a token and cache of a request of a rank, without sums that are shared by stages."""
    part = part_bytes(facts, rank_part(facts, tensor=tensor, pipeline=pipeline, stage=stage))
    scale = facts.checkpoint_bytes / model_bytes(facts) if facts.checkpoint_bytes else 1
    size = load.cache_bytes or facts.precision.base_bytes
    heads = max(1, facts.kv_heads // tensor)
    token = heads * (facts.head_size + facts.value_size) * size
    if facts.latent:
        token = (facts.latent.kv_rank + facts.latent.rope) * size
    held = min(facts.window + (pipeline + 1) * load.max_num_batched_tokens, load.max_model_len)
    each_token = each_request = 0.0
    for layer in stage_layers(facts, pipeline, stage):
        if layer.kind is LayerKind.FULL:
            each_token += token
        elif layer.kind is LayerKind.SLIDING:
            each_request += token * held
        elif layer.kind is LayerKind.STATE:
            each_request += facts.state_bytes / tensor
    return part * scale, each_token, each_request


def told(need: RankNeed) -> tuple[float, float, float]:
    return need.weights, need.cache_per_token, need.cache_per_request


def agree(facts: ModelFacts, load: Load, tensor: int, pipeline: int) -> None:
    needs = rank_needs(facts, load, tensor=tensor, pipeline=pipeline)
    assert len(needs) == pipeline == len(layer_split(len(facts.layers), pipeline))
    for stage, need in enumerate(needs):
        assert told(need) == pytest.approx(
            counted(facts, load, tensor=tensor, pipeline=pipeline, stage=stage), rel=1e-9, abs=1
        )


@pytest.mark.parametrize("name", models.PARAMETERS)
@pytest.mark.parametrize("tensor", [1, 2, 8])
def test_running_sums_are_those_of_the_layers(name: str, tensor: int) -> None:
    facts = read_config(models.PARAMETERS[name][0], checkpoint_bytes=10**11)
    for pipeline in range(1, min(13, len(facts.layers)) + 1):
        agree(facts, LOAD, tensor, pipeline)


@settings(max_examples=200)
@given(
    facts=worlds.configs.map(read_config) | st.floats(1e8, 1e12).map(estimate),
    cache=st.sampled_from([None, 1.0, 2.0]),
    tensor=st.integers(1, 16),
    pipeline=st.integers(1, 12),
)
def test_also_for_models_that_nobody_made(facts: ModelFacts, cache: float | None, tensor: int, pipeline: int) -> None:
    load = Load(max_model_len=4096, max_num_batched_tokens=512, cache_bytes=cache)
    agree(facts, load, tensor, min(pipeline, len(facts.layers)))


@pytest.mark.parametrize(
    ("name", "held"),
    [
        # Embeddings and heads of the first, a middle and the last of four stages.
        pytest.param("Llama 3.1 8B", (1, 0, 1), id="a head of its own"),
        pytest.param("SmolLM2 135M", (1, 0, 1), id="tied: the last stage has a copy"),
        pytest.param("Qwen3 30B A3B", (1, 1, 2), id="an embedding on every stage, and a head"),
        pytest.param("Gemma 3 27B", (1, 1, 1), id="an embedding on every stage, which is the head"),
    ],
)
def test_stages_that_hold_the_vocabulary(name: str, held: tuple[int, int, int]) -> None:
    facts = replace(read_config(models.PARAMETERS[name][0]), tower_parameters=0)
    facts = replace(facts, layers=facts.layers[:1] * 4)
    stages = [rank_part(facts, tensor=1, pipeline=4, stage=stage).rest for stage in (0, 1, 3)]
    vocabulary = facts.vocabulary * facts.hidden
    assert tuple(int(part / vocabulary + 0.01) for part in stages) == held
