"""Which parallel sizes vLLM accepts for a model: its own rules, said before a GPU is held.

Sources: ``config/model.py`` (heads), ``layers/linear.py`` (key-value heads), ``distributed/utils.py`` (divisions) of
vLLM 0.32.  Most of them are bare assertions there, in a rank, minutes after the start.
"""

from __future__ import annotations

from vllm_operator.planning.facts import ModelFacts

MAX_TENSOR = 1024
"""Of the API."""


def faults(facts: ModelFacts, *, tensor: int, pipeline: int, data: int = 1, expert: bool = False) -> list[str]:
    """Say what vLLM would refuse; empty when nothing.

    Each sentence names the sizes and what would be accepted.

    Parameters
    ----------
    expert
        Experts are divided as wholes.
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
    found += _expert_faults(facts, tensor, data) if expert else _slice_faults(facts, tensor, data)
    if pipeline > len(facts.layers):
        found.append(f"pipeline {pipeline} is more than the {len(facts.layers)} layers")
    return found


def _expert_faults(facts: ModelFacts, tensor: int, data: int) -> list[str]:
    if not facts.experts:
        return ["parallelism.expert is for a mixture of experts, and the model has none: leave it out"]
    if tensor * data > facts.experts.routed:
        return [
            f"expert parallel over tensor {tensor} x data {data} ranks is more than the {facts.experts.routed} experts"
        ]
    return []


def _slice_faults(facts: ModelFacts, tensor: int, data: int) -> list[str]:
    """Say why each expert cannot be cut into as many slices as there are ranks."""
    if not facts.experts or facts.experts.intermediate % (tensor * data) == 0:
        return []
    size = facts.experts.intermediate
    if data == 1:
        return [f"tensor {tensor} does not divide the experts' intermediate size {size}"]
    remedy = "use parallelism.expert" if size % tensor == 0 else "use other sizes"
    return [f"tensor {tensor} x data {data} does not divide the experts' intermediate size {size}: {remedy}"]


def divisors(number: int) -> str:
    """List the divisors of a number that a tensor size may be, for a message."""
    return ", ".join(str(part) for part in range(1, min(number, MAX_TENSOR) + 1) if number % part == 0)


def _kv_fault(kv_heads: int, tensor: int) -> str:
    if tensor < kv_heads and kv_heads % tensor:
        return f"tensor {tensor} does not divide the {kv_heads} key-value heads: use one of {divisors(kv_heads)}"
    if tensor >= kv_heads and tensor % kv_heads:
        return f"tensor {tensor} is no multiple of the {kv_heads} key-value heads, which it would repeat"
    return ""
