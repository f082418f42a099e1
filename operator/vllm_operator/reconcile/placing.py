"""Where the engines go that are to be made: beside those that are there, and one after the other.  Pure."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from vllm_operator.api.status import Reason
from vllm_operator.lifecycle.recovery import Recovery, format_time, parse_time
from vllm_operator.planning.demand import hold, prove_demand
from vllm_operator.planning.inventory import GpuNode
from vllm_operator.planning.proof import Verdict
from vllm_operator.planning.quota import QuotaError, check_quotas
from vllm_operator.reconcile.observe import Observation
from vllm_operator.reconcile.revising import blocker_of
from vllm_operator.reconcile.room import demand_of, room_of
from vllm_operator.reconcile.seat import Seat, Wait
from vllm_operator.resources.names import EngineNames
from vllm_operator.resources.needs import engine_pods
from vllm_operator.resources.revision import Revision
from vllm_operator.resources.tenancy import Auth, PodSeat, Tenancy, free_ports, stem_of


def prove(
    seats: list[Seat], target: Revision, seen: Observation, recovery: Recovery, now: datetime.datetime
) -> list[Seat]:
    """Let those engines wait that the nodes cannot hold now, beside those that are there and those made before them."""
    room = room_of(seen, target.shared_cluster)
    ports = {port for item in _tenancies_on(seen, target) for port in (item.http_port, item.supervisor_port)}
    proved: list[Seat] = []
    for seat in seats:
        if seat.missing and (wait := _pause(seen, seat.name, recovery, now)):
            proved.append(Seat(name=seat.name, waiting=wait))
        elif seat.missing:
            made = sum(item.missing is not None for item in proved)
            placed, room = _placed(seat.name, seat.missing, target, room, seen, before=made, ports=ports)
            proved.append(placed)
            if placed.holding:
                ports |= {placed.holding.http_port, placed.holding.supervisor_port}
        else:
            proved.append(seat)
    return proved


def _placed(
    name: str,
    names: EngineNames,
    target: Revision,
    room: tuple[GpuNode, ...],
    seen: Observation,
    *,
    before: int,
    ports: set[int],
) -> tuple[Seat, tuple[GpuNode, ...]]:
    """Place an engine beside those that the same round makes before it; gives also what it leaves of the nodes."""
    demand = demand_of(seen, target, f"{seen.owner.namespace}/{names.ray_cluster}, planned")
    proof = prove_demand(room, demand)
    if proof.verdict is not Verdict.FITS:
        never = proof.verdict is Verdict.NEVER
        reason = Reason.NO_SUCH_GPUS if never else Reason.WAITING_FOR_GPUS
        return Seat(name=name, waiting=Wait(reason=reason, message=proof.reason, lasting=never)), room
    if target.shared_cluster:
        seated: Counter[str] = Counter()
        for size, pod in zip(demand.sizes, proof.seats, strict=True):
            seated[pod] += size
        holding = _holding(seen, target, names, seated, ports)
        return Seat(name=name, missing=names, holding=holding), hold(room, demand, proof)
    try:
        check_quotas(seen.rules.kept, engine_pods(target.cluster_spec), before + 1, with_ray=target.with_ray)
    except QuotaError as error:
        told = blocker_of(error)
        wait = Wait(reason=told.reason, message=told.message, lasting=told.lasting)
        return Seat(name=name, waiting=wait), room
    domain = next(node.labels.get(demand.topology_key, "") for node in room if node.name == proof.seats[0])
    return Seat(name=name, missing=replace(names, domain=domain)), hold(room, demand, proof)


def _tenancies_on(seen: Observation, target: Revision) -> Sequence[Tenancy]:
    cluster = seen.shared.get(target.shared_cluster)
    return tuple(cluster.tenancies.values()) if cluster else ()


def _holding(
    seen: Observation, target: Revision, names: EngineNames, seated: Mapping[str, int], ports: set[int]
) -> Tenancy:
    """Write down what an engine is promised of a shared RayCluster; the pod with the most of its GPUs is its lead."""
    cluster, part = seen.shared[target.shared_cluster], target.engine["rayCluster"]
    members = {item.view.name: item for item in cluster.members}
    http_port, supervisor_port = free_ports(ports)
    head = [item for item in cluster.members if item.view.head]
    return Tenancy(
        cluster=cluster.name,
        holder=f"{seen.owner.namespace}/{seen.owner.name} {names.engine}",
        owner=seen.owner.uid,
        stem=stem_of(seen.owner, names),
        seats=tuple(
            PodSeat(pod=pod, uid=members[pod].view.uid, gpus=number, node=members[pod].view.node)
            for pod, number in sorted(seated.items(), key=lambda item: (-item[1], item[0]))
        ),
        http_port=http_port,
        supervisor_port=supervisor_port,
        auth=Auth(**part["authSecret"]),
        accounts=tuple(sorted({item.account for item in (*head, *(members[pod] for pod in seated))})),
    )


def _pause(seen: Observation, name: str, recovery: Recovery, now: datetime.datetime) -> Wait | None:
    """Wait longer each time an engine gave its GPUs back: what is in its way may be nothing that a plan can see."""
    returns = [
        failure
        for failure in seen.status.last_failures
        if (failure.engine, failure.reason) == (name, Reason.GPUS_GIVEN_BACK)
    ]
    last = max(returns, key=lambda failure: failure.time, default=None)
    at = parse_time(last.time) if last else None
    if not last or not at:
        return None
    until = at + datetime.timedelta(seconds=recovery.delay(len(returns)))
    if until <= now:
        return None
    told = f"{last.message}; tried again at {format_time(until)}"
    return Wait(reason=Reason.GPUS_GIVEN_BACK, message=told, seconds=(until - now).total_seconds())
