"""Which GPUs, and how many: candidates with a verdict each, and the one that is taken.

What the user said is never overruled: explicit sizes are checked, and only what was left out is chosen.  Of what fits,
the user's order of accelerators comes first, then the cost; so a small model leaves the large GPUs alone.  Tensor
parallel stays inside a node where it can, pipeline parallel goes over nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from vllm_operator.planning import rules
from vllm_operator.planning.candidate import Candidate, Choice
from vllm_operator.planning.catalogue import Catalogue
from vllm_operator.planning.facts import ModelFacts
from vllm_operator.planning.fleet import Fleet, find_fleets
from vllm_operator.planning.inventory import GIB, GpuNode
from vllm_operator.planning.layout import place
from vllm_operator.planning.proof import Verdict
from vllm_operator.planning.sizing import Load, Sizing
from vllm_operator.planning.wish import Wish

MAX_PIPELINE = 64
MAX_DATA = 64


def choose(wish: Wish, facts: ModelFacts | None, load: Load, nodes: Iterable[GpuNode], catalogue: Catalogue) -> Choice:
    """Give every way to place an engine that is worth looking at.

    Parameters
    ----------
    facts
        ``None`` when nothing is known of the model: then sizes that were left out are 1.
    """
    # An API server's list has no order that one may rely on.
    there = tuple(sorted(nodes, key=lambda node: node.name))
    fleets = find_fleets(wish, load, there, catalogue)
    found = [candidate for fleet in fleets for candidate in _of_fleet(wish, facts, load, fleet)]
    products = sorted({node.product for node in there if node.gpus > 0})
    if products and not found:
        found = [_none(wish, load, [fleet.product for fleet in fleets], products)]
    return Choice(candidates=tuple(sorted(found, key=lambda item: item.rank)))


def _of_fleet(wish: Wish, facts: ModelFacts | None, load: Load, fleet: Fleet) -> list[Candidate]:
    if facts is None:
        return [place(wish, fleet, wish.tensor or 1, wish.pipeline or 1)]
    tensors = _tensors(wish, facts, fleet)
    longest = 1 if fleet.is_part else min(MAX_PIPELINE, len(facts.layers))
    # Pipeline parallel is for what one node cannot hold: only with as much tensor parallel as there can be.
    found = [
        *_sized(wish, facts, load, fleet, tensors[:-1], longest=1),
        *_sized(wish, facts, load, fleet, tensors[-1:], longest=longest),
    ]
    whole = any(item.verdict is Verdict.FITS and not item.is_torn for item in found)
    if not whole and not wish.tensor and not fleet.is_part:
        found += _last_resorts(wish, facts, load, fleet, tensors[:-1], known=found)
    return found + _data_parallel(wish, facts, load, fleet)


def _last_resorts(
    wish: Wish,
    facts: ModelFacts,
    load: Load,
    fleet: Fleet,
    smaller: Sequence[int],
    *,
    known: Sequence[Candidate],
) -> list[Candidate]:
    """Give what is tried when nothing better has seats: pipelines of smaller tensor groups, and groups over nodes."""
    longest = min(MAX_PIPELINE, len(facts.layers))
    # What is more than what is free could only be waited for, and something to wait for is known already.
    waits = any(item.verdict is not Verdict.NEVER for item in known)
    reach = min(rules.MAX_TENSOR, fleet.seating.free if waits else fleet.seating.gpus)
    found = _sized(wish, facts, load, fleet, [size for size in smaller if size <= reach], longest=longest)
    if not any(item.verdict is Verdict.FITS for item in (*known, *found)):
        wider = _accepted(wish, facts, range(fleet.seating.largest + 1, reach + 1))
        found += _sized(wish, facts, load, fleet, wider, longest=longest)
    told = {(item.tensor, item.pipeline) for item in known}
    return [item for item in found if item.verdict is not Verdict.NEVER and (item.tensor, item.pipeline) not in told]


def _sized(
    wish: Wish, facts: ModelFacts, load: Load, fleet: Fleet, tensors: Sequence[int], *, longest: int
) -> list[Candidate]:
    """Give the candidate of each tensor size, with the smallest pipeline size that has room for the model."""
    candidates = []
    for tensor in tensors:
        sizing = Sizing(facts, load, tensor, wish.data)
        pipeline = wish.pipeline or _pipeline(sizing, load, fleet, longest)
        if pipeline:
            placed = place(wish, fleet, tensor, pipeline)
            candidates.append(_judge(placed, facts, sizing, load, fleet, wish=wish))
    return candidates


def _data_parallel(wish: Wish, facts: ModelFacts, load: Load, fleet: Fleet) -> list[Candidate]:
    """Give the smallest data parallel layout of a mixture of experts: attention is repeated, experts are divided."""
    if not facts.experts or wish.data > 1 or wish.pipeline not in (None, 1) or not fleet.memory or fleet.is_part:
        return []
    tensor = wish.tensor or 1
    if rules.faults(facts, tensor=tensor, pipeline=1, expert=wish.expert):
        return []
    for data in range(2, MAX_DATA // tensor + 1):
        asked = replace(wish, data=data)
        divided = facts.experts.routed if wish.expert else facts.experts.intermediate
        if divided % (tensor * data):
            continue
        sizing = Sizing(facts, load, tensor, data)
        told = _judge(place(asked, fleet, tensor, 1), facts, sizing, load, fleet, wish=replace(asked, pipeline=None))
        if told.need and told.need.total(load.max_model_len) <= fleet.budget:
            return [replace(told, is_hint=True).warned("taken only when parallelism.data asks for it")]
    return []


def _tensors(wish: Wish, facts: ModelFacts, fleet: Fleet) -> list[int]:
    if wish.tensor:
        return [wish.tensor]
    largest = 1 if fleet.is_part else fleet.seating.largest
    return _accepted(wish, facts, range(1, largest + 1)) or [1]


def _accepted(wish: Wish, facts: ModelFacts, tensors: Iterable[int]) -> list[int]:
    sizes = [size for size in tensors if facts.heads % size == 0]
    return [
        size for size in sizes if not rules.faults(facts, tensor=size, pipeline=1, data=wish.data, expert=wish.expert)
    ]


def _pipeline(sizing: Sizing, load: Load, fleet: Fleet, longest: int) -> int:
    """Give the smallest pipeline size with which every rank has room, 0 when there is none."""
    if not fleet.memory:
        return 1
    held = (size for size in range(1, longest + 1) if sizing.holds(size, load.max_model_len, fleet.budget))
    return next(held, 0)


def _judge(
    candidate: Candidate, facts: ModelFacts, sizing: Sizing, load: Load, fleet: Fleet, *, wish: Wish
) -> Candidate:
    """Hold a candidate against the model: vLLM's rules, and the memory of the neediest rank.

    A cache that is too small only warns where all sizes are the user's: part of the figure is an estimate.
    """
    sizes = {"tensor": candidate.tensor, "pipeline": candidate.pipeline, "data": candidate.data}
    if faults := rules.faults(facts, **sizes, expert=wish.expert):
        return replace(candidate, verdict=Verdict.NEVER, reason="; ".join(faults), seats=())
    needs = sizing.needs(candidate.pipeline)
    need = max(needs, key=lambda item: item.total(load.max_model_len))
    memory, budget = fleet.memory, fleet.budget
    tokens = min(item.cached_tokens(budget, load.max_model_len) for item in needs)
    judged = replace(candidate, need=need, cached_tokens=tokens)
    if not memory:
        return judged.warned(f"the memory of {candidate.product or 'these GPUs'} is not known")
    if (weights := max(item.weights for item in needs)) > memory:
        told = f"the weights of a rank ({weights / GIB:.1f} GiB) are more than a GPU has ({memory / GIB:.0f} GiB)"
        return replace(judged, verdict=Verdict.NEVER, reason=told, seats=())
    if need.total(load.max_model_len) > budget:
        told = (
            f"a rank needs {need.total(load.max_model_len) / GIB:.1f} GiB for one request of {load.max_model_len} "
            f"tokens, vLLM may use {budget / GIB:.1f} GiB"
        )
        return (
            judged.warned(told) if wish.is_explicit else replace(judged, verdict=Verdict.NEVER, reason=told, seats=())
        )
    return judged


def _none(wish: Wish, load: Load, wanted: Sequence[str], there: Sequence[str]) -> Candidate:
    named = ", ".join(product or "GPUs without a product label" for product in wanted or there)
    if wanted:
        reason = f"no number of GPUs of a kind holds the model with one request of {load.max_model_len} tokens: {named}"
    else:
        reason = f"no node has one of the accelerators that are asked for; there are {named}"
    tensor, pipeline = wish.tensor or 1, wish.pipeline or 1
    return Candidate(
        product="",
        tensor=tensor,
        pipeline=pipeline,
        data=wish.data,
        sizes=(),
        verdict=Verdict.NEVER,
        reason=reason,
    )
