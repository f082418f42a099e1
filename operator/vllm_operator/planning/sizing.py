"""How much GPU memory a rank needs, and how many tokens its cache then holds.

Formulas: ``v1/kv_cache_interface.py`` (bytes a token), ``v1/worker/gpu_worker.py`` (budget), ``kv_cache_utils.py`` (one
request of full length must fit) of vLLM 0.32.  Weights and cache are computed; what is left over (activations, CUDA
graphs, communication buffers) has no closed form and is a stated margin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from vllm_operator.planning.facts import Layer, LayerKind, ModelFacts
from vllm_operator.planning.inventory import GIB
from vllm_operator.planning.parameters import (
    first_part,
    last_part,
    later_part,
    layer_part,
    layer_split,
    model_bytes,
    part_bytes,
    shares_embedding,
)

BLOCK_TOKENS = 16
"""Tokens of a cache block on a GPU, unless ``--block-size`` says another."""

RUNTIME_BYTES = 0.5 * GIB
"""Margin of a rank for CUDA's context and allocator slack."""

COMMUNICATION_BYTES = 0.5 * GIB
"""Margin of a rank for the buffers of NCCL and custom all-reduce, where there is more than one rank."""

GRAPH_BYTES = 0.5 * GIB
"""Margin of a rank for CUDA graphs."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What the engine is to be able to do.

    Attributes
    ----------
    max_model_len
        Tokens of the longest request, prompt and answer.
    max_num_seqs
        Requests in one step.
    max_num_batched_tokens
        Tokens in one step.
    cache_bytes
        Bytes of a number in the cache; the model's own type when ``None``.
    gpu_memory_utilization
        Share of a GPU's memory that vLLM may use.
    """

    max_model_len: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    cache_bytes: float | None = None
    gpu_memory_utilization: float = 0.92


@dataclass(frozen=True, kw_only=True)
class RankNeed:
    """What one rank needs, in bytes.

    Attributes
    ----------
    weights
        Its part of the model.
    margin
        Activations, CUDA graphs, buffers.
    cache_per_token
        Cache of one token in the layers that keep every token.
    cache_per_request
        Cache that a request takes at most in the layers that keep a window or a state.
    """

    weights: float
    margin: float
    cache_per_token: float
    cache_per_request: float

    def cache(self, tokens: int) -> float:
        """Give the cache of one request of so many tokens."""
        blocks = math.ceil(tokens / BLOCK_TOKENS) + 1  # vLLM keeps one block that holds nothing
        return blocks * BLOCK_TOKENS * self.cache_per_token + self.cache_per_request

    def total(self, tokens: int) -> float:
        """Give all that the rank needs to serve one request of so many tokens."""
        return self.weights + self.margin + self.cache(tokens)

    def cached_tokens(self, budget: float, tokens: int) -> int:
        """Give the tokens that the cache holds, in requests of so many tokens.

        Parameters
        ----------
        budget
            Bytes that vLLM may use on this GPU.
        tokens
            Length of the requests: the share that a window or a state takes depends on it.
        """
        left = budget - self.weights - self.margin
        per_token = self.cache_per_token + self.cache_per_request / max(1, tokens)
        if left <= 0 or per_token <= 0:
            return 0
        return int(left / per_token) // BLOCK_TOKENS * BLOCK_TOKENS


class Sizing:
    """What ranks need, for any pipeline size; made once for a tensor and a data parallel size.

    Layers of a model are of a few sorts, and a stage is a run of them: sums over runs are differences of running sums.
    """

    def __init__(self, facts: ModelFacts, load: Load, tensor: int, data: int = 1) -> None:
        self._facts = facts
        self._load = load
        self._ranks = tensor * data
        self._scale = checkpoint_scale(facts)
        self._margin = _margin(facts, load, tensor)
        token = _token_bytes(facts, load, tensor)
        sorts = {
            layer: replace(
                _layer_cache(facts, layer, tensor, token),
                weights=part_bytes(facts, layer_part(facts, layer, tensor, data)),
            )
            for layer in set(facts.layers)
        }
        self._sums = list(accumulate((sorts[layer] for layer in facts.layers), _Sum.__add__, initial=_Sum()))
        self._first = part_bytes(facts, first_part(facts, tensor))
        self._later = part_bytes(facts, later_part(facts, tensor))
        self._last, self._only = (
            part_bytes(facts, last_part(facts, tensor, shares_embedding=shares_embedding(facts, first=first)))
            for first in (False, True)
        )

    def needs(self, pipeline: int) -> tuple[RankNeed, ...]:
        """Give what a rank of each stage needs; the tensor parallel ranks of a stage need the same."""
        return tuple(self._stages(pipeline))

    def holds(self, pipeline: int, tokens: int, budget: float) -> bool:
        """Say whether every rank has room for one request of so many tokens; most often the first has none."""
        return all(need.total(tokens) <= budget for need in self._stages(pipeline))

    def _stages(self, pipeline: int) -> Iterator[RankNeed]:
        margin = self._margin + (COMMUNICATION_BYTES if self._ranks * pipeline > 1 else 0.0)
        ends = list(accumulate(layer_split(len(self._facts.layers), pipeline), initial=0))
        return (self._need(ends, stage, margin) for stage in range(pipeline))

    def _need(self, ends: Sequence[int], stage: int, margin: float) -> RankNeed:
        pipeline = len(ends) - 1
        first, last = stage == 0, stage == pipeline - 1
        inside = self._sums[ends[stage + 1]] - self._sums[ends[stage]]
        edges = (self._first if first else self._later) + ((self._only if first else self._last) if last else 0.0)
        return RankNeed(
            weights=(inside.weights + edges) * self._scale,
            margin=margin,
            cache_per_token=inside.cache_per_token,
            cache_per_request=inside.cache_per_request
            + inside.cache_in_windows * _held(self._facts, self._load, pipeline),
        )


def _held(facts: ModelFacts, load: Load, pipeline: int) -> int:
    """Give the tokens of a request in a sliding layer: the window, and the steps that are computed at the same time.

    Their blocks are given back only when a step is done; there is one for each stage, and one more where scheduling
    runs ahead.
    """
    return min((facts.window or load.max_model_len) + (pipeline + 1) * load.max_num_batched_tokens, load.max_model_len)


def rank_needs(facts: ModelFacts, load: Load, *, tensor: int, pipeline: int) -> tuple[RankNeed, ...]:
    """Give what a rank of each pipeline stage needs."""
    return Sizing(facts, load, tensor).needs(pipeline)


@dataclass(frozen=True, kw_only=True)
class _Sum:
    weights: float = 0.0
    cache_per_token: float = 0.0
    cache_in_windows: float = 0.0
    cache_per_request: float = 0.0

    def __add__(self, other: _Sum) -> _Sum:
        return _Sum(
            weights=self.weights + other.weights,
            cache_per_token=self.cache_per_token + other.cache_per_token,
            cache_in_windows=self.cache_in_windows + other.cache_in_windows,
            cache_per_request=self.cache_per_request + other.cache_per_request,
        )

    def __sub__(self, other: _Sum) -> _Sum:
        return _Sum(
            weights=self.weights - other.weights,
            cache_per_token=self.cache_per_token - other.cache_per_token,
            cache_in_windows=self.cache_in_windows - other.cache_in_windows,
            cache_per_request=self.cache_per_request - other.cache_per_request,
        )


def _layer_cache(facts: ModelFacts, layer: Layer, tensor: int, token: float) -> _Sum:
    match layer.kind:
        case LayerKind.FULL:
            return _Sum(cache_per_token=token)
        case LayerKind.SLIDING:
            return _Sum(cache_in_windows=token)
        case LayerKind.STATE:
            return _Sum(cache_per_request=facts.state_bytes / tensor)
        case LayerKind.NONE:
            return _Sum()


def checkpoint_scale(facts: ModelFacts) -> float:
    """Give how much larger the checkpoint is than the parts that are known; the rest is spread as they are."""
    if not facts.checkpoint_bytes:
        return 1.0
    return facts.checkpoint_bytes / model_bytes(facts)


def _token_bytes(facts: ModelFacts, load: Load, tensor: int) -> float:
    """Give the cache of one token in one layer."""
    size = load.cache_bytes if load.cache_bytes is not None else facts.precision.base_bytes
    if facts.latent:
        return (facts.latent.kv_rank + facts.latent.rope) * size
    return max(1, facts.kv_heads // tensor) * (facts.head_size + facts.value_size) * size


def _margin(facts: ModelFacts, load: Load, tensor: int) -> float:
    """Give the bytes of a step's activations (16 bits), of its logits (32 bits) and of what no model changes."""
    inner = facts.intermediate
    if facts.experts:
        inner = max(inner, facts.experts.intermediate)
    activations = 2 * load.max_num_batched_tokens * (6 * facts.hidden + 3 * inner / tensor)
    logits = 4 * load.max_num_seqs * facts.vocabulary
    return RUNTIME_BYTES + GRAPH_BYTES + activations + logits
