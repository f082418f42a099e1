"""A model of which only the size is known: plausible layers, said to be guessed.

People state a model by its number of weights and its precision.  From these follow the bytes of its weights exactly
enough; the cache depends on the layers, which dense models of a size have much alike: from 0.1 to 400 billion weights
the hidden size is near 110 times the number of layers, and a layer has near 13 hidden sizes squared of weights (seen
in the Llama, Qwen and Mistral families).
"""

from __future__ import annotations

import re

from vllm_operator.planning.facts import FactsError, Layer, ModelFacts
from vllm_operator.planning.precision import Precision, named_precision

HIDDEN_PER_LAYER = 110
SQUARES_PER_LAYER = 13
HEAD_SIZE = 128
KV_HEADS = 8
VOCABULARY = 128 * 1024
MAX_PARAMETERS = 1e15
"""No model has as many; a planner that believed it would count layers for ever."""

UNQUANTIZED_SHARE = 0.05
"""Of a mixture of experts that is stored in 4 bits this share (attention, shared experts, routers) is not."""

_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def read_count(text: str) -> float:
    """Read a number of weights: ``36B``, ``0.6B``, ``1.5T``, ``134515008``.

    Raises
    ------
    FactsError
        It is no such number.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMBT]?)", text.strip().upper())
    count = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < count <= MAX_PARAMETERS:
        raise FactsError(f"{text!r} is no number of weights that a model has: write 36B, 0.6B or 134515008")
    return count


def estimate(parameters: float, *, active: float = 0.0, precision: str = "bf16", context: int = 8192) -> ModelFacts:
    """Give facts for a model of which only these are known.

    Parameters
    ----------
    parameters
        All weights.
    active
        Weights that a token passes through, when the model is a mixture of experts; its layers are as large as those
        of a dense model of this size.
    precision
        As people write it: ``bf16``, ``fp8``, ``int4`` …

    Raises
    ------
    FactsError
        The precision is not known.
    """
    try:
        stored = named_precision(precision)
    except ValueError as error:
        raise FactsError(str(error)) from error
    hidden = ((active or parameters) * HIDDEN_PER_LAYER / SQUARES_PER_LAYER) ** (1 / 3)
    heads = max(KV_HEADS, round(hidden / HEAD_SIZE / KV_HEADS) * KV_HEADS)
    return ModelFacts(
        architecture="",
        hidden=heads * HEAD_SIZE,
        intermediate=heads * HEAD_SIZE * 7 // 2,
        vocabulary=VOCABULARY,
        heads=heads,
        kv_heads=KV_HEADS,
        head_size=HEAD_SIZE,
        value_size=HEAD_SIZE,
        layers=(Layer(),) * max(1, round(hidden / HIDDEN_PER_LAYER)),
        context=context,
        precision=stored,
        checkpoint_bytes=round(_checkpoint(parameters, hidden, stored, sparse=0 < active < parameters)),
        guessed=("layers, heads and hidden size: from the number of weights",),
    )


def _checkpoint(parameters: float, hidden: float, stored: Precision, *, sparse: bool) -> float:
    """Give the bytes of all weights; embeddings are not quantized, nor is what lies beside experts in 4 bits."""
    kept = min(parameters / 2, 2 * VOCABULARY * hidden) if stored.weight_bytes < stored.base_bytes else 0.0
    if sparse and stored.weight_bytes < 1:
        kept += UNQUANTIZED_SHARE * parameters
    return kept * stored.base_bytes + (parameters - kept) * stored.weight_bytes
