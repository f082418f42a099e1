"""What engines will take of the nodes although their pods have no node yet.

Between the plan of an engine and the binding of its last pod the API server shows its GPUs as free.  A second engine
that is planned meanwhile would be promised the same ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from vllm_operator.api.placement import Strategy
from vllm_operator.planning.devices import GPU_RESOURCE
from vllm_operator.planning.eligibility import PodRules
from vllm_operator.planning.hosts import HostNeeds, Hosts
from vllm_operator.planning.inventory import GpuNode, hold_rooms
from vllm_operator.planning.proof import Proof, Verdict
from vllm_operator.planning.quantity import add
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
    needs
        What they, and the Ray head if it has no node either, ask for beside GPUs; ``None`` when it is not looked at.
    """

    holder: str
    sizes: tuple[int, ...]
    rules: PodRules
    strategy: Strategy
    topology_key: str = ""
    resource: str = GPU_RESOURCE
    needs: HostNeeds | None = None


def prove_demand(nodes: Sequence[GpuNode], demand: Demand) -> Proof:
    """Say whether the pods can be seated."""
    offering = [node for node in nodes if node.resource == demand.resource]
    hosts = Hosts(nodes, demand.needs) if demand.needs else None
    return seating_of(offering, demand.rules, demand.topology_key, hosts).prove(demand.sizes, demand.strategy)


def hold(nodes: Sequence[GpuNode], demand: Demand, proof: Proof) -> tuple[GpuNode, ...]:
    """Give the nodes as they are once the pods have taken their seats."""
    gpus: Counter[str] = Counter()
    beside: dict[str, dict[str, int]] = {}
    needs = demand.needs or HostNeeds()
    for size, seat in zip(demand.sizes, proof.seats, strict=True):
        gpus[seat] += size
        beside[seat] = add(beside.get(seat, {}), needs.pod)
    if proof.head:
        beside[proof.head] = add(beside.get(proof.head, {}), needs.head)
    held = [
        replace(node, used=node.used + gpus[node.name], holders=(*node.holders, demand.holder))
        if node.name in gpus and node.resource == demand.resource
        else node
        for node in nodes
    ]
    return hold_rooms(held, beside)


def hold_all(nodes: Sequence[GpuNode], demands: Iterable[Demand]) -> tuple[GpuNode, ...]:
    """Give the nodes as they are once all these have taken their seats; one that fits nowhere takes nothing."""
    left = tuple(nodes)
    for demand in demands:
        proof = prove_demand(left, demand)
        if proof.verdict is Verdict.FITS:
            left = hold(left, demand, proof)
    return left
