"""Which rank goes where: pure functions over what Ray's tables say.

vLLM takes rank k's bundle from the k-th entry of ``VLLM_RAY_BUNDLE_INDICES``.  Its broadcast queue takes the first
ranks for the driver's node; any other order hangs at start, without a message.  So the order is made here, and proved
by tests, not left to node ids that Ray draws by chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vllm_bootstrap.contract import EnginePlan, PodGroup

LEAD_GROUP = "lead"
CREATED, PENDING, REMOVED = "CREATED", "PENDING", "REMOVED"


@dataclass(frozen=True, kw_only=True)
class RayNode:
    """An alive Ray node as the GCS lists it."""

    id: str
    address: str
    gpus: float
    cpus: float = 0.0
    lead: bool = False
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class Group:
    """A placement group as Ray's table has it."""

    name: str
    id: str
    state: str
    strategy: str
    bundles: tuple[Mapping[str, float], ...]
    node_of: Mapping[int, str]


@dataclass(frozen=True, kw_only=True)
class RankPlace:
    """One rank and its bundle.

    Attributes
    ----------
    rank
        Of the whole engine: those of data parallel rank 0 first.
    bundle
        Index in the placement group of its data parallel rank.
    local_rank
        Position of the rank among those of its data parallel rank and node; vLLM gives it the GPU of that position.
    driver
        First tensor rank of its stage.
    output
        The rank whose result vLLM takes.
    """

    rank: int
    tp: int
    pp: int
    bundle: int
    node: str
    local_rank: int
    driver: bool
    output: bool
    dp: int = 0


def order_ranks(node_of: Mapping[int, str], *, lead: str, tensor: int, pipeline: int) -> tuple[RankPlace, ...]:
    """Give each rank a bundle.

    The lead's bundles come first (vLLM's start-up hangs otherwise), each node's bundles stay together, and nodes follow
    each other so that as few tensor-parallel groups as possible lie on more than one node.

    Parameters
    ----------
    node_of
        Bundle index → Ray node id.
    lead
        Node of the process that runs the engine.
    tensor, pipeline
        Parallel sizes; there are as many bundles as their product.

    Raises
    ------
    ValueError
        The number of bundles is wrong, or the lead has none.
    """
    world = tensor * pipeline
    if len(node_of) != world:
        raise ValueError(f"{world} ranks need {world} bundles, not {len(node_of)}")
    bundles: dict[str, list[int]] = {}
    for bundle in sorted(node_of):
        bundles.setdefault(node_of[bundle], []).append(bundle)
    if lead not in bundles:
        raise ValueError(f"no bundle lies on the lead node {lead}")
    places: list[RankPlace] = []
    for node in _order_nodes(bundles, lead, tensor):
        for local_rank, bundle in enumerate(bundles[node]):
            places.append(_place(len(places), bundle, node, local_rank, tensor=tensor, world=world))
    return tuple(places)


def place_in_order(nodes: Sequence[str], *, tensor: int, data: int) -> tuple[RankPlace, ...]:
    """Give rank k of a data parallel rank bundle k, where the bundles were made in the order of the ranks.

    Parameters
    ----------
    nodes
        Node of each bundle.
    data
        Number of the data parallel rank.
    """
    return tuple(
        _place(rank, rank, node, list(nodes[:rank]).count(node), tensor=tensor, world=len(nodes), data=data)
        for rank, node in enumerate(nodes)
    )


def changed_nodes(before: Sequence[RayNode], after: Sequence[RayNode]) -> str:
    """Say which GPU nodes went and which came between two looks; empty when none did."""
    old = {node.id: node.address for node in before if node.gpus > 0}
    new = {node.id: node.address for node in after if node.gpus > 0}
    faults = [f"{old[node]} is gone" for node in sorted(old.keys() - new.keys())]
    faults += [f"{new[node]} has joined" for node in sorted(new.keys() - old.keys())]
    return "; ".join(faults)


def seen_nodes(plan: EnginePlan, nodes: Sequence[RayNode]) -> list[RayNode]:
    """Give the nodes as the engine is to see them: all of its own cluster, or its seats of a shared one.

    Of a seat it sees only the GPUs that it is promised; the first seat is the lead.
    """
    if not plan.seats:
        return list(nodes)
    by_address = {node.address: node for node in nodes if node.gpus > 0}
    return [
        replace(by_address[seat.address], gpus=float(seat.gpus), lead=index == 0)
        for index, seat in enumerate(plan.seats)
        if seat.address in by_address
    ]


def missing_seats(plan: EnginePlan, nodes: Sequence[RayNode]) -> str:
    """Say which pods of a shared cluster Ray does not count alive; empty when it has all of the plan's."""
    alive = {node.address for node in nodes}
    gone = [f"{seat.pod} ({seat.address})" for seat in plan.seats if seat.address not in alive]
    return f"Ray has no alive node with GPUs in pod {', '.join(gone)}" if gone else ""


def missing_nodes(groups: Sequence[PodGroup], nodes: Sequence[RayNode]) -> str:
    """Say how the alive GPU nodes differ from the plan's pods; empty when they are exactly those."""
    faults: list[str] = []
    gpu_nodes = [node for node in nodes if node.gpus > 0]
    leads = [node for node in nodes if node.lead]
    wanted_lead = next((group for group in groups if group.name == LEAD_GROUP), None)
    if wanted_lead and [lead.gpus for lead in leads] != [float(wanted_lead.gpus)]:
        offered = ", ".join(f"{node.address} with {node.gpus:g} GPUs" for node in leads) or "none"
        faults.append(f"the lead pod with {wanted_lead.gpus} GPUs is expected, alive: {offered}")
    wanted = Counter({group.gpus: 0 for group in groups})
    for group in groups:
        wanted[group.gpus] += 0 if group is wanted_lead else group.pods
    alive = Counter(int(node.gpus) for node in gpu_nodes if not (wanted_lead and node.lead))
    for gpus in sorted(wanted.keys() | alive.keys()):
        if wanted[gpus] != alive[gpus]:
            names = ", ".join(group.name for group in groups if group.gpus == gpus and group is not wanted_lead)
            label = f" of group {names}" if names else ""
            faults.append(f"{alive[gpus]} of {wanted[gpus]} worker pods with {gpus} GPUs{label} have joined Ray")
    return "; ".join(faults)


def _order_nodes(bundles: Mapping[str, list[int]], lead: str, tensor: int) -> list[str]:
    order, filled = [lead], len(bundles[lead])
    rest = [node for node in bundles if node != lead]
    while rest:
        gap = -filled % tensor
        best = min(rest, key=lambda node: _fit(len(bundles[node]), gap, tensor, bundles[node][0]))
        rest.remove(best)
        order.append(best)
        filled += len(bundles[best])
    return order


def _fit(size: int, gap: int, tensor: int, first_bundle: int) -> tuple[int, int, int]:
    """Rank a node as the next one; ``gap`` ranks are missing in the tensor group that is begun."""
    if size % tensor == gap:
        # It ends on the border of a tensor group: nothing is cut.
        return (0, size if gap else 0, first_bundle)
    if size < gap:
        return (1, -size, first_bundle)
    return (2, -size, first_bundle)


def _place(rank: int, bundle: int, node: str, local_rank: int, *, tensor: int, world: int, data: int = 0) -> RankPlace:
    tp, pp = rank % tensor, rank // tensor
    return RankPlace(
        rank=data * world + rank,
        tp=tp,
        pp=pp,
        bundle=bundle,
        node=node,
        local_rank=local_rank,
        driver=tp == 0,
        output=rank == world - tensor,
        dp=data,
    )
