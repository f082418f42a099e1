"""Every way to place an engine, tried one after the other: slow, and with nothing in common with the planner's search.

Shared with the planner is only what a rank needs (``rank_needs``), which has tests of its own; vLLM's rules, the nodes
that count, the cutting into pods and the seating are written again, as the documentation says them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from vllm_operator.planning.facts import ModelFacts
from vllm_operator.planning.inventory import GpuNode
from vllm_operator.planning.proof import Verdict
from vllm_operator.planning.sizing import Load, rank_needs
from vllm_operator.planning.wish import Wish

PASSING = "node.kubernetes.io/not-ready"
"""The taint of these tests that goes away by itself."""


def possible(sizes: Sequence[int], free: Sequence[int], *, apart: bool) -> bool:
    """Say whether pods of these sizes go on nodes with so many free GPUs, on one node each if ``apart``."""
    return _possible(tuple(sorted(sizes, reverse=True)), tuple(sorted(free)), apart)


@cache
def _possible(sizes: tuple[int, ...], free: tuple[int, ...], apart: bool) -> bool:
    if not sizes:
        return True
    size, rest = sizes[0], sizes[1:]
    for index, gpus in enumerate(free):
        if gpus >= size:
            left = (*free[:index], *(() if apart else (gpus - size,)), *free[index + 1 :])
            if _possible(rest, tuple(sorted(left)), apart):
                return True
    return False


@cache
def partitions(world: int, largest: int) -> tuple[tuple[int, ...], ...]:
    """Give every way to cut a number of GPUs into pods."""
    if not world:
        return ((),)
    return tuple((size, *rest) for size in range(min(world, largest), 0, -1) for rest in partitions(world - size, size))


def cuts(world: int, strategy: str, gpus_per_pod: int | None) -> tuple[tuple[int, ...], ...]:
    """Give the pods that a strategy allows; PACK alone leaves their sizes open."""
    if gpus_per_pod:
        full, rest = divmod(world, gpus_per_pod)
        return ((gpus_per_pod,) * full + ((rest,) if rest else ()),)
    return {
        "PACK": partitions(world, world),
        "STRICT_PACK": ((world,),),
        "SPREAD": ((1,) * world,),
        "STRICT_SPREAD": ((1,) * world,),
    }[strategy]


def verdict(wish: Wish, facts: ModelFacts | None, load: Load, nodes: Sequence[GpuNode]) -> Verdict:
    """Give the best verdict that any accelerator and any sizes have.

    Parameters
    ----------
    nodes
        Those of one product have GPUs of one memory, which is known; accelerators are wished for by their exact name.
        Taints are ``PASSING`` or last, and their tolerations name the key.
    """
    found = Verdict.NEVER
    for product in {node.product for node in nodes}:
        if wish.accelerators and product not in [item.product for item in wish.accelerators]:
            continue
        fleet = [node for node in nodes if node.product == product and _lasting(node, wish)]
        free = [node.free for node in fleet if node.schedulable and not _repelled(node, wish)]
        whole = [node.gpus for node in fleet]
        for tensor, pipeline in _sizes(wish, facts, sum(whole)):
            if facts and not _holds(wish, facts, load, fleet[0].memory, (tensor, pipeline)):
                continue
            apart = wish.strategy == "STRICT_SPREAD"
            pods = cuts(tensor * pipeline, wish.strategy, wish.gpus_per_pod)
            if any(possible(sizes, free, apart=apart) for sizes in pods):
                return Verdict.FITS
            if any(possible(sizes, whole, apart=apart) for sizes in pods):
                found = Verdict.NOT_NOW
    return found


def _sizes(wish: Wish, facts: ModelFacts | None, gpus: int) -> Iterator[tuple[int, int]]:
    open_tensor, open_pipeline = (range(1, gpus + 1), range(1, len(facts.layers) + 1)) if facts else ((1,), (1,))
    for tensor in [wish.tensor] if wish.tensor else open_tensor:
        for pipeline in [wish.pipeline] if wish.pipeline else open_pipeline:
            if tensor * pipeline <= gpus:
                yield tensor, pipeline


def _holds(wish: Wish, facts: ModelFacts, load: Load, memory: int, sizes: tuple[int, int]) -> bool:
    tensor, pipeline = sizes
    if not _accepted(facts, tensor, pipeline):
        return False
    needs = rank_needs(facts, load, tensor=tensor, pipeline=pipeline)
    if wish.tensor and wish.pipeline:  # the user's sizes: what is estimated only warns
        return all(need.weights <= memory for need in needs)
    room = memory * load.gpu_memory_utilization
    return all(need.total(load.max_model_len) <= room for need in needs)


def _accepted(facts: ModelFacts, tensor: int, pipeline: int) -> bool:
    """Say whether vLLM takes these sizes: equal shares of everything, or key-value heads repeated equally often."""
    shares = [facts.heads / tensor]
    if not facts.latent:
        shares.append(max(facts.kv_heads, tensor) / min(facts.kv_heads, tensor))
    if any(layer.dense and not layer.sparse for layer in facts.layers):
        shares.append(facts.intermediate / tensor)
    if facts.experts:
        shares.append(facts.experts.intermediate / tensor)
    return all(share.is_integer() for share in shares) and pipeline <= len(facts.layers)


def _lasting(node: GpuNode, wish: Wish) -> bool:
    """Say whether nobody has to change a node or the CR for pods to go there some time."""
    selected = all(node.labels.get(key) == value for key, value in wish.pod_rules.node_selector.items())
    tolerated = [item["key"] for item in wish.pod_rules.tolerations]
    last = [taint for taint in node.taints if taint.key not in (PASSING, *tolerated)]
    return node.gpus > 0 and selected and all(taint.effect == "PreferNoSchedule" for taint in last)


def _repelled(node: GpuNode, wish: Wish) -> bool:
    return any(taint.key == PASSING for taint in node.taints)
