"""Where a model's weights lie: how many each part has, and how many of them a rank holds.

What tensor parallel divides and what it repeats follows vLLM's layers: columns and rows of the big matrices are
divided, key and value heads only down to one a rank, norms, routers and the compressing matrices of latent attention
are repeated.  Pipeline parallel divides layers; the first stage has the input
embedding (in some of vLLM's classes every stage), the last the output head.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from vllm_operator.planning.facts import Latent, Layer, LayerKind, ModelFacts
from vllm_operator.planning.precision import Scope

VOCABULARY_PADDING = 64
"""vLLM pads the vocabulary to a multiple of this (``vocab_parallel_embedding.py``)."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Weights of one kind on one rank.

    Attributes
    ----------
    matrices
        Weights that a quantization of everything reaches.
    experts
        Weights of routed experts.
    rest
        Embeddings, norms, routers, towers.
    """

    matrices: float = 0.0
    experts: float = 0.0
    rest: float = 0.0

    def __add__(self, other: Part) -> Part:
        return Part(
            matrices=self.matrices + other.matrices,
            experts=self.experts + other.experts,
            rest=self.rest + other.rest,
        )

    def times(self, number: int) -> Part:
        """Give so many of it."""
        return Part(matrices=self.matrices * number, experts=self.experts * number, rest=self.rest * number)

    @property
    def count(self) -> float:
        """All weights."""
        return self.matrices + self.experts + self.rest


def layer_split(layers: int, pipeline: int) -> tuple[int, ...]:
    """Give the layers of each stage, as vLLM divides them: the remainder goes to the stages before the last."""
    split = [layers // pipeline] * pipeline
    for index in range(2, layers % pipeline + 2):
        split[-index] += 1
    return tuple(split)


def stage_layers(facts: ModelFacts, pipeline: int, stage: int) -> tuple[Layer, ...]:
    """Give the layers of one stage."""
    split = layer_split(len(facts.layers), pipeline)
    begin = sum(split[:stage])
    return facts.layers[begin : begin + split[stage]]


def rank_part(facts: ModelFacts, *, tensor: int, pipeline: int, stage: int) -> Part:
    """Give the weights of one rank; stages are counted from 0."""
    total = Part()
    for layer, count in Counter(stage_layers(facts, pipeline, stage)).items():
        total += layer_part(facts, layer, tensor).times(count)
    first, last = stage == 0, stage == pipeline - 1
    total += first_part(facts, tensor) if first else later_part(facts, tensor)
    if last:
        total += last_part(facts, tensor, shares_embedding=shares_embedding(facts, first=first))
    return total


def layer_part(facts: ModelFacts, layer: Layer, tensor: int, data: int = 1) -> Part:
    """Give a rank's weights of one layer; data parallel ranks share the routed experts, and repeat the rest."""
    return _mixer(facts, layer, tensor) + _feed_forward(facts, layer, tensor, data) + Part(rest=2.0 * facts.hidden)


def first_part(facts: ModelFacts, tensor: int) -> Part:
    """Give what a rank of the first stage has beside its layers: the input embedding and the towers."""
    return Part(rest=(padded_vocabulary(facts) * facts.hidden + facts.tower_parameters) / tensor)


def later_part(facts: ModelFacts, tensor: int) -> Part:
    """Give what a rank of any stage but the first has beside its layers."""
    return Part(rest=padded_vocabulary(facts) * facts.hidden / tensor if facts.repeats_embedding else 0.0)


def shares_embedding(facts: ModelFacts, *, first: bool) -> bool:
    """Say whether the output head of the last stage, which may be the first, is an embedding that is there anyway."""
    return facts.tied and (first or facts.repeats_embedding)


def last_part(facts: ModelFacts, tensor: int, *, shares_embedding: bool = False) -> Part:
    """Give what a rank of the last stage has beside its layers: the last norm and the output head."""
    head = 0.0 if shares_embedding else padded_vocabulary(facts) * facts.hidden / tensor
    return Part(rest=facts.hidden + head)


def all_parameters(facts: ModelFacts) -> float:
    """Give the number of weights of the whole model."""
    return rank_part(facts, tensor=1, pipeline=1, stage=0).count


def model_bytes(facts: ModelFacts) -> float:
    """Give the bytes of the whole model at its precision, by its parts."""
    return part_bytes(facts, rank_part(facts, tensor=1, pipeline=1, stage=0))


def padded_vocabulary(facts: ModelFacts) -> int:
    """Give the vocabulary as vLLM pads it."""
    return math.ceil(facts.vocabulary / VOCABULARY_PADDING) * VOCABULARY_PADDING


def part_bytes(facts: ModelFacts, part: Part) -> float:
    """Give the bytes of some weights at the model's precision."""
    precision = facts.precision
    matrices = precision.weight_bytes if precision.scope is Scope.ALL else precision.base_bytes
    return part.matrices * matrices + part.experts * precision.weight_bytes + part.rest * precision.base_bytes


def _mixer(facts: ModelFacts, layer: Layer, tensor: int) -> Part:
    if layer.kind is LayerKind.NONE:
        return Part()
    if layer.kind is LayerKind.STATE:
        return Part(matrices=facts.state_parameters / tensor)
    if facts.latent:
        return _latent_mixer(facts, facts.latent, tensor)
    queries = facts.hidden * facts.heads * (facts.head_size + facts.value_size) / tensor
    kv_heads = max(1.0, facts.kv_heads / tensor)
    return Part(matrices=queries + facts.hidden * kv_heads * (facts.head_size + facts.value_size))


def _latent_mixer(facts: ModelFacts, latent: Latent, tensor: int) -> Part:
    queries = facts.heads * (latent.nope + latent.rope) / tensor
    compressed = facts.hidden * latent.q_rank + latent.q_rank * queries if latent.q_rank else facts.hidden * queries
    keys = facts.hidden * (latent.kv_rank + latent.rope)
    values = latent.kv_rank * facts.heads * (latent.nope + facts.value_size) / tensor
    out = facts.heads * facts.value_size * facts.hidden / tensor
    return Part(matrices=compressed + keys + values + out)


def _feed_forward(facts: ModelFacts, layer: Layer, tensor: int, data: int) -> Part:
    matrices = 3 if facts.gated else 2
    if layer.sparse and facts.experts:
        experts = facts.experts
        one = matrices * facts.hidden
        return Part(
            matrices=one * experts.shared_intermediate / tensor,
            experts=one * experts.intermediate * experts.routed / (tensor * data),
            rest=float(facts.hidden * experts.routed),
        )
    return Part(matrices=matrices * facts.hidden * facts.intermediate / tensor) if layer.dense else Part()
