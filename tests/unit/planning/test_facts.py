"""What a configuration says of a model, and what it weighs."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planning import models

from vllm_operator.planning.facts import FactsError, LayerKind, read_config
from vllm_operator.planning.parameters import all_parameters, layer_split, part_bytes, rank_part
from vllm_operator.planning.rules import faults


@pytest.mark.parametrize("name", models.PARAMETERS)
def test_weights_are_those_of_the_checkpoint(name: str) -> None:
    config, published = models.PARAMETERS[name]
    assert all_parameters(read_config(config)) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("config", "gigabytes"),
    [
        pytest.param(models.LLAMA_8B, 16.06, id="bf16"),
        pytest.param(models.LLAMA_8B_AWQ, 5.7, id="awq"),
        pytest.param(models.DEEPSEEK_V3, 673.0, id="fp8"),  # without its multi-token-prediction layer
        pytest.param(models.GPT_OSS_120B, 65.2, id="mxfp4 experts"),
    ],
)
def test_bytes_are_those_of_the_checkpoint(config: models.Config, gigabytes: float) -> None:
    facts = read_config(config)
    part = rank_part(facts, tensor=1, pipeline=1, stage=0)
    assert part_bytes(facts, part) / 1e9 == pytest.approx(gigabytes, rel=0.03)


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        (models.LLAMA_8B, {LayerKind.FULL: 32}),
        (models.GPT_OSS_120B, {LayerKind.SLIDING: 18, LayerKind.FULL: 18}),
        (models.GEMMA3_27B, {LayerKind.SLIDING: 52, LayerKind.FULL: 10}),
        (models.QWEN3_NEXT, {LayerKind.STATE: 36, LayerKind.FULL: 12}),
        (models.QWEN3_30B | {"sliding_window": 4096}, {LayerKind.FULL: 48}),  # use_sliding_window is false
        (models.LLAMA_8B | {"sliding_window": 4096}, {LayerKind.SLIDING: 32}),
    ],
)
def test_kinds_of_layers(config: models.Config, kinds: dict[LayerKind, int]) -> None:
    layers = read_config(config).layers
    assert {kind: sum(layer.kind is kind for layer in layers) for kind in kinds} == kinds
    assert sum(kinds.values()) == len(layers)


def test_dense_layers_of_a_mixture() -> None:
    layers = read_config(models.DEEPSEEK_V3).layers
    assert [layer.sparse for layer in layers] == [False] * 3 + [True] * 58
    every_second = read_config(models.QWEN3_30B | {"decoder_sparse_step": 2, "mlp_only_layers": [3]}).layers
    assert [layer.sparse for layer in every_second[:6]] == [False, True, False, False, False, True]


def test_nemotron_pattern() -> None:
    facts = read_config(models.LLAMA_8B | {"hybrid_override_pattern": "M-M*E", "n_routed_experts": 4})
    assert [layer.kind for layer in facts.layers] == [
        LayerKind.STATE,
        LayerKind.NONE,
        LayerKind.STATE,
        LayerKind.FULL,
        LayerKind.NONE,
    ]
    assert [layer.sparse for layer in facts.layers] == [False, False, False, False, True]


@pytest.mark.parametrize("missing", ["hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size"])
@pytest.mark.parametrize("value", [None, 0, -1, "many", True, float("inf")])
def test_what_must_be_there(missing: str, value: object) -> None:
    with pytest.raises(FactsError, match=missing):
        read_config(models.LLAMA_8B | {missing: value})


def test_what_was_guessed_is_said() -> None:
    config = {key: models.LLAMA_8B[key] for key in models.LLAMA_8B if key != "max_position_embeddings"}
    facts = read_config(config)
    assert facts.guessed == ("context length: 8192",)
    assert facts.context == 8192


@pytest.mark.parametrize(
    ("layers", "pipeline", "split"),
    [
        (30, 2, (15, 15)),
        (61, 2, (31, 30)),
        (61, 4, (15, 15, 16, 15)),
        (62, 4, (15, 16, 16, 15)),
        (63, 4, (16, 16, 16, 15)),
        (3, 3, (1, 1, 1)),
    ],
)
def test_layers_of_the_stages(layers: int, pipeline: int, split: tuple[int, ...]) -> None:
    assert layer_split(layers, pipeline) == split


@given(
    name=st.sampled_from(sorted(models.PARAMETERS)),
    tensor=st.sampled_from([1, 2, 4, 8]),
    pipeline=st.integers(1, 8),
)
def test_ranks_together_hold_the_model_and_nothing_less(name: str, tensor: int, pipeline: int) -> None:
    facts = read_config(models.PARAMETERS[name][0])
    total = all_parameters(facts)
    held = sum(
        tensor * rank_part(facts, tensor=tensor, pipeline=pipeline, stage=stage).count for stage in range(pipeline)
    )
    assert held >= total * 0.999999
    # Repeated are norms, routers, towers, key-value heads beyond one a rank, and a tied embedding of two stages.
    held -= (pipeline - 1) * facts.vocabulary * facts.hidden if facts.repeats_embedding else 0
    assert held <= total * (1.35 if name == "SmolLM2 135M" else 1.15)


KEYS = sorted(
    set().union(*(config for config, _ in models.PARAMETERS.values()), models.GEMMA3_27B["text_config"])
    | {"layers_block_type", "hybrid_override_pattern", "mlp_only_layers", "moe_layers", "multi_query", "head_dim"}
    | {"sliding_window_pattern", "attn_layer_period", "attn_layer_offset", "expert_layer_offset", "mamba_d_state"}
)
QUANTIZATION = ["quant_method", "quant_algo", "bits", "w_bit", "group_size", "load_in_4bit", "config_groups", "weights"]
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 300),
    st.integers(),
    st.floats(),
    st.sampled_from(["", "x", "fp8", "M*-E"]),
)
junk = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*QUANTIZATION, "num_bits", "type", "depth", "mlp_ratio"]), inner, max_size=4)
    ),
    max_leaves=6,
)


@given(
    base=st.sampled_from([config for config, _ in models.PARAMETERS.values()]),
    changes=st.dictionaries(st.sampled_from(KEYS), junk, max_size=4),
    quantization=st.none() | st.dictionaries(st.sampled_from(QUANTIZATION), junk, max_size=4),
    tower=st.none() | st.dictionaries(st.sampled_from(["depth", "hidden_size", "mlp_ratio"]), junk, max_size=3),
)
def test_any_configuration_is_read_or_refused(
    base: models.Config, changes: dict[str, Any], quantization: dict[str, Any] | None, tower: dict[str, Any] | None
) -> None:
    more = {"quantization_config": quantization, "vision_config": tower}
    with contextlib.suppress(FactsError):
        facts = read_config({**base, **changes, **{key: value for key, value in more.items() if value is not None}})
        assert 0 < all_parameters(facts) < float("inf")
        assert 0 < facts.precision.weight_bytes <= 8


def test_a_model_of_a_million_layers_is_none() -> None:
    with pytest.raises(FactsError, match="1000000 layers"):
        read_config(models.LLAMA_8B | {"num_hidden_layers": 1_000_000})


def test_a_refusal_of_nonsensical_heads_does_not_count_for_ever() -> None:
    facts = read_config(models.LLAMA_8B | {"num_attention_heads": 2**39 - 1, "head_dim": 128})
    assert faults(facts, tensor=2, pipeline=1)[0].startswith(
        "tensor 2 does not divide the 549755813887 attention heads"
    )
