"""Which parallel sizes vLLM accepts for a model: its own rules, said before a GPU is held.

Sources: ``config/model.py`` (heads), ``layers/linear.py`` (key-value heads), ``distributed/utils.py`` (divisions) of
vLLM 0.32.  Most of them are bare assertions there, in a rank, minutes after the start.
"""

from __future__ import annotations

from vllm_operator.planning.facts import ModelFacts

MAX_TENSOR = 1024
"""Of the API."""


def faults(facts: ModelFacts, *, tensor: int, pipeline: int) -> list[str]:
    """Say what vLLM would refuse; empty when nothing.

    Each sentence names the sizes and what would be accepted.
    """
    found = []
    if facts.heads % tensor:
        found.append(
            f"tensor {tensor} does not divide the {facts.heads} attention heads: use one of {divisors(facts.heads)}"
        )
    if not facts.latent and (fault := _kv_fault(facts.kv_heads, tensor)):
        found.append(fault)
    if any(layer.dense and not layer.sparse for layer in facts.layers) and facts.intermediate % tensor:
        found.append(f"tensor {tensor} does not divide the intermediate size {facts.intermediate}")
    if facts.experts and facts.experts.intermediate % tensor:
        found.append(f"tensor {tensor} does not divide the experts' intermediate size {facts.experts.intermediate}")
    if pipeline > len(facts.layers):
        found.append(f"pipeline {pipeline} is more than the {len(facts.layers)} layers")
    return found


def divisors(number: int) -> str:
    """List the divisors of a number that a tensor size may be, for a message."""
    return ", ".join(str(part) for part in range(1, min(number, MAX_TENSOR) + 1) if number % part == 0)


def _kv_fault(kv_heads: int, tensor: int) -> str:
    if tensor < kv_heads and kv_heads % tensor:
        return f"tensor {tensor} does not divide the {kv_heads} key-value heads: use one of {divisors(kv_heads)}"
    if tensor >= kv_heads and tensor % kv_heads:
        return f"tensor {tensor} is no multiple of the {kv_heads} key-value heads, which it would repeat"
    return ""
