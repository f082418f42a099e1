"""One engine: from what was seen of its pods, its Ray cluster and its report to its state and the next step.

The order of the checks is the order in which an engine comes up: RayCluster, pods, Ray nodes, bootstrap job, report.
The first one that is not fulfilled names the state and says what is missing.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace

from vllm_bootstrap import contract
from vllm_operator.api.status import EngineReplica, EngineState, Failure, Reason
from vllm_operator.lifecycle.engine_view import EngineView, JobView, RayView, current_report, last_attempt, own_report
from vllm_operator.lifecycle.entry import MESSAGE_LIMIT, Draft, Turn
from vllm_operator.lifecycle.pods import Trouble, first_trouble
from vllm_operator.lifecycle.recovery import Recovery, format_time, parse_time

READ_INTERVAL = 0.5
JOB_INTERVAL = 1.0
LATE_INTERVAL = 10.0
_SLACK = 60.0


@dataclass(frozen=True, kw_only=True)
class EngineStep:
    """State of an engine and what to do next.

    Attributes
    ----------
    submit
        Submit the bootstrap job of ``attempt``.
    requeue_after
        Look again after so many seconds even if nothing is heard.
    lasting
        The engine does not get further by itself.
    give_back
        Remove its pods: some have no node, and the others hold GPUs for nothing.
    """

    replica: EngineReplica
    submit: bool = False
    give_back: bool = False
    requeue_after: float | None = None
    failure: Failure | None = None
    lasting: bool = False
    joined: bool = False


def due_turn(view: EngineView, *, recovery: Recovery, now: datetime.datetime) -> Turn:
    """Say which attempt is due, from the last known one, its failure and the backoff."""
    attempt = last_attempt(view)
    told = current_report(view, attempt)
    if told and told.phase is contract.Phase.STOPPED:
        # It was drained, and is wanted again.
        return Turn(attempt=attempt + 1)
    failure = _known_failure(view, attempt, recovery)
    if not failure:
        return Turn(attempt=attempt)
    at = parse_time(failure.time) or now
    requested = parse_time(view.retry_requested_at)
    # An instant that is still to come would ask for a retry after every failure until then.
    if requested and at < requested <= now:
        return Turn(attempt=attempt + 1)
    if failure.reason in contract.FATAL:
        return Turn(attempt=attempt, failure=failure)
    retry_at = at + datetime.timedelta(seconds=recovery.delay(attempt))
    return Turn(attempt=attempt + 1) if now >= retry_at else Turn(attempt=attempt, failure=failure, retry_at=retry_at)


def needs_ray(view: EngineView, turn: Turn) -> bool:
    """Say whether the Ray head must be asked: only while an engine is being brought up."""
    if turn.failure or not view.all_running:
        return False
    report = current_report(view, turn.attempt)
    return report is None or (report.phase is contract.Phase.SERVING and not _lead_ready(view))


def has_lost_report(view: EngineView, turn: Turn) -> bool:
    """Say whether an engine serves of which nothing is known: its report was deleted, its supervisor still has it."""
    return bool(not turn.failure and view.all_running and _lead_ready(view) and own_report(view) is None)


def step(
    view: EngineView, turn: Turn, *, recovery: Recovery, deadlines: contract.Deadlines, now: datetime.datetime
) -> EngineStep:
    """Give an engine's state, and the next step."""
    report = current_report(view, turn.attempt)
    draft = Draft(view=view, turn=turn, report=report)
    told = _failed(draft, turn, now) if turn.failure else _next(draft, recovery, deadlines, now)
    # A report stays until the next attempt's: its failure is told also when the retry is due already.
    return replace(told, failure=told.failure or _reported_failure(view), joined=_has_joined(view, report))


def _has_joined(view: EngineView, report: contract.EngineReport | None) -> bool:
    """Say whether Ray has all nodes of an engine: by the report, and before there is one by Ray's own list."""
    if not view.cluster.with_ray:
        return view.all_running
    seen = view.ray is not None and tuple(sorted((gpus for _, gpus in view.ray.gpus), reverse=True)) == view.sizes
    return view.all_running and (seen or bool(report and report.timings.ray_nodes_joined))


def _reported_failure(view: EngineView) -> Failure | None:
    report = own_report(view)
    return _report_failure(view, report) if report and report.phase is contract.Phase.FAILED else None


def _next(draft: Draft, recovery: Recovery, deadlines: contract.Deadlines, now: datetime.datetime) -> EngineStep:
    view, report = draft.view, draft.report
    if not view.all_running:
        return _waiting_for_pods(draft, recovery, now)
    if report and report.phase is contract.Phase.SERVING:
        return _serving(draft, report, recovery, now)
    if report:
        return _coming_up(draft, report, deadlines, recovery, now)
    return _bootstrap(draft, recovery, deadlines, now)


def _waiting_for_pods(draft: Draft, recovery: Recovery, now: datetime.datetime) -> EngineStep:
    view = draft.view
    trouble = first_trouble(view.pods)
    if trouble and trouble.reason is Reason.UNSCHEDULABLE:
        return _unscheduled(draft, trouble, recovery, now)
    if trouble:
        replica = draft.replica(EngineState.PENDING, trouble.reason, trouble.message)
        return EngineStep(replica=replica, lasting=trouble.lasting)
    wanted = view.pod_count
    workload = f"{view.cluster.kind} {view.cluster.name}"
    present = [pod for pod in view.pods if not pod.deleting]
    if len(present) < wanted and view.cluster.trouble:
        message = f"the pods of {workload} cannot be made: {view.cluster.trouble}"
        replica = draft.replica(EngineState.PENDING, Reason.REFUSED_BY_API_SERVER, message)
        # A full quota passes; what the API server finds wrong with a pod does not.
        return EngineStep(replica=replica, lasting="quota" not in view.cluster.trouble)
    if len(present) < wanted:
        message = f"{len(present)} of {wanted} pods of {workload} are there"
        return EngineStep(replica=draft.replica(EngineState.PENDING, Reason.CREATING_PODS, message))
    starting = sorted(pod.name for pod in present if not pod.running)
    message = f"{wanted - len(starting)} of {wanted} pods run; starting: {', '.join(starting[:4])}"
    return EngineStep(replica=draft.replica(EngineState.PENDING, Reason.PODS_STARTING, message))


def _unscheduled(draft: Draft, trouble: Trouble, recovery: Recovery, now: datetime.datetime) -> EngineStep:
    """Wait for the scheduler, but not for ever: what the other pods hold could serve somebody else."""
    view = draft.view
    instants = [parse_time(pod.unscheduled_since) for pod in view.pods if not pod.deleting]
    since = min((instant for instant in instants if instant), default=now)
    left = recovery.unscheduled_seconds - (now - since).total_seconds()
    told = "; ".join(part for part in (trouble.message, view.hindrance) if part)
    if left > 0:
        return EngineStep(replica=draft.replica(EngineState.PENDING, trouble.reason, told), requeue_after=left)
    message = f"a pod had no node for {recovery.unscheduled_seconds:.0f} s, the others give their GPUs back: {told}"
    return EngineStep(
        replica=draft.replica(EngineState.PENDING, Reason.GPUS_GIVEN_BACK, message),
        give_back=True,
        failure=_failure(view, Reason.GPUS_GIVEN_BACK, message[:MESSAGE_LIMIT], draft.turn.attempt, now),
    )


def _bootstrap(draft: Draft, recovery: Recovery, deadlines: contract.Deadlines, now: datetime.datetime) -> EngineStep:
    ray = draft.view.ray or RayView(error="not asked yet")
    if not ray.session:
        return _waiting_for_head(draft, ray.error, deadlines, now)
    if ray.job is None:
        # Not only when Ray has all its nodes: the job waits for them itself, and its start takes seconds.
        told = "submitting the bootstrap job" if draft.view.cluster.with_ray else "its plan is handed over"
        replica = _placing(draft, told)
        return EngineStep(replica=replica, submit=True, requeue_after=JOB_INTERVAL)
    if failure := _job_failure(draft, ray.job, recovery, now):
        return _newly_failed(draft, failure, recovery, now)
    replica = _placing(draft, f"bootstrap job {ray.job.status.lower()}")
    return EngineStep(replica=replica, requeue_after=JOB_INTERVAL)


def _placing(draft: Draft, message: str) -> EngineReplica:
    """Give the entry of an engine that the job is about to place, or whose Ray nodes the job still waits for."""
    if _has_joined(draft.view, draft.report):
        return draft.replica(EngineState.PLACING, Reason.PLACING, message)
    return draft.replica(EngineState.PENDING, Reason.WAITING_FOR_RAY_NODES, message)


def _job_failure(draft: Draft, job: JobView, recovery: Recovery, now: datetime.datetime) -> Failure | None:
    if job.status in ("FAILED", "STOPPED"):
        message = f"the bootstrap job ended {job.status}: {job.message or 'see the head pod log'}"
        return _failure(draft.view, Reason.BOOTSTRAP_FAILED, message, draft.turn.attempt, now)
    if job.status == "SUCCEEDED" and job.ended_at and (now - job.ended_at).total_seconds() > recovery.silence_seconds:
        message = f"the bootstrap job ended at {format_time(job.ended_at)} and the engine reports nothing"
        return _failure(draft.view, Reason.SUPERVISOR_SILENT, message, draft.turn.attempt, now)
    return None


def _waiting_for_head(draft: Draft, error: str, deadlines: contract.Deadlines, now: datetime.datetime) -> EngineStep:
    """Wait for the head: often at first, then seldom, with the engine called stalled."""
    started = [parse_time(pod.started_at) for pod in draft.view.pods]
    since = max((instant for instant in started if instant), default=now)
    late = (now - since).total_seconds() > deadlines.ray_nodes
    with_ray = draft.view.cluster.with_ray
    who = "the Ray head" if with_ray else "the supervisor"
    reason = Reason.RAY_UNREACHABLE if with_ray else Reason.SUPERVISOR_UNREACHABLE
    message = f"{who} of {draft.view.cluster.ray_cluster or draft.view.cluster.name} does not answer: {error}"
    replica = draft.replica(EngineState.PENDING, reason, message)
    return EngineStep(replica=replica, requeue_after=LATE_INTERVAL if late else READ_INTERVAL, lasting=late)


def _coming_up(
    draft: Draft,
    report: contract.EngineReport,
    deadlines: contract.Deadlines,
    recovery: Recovery,
    now: datetime.datetime,
) -> EngineStep:
    if lost := _lost(draft.view, report) or _restarted(draft.view, report):
        return _newly_failed(draft, _failure(draft.view, *lost, report.attempt, now), recovery, now)
    limit = deadlines.ray_nodes + deadlines.placement + deadlines.cleanup + deadlines.load + _SLACK
    at = parse_time(report.time) or now
    left = limit - (now - at).total_seconds()
    if left <= 0:
        failure = _failure(
            draft.view,
            Reason.SUPERVISOR_SILENT,
            f"the engine said {report.phase} at {report.time} and nothing since",
            report.attempt,
            now,
        )
        return _newly_failed(draft, failure, recovery, now)
    if report.downloads:
        replica = draft.replica(EngineState.LOADING, Reason.DOWNLOADING, report.message)
    elif report.phase is contract.Phase.PLACING:
        replica = _placing(draft, report.message or "its ranks are being placed")
    else:
        state, reason, message = _PHASES[report.phase]
        replica = draft.replica(state, reason, report.message or message)
    return EngineStep(replica=replica, requeue_after=left)


_PHASES = {
    contract.Phase.LOADING: (EngineState.LOADING, Reason.LOADING, "vLLM starts its ranks and loads the model"),
    contract.Phase.DRAINING: (EngineState.DRAINING, Reason.DRAINING, "it takes no new requests"),
    contract.Phase.STOPPED: (EngineState.STOPPED, Reason.DRAINING, "it was stopped"),
}


def _serving(draft: Draft, report: contract.EngineReport, recovery: Recovery, now: datetime.datetime) -> EngineStep:
    view = draft.view
    if lost := _lost(view, report):
        return _newly_failed(draft, _failure(view, *lost, report.attempt, now), recovery, now)
    if _lead_ready(view):
        return EngineStep(replica=draft.replica(EngineState.SERVING, Reason.SERVING, ""))
    lead = view.lead
    since = max(
        (parse_time(lead.ready_changed_at) if lead else None) or now,
        parse_time(report.time) or now,
    )
    left = recovery.silence_seconds - (now - since).total_seconds()
    if left <= 0:
        failure = _failure(
            view,
            Reason.SUPERVISOR_SILENT,
            f"pod {draft.lead_name} is unready since {format_time(since)} and its supervisor reports nothing",
            report.attempt,
            now,
        )
        return _newly_failed(draft, failure, recovery, now)
    told = view.report.unready if view.report else ""
    replica = draft.replica(EngineState.LOADING, Reason.NOT_SERVING, told or "the lead pod is not ready yet")
    return EngineStep(replica=replica, requeue_after=left)


def _lost(view: EngineView, report: contract.EngineReport) -> tuple[Reason, str] | None:
    names = {pod.name for pod in view.gpu_pods}
    gone = sorted({rank.pod for rank in report.ranks if rank.pod} - names)
    if gone:
        return Reason.POD_REPLACED, f"pod {', '.join(gone)} held ranks of this engine and is gone"
    ray = view.ray
    if not ray or not ray.session:
        return None
    if not view.cluster.with_ray:
        lost = ray.session != report.ray_session
        return (Reason.POD_REPLACED, f"the container of pod {names.pop()} was restarted") if lost and names else None
    if ray.session != report.ray_session:
        return Reason.RAY_SESSION_LOST, "the Ray head was restarted and lost its state"
    alive = {node for node, _ in ray.gpus}
    dead = sorted({rank.pod for rank in report.ranks if rank.ray_node not in alive})
    if dead:
        return Reason.POD_REPLACED, f"Ray counts the node of pod {', '.join(dead)} as dead"
    return None


def _restarted(view: EngineView, report: contract.EngineReport) -> tuple[Reason, str] | None:
    """Say whether the container that reported is gone: nobody else would ever say more.

    Each is compared with the pod's own clock: placing is reported from the head, everything later from the lead.
    """
    head = report.phase is contract.Phase.PLACING and view.cluster.with_ray
    pod = view.head if head else view.lead
    started, told = parse_time(pod.started_at) if pod else None, parse_time(report.time)
    if not pod or not started or not told or started <= told:
        return None
    if head:
        return Reason.RAY_SESSION_LOST, "the Ray head was restarted while the engine was placed and lost its state"
    return Reason.POD_REPLACED, f"pod {pod.name} was restarted while the engine came up"


def _failed(draft: Draft, turn: Turn, now: datetime.datetime) -> EngineStep:
    assert turn.failure is not None  # noqa: S101 - the caller looked
    if turn.retry_at is None:
        replica = draft.replica(EngineState.FAILED, turn.failure.reason, turn.failure.message)
        return EngineStep(replica=replica, lasting=True)
    left = max(0.0, (turn.retry_at - now).total_seconds())
    replica = draft.replica(
        EngineState.FAILED, turn.failure.reason, turn.failure.message, retry_at=format_time(turn.retry_at)
    )
    lasting = turn.failure.reason in contract.MENDED_ELSEWHERE
    return EngineStep(replica=replica, requeue_after=left + 0.05, lasting=lasting)


def _newly_failed(draft: Draft, failure: Failure, recovery: Recovery, now: datetime.datetime) -> EngineStep:
    fatal = failure.reason in contract.FATAL
    at = parse_time(failure.time) or now
    retry_at = None if fatal else at + datetime.timedelta(seconds=recovery.delay(failure.attempt))
    turn = Turn(attempt=draft.turn.attempt, failure=failure, retry_at=retry_at)
    told = _failed(draft, turn, now)
    return EngineStep(
        replica=told.replica,
        requeue_after=told.requeue_after,
        lasting=told.lasting,
        failure=failure,
    )


def _known_failure(view: EngineView, attempt: int, recovery: Recovery) -> Failure | None:
    """Give the failure of an attempt that the report or status already tells."""
    report = current_report(view, attempt)
    if report and report.phase is contract.Phase.FAILED:
        return _report_failure(view, report)
    if report and report.phase is contract.Phase.SERVING and _lead_ready(view) and not _lost(view, report):
        return None
    previous = view.previous
    retry_at = parse_time(previous.retry_at) if previous and previous.attempt == attempt else None
    if not previous or not retry_at or previous.state is not EngineState.FAILED:
        return None
    # A failure that the operator itself saw is remembered by the instant of the next attempt.
    at = retry_at - datetime.timedelta(seconds=recovery.delay(attempt))
    return Failure(
        engine=view.name, reason=previous.reason, message=previous.message, attempt=attempt, time=format_time(at)
    )


def _report_failure(view: EngineView, report: contract.EngineReport) -> Failure:
    seat = next((rank for rank in report.ranks if rank.rank == report.failed_rank), None)
    nodes = {pod.name: pod.node for pod in view.pods}
    return Failure(
        engine=view.name,
        reason=report.reason or Reason.UNKNOWN,
        message=(report.message or "the engine gave no reason")[:MESSAGE_LIMIT],
        rank=report.failed_rank,
        pod=seat.pod if seat else "",
        node=(nodes.get(seat.pod) or seat.node) if seat else "",
        attempt=report.attempt,
        time=report.time,
    )


def _failure(view: EngineView, reason: Reason, message: str, attempt: int, now: datetime.datetime) -> Failure:
    return Failure(engine=view.name, reason=reason.value, message=message, attempt=attempt, time=format_time(now))


def _lead_ready(view: EngineView) -> bool:
    lead = view.lead
    return bool(lead and lead.ready)
