"""An engine's entry in the status: its state with what its report tells of ranks, groups and times."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from vllm_bootstrap import contract
from vllm_operator.api.status import (
    EngineCoreStatus,
    EngineReplica,
    EngineState,
    Failure,
    PlacementGroupStatus,
    RankStatus,
    Reason,
    Timings,
)
from vllm_operator.lifecycle.engine_view import EngineView, last_attempt, own_report
from vllm_operator.lifecycle.pods import PodView

MESSAGE_LIMIT = 8192


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The attempt that is due.

    Attributes
    ----------
    attempt
        Its number.
    failure
        Failure of it, when it has one already.
    retry_at
        When the next one may start; ``None`` with a failure means that none does by itself.
    """

    attempt: int
    failure: Failure | None = None
    retry_at: datetime.datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Draft:
    """What is known of an engine when its state is being found.

    Attributes
    ----------
    report
        The report of the attempt that is due.
    """

    view: EngineView
    turn: Turn
    report: contract.EngineReport | None

    @property
    def lead_name(self) -> str:
        """Name of the lead pod; empty while there is none."""
        return self.view.lead.name if self.view.lead else ""

    def replica(self, state: EngineState, reason: Reason | str, message: str, retry_at: str = "") -> EngineReplica:
        """Give the entry with a state and why it is so."""
        view, report = self.view, self.report
        return EngineReplica(
            name=view.name,
            state=state,
            reason=str(reason),
            message=message[:MESSAGE_LIMIT],
            revision=view.revision,
            attempt=self.turn.attempt,
            restarts=self.turn.attempt - 1,
            retry_at=retry_at,
            ray_cluster=view.cluster.ray_cluster,
            deployment=view.cluster.deployment,
            pod=self.lead_name,
            ports=view.cluster.ports,
            placement_groups=[
                PlacementGroupStatus(name=group.name, id=group.id, strategy=group.strategy, state=group.state)
                for group in (report.placement_groups if report else ())
            ],
            timings=_timings(view, report),
            engine_cores=[
                EngineCoreStatus.model_validate(asdict(core)) for core in (report.engine_cores if report else ())
            ],
            ranks=rank_map(report.ranks, view.pods) if report else [],
        )


def draining_entry(view: EngineView, message: str, until: str) -> EngineReplica:
    """Give the entry of an engine that is to go, and is drained until an RFC 3339 instant."""
    attempt = last_attempt(view)
    draft = Draft(view=view, turn=Turn(attempt=attempt), report=own_report(view))
    entry = draft.replica(EngineState.DRAINING, Reason.DRAINING, message)
    kept = {"timings": view.previous.timings} if view.previous else {}
    return entry.model_copy(update={"drain_until": until, **kept})


def rank_map(ranks: Sequence[contract.RankReport], pods: Sequence[PodView]) -> list[RankStatus]:
    """Give the rank map of status: the report's, with the node that Kubernetes says a pod is on."""
    nodes = {pod.name: pod.node for pod in pods}
    return [
        # By name: the two differ only in what a reader of status has no use for.
        RankStatus.model_validate({**asdict(rank), "node": nodes.get(rank.pod) or rank.node})
        for rank in ranks
    ]


def _timings(view: EngineView, report: contract.EngineReport | None) -> Timings:
    scheduled = [pod.scheduled_at for pod in view.pods]
    told = report.timings if report else contract.TimingsReport()
    complete = len(scheduled) == view.pod_count and all(scheduled)
    return Timings(
        created=view.cluster.created_at,
        pods_scheduled=max(scheduled) if complete else "",
        ray_nodes_joined=told.ray_nodes_joined,
        placed=told.placed,
        loaded=told.loaded,
        first_token=told.first_token,
    )
