"""What a model is made of, read out of its ``config.json``: layers, heads, experts, caches, bytes a weight.

Configurations name the same thing in many ways (``n_layer``, ``num_layers``, ``num_hidden_layers``) and leave out what
equals their class's default.  All of that ends here: the rest of the planner sees one form, and a list of what had to
be guessed.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_operator.planning.precision import Precision, read_dtype, read_precision


class FactsError(ValueError):
    """The configuration does not say what the planner must know; the message names it."""


class LayerKind(enum.StrEnum):
    """What a layer keeps of a token.

    FULL keeps keys and values of every token, SLIDING of the last ``window``, STATE (mamba, linear attention) a state
    of fixed size, NONE nothing.
    """

    FULL = "full"
    SLIDING = "sliding"
    STATE = "state"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer.

    Attributes
    ----------
    sparse
        Its feed-forward part is a mixture of experts.
    dense
        It has a feed-forward part at all when it is not sparse.
    """

    kind: LayerKind = LayerKind.FULL
    sparse: bool = False
    dense: bool = True


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture of experts.

    Attributes
    ----------
    routed
        Experts of a sparse layer, of which the router chooses some for each token.
    intermediate
        Intermediate size of one routed expert.
    shared_intermediate
        Intermediate size of all shared experts together; 0 when there is none.
    """

    routed: int
    intermediate: int
    shared_intermediate: int = 0


@dataclass(frozen=True, kw_only=True)
class Latent:
    """Multi-head latent attention: one compressed vector a token in the place of keys and values.

    Attributes
    ----------
    kv_rank, rope
        Sizes of the compressed vector and of the rotary part; the cache holds both, and tensor parallel does not
        divide them.
    q_rank
        Size of the compressed query, 0 when queries are not compressed.
    nope
        Size of a query head without the rotary part.
    """

    kv_rank: int
    rope: int
    q_rank: int
    nope: int


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """A model as the planner sees it.

    Attributes
    ----------
    hidden, intermediate, vocabulary
        Sizes of the residual stream, of the dense feed-forward part and of the vocabulary.
    heads, kv_heads
        Query heads and key-value heads of a layer.
    head_size, value_size
        Size of a key (or query) head and of a value head.
    gated
        The feed-forward part has three matrices, not two.
    tied
        Input and output embedding are one tensor.
    repeats_embedding
        vLLM's class keeps the input embedding on every pipeline stage, not on the first alone.
    window
        Tokens that a SLIDING layer keeps.
    state_bytes
        Bytes that a STATE layer keeps for each request.
    state_parameters
        Weights of the mixer of a STATE layer.
    tower_parameters
        Weights of vision and audio towers; vLLM keeps them at the precision of the checkpoint, in the first stage.
    context
        Longest sequence that the model was made for.
    precision
        How the weights are stored.
    checkpoint_bytes
        Size of all weights by the checkpoint's own index, 0 when it is not known.
    guessed
        What the configuration did not say, and what was assumed.
    """

    architecture: str
    hidden: int
    intermediate: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_size: int
    value_size: int
    layers: tuple[Layer, ...]
    gated: bool = True
    tied: bool = False
    repeats_embedding: bool = False
    experts: Experts | None = None
    latent: Latent | None = None
    window: int = 0
    state_bytes: int = 0
    state_parameters: int = 0
    tower_parameters: int = 0
    context: int = 0
    precision: Precision = field(default_factory=Precision)
    checkpoint_bytes: int = 0
    guessed: tuple[str, ...] = ()


def read_config(config: Mapping[str, Any], *, checkpoint_bytes: int = 0) -> ModelFacts:
    """Read a ``config.json``.

    Parameters
    ----------
    config
        Its content.
    checkpoint_bytes
        ``metadata.total_size`` of ``model.safetensors.index.json``, 0 when there is none.

    Raises
    ------
    FactsError
        Number of layers, hidden size, heads or vocabulary are missing, or are no positive numbers.
    """
    return _Reader(config).read(checkpoint_bytes)


MAX_SIZE = 2**40
MAX_RATIO = 64
MAX_LAYERS = 1024
"""No model has as many; a planner that believed a nonsensical file would count them for ever."""

_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")
_TOWER_PARTS = ("vision_config", "vision_tower_config", "audio_config", "audio_encoder_config", "speech_config")
_TIED_BY_DEFAULT = ("Gemma", "GPT2", "Cohere", "Falcon", "Bloom", "OPT", "GPTBigCode", "MPT")
_REPEATS_EMBEDDING = (
    *(
        "Bloom",
        "Cohere",
        "Dbrx",
        "Falcon",
        "Gemma",
        "GPT2",
        "GPTJ",
        "GptOss",
        "GraniteMoe",
        "InternLM2",
        "Jamba",
        "Lfm2",
    ),
    *(
        "Mamba",
        "Mixtral",
        "Molmo",
        "NemotronH",
        "Olmoe",
        "OlmoHybrid",
        "OPT",
        "Orion",
        "PhiMoE",
        "Qwen2Moe",
        "Qwen3Moe",
    ),
    *("Qwen3Next", "Qwen3VLMoe", "Qwen3_5", "StableLm"),
)
"""Architectures of vLLM 0.32 whose ``__init__`` makes the embedding without asking for the first stage."""

_UNGATED = ("GPT2", "GPTNeoX", "GPTJ", "OPT", "Bloom", "Falcon", "GPTBigCode", "MPT", "Phi", "Starcoder2", "Nemotron")
_GATED_AFTER_ALL = ("Phi3", "PhiMoE", "Phi4")

_KINDS = {
    "full_attention": LayerKind.FULL,
    "attention": LayerKind.FULL,
    "global": LayerKind.FULL,
    "hybrid": LayerKind.FULL,
    "sliding_attention": LayerKind.SLIDING,
    "local": LayerKind.SLIDING,
    "chunked_attention": LayerKind.SLIDING,
    "linear_attention": LayerKind.STATE,
    "mamba": LayerKind.STATE,
    "mamba2": LayerKind.STATE,
    "recurrent": LayerKind.STATE,
    "conv": LayerKind.STATE,
    "moe": LayerKind.NONE,
    "mlp": LayerKind.NONE,
}
_PATTERN = {"M": LayerKind.STATE, "*": LayerKind.FULL, "-": LayerKind.NONE, "E": LayerKind.NONE}


class _Reader:
    """Reads one configuration; collects what it has to guess."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._whole = config
        self._text = _text_part(config)
        self._architecture = _first_name(config) or _first_name(self._text)
        self._guessed: list[str] = []

    def read(self, checkpoint_bytes: int) -> ModelFacts:
        hidden = self._need("hidden_size", "n_embd", "d_model", "dim", "hidden_dim")
        heads = self._need("num_attention_heads", "n_head", "n_heads")
        latent = self._latent()
        head_size = (
            latent.nope + latent.rope if latent else self._size("head_dim", "attention_head_dim") or hidden // heads
        )
        layers = self._layers()
        return ModelFacts(
            architecture=self._architecture,
            hidden=hidden,
            intermediate=self._intermediate(hidden),
            vocabulary=self._need("vocab_size", "padded_vocab_size"),
            heads=heads,
            kv_heads=self._kv_heads(heads),
            head_size=head_size,
            value_size=(self._size("v_head_dim") or head_size) if latent else head_size,
            layers=layers,
            gated=not self._is_one_of(_UNGATED) or self._is_one_of(_GATED_AFTER_ALL),
            tied=self._tied(),
            repeats_embedding=self._is_one_of(_REPEATS_EMBEDDING),
            experts=self._experts() if any(layer.sparse for layer in layers) else None,
            latent=latent,
            window=self._size(
                "sliding_window", "sliding_window_size", "attention_chunk_size", "local_attention_window"
            ),
            **self._state(hidden) if any(layer.kind is LayerKind.STATE for layer in layers) else {},
            tower_parameters=sum(tower_parameters(part) for part in self._towers()),
            context=self._context(),
            precision=read_precision(self._quantization(), read_dtype(self._whole, self._text)),
            checkpoint_bytes=checkpoint_bytes,
            guessed=tuple(self._guessed),
        )

    # Numbers.

    def _size(self, *names: str) -> int:
        """Give the first of some fields that holds a positive number; 0 when none does."""
        return next((size for name in names if (size := positive(self._text.get(name)))), 0)

    def _need(self, *names: str) -> int:
        found = self._size(*names)
        if not found:
            raise FactsError(f"config.json has no positive {names[0]} (nor {', '.join(names[1:])})")
        return found

    def _is_one_of(self, prefixes: Sequence[str]) -> bool:
        return self._architecture.startswith(tuple(prefixes))

    def _intermediate(self, hidden: int) -> int:
        found = self._size("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "d_ff")
        if not found:
            self._guessed.append("intermediate_size: 4 x hidden_size")
        return found or 4 * hidden

    def _kv_heads(self, heads: int) -> int:
        if self._text.get("multi_query") is True and not self._text.get("new_decoder_architecture"):
            return 1
        return self._size("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num") or heads

    def _context(self) -> int:
        found = self._size(
            "max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "max_seq_len", "n_ctx"
        )
        if not found:
            self._guessed.append("context length: 8192")
        return found or 8192

    def _tied(self) -> bool:
        for part in (self._text, self._whole):
            if isinstance(part.get("tie_word_embeddings"), bool):
                return bool(part["tie_word_embeddings"])
        return self._is_one_of(_TIED_BY_DEFAULT)

    # Layers.

    def _layers(self) -> tuple[Layer, ...]:
        pattern = self._text.get("hybrid_override_pattern")
        if isinstance(pattern, str) and 0 < len(pattern) <= MAX_LAYERS:
            return tuple(
                Layer(kind=_PATTERN.get(sign, LayerKind.FULL), sparse=sign == "E", dense=sign == "-")
                for sign in pattern
            )
        count = self._need("num_hidden_layers", "n_layer", "n_layers", "num_layers")
        if count > MAX_LAYERS:
            raise FactsError(f"config.json says {count} layers, more than any model has ({MAX_LAYERS})")
        kinds, sparse = self._kinds(count), self._sparse(count)
        return tuple(Layer(kind=kind, sparse=is_sparse) for kind, is_sparse in zip(kinds, sparse, strict=True))

    def _kinds(self, count: int) -> list[LayerKind]:
        named = self._text.get("layer_types") or self._text.get("layers_block_type") or ()
        if isinstance(named, list) and len(named) == count:
            return [_KINDS.get(str(name), LayerKind.FULL) for name in named]
        kind = self._repeated_kind()
        if kind is LayerKind.FULL:
            return [LayerKind.FULL] * count
        interval, offset = self._full_every(kind)
        return [LayerKind.FULL if interval and index % interval == offset else kind for index in range(count)]

    def _repeated_kind(self) -> LayerKind:
        """Give the kind of the layers that are not FULL."""
        if self._size("full_attention_interval", "attn_layer_period") or self._is_one_of(("Mamba", "FalconMamba")):
            return LayerKind.STATE
        slides = self._size("sliding_window") and self._text.get("use_sliding_window") is not False
        return LayerKind.SLIDING if slides else LayerKind.FULL

    def _full_every(self, kind: LayerKind) -> tuple[int, int]:
        """Say that every so many layers one is FULL, and which; 0 when none is."""
        if kind is LayerKind.STATE:
            interval = self._size("full_attention_interval", "attn_layer_period")
        else:
            interval = self._size("sliding_window_pattern", "_sliding_window_pattern")
            interval = interval or (2 if self._is_one_of(("Gemma2",)) else 0)
        return interval, self._size("attn_layer_offset") if self._size("attn_layer_period") else interval - 1

    def _sparse(self, count: int) -> list[bool]:
        if not self._routed():
            return [False] * count
        first = self._size("first_k_dense_replace")
        step = (
            self._size("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq", "expert_layer_period") or 1
        )
        offset = self._size("expert_layer_offset") if "expert_layer_offset" in self._text else step - 1
        dense = set(_whole_numbers(self._text.get("mlp_only_layers")))
        listed = set(_whole_numbers(self._text.get("moe_layers")))
        freq = self._text.get("moe_layer_freq")
        if isinstance(freq, list) and len(freq) == count:
            return [bool(entry) for entry in freq]
        if listed:
            return [index in listed for index in range(count)]
        return [index >= first and index not in dense and index % step == offset % step for index in range(count)]

    # Experts, latent attention, states.

    def _routed(self) -> int:
        return self._size("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")

    def _experts(self) -> Experts:
        intermediate = self._size("moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size")
        intermediate = intermediate or self._need("intermediate_size", "ffn_hidden_size")
        shared = self._size("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
        if not shared:
            shared = self._size("n_shared_experts", "num_shared_experts", "num_shared_expert") * intermediate
        if not shared and self._is_one_of(("Llama4",)):
            shared = intermediate
        return Experts(routed=self._routed(), intermediate=intermediate, shared_intermediate=shared)

    def _latent(self) -> Latent | None:
        rank = self._size("kv_lora_rank")
        if not rank:
            return None
        return Latent(
            kv_rank=rank,
            rope=self._need("qk_rope_head_dim"),
            q_rank=self._size("q_lora_rank"),
            nope=self._need("qk_nope_head_dim"),
        )

    def _state(self, hidden: int) -> dict[str, int]:
        """Give bytes a request and weights of a STATE layer: gated delta net, or mamba in its two forms.

        The recurrent state is kept in float32, the convolution's last inputs in 16 bits.
        """
        if value_heads := self._size("linear_num_value_heads"):
            key_heads = self._size("linear_num_key_heads") or value_heads
            key, value = self._need("linear_key_head_dim"), self._need("linear_value_head_dim")
            channels = 2 * key_heads * key + value_heads * value
            state = value_heads * key * value
            weights = hidden * (channels + 2 * value_heads * value)
            kernel = self._size("linear_conv_kernel_dim") or 4
        else:
            inner = self._size("mamba_intermediate_size", "mamba_d_ssm") or self._mamba_inner(hidden)
            depth = self._size("mamba_d_state", "ssm_state_size", "state_size") or 128
            groups = self._size("mamba_n_groups", "n_groups") or 1
            channels, state = inner + 2 * groups * depth, inner * depth
            weights = hidden * (2 * inner + 2 * groups * depth) + inner * hidden
            kernel = self._size("mamba_d_conv", "conv_kernel", "conv_L_cache") or 4
        return {"state_bytes": 4 * state + 2 * channels * (kernel - 1), "state_parameters": weights}

    def _mamba_inner(self, hidden: int) -> int:
        heads, size = self._size("mamba_num_heads", "mamba_n_heads"), self._size("mamba_head_dim", "mamba_d_head")
        return heads * size or (self._size("mamba_expand", "expand") or 2) * hidden

    # The rest.

    def _towers(self) -> list[Mapping[str, Any]]:
        parts = (self._whole.get(name) for name in _TOWER_PARTS)
        return [part for part in parts if isinstance(part, Mapping)]

    def _quantization(self) -> Mapping[str, Any] | None:
        for part in (self._whole, self._text):
            for name in ("quantization_config", "compression_config"):
                if isinstance(part.get(name), Mapping):
                    return dict(part[name])
        return None


def positive(value: object) -> int:
    """Give a size out of a file: a whole number above 0, and 0 for all that is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0
    return int(value) if 0 < value < MAX_SIZE else 0


def tower_parameters(config: Mapping[str, Any]) -> int:
    """Estimate the weights of a vision or audio tower: attention and a two-matrix feed-forward part in each layer."""

    def size(*names: str) -> int:
        return next((found for name in names if (found := positive(config.get(name)))), 0)

    layers = size("num_hidden_layers", "depth", "num_layers", "encoder_layers", "n_layer")
    hidden = size("hidden_size", "embed_dim", "d_model", "width", "n_embd")
    ratio = config.get("mlp_ratio")
    wider = hidden * ratio if isinstance(ratio, int | float) and 0 < ratio < MAX_RATIO else 4 * hidden
    inner = size("intermediate_size", "encoder_ffn_dim", "mlp_dim") or int(wider)
    return layers * (4 * hidden * hidden + 2 * hidden * inner)


def _first_name(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Find the language model's part; the omni models nest it twice."""
    for name in _TEXT_PARTS:
        if isinstance(config.get(name), Mapping):
            return _text_part(config[name])
    return config


def _whole_numbers(value: object) -> Iterable[int]:
    return (item for item in value if isinstance(item, int)) if isinstance(value, list) else ()
