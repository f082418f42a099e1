"""Whole lives of an engine, made up by hypothesis: what must hold whatever comes in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.lifecycle import views

from vllm_bootstrap.contract import FATAL, MENDED_ELSEWHERE, FailureReason, Phase
from vllm_operator.api.status import EngineReplica, EngineState
from vllm_operator.lifecycle.conditions import Summary, conditions

PENDING = {"phase": "Pending"}
UNSCHEDULABLE = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}]}
CRASHED = {"containerStatuses": [{"name": "vllm", "state": {"terminated": {"exitCode": 1}}}]}

pod_states = st.one_of(
    st.just("ready"),
    st.sampled_from(["ready", "unready", "missing", "deleting", "pending", "unschedulable", "crashed", "replaced"]),
)
reports = st.fixed_dictionaries(
    {
        "phase": st.sampled_from(list(Phase)),
        "reason": st.sampled_from(["", *FailureReason]),
        "attempt_behind": st.integers(-1, 2),
        "foreign": st.booleans(),
        "message": st.sampled_from(["", "words"]),
    }
)
rays = st.sampled_from(
    [
        None,
        views.ray(),
        views.ray(session="", error="refused"),
        views.ray(session="session_2"),
        views.ray(gpus=()),
        views.job("PENDING"),
        views.job("SUCCEEDED"),
        views.job("FAILED"),
    ]
)
moments = st.fixed_dictionaries(
    {
        "after": st.integers(0, 120),
        "pod": pod_states,
        "report": st.one_of(st.none(), reports),
        "ray": rays,
        "retry": st.sampled_from(["", "now", "later", "nonsense"]),
        "write_lost": st.booleans(),
    }
)


def pods_in(state: str) -> tuple[Any, ...]:
    head, lead, worker = views.pods(ready=state == "ready")
    other = {
        "missing": (),
        "deleting": (views.pod("worker", deleting=True),),
        "pending": (views.pod("worker", status=PENDING),),
        "unschedulable": (views.pod("worker", status=UNSCHEDULABLE),),
        "crashed": (views.pod("worker", status=CRASHED),),
        "replaced": (views.pod("worker-2"),),
    }
    return (head, lead, *other.get(state, (worker,)))


def check_conditions(replica: EngineReplica, lasting: bool, joined: bool, clock: float) -> None:
    summary = Summary(
        replicas=1,
        engines=(replica,),
        lasting=frozenset({replica.name} if lasting else ()),
        joined=frozenset({replica.name} if joined else ()),
    )
    told = {item.type: item for item in conditions(summary, [], generation=1, now=views.later(clock))}
    assert not (told["Reconciling"].status == told["Stalled"].status == "True")
    if told["Ready"].status == "True":
        assert replica.state is EngineState.SERVING
        assert told["Reconciling"].status == told["Stalled"].status == "False"
    else:
        assert "True" in (told["Reconciling"].status, told["Stalled"].status)
        assert told["Ready"].reason
        assert told["Ready"].message.removeprefix("engine-0: ")


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(st.lists(moments, min_size=1, max_size=12))
def test_life(moments: Sequence[dict[str, Any]]) -> None:
    clock, previous, report, last = 0.0, None, None, 0
    for moment in moments:
        clock += moment["after"]
        if told := moment["report"]:
            report = views.report(
                told["phase"],
                reason=told["reason"],
                message=told["message"],
                attempt=max(1, last - told["attempt_behind"]),
                uid="another" if told["foreign"] else views.UID,
                time=views.at(clock),
            )
        retry = {"now": views.at(clock), "later": views.at(clock + 9000), "nonsense": "x"}.get(moment["retry"], "")
        view = views.engine(
            pods=pods_in(moment["pod"]),
            report=report,
            previous=previous,
            retry_requested_at=retry,
            ray=moment["ray"],
        )
        due = views.turn(view, views.later(clock))
        step = views.advance(view, views.later(clock))
        assert step.replica.attempt >= last, "attempts never go back"
        assert step.replica.attempt >= 1
        assert step.replica.restarts == step.replica.attempt - 1
        assert step == views.advance(view, views.later(clock))
        if due.failure:
            assert not step.submit, "nothing is started while a failure waits"
            assert step.replica.state is EngineState.FAILED
            assert (due.retry_at is None) == (due.failure.reason in FATAL)
            assert step.lasting == (due.failure.reason in FATAL | MENDED_ELSEWHERE)
        if step.submit:
            assert view.all_running
            assert view.ray
            assert view.ray.session
        if step.replica.state is EngineState.SERVING:
            assert view.lead
            assert view.lead.ready
        else:
            assert step.replica.reason
            assert step.replica.message
        if step.replica.state is EngineState.FAILED and not step.lasting:
            assert step.replica.retry_at
            assert step.requeue_after is not None
        assert step.requeue_after is None or step.requeue_after > 0
        check_conditions(step.replica, step.lasting, step.joined, clock)
        if not moment["write_lost"]:
            previous = step.replica
            last = step.replica.attempt
        elif previous is not None:
            previous = replace_nothing(previous)


def replace_nothing(replica: EngineReplica) -> EngineReplica:
    """Read the status back as from the API server."""
    return EngineReplica.model_validate(replica.model_dump(mode="json", by_alias=True))


def test_from_nothing_to_serving_and_back() -> None:
    """The usual life: pods, Ray, job, report, serving; a rank dies; the second attempt serves."""
    view = views.engine(pods=())
    seen: list[tuple[str, int]] = []

    def look(clock: float, **changes: Any) -> None:
        nonlocal view
        view = replace(view, **changes)
        step = views.advance(view, views.later(clock))
        seen.append((step.replica.state.value, step.replica.attempt))
        view = replace(view, previous=step.replica)

    look(0)
    look(10, pods=views.pods(started=5))
    look(11, ray=views.ray(session="", gpus=(), error="refused"))
    look(12, ray=views.ray(gpus=()))
    look(13, ray=views.job("RUNNING"))
    look(14, report=views.report(Phase.PLACING, time=views.at(14), ranks=()), ray=None)
    look(20, report=views.report(Phase.LOADING, time=views.at(20)))
    look(60, report=views.report(Phase.SERVING, time=views.at(60)))
    look(61, pods=views.pods(ready=True, ready_since=61, started=5))
    look(99, report=views.report(Phase.FAILED, reason="RankDied", time=views.at(99)))
    look(100, pods=views.pods(ready_since=100, started=5))
    look(104, ray=views.ray())
    look(120, report=views.report(Phase.SERVING, attempt=2, time=views.at(119)))
    look(121, pods=views.pods(ready=True, ready_since=121, started=5))
    assert seen == [
        ("Pending", 1),
        ("Pending", 1),
        ("Pending", 1),
        ("Pending", 1),
        ("Placing", 1),
        ("Placing", 1),
        ("Loading", 1),
        ("Loading", 1),
        ("Serving", 1),
        ("Failed", 1),
        ("Failed", 1),
        ("Placing", 2),
        ("Loading", 2),
        ("Serving", 2),
    ]
