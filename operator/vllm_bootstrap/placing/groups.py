"""The placement groups that an engine asks Ray for, and whether those that are there will do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from vllm_bootstrap.contract import EnginePlan
from vllm_bootstrap.launching.order import Placed
from vllm_bootstrap.placing.placement import CREATED, PENDING, Group, RankPlace, RayNode, order_ranks, place_in_order
from vllm_bootstrap.placing.seating import Seats, number_on_nodes, seat_engines

CONTROL_BUNDLE: Mapping[str, float] = {"CPU": 1.0}
"""Of vLLM's engine core actor; it asks for one CPU to be placed."""


@dataclass(frozen=True, kw_only=True)
class GroupRequest:
    """A placement group as it is to be made.

    Attributes
    ----------
    bundles
        Those of the ranks first; where the group is pinned, in the order of the ranks.
    nodes
        Ray node id of each bundle; empty where Ray chooses.
    """

    name: str
    strategy: str
    bundles: tuple[Mapping[str, float], ...]
    nodes: tuple[str, ...] = ()

    @property
    def is_pinned(self) -> bool:
        """Whether each bundle has been given its node."""
        return bool(self.nodes)


def group_requests(plan: EnginePlan, nodes: Sequence[RayNode]) -> tuple[GroupRequest, ...]:
    """Give the placement groups of a plan, one for each data parallel rank.

    Ray may choose the nodes of an only group in the engine's own cluster.

    Raises
    ------
    ValueError
        The nodes cannot hold them.
    """
    if plan.data == 1 and not plan.seats:
        bundles = (plan.bundle,) * plan.world_size
        return (GroupRequest(name=plan.placement_group, strategy=plan.strategy, bundles=bundles),)
    ordered = sorted((node for node in nodes if node.gpus > 0), key=lambda node: (-node.gpus, node.address))
    seats = seat_engines(
        {node.id: int(node.gpus) for node in ordered},
        lead=next(node.id for node in nodes if node.lead),
        data=plan.data,
        tensor=plan.tensor,
        pipeline=plan.pipeline,
        strategy=plan.strategy,
    )
    # An engine core that is an actor of its own is there with data parallel only.
    cores = 1 if plan.data > 1 else 0
    if cores:
        _check_control_bundles(seats, nodes)
    return tuple(
        # vLLM's engine core must be where its rank 0 is: it is the node whose ranks it reaches by shared memory.
        GroupRequest(
            name=name,
            # A control bundle beside rank 0 is against Ray's STRICT_SPREAD; the nodes are spread already.
            strategy=plan.strategy.removeprefix("STRICT_") if plan.strategy == "STRICT_SPREAD" else plan.strategy,
            bundles=(plan.bundle,) * plan.world_size + (CONTROL_BUNDLE,) * cores,
            nodes=(*ranks, *ranks[:cores]),
        )
        for name, ranks in zip(plan.placement_groups, seats, strict=True)
    )


def is_of_engine(plan: EnginePlan, name: str) -> bool:
    """Tell the placement groups of an engine, whatever its sizes were, from those of others."""
    stem = plan.placement_group.removesuffix("-dp0")
    return name == plan.placement_group or re.fullmatch(rf"{re.escape(stem)}-dp\d+", name) is not None


def unfit(request: GroupRequest, group: Group, nodes: Sequence[RayNode]) -> str:
    """Say why an existing placement group is not what is asked for; empty when it is."""
    if group.state not in (CREATED, PENDING):
        return f"it is {group.state}"
    if group.strategy != request.strategy:
        return f"its strategy is {group.strategy}, not {request.strategy}"
    if [dict(bundle) for bundle in group.bundles] != [dict(bundle) for bundle in request.bundles]:
        return "its bundles are others"
    return _misplaced(request, group, {node.id for node in nodes})


def _misplaced(request: GroupRequest, group: Group, alive: Set[str]) -> str:
    lost = sorted(set(group.node_of.values()) - alive)
    if lost:
        return f"its nodes {', '.join(lost)} are gone"
    if request.is_pinned and group.state == PENDING:
        return "it is not placed, and where it is pinned to is not known"
    astray = [str(bundle) for bundle, node in enumerate(request.nodes) if group.node_of.get(bundle) != node]
    return f"its bundles {', '.join(astray)} are on other nodes" if astray else ""


def place_ranks(
    plan: EnginePlan, requests: Sequence[GroupRequest], groups: Sequence[Group], lead: str
) -> tuple[RankPlace, ...]:
    """Give each rank a bundle: those of the first data parallel rank first.

    Raises
    ------
    ValueError
        The engine could not start so.
    """
    places: list[RankPlace] = []
    for data, (request, group) in enumerate(zip(requests, groups, strict=True)):
        if request.is_pinned:
            if fault := _misplaced(request, group, set(group.node_of.values())):
                raise ValueError(f"placement group {group.name}: {fault}")
            places += place_in_order(request.nodes[: plan.world_size], tensor=plan.tensor, data=data)
        else:
            places += order_ranks(group.node_of, lead=lead, tensor=plan.tensor, pipeline=plan.pipeline)
    if places[0].node != lead:
        raise ValueError(f"the first rank is not on the lead node {lead}")
    return tuple(places)


def describe_placed(groups: Sequence[Group], ranks: Sequence[RankPlace]) -> Placed:
    """Give what the launcher must know of where the ranks are."""
    heads = [place.node for place in ranks if place.rank % (len(ranks) // len(groups)) == 0]
    return Placed(
        groups=tuple(group.id for group in groups),
        # One list for all data parallel ranks; where there are several, their bundles are in the order of the ranks.
        bundles=tuple(place.bundle for place in ranks if place.dp == 0),
        local_ranks=number_on_nodes(heads),
        beside=heads.count(heads[0]),
    )


def describe_shortage(requests: Sequence[GroupRequest], nodes: Sequence[RayNode], free: Mapping[str, float]) -> str:
    """Say why placement groups are still pending: what they ask for, and what each node has."""
    offers = ", ".join(
        f"{node.address}{f' ({node.group})' if node.group else ''}: {free.get(node.id, 0):g} of {node.gpus:g} GPUs free"
        for node in sorted(nodes, key=lambda node: (not node.lead, node.address))
        if node.gpus > 0
    )
    address = {node.id: node.address for node in nodes}
    asked = "; ".join(_describe(request, address) for request in requests)
    return f"{asked} was not placed; {offers or 'no alive node has a GPU'}"


def _describe(request: GroupRequest, address: Mapping[str, str]) -> str:
    kinds = Counter(tuple(sorted(bundle.items())) for bundle in request.bundles)
    bundles = " and ".join(
        f"{count} bundle{'s' if count > 1 else ''} of {', '.join(f'{amount:g} {name}' for name, amount in kind)}"
        for kind, count in kinds.items()
    )
    pinned = f" on {', '.join(dict.fromkeys(address.get(node, node) for node in request.nodes))}"
    return f"{request.strategy} of {bundles}{pinned if request.is_pinned else ''}"


def _check_control_bundles(seats: Seats, nodes: Sequence[RayNode]) -> None:
    wanted = Counter(ranks[0] for ranks in seats)
    for node in nodes:
        if node.cpus < wanted[node.id]:
            raise ValueError(
                f"{wanted[node.id]} engine cores need one CPU each on {node.address}, Ray counts {node.cpus:g} there: "
                "raise num-cpus of its rayStartParams"
            )
