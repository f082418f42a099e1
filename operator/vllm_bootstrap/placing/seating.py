"""On which node each rank of a data parallel engine will sit, decided before anything is asked of Ray.

vLLM gives one list of bundle indices to all data parallel ranks.  So the bundles of each must be made in the order of
its ranks, and for that their nodes must be known beforehand.  What comes out is what vLLM calls ``strict`` (as many
data parallel ranks on each node), ``fill`` (as many as fit) or ``span`` (one over several nodes); it follows from the
pods, and nobody has to say it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vllm_bootstrap.placing.placement import order_ranks

Seats = tuple[tuple[str, ...], ...]
"""For each data parallel rank the node of each of its ranks."""


def seat_engines(gpus: Mapping[str, int], *, lead: str, data: int, tensor: int, pipeline: int, strategy: str) -> Seats:
    """Give the node of each rank, for each data parallel rank.

    The first rank of all sits on the lead.  Data parallel ranks that begin on the lead come first, and those that begin
    on one node follow each other.  The strategy holds for each of them by itself.

    Parameters
    ----------
    gpus
        Ray node id → GPUs that the engine may have there; nodes earlier in it are taken first.
    lead
        Node of the process that runs the HTTP server.
    data, tensor, pipeline
        Parallel sizes.
    strategy
        PACK, STRICT_PACK, SPREAD or STRICT_SPREAD.

    Raises
    ------
    ValueError
        It cannot be done; the message says what is short.
    """
    world = tensor * pipeline
    if gpus.get(lead, 0) < 1:
        raise ValueError("the lead node has no GPU, and the first rank must be there")
    if sum(gpus.values()) < data * world:
        raise ValueError(f"{data} x {world} ranks need {data * world} GPUs, the nodes have {sum(gpus.values())}")
    free = Counter({lead: gpus[lead], **gpus})  # the lead first
    if strategy.endswith("SPREAD"):
        shares = _spread(free, lead, data, world, strict=strategy == "STRICT_SPREAD")
    else:
        shares = _pack(free, lead, data, world, tensor, strict=strategy == "STRICT_PACK")
    position = {node: index for index, node in enumerate(free)}
    ordered = sorted(shares, key=lambda share: position[_head(share, lead)])
    return tuple(_order(share, _head(share, lead), tensor, pipeline) for share in ordered)


def number_on_nodes(heads: Sequence[str]) -> tuple[int, ...]:
    """Give each data parallel rank its number among those that begin on the same node, from 0.

    Parameters
    ----------
    heads
        Node of the first rank of each.
    """
    return tuple(heads[:index].count(head) for index, head in enumerate(heads))


def _pack(free: Counter[str], lead: str, data: int, world: int, tensor: int, *, strict: bool) -> list[Counter[str]]:
    """Seat whole data parallel ranks first, then those that need several nodes from what is left."""
    reserved = 1 if free[lead] < world else 0  # one begins on the lead, and goes on elsewhere
    shares: list[Counter[str]] = []
    for node in free:
        while free[node] >= world and len(shares) < data - reserved:
            free[node] -= world
            shares.append(Counter({node: world}))
    if strict and len(shares) < data:
        raise ValueError(
            f"STRICT_PACK: {data} data parallel ranks of {world} GPUs, each in one pod, the first in the lead pod; "
            f"the pods have room for {len(shares)} of them"
        )
    if reserved:
        shares.append(_gather(free, world, tensor, first=lead))
    while len(shares) < data:
        shares.append(_gather(free, world, tensor))
    return shares


def _gather(free: Counter[str], world: int, tensor: int, *, first: str = "") -> Counter[str]:
    """Collect the seats of one data parallel rank from as few nodes as possible, whole tensor groups before parts."""
    share: Counter[str] = Counter()
    while (need := world - share.total()) > 0:
        node = first if first and not share else _next_node(free, need, tensor)
        whole = free[node] - free[node] % tensor
        taken = min(need, whole or free[node])
        free[node] -= taken
        share[node] += taken
    return share


def _next_node(free: Counter[str], need: int, tensor: int) -> str:
    enough = [node for node in free if free[node] >= need]
    if enough:
        return min(enough, key=lambda node: free[node])
    return max(free, key=lambda node: (free[node] // tensor, free[node]))


def _spread(free: Counter[str], lead: str, data: int, world: int, *, strict: bool) -> list[Counter[str]]:
    """Seat each data parallel rank on as many nodes as possible, always on those with the most GPUs left."""
    shares = []
    for index in range(data):
        share: Counter[str] = Counter()
        while share.total() < world:
            node = lead if index == 0 and not share else _roomiest(free, share)
            if strict and share[node]:
                raise ValueError(
                    f"STRICT_SPREAD: {data} data parallel ranks of {world} GPUs, each GPU of one in a pod of its own; "
                    f"for rank {index} only {len(share)} pods have a GPU left"
                )
            free[node] -= 1
            share[node] += 1
        shares.append(share)
    return shares


def _roomiest(free: Counter[str], share: Counter[str]) -> str:
    return min((node for node in free if free[node]), key=lambda node: (share[node], -free[node]))


def _head(share: Counter[str], lead: str) -> str:
    """Find the node of a data parallel rank's first rank: the lead where it has a part of it, else the largest part."""
    return lead if share[lead] else max((node for node in share if share[node]), key=lambda node: share[node])


def _order(share: Counter[str], head: str, tensor: int, pipeline: int) -> tuple[str, ...]:
    nodes: Sequence[str] = sorted(share.elements())
    places = order_ranks(dict(enumerate(nodes)), lead=head, tensor=tensor, pipeline=pipeline)
    return tuple(place.node for place in places)
