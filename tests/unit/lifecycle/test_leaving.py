"""An engine that is to go is waited for as long as it may answer somebody, and never for ever."""

from __future__ import annotations

import datetime

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.lifecycle import views

from vllm_bootstrap.contract import Phase
from vllm_operator.api.status import EngineState
from vllm_operator.lifecycle.leaving import END_SECONDS, take_leave

STEPS = st.lists(
    st.tuples(
        st.floats(0.1, 60.0),
        st.sampled_from([None, *Phase]),
        st.booleans(),
        st.integers(0, 600),
        st.sampled_from(["", "9999-12-31T00:00:00Z"]),
    ),
    min_size=1,
    max_size=40,
)


@given(STEPS)
def test_whatever_is_seen_it_ends_within_its_time(steps: list[tuple[float, Phase | None, bool, int, str]]) -> None:
    """What the engine says of itself never makes it later than the longest time that was asked for."""
    now, previous = views.NOW, None
    longest = max(seconds for _, _, _, seconds, _ in steps)
    for passed, phase, ready, seconds, told in steps:
        report = views.report(phase, message=told, time=told or views.at(0)) if phase else None
        view = views.engine(pods=views.pods(ready=ready), report=report, previous=previous)
        leave = take_leave(view, why="it is surplus", seconds=seconds, now=now)
        if leave is None:
            return
        assert leave.replica.state is EngineState.DRAINING
        assert 0 < leave.requeue_after <= longest + END_SECONDS
        assert leave.ask or phase is Phase.DRAINING
        assert now - views.NOW < datetime.timedelta(seconds=longest + END_SECONDS)
        previous = leave.replica
        now += datetime.timedelta(seconds=passed)
