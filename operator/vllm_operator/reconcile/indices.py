"""Which engines a deployment should have, by index: some of those that are there, and new ones.  Pure."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_bootstrap.contract import SUPERVISOR_PORT, Phase
from vllm_operator.api import identity
from vllm_operator.api.status import EngineState
from vllm_operator.lifecycle.pods import PodView
from vllm_operator.lifecycle.scaling import Candidate, seats, to_be_asked
from vllm_operator.reconcile.observe import Observation
from vllm_operator.resources.names import EngineNames, engine_name
from vllm_operator.resources.tenancy import Tenancy


@dataclass(frozen=True, kw_only=True)
class Supervised:
    """An engine whose supervisor can be asked.

    Attributes
    ----------
    ip
        Address of its lead pod.
    port
        Of its supervisor there.
    serving
        It has traffic.
    """

    names: EngineNames
    ip: str
    port: int
    serving: bool


def engine_indices(seen: Observation) -> tuple[int, ...]:
    """Give the indices of the engines that are looked after: those wanted, or those there are while none may change."""
    if seen.spec is None or seen.plan_only:
        return tuple(sorted(_workloads(seen)))
    return seats(_candidates(seen), seen.wanted)


def surplus_indices(seen: Observation) -> tuple[int, ...]:
    """Give the indices of the engines that are there beyond those."""
    return tuple(sorted(_workloads(seen).keys() - set(engine_indices(seen))))


def whom_to_ask(seen: Observation) -> tuple[Supervised, ...]:
    """Give the engines whose requests in flight decide which of them go."""
    if seen.spec is None or seen.plan_only:
        return ()
    there = _workloads(seen)
    leads = (_lead(seen, index, there[index]) for index in to_be_asked(_candidates(seen), seen.wanted))
    return tuple(lead for lead in leads if lead)


def pods_of(seen: Observation, index: int) -> list[PodView]:
    """Give all pods of an engine, of whatever revision."""
    prefix = f"{seen.owner.name}-{index}-"
    return [pod for pod in seen.pods if pod.cluster.startswith(prefix)]


def _workloads(seen: Observation) -> dict[int, list[str]]:
    """Give the RayClusters and Deployments of each engine that are not being removed."""
    found: dict[int, list[str]] = {}
    for name, body in seen.workloads.items():
        there = found.setdefault(int(body["metadata"]["labels"].get(identity.LABEL_ENGINE, 0)), [])
        if "deletionTimestamp" not in body["metadata"]:
            there.append(name)
    return found


def _candidates(seen: Observation) -> list[Candidate]:
    return [_candidate(seen, index, names) for index, names in sorted(_workloads(seen).items())]


def _candidate(seen: Observation, index: int, workloads: list[str]) -> Candidate:
    lead = _lead(seen, index, workloads)
    entry = next((item for item in seen.status.engine_replicas if item.name == engine_name(index)), None)
    reports = [seen.reports[name] for name in workloads if name in seen.reports]
    return Candidate(
        index=index,
        going=not workloads,
        leaving=bool(entry and entry.state is EngineState.DRAINING)
        or any(report.phase in (Phase.DRAINING, Phase.STOPPED) for report in reports),
        serving=bool(lead and lead.serving),
        requests=seen.requests.get(lead.names.ray_cluster) if lead else None,
    )


def _lead(seen: Observation, index: int, workloads: list[str]) -> Supervised | None:
    for pod in pods_of(seen, index):
        if pod.lead and not pod.deleting:
            names = EngineNames(index=str(index), ray_cluster=pod.cluster)
            return Supervised(names=names, ip=pod.ip, port=SUPERVISOR_PORT, serving=pod.ready)
    held = ((name, seen.tenancies[name]) for name in workloads if name in seen.tenancies)
    return next((lead for name, tenancy in held if (lead := _lead_in_shared_pod(seen, index, name, tenancy))), None)


def _lead_in_shared_pod(seen: Observation, index: int, name: str, tenancy: Tenancy) -> Supervised | None:
    """Give the supervisor of an engine whose pods are not ours; none of our probes asks it, its report tells."""
    cluster, seat = seen.shared.get(tenancy.cluster), tenancy.seats[0]
    member = cluster.member(seat.pod, seat.uid) if cluster else None
    if not member or member.view.deleting:
        return None
    report = seen.reports.get(name)
    return Supervised(
        names=EngineNames(index=str(index), ray_cluster=name, stem=tenancy.stem),
        ip=member.view.ip,
        port=tenancy.supervisor_port,
        serving=bool(report and report.phase is Phase.SERVING and not report.unready),
    )
