"""An engine's state, reason and next step, from what was seen of its pods, its Ray head and its report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.unit.lifecycle import views
from tests.unit.lifecycle.views import advance, at, engine, job, later, pod, pods, ray, report, running, turn

from vllm_bootstrap.contract import (
    FATAL,
    MENDED_ELSEWHERE,
    DownloadReport,
    EngineCoreReport,
    FailureReason,
    Phase,
    TimingsReport,
)
from vllm_operator.api.status import EngineReplica, EngineState, Failure, Reason
from vllm_operator.lifecycle.engine import EngineStep, needs_ray
from vllm_operator.lifecycle.engine_view import EngineView

PENDING = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at(-9)}]}
UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}],
}
NO_PULL = {
    "containerStatuses": [{"name": "vllm", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "denied"}}}]
}


def with_worker(status: dict[str, Any]) -> tuple[Any, ...]:
    return (*pods()[:2], pod("worker", status=status))


@dataclass(frozen=True)
class Case:
    """What is seen, and what must be said and done."""

    name: str
    view: EngineView
    state: EngineState
    reason: Reason | str
    words: str = ""
    requeue: float | None = None
    submit: bool = False
    lasting: bool = False
    joined: bool = False
    failed: bool = False


P, PL, L, S, F = (
    EngineState.PENDING,
    EngineState.PLACING,
    EngineState.LOADING,
    EngineState.SERVING,
    EngineState.FAILED,
)

COMING_UP = (
    Case("no pod yet", engine(pods=()), P, Reason.CREATING_PODS, "0 of 3 pods of RayCluster demo-0-pppppppp"),
    Case("a worker is missing", engine(pods=pods()[:2]), P, Reason.CREATING_PODS, "2 of 3 pods"),
    Case(
        "a worker goes away",
        engine(pods=(*pods()[:2], pod("worker", deleting=True))),
        P,
        Reason.CREATING_PODS,
        "2 of 3 pods",
    ),
    Case(
        "KubeRay cannot make pods",
        engine(pods=(), cluster=replace(engine().cluster, trouble="pods is forbidden: violates PodSecurity")),
        P,
        Reason.REFUSED_BY_API_SERVER,
        "violates PodSecurity",
        lasting=True,
    ),
    Case(
        "a full quota",
        engine(pods=pods()[:2], cluster=replace(engine().cluster, trouble="exceeded quota: gpus")),
        P,
        Reason.REFUSED_BY_API_SERVER,
        "exceeded quota: gpus",
    ),
    # production-stack#653: the scheduler's own words, not an endless wait
    Case(
        "unschedulable",
        engine(pods=with_worker(UNSCHEDULABLE)),
        P,
        Reason.UNSCHEDULABLE,
        "pod worker: 0/2 nodes are available",
        requeue=180,
    ),
    Case(
        "unschedulable, and the planner knows why",
        engine(pods=with_worker(UNSCHEDULABLE), hindrance="held by other pods: gpu-a 4 of 4 (team/notebook)"),
        P,
        Reason.UNSCHEDULABLE,
        "0/2 nodes are available; held by other pods: gpu-a 4 of 4 (team/notebook)",
        requeue=180,
    ),
    Case("no pull", engine(pods=with_worker(NO_PULL)), P, Reason.IMAGE_PULL_FAILED, "denied", lasting=True),
    Case("starting", engine(pods=with_worker(PENDING)), P, Reason.PODS_STARTING, "2 of 3 pods run; starting: worker"),
    Case("Ray was not asked", engine(), P, Reason.RAY_UNREACHABLE, "not asked yet", requeue=0.5),
    Case(
        "Ray does not answer",
        engine(ray=ray(session="", gpus=(), error="http://10.0.0.1:8265: refused")),
        P,
        Reason.RAY_UNREACHABLE,
        "refused",
        requeue=0.5,
    ),
    # The job waits for the nodes: its own start takes as long as theirs.
    Case("no Ray node", engine(ray=ray(gpus=())), P, Reason.WAITING_FOR_RAY_NODES, "submitting", 1, submit=True),
    Case(
        "a Ray node too many",
        engine(ray=ray(gpus=(("a", 1), ("b", 1), ("c", 1)))),
        P,
        Reason.WAITING_FOR_RAY_NODES,
        "submitting",
        requeue=1,
        submit=True,
    ),
    # aibrix#228: vLLM must not start before the Ray workers have joined
    Case(
        "the job waits for nodes",
        engine(
            report=report(
                Phase.PLACING, ranks=(), timings=TimingsReport(), message="0 of 1 worker pods have joined Ray"
            ),
            ray=ray(gpus=()),
        ),
        P,
        Reason.WAITING_FOR_RAY_NODES,
        "0 of 1 worker pods have joined",
        2150,
    ),
    Case("joined", engine(ray=ray()), PL, Reason.PLACING, "submitting", requeue=1, submit=True, joined=True),
    Case("job waits", engine(ray=job("PENDING")), PL, Reason.PLACING, "job pending", requeue=1, joined=True),
    Case("job runs", engine(ray=job("RUNNING")), PL, Reason.PLACING, "job running", requeue=1, joined=True),
    Case(
        "job failed",
        engine(ray=job("FAILED", "ImportError: x")),
        F,
        Reason.BOOTSTRAP_FAILED,
        "ended FAILED: ImportError: x",
        requeue=5.05,
        joined=True,
        failed=True,
    ),
    Case(
        "job stopped",
        engine(ray=job("STOPPED")),
        F,
        Reason.BOOTSTRAP_FAILED,
        "ended STOPPED",
        requeue=5.05,
        joined=True,
        failed=True,
    ),
    Case(
        "placing",
        engine(report=report(Phase.PLACING, message="2 of 2")),
        PL,
        Reason.PLACING,
        "2 of 2",
        2150,
        joined=True,
    ),
    Case("loading", engine(report=report(Phase.LOADING)), L, Reason.LOADING, "loads the model", 2150, joined=True),
    Case(
        "loading for longer than any deadline",
        engine(report=report(Phase.LOADING, time=at(-2160)), pods=pods(started=-5000)),
        F,
        Reason.SUPERVISOR_SILENT,
        "said Loading at",
        requeue=5.05,
        joined=True,
        failed=True,
    ),
    Case(
        "the lead was restarted while it loaded",
        engine(report=report(Phase.LOADING), pods=pods(started=-5)),
        F,
        Reason.POD_REPLACED,
        "pod lead was restarted",
        requeue=5.05,
        joined=True,
        failed=True,
    ),
    Case(
        "the head was restarted while it placed",
        engine(
            report=report(Phase.PLACING, ranks=()),
            pods=(pod("head", head=True, status=running(started=-5)), *pods()[1:]),
        ),
        F,
        Reason.RAY_SESSION_LOST,
        "head was restarted",
        requeue=5.05,
        joined=True,
        failed=True,
    ),
    Case(
        "a pod was replaced while it loaded",
        engine(report=report(Phase.LOADING, ranks=views.ranks(("lead", "earlier")))),
        F,
        Reason.POD_REPLACED,
        "pod earlier held ranks",
        requeue=5.05,
        joined=True,
        failed=True,
    ),
)

SERVING = (
    Case("serving", engine(report=report(), pods=pods(ready=True)), S, Reason.SERVING, joined=True),
    Case(
        "not ready yet", engine(report=report(), ray=ray()), L, Reason.NOT_SERVING, "not ready", requeue=20, joined=True
    ),
    Case(
        "unready for a while",
        engine(report=report(time=at(-500)), ray=ray(), pods=pods(ready_since=-12)),
        L,
        Reason.NOT_SERVING,
        "not ready",
        requeue=18,
        joined=True,
    ),
    Case(
        "silent",
        engine(report=report(time=at(-500)), ray=ray(), pods=pods(ready_since=-30)),
        F,
        Reason.SUPERVISOR_SILENT,
        "pod lead is unready since 2026-03-01T11:59:30Z",
        requeue=5.05,
        joined=True,
        failed=True,
    ),
    Case(
        "silent, and Ray does not answer",
        engine(report=report(time=at(-500)), ray=ray(session="", error="refused"), pods=pods(ready_since=-31)),
        F,
        Reason.SUPERVISOR_SILENT,
        requeue=5.05,
        joined=True,
        failed=True,
    ),
    Case(
        "a pod was replaced",
        engine(report=report(ranks=views.ranks(("lead", "earlier"))), pods=pods(ready=True)),
        F,
        Reason.POD_REPLACED,
        "pod earlier held ranks",
        requeue=5.05,
        joined=True,
        failed=True,
    ),
    Case(
        "Ray lost its session",
        engine(report=report(), ray=ray(session="session_2")),
        F,
        Reason.RAY_SESSION_LOST,
        "head was restarted",
        requeue=5.05,
        joined=True,
        failed=True,
    ),
    Case(
        "Ray counts a node as dead",
        engine(report=report(), ray=ray(gpus=(("ray-lead", 1), ("ray-new", 1)))),
        F,
        Reason.POD_REPLACED,
        "node of pod worker as dead",
        requeue=5.05,
        joined=True,
        failed=True,
    ),
)

FAILED = (
    Case(
        "a rank died",
        engine(report=report(Phase.FAILED, reason="RankDied", message="rank 1: exit 137", failed_rank=1, time=at(-1))),
        F,
        "RankDied",
        "rank 1: exit 137",
        requeue=4.05,
        joined=True,
        failed=True,
    ),
    Case(
        "arguments refused",
        engine(report=report(Phase.FAILED, reason="ArgumentsRefused", message="unrecognized arguments: --x")),
        F,
        "ArgumentsRefused",
        "unrecognized arguments: --x",
        lasting=True,
        joined=True,
        failed=True,
    ),
    Case(
        "a report without words",
        engine(report=report(Phase.FAILED, time=at(-1))),
        F,
        Reason.UNKNOWN,
        "no reason",
        requeue=4.05,
        joined=True,
        failed=True,
    ),
)


@pytest.mark.parametrize("case", [*COMING_UP, *SERVING, *FAILED], ids=lambda case: case.name)
def test_state(case: Case) -> None:
    told = advance(case.view)
    assert (told.replica.state, told.replica.reason) == (case.state, case.reason)
    assert case.words in told.replica.message
    assert told.requeue_after == (None if case.requeue is None else pytest.approx(case.requeue))
    assert (told.submit, told.lasting, told.joined, bool(told.failure)) == (
        case.submit,
        case.lasting,
        case.joined,
        case.failed,
    )
    if case.state is not S:
        assert told.replica.reason
        assert told.replica.message


def test_whole_entry_of_an_engine_that_serves() -> None:
    told = advance(engine(report=report(), pods=pods(ready=True))).replica
    assert told.ray_cluster == views.CLUSTER
    assert told.pod == "lead"
    assert told.ports == {"http": 8000, "supervisor": 8001}
    assert told.revision == views.REVISION
    assert (told.attempt, told.restarts) == (1, 0)
    assert [(rank.rank, rank.pod, rank.node, rank.output) for rank in told.ranks] == [
        (0, "lead", "node-lead", False),
        (1, "worker", "node-worker", True),
    ]
    assert told.placement_groups[0].strategy == "PACK"
    assert told.timings.created == at(-200)
    assert told.timings.pods_scheduled == at(-120)


def test_the_engine_cores_of_data_parallel_ranks_stand_in_the_entry() -> None:
    cores = tuple(
        EngineCoreReport(dp=rank, kind="EngineCoreActor", pod=pod, actor_id=f"a{rank}", pid=7, state="ALIVE")
        for rank, pod in enumerate(("lead", "worker"))
    )
    told = advance(engine(report=report(engine_cores=cores), pods=pods(ready=True))).replica
    assert [(core.dp, core.kind, core.pod, core.actor_id, core.state) for core in told.engine_cores] == [
        (0, "EngineCoreActor", "lead", "a0", "ALIVE"),
        (1, "EngineCoreActor", "worker", "a1", "ALIVE"),
    ]


def test_node_of_a_pod_that_is_gone_is_as_ray_told_it() -> None:
    view = engine(report=report(Phase.FAILED, reason="RankDied", failed_rank=1, time=at(-1)), pods=pods()[:2])
    told = advance(view)
    assert told.replica.ranks[1].node == "told-by-ray"


def test_pods_scheduled_only_when_all_are() -> None:
    assert advance(engine(pods=with_worker(UNSCHEDULABLE))).replica.timings.pods_scheduled == ""
    assert advance(engine(pods=with_worker(PENDING))).replica.timings.pods_scheduled == at(-9)


def test_failure_names_rank_pod_and_node() -> None:
    view = engine(report=report(Phase.FAILED, reason="RankDied", message="m", failed_rank=1, time=at(-1)))
    assert advance(view).failure == Failure(
        engine="engine-0",
        reason="RankDied",
        message="m",
        rank=1,
        pod="worker",
        node="node-worker",
        attempt=1,
        time=at(-1),
    )


def test_a_failure_is_told_also_when_the_next_attempt_is_due_at_once() -> None:
    """The operator was away for longer than the backoff: ``lastFailures`` must not miss it."""
    view = engine(report=report(Phase.FAILED, reason="RankDied", time=at(-600)), ray=ray())
    told = advance(view)
    assert told.submit
    assert told.replica.attempt == 2
    assert told.failure
    assert told.failure.attempt == 1


@pytest.mark.parametrize(
    "changes",
    [{"uid": "another"}, {"engine": "engine-1"}, {"revision": "other"}],
    ids=["uid", "engine", "revision"],
)
@pytest.mark.parametrize("phase", [Phase.SERVING, Phase.FAILED, Phase.LOADING])
def test_a_report_of_something_else_is_ignored(changes: dict[str, Any], phase: Phase) -> None:
    view = engine(report=report(phase, attempt=4, **changes), ray=ray(), pods=pods(ready=True))
    told = advance(view)
    assert told.submit
    assert told.replica.attempt == 1
    assert told.replica.ranks == []
    assert told.failure is None


def test_a_report_of_an_earlier_attempt_is_not_this_ones() -> None:
    previous = EngineReplica(name="engine-0", state=F, attempt=3)
    told = advance(engine(report=report(attempt=2), previous=previous, ray=ray(), pods=pods(ready=True)))
    assert told.submit
    assert told.replica.attempt == 3


def test_a_report_of_a_later_attempt_than_status_is_believed() -> None:
    """The status write was lost: the engine's own word says how far it is."""
    previous = EngineReplica(name="engine-0", state=PL, attempt=1)
    told = advance(engine(report=report(attempt=2), previous=previous, pods=pods(ready=True)))
    assert told.replica.state is S
    assert (told.replica.attempt, told.replica.restarts) == (2, 1)


# ---- the attempt that is due ------------------------------------------------------------------------------------


def failed_report(attempt: int = 1, reason: str = "RankDied") -> EngineView:
    return engine(report=report(Phase.FAILED, reason=reason, attempt=attempt, time=at(0)), ray=ray())


@pytest.mark.parametrize(("attempt", "backoff"), [(1, 5), (2, 10), (3, 20), (4, 40), (9, 40)], ids=str)
def test_next_attempt_exactly_when_due(attempt: int, backoff: float) -> None:
    view = failed_report(attempt)
    early = turn(view, later(backoff - 0.001))
    assert early.attempt == attempt
    assert early.failure
    assert early.retry_at == later(backoff)
    due = turn(view, later(backoff))
    assert (due.attempt, due.failure) == (attempt + 1, None)


@pytest.mark.parametrize("reason", sorted(FATAL))
def test_fatal_stays(reason: str) -> None:
    view = failed_report(reason=reason)
    told = advance(view, later(10**6))
    assert told.lasting
    assert told.requeue_after is None
    assert told.replica.retry_at == ""
    assert not told.submit


@pytest.mark.parametrize("reason", sorted(set(FailureReason) - FATAL))
def test_not_fatal_is_tried_again(reason: str) -> None:
    assert advance(failed_report(reason=reason), later(5)).submit


@pytest.mark.parametrize("reason", sorted(MENDED_ELSEWHERE))
def test_what_is_mended_elsewhere_is_stalled_and_tried_again_all_the_same(reason: str) -> None:
    told = advance(failed_report(reason=reason), later(1))
    assert (told.lasting, told.submit) == (True, False)
    assert told.replica.retry_at
    assert advance(failed_report(reason=reason), later(5)).submit


def test_a_download_is_told_while_it_lasts() -> None:
    downloads = (DownloadReport(pod="lead", done=1, total=2),)
    message = "downloading hf://org/name: lead 50%"
    view = engine(report=report(Phase.PLACING, downloads=downloads, message=message), ray=ray())
    told = advance(view, later(1))
    assert (told.replica.state, told.replica.reason) == (EngineState.LOADING, "Downloading")
    assert told.replica.message == message
    assert not told.lasting


def retry(view: EngineView, requested: float, now: float) -> int:
    return turn(replace(view, retry_requested_at=at(requested)), later(now)).attempt


def test_retry_annotation() -> None:
    fatal = failed_report(reason="ModelNotFound")
    assert retry(fatal, 1, 1) == 2, "clears a fatal failure"
    assert retry(failed_report(), 1, 1) == 2, "need not wait for the backoff"
    assert retry(fatal, -1, 100) == 1, "asked for before the failure"
    assert retry(fatal, 50, 20) == 1, "an instant to come would ask again after every failure until then"
    assert turn(replace(fatal, retry_requested_at="please"), later(9)).attempt == 1
    again = replace(failed_report(2, "ModelNotFound"), retry_requested_at=at(-1))
    assert turn(again, later(9)).failure, "one request is one attempt"


def test_what_the_operator_saw_itself_is_remembered_through_the_status() -> None:
    silent = engine(report=report(time=at(-500)), ray=ray(), pods=pods(ready_since=-30))
    first = advance(silent)
    remembered = replace(silent, previous=first.replica)
    assert first.replica.retry_at == "2026-03-01T12:00:05Z"
    second = advance(remembered, later(2))
    assert second.replica == first.replica
    assert second.failure is None, "told once"
    assert second.requeue_after == pytest.approx(3.05)
    third = advance(remembered, later(5))
    assert third.submit
    assert (third.replica.attempt, third.replica.restarts) == (2, 1)


def test_an_engine_that_was_given_up_and_answers_again_serves() -> None:
    silent = engine(report=report(time=at(-500)), ray=ray(), pods=pods(ready_since=-30))
    back = replace(silent, previous=advance(silent).replica, pods=pods(ready=True))
    assert advance(back, later(2)).replica.state is S


def test_a_lost_pod_is_one_failure_also_when_the_lead_goes_on_saying_ready() -> None:
    lost = engine(report=report(ranks=views.ranks(("lead", "earlier"))), pods=pods(ready=True))
    first = advance(lost)
    again = replace(lost, previous=first.replica)
    assert advance(again, later(4)).failure is None
    assert advance(again, later(4)).replica == first.replica
    assert advance(replace(again, ray=ray()), later(5)).submit


def test_ray_is_asked_only_while_an_engine_is_brought_up_or_unready() -> None:
    def asked(view: EngineView) -> bool:
        return needs_ray(view, turn(view))

    assert asked(engine())
    assert asked(engine(report=report()))
    assert not asked(engine(report=report(), pods=pods(ready=True)))
    assert not asked(engine(report=report(Phase.LOADING)))
    assert not asked(engine(pods=pods()[:2]))
    assert not asked(failed_report())


def test_endless_words_are_cut() -> None:
    view = engine(report=report(Phase.FAILED, reason="LoadFailed", message="x" * 20000, time=at(-1)))
    told = advance(view)
    assert len(told.replica.message) == 8192
    assert told.failure
    assert len(told.failure.message) == 8192


def test_steps_are_reproducible() -> None:
    view = engine(report=report(), pods=pods(ready=True))
    assert advance(view) == advance(view)
    assert isinstance(advance(view), EngineStep)
