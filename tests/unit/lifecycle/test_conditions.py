"""Conditions by kstatus rules: what ``kubectl wait``, Argo CD and a reader make of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.lifecycle.views import NOW, later

from vllm_operator.api.status import Condition, ConditionType, EngineReplica, EngineState, PlanStatus, Reason
from vllm_operator.lifecycle.conditions import Blocker, Summary, conditions, serving

PLAN = PlanStatus(reason="ray: 2 ranks over 2 pods")


def engine(index: int, state: EngineState = EngineState.SERVING, **more: Any) -> EngineReplica:
    words = {} if state is EngineState.SERVING else {"reason": "PodsStarting", "message": "2 of 3 pods run"}
    return EngineReplica(name=f"engine-{index}", state=state, **(words | more))


def told(summary: Summary, previous: list[Condition] | None = None, **more: Any) -> dict[str, Condition]:
    found = conditions(summary, previous or [], generation=more.get("generation", 3), now=more.get("now", NOW))
    return {item.type: item for item in found}


def brief(summary: Summary) -> dict[str, str]:
    return {kind: f"{item.status} {item.reason}" for kind, item in told(summary).items()}


def of(replicas: int, *engines: EngineReplica, **more: Any) -> Summary:
    joined = frozenset(item.name for item in engines if item.state is not EngineState.PENDING)
    return Summary(replicas=replicas, engines=engines, joined=more.pop("joined", joined), plan=PLAN, **more)


WAITING = engine(0, EngineState.PENDING)
BROKEN = engine(1, EngineState.FAILED, reason="ModelNotFound", message="no such model")


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        pytest.param(
            of(2, engine(0), engine(1), versions="vllm 1"),
            {
                "Ready": "True Serving",
                "Available": "True Serving",
                "Reconciling": "False Progressing",
                "Stalled": "False Progressing",
                "Planned": "True Planned",
                "RayClustersReady": "True RayNodesJoined",
                "RuntimeCompatible": "True Compatible",
            },
            id="all serve",
        ),
        pytest.param(
            of(0),
            {
                "Ready": "True ScaledToZero",
                "Available": "False NotServing",
                "Reconciling": "False Progressing",
                "Stalled": "False Progressing",
                "RayClustersReady": "True RayNodesJoined",
            },
            id="scaled to zero",
        ),
        pytest.param(
            of(1, WAITING),
            {
                "Ready": "False PodsStarting",
                "Available": "False NotServing",
                "Reconciling": "True PodsStarting",
                "Stalled": "False Progressing",
                "RayClustersReady": "False PodsStarting",
                "RuntimeCompatible": "Unknown Unknown",
            },
            id="comes up",
        ),
        pytest.param(
            of(2, engine(0), engine(1, EngineState.LOADING)),
            {
                "Ready": "False PodsStarting",
                "Available": "True PartlyServing",
                "Reconciling": "True PodsStarting",
                "RayClustersReady": "True RayNodesJoined",
            },
            id="one of two",
        ),
        pytest.param(
            of(3, WAITING, BROKEN, engine(2), lasting=frozenset({"engine-1"})),
            {
                "Ready": "False ModelNotFound",
                "Available": "True PartlyServing",
                "Reconciling": "False Progressing",
                "Stalled": "True ModelNotFound",
            },
            id="one will not mend itself",
        ),
        pytest.param(
            of(2, engine(0)),
            {"Ready": "False Progressing", "Reconciling": "True Progressing", "Available": "True PartlyServing"},
            id="one is not there yet",
        ),
        pytest.param(
            Summary(replicas=1, blocker=Blocker(reason=Reason.SECRET_NOT_FOUND, message="create it")),
            {
                "Ready": "False SecretNotFound",
                "Available": "False NotServing",
                "Reconciling": "False Progressing",
                "Stalled": "True SecretNotFound",
                "Planned": "False SecretNotFound",
                "RayClustersReady": "False SecretNotFound",
            },
            id="blocked",
        ),
        pytest.param(
            Summary(replicas=1, blocker=Blocker(reason=Reason.FORBIDDEN, message="quota", lasting=False)),
            {"Ready": "False Forbidden", "Reconciling": "True Forbidden", "Stalled": "False Progressing"},
            id="blocked for now",
        ),
        pytest.param(
            of(1, engine(0), blocker=Blocker(reason=Reason.INVALID_SPEC, message="x")),
            {"Ready": "False InvalidSpec", "Available": "True Serving", "Stalled": "True InvalidSpec"},
            id="the earlier spec serves on",
        ),
        pytest.param(
            of(1, engine(0, EngineState.PENDING, reason="ImageWithoutRay", message="no Ray"), lasting={"engine-0"}),
            {"RuntimeCompatible": "False ImageWithoutRay", "Stalled": "True ImageWithoutRay"},
            id="image without Ray",
        ),
    ],
)
def test_table(summary: Summary, expected: dict[str, str]) -> None:
    assert brief(summary).items() >= expected.items()


def test_message_says_how_many_serve_and_what_the_worst_misses() -> None:
    summary = of(3, WAITING, BROKEN, engine(2), lasting=frozenset({"engine-1"}))
    assert told(summary)["Ready"].message == "1 of 3 engines serve; engine-1: no such model"
    assert told(of(1, WAITING))["Ready"].message == "engine-0: 2 of 3 pods run"
    assert told(of(2, engine(0), engine(1)))["Ready"].message == "2 of 2 engines serve"


def test_every_condition_is_there_from_the_first_sight() -> None:
    assert list(told(Summary(replicas=1))) == [kind.value for kind in ConditionType]
    assert {item.observed_generation for item in told(Summary(replicas=1)).values()} == {3}


def test_transition_time_moves_with_the_status_alone() -> None:
    first = list(told(of(1, WAITING)).values())
    other = of(1, engine(0, EngineState.LOADING, reason="Loading", message="40 %"))
    second = told(other, first, now=later(60), generation=4)
    assert second["Ready"].reason == "Loading"
    assert second["Ready"].observed_generation == 4
    assert second["Ready"].last_transition_time == "2026-03-01T12:00:00Z"
    assert second["RayClustersReady"].last_transition_time == "2026-03-01T12:01:00Z"
    third = told(of(1, engine(0)), list(second.values()), now=later(90))
    assert third["Ready"].last_transition_time == "2026-03-01T12:01:30Z"
    assert third["Stalled"].last_transition_time == "2026-03-01T12:00:00Z"


def test_nothing_new_gives_equal_conditions() -> None:
    summary = of(1, WAITING)
    first = told(summary)
    assert told(summary, list(first.values()), now=later(999)) == first


def test_long_messages_are_cut() -> None:
    summary = Summary(replicas=1, blocker=Blocker(reason=Reason.FORBIDDEN, message="x" * 9000))
    assert len(told(summary)["Ready"].message) == 8192


def test_serving_engines() -> None:
    assert [item.name for item in serving(of(3, WAITING, BROKEN, engine(2)))] == ["engine-2"]


engines = st.lists(st.sampled_from(EngineState), max_size=4).map(
    lambda states: tuple(engine(index, state) for index, state in enumerate(states))
)


@given(engines, st.integers(0, 4), st.sampled_from([None, True, False]), st.data())
def test_rules_hold_for_every_summary(
    them: tuple[EngineReplica, ...], replicas: int, blocked: bool | None, data: st.DataObject
) -> None:
    not_serving = sorted(item.name for item in them if item.state is not EngineState.SERVING)
    lasting = data.draw(st.sets(st.sampled_from(not_serving))) if not_serving else set()
    blocker = None if blocked is None else Blocker(reason=Reason.FORBIDDEN, message="why", lasting=blocked)
    summary = of(replicas, *them, lasting=frozenset(lasting), blocker=blocker)
    found = told(summary)
    ready, reconciling, stalled = (found[kind].status == "True" for kind in ("Ready", "Reconciling", "Stalled"))
    assert [ready, reconciling, stalled].count(True) == 1
    assert ready == (not blocker and len(them) == replicas and not not_serving)
    for item in found.values():
        assert item.reason
        if item.type in ("Ready", "Available", "RayClustersReady", "Planned") or item.status == "True":
            assert item.message
