"""What engines will take of the nodes although their pods have no node yet.

Between the plan of an engine and the binding of its last pod the API server shows its GPUs as free.  A second engine
that is planned meanwhile would be promised the same ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from vllm_operator.api.spec import Strategy
from vllm_operator.planning.devices import GPU_RESOURCE
from vllm_operator.planning.eligibility import PodRules
from vllm_operator.planning.inventory import GpuNode
from vllm_operator.planning.proof import Proof
from vllm_operator.planning.topology import seating_of


@dataclass(frozen=True, kw_only=True)
class Demand:
    """GPU pods that have no node yet.

    Attributes
    ----------
    holder
        Whose they are, for those who wait for what they take.
    sizes
        GPUs of each pod.
    rules
        What they say of their nodes.
    topology_key
        Label of nodes within one value of which they stay; empty where they may go anywhere.
    resource
        Name under which they ask for GPUs.
    """

    holder: str
    sizes: tuple[int, ...]
    rules: PodRules
    strategy: Strategy
    topology_key: str = ""
    resource: str = GPU_RESOURCE


def prove_demand(nodes: Sequence[GpuNode], demand: Demand) -> Proof:
    """Say whether the pods can be seated."""
    offering = [node for node in nodes if node.resource == demand.resource]
    return seating_of(offering, demand.rules, demand.topology_key).prove(demand.sizes, demand.strategy)


def hold(nodes: Sequence[GpuNode], demand: Demand, seats: Sequence[str]) -> tuple[GpuNode, ...]:
    """Give the nodes as they are once the pods have taken these seats."""
    taken: Counter[str] = Counter()
    for size, seat in zip(demand.sizes, seats, strict=True):
        taken[seat] += size
    return tuple(
        replace(node, used=node.used + taken[node.name], holders=(*node.holders, demand.holder))
        if node.name in taken and node.resource == demand.resource
        else node
        for node in nodes
    )


def hold_all(nodes: Sequence[GpuNode], demands: Iterable[Demand]) -> tuple[GpuNode, ...]:
    """Give the nodes as they are once all these have taken their seats; one that fits nowhere takes nothing."""
    left = tuple(nodes)
    for demand in demands:
        if seats := prove_demand(left, demand).seats:
            left = hold(left, demand, seats)
    return left
