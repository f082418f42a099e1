"""Which engines a deployment should have, by index: some of those that are there, and new ones.  Pure."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_bootstrap.contract import Phase
from vllm_operator.api import identity
from vllm_operator.api.status import EngineState
from vllm_operator.lifecycle.pods import PodView
from vllm_operator.lifecycle.scaling import Candidate, seats, to_be_asked
from vllm_operator.reconcile.observe import Observation
from vllm_operator.resources.names import EngineNames, engine_name


@dataclass(frozen=True, kw_only=True)
class Supervised:
    """An engine whose supervisor can be asked.

    Attributes
    ----------
    ip
        Address of its lead pod.
    """

    names: EngineNames
    ip: str


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
    asked = to_be_asked(_candidates(seen), seen.wanted)
    leads = ((index, _lead(seen, index)) for index in asked)
    return tuple(
        Supervised(names=EngineNames(index=str(index), ray_cluster=lead.cluster), ip=lead.ip)
        for index, lead in leads
        if lead
    )


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
    lead = _lead(seen, index)
    entry = next((item for item in seen.status.engine_replicas if item.name == engine_name(index)), None)
    reports = [seen.reports[name] for name in workloads if name in seen.reports]
    return Candidate(
        index=index,
        going=not workloads,
        leaving=bool(entry and entry.state is EngineState.DRAINING)
        or any(report.phase in (Phase.DRAINING, Phase.STOPPED) for report in reports),
        serving=bool(lead and lead.ready),
        requests=seen.requests.get(lead.cluster) if lead else None,
    )


def _lead(seen: Observation, index: int) -> PodView | None:
    return next((pod for pod in pods_of(seen, index) if pod.lead and not pod.deleting), None)
