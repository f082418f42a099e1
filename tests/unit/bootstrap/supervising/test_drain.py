"""When an engine that is to go may be ended."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_bootstrap.supervising.drain import QUIET_SECONDS, SETTLE_SECONDS, TELL_SECONDS, Drain


@pytest.mark.parametrize(
    ("after", "requests", "quiet", "over"),
    [
        (0.0, 0, 100.0, False),
        (SETTLE_SECONDS - 0.1, 0, 100.0, False),
        (SETTLE_SECONDS, 0, QUIET_SECONDS, True),
        (SETTLE_SECONDS, 0, QUIET_SECONDS / 2, False),
        (SETTLE_SECONDS, 1, 0.0, False),
        (59.9, 1, 0.0, False),
        (60.0, 1, 0.0, True),
        (60.0, 0, 0.0, True),
    ],
)
def test_it_is_over_when_all_are_answered_and_nobody_comes_or_the_time_is_up(
    after: float, requests: int, quiet: float, over: bool
) -> None:
    assert Drain.begin(60.0, 1000.0).seen(requests, quiet).is_over(1000.0 + after) is over


def test_what_is_in_flight_is_not_known_at_first() -> None:
    drain = Drain.begin(60.0, 0.0)
    assert not drain.is_over(59.0)
    assert drain.is_over(60.0)
    assert drain.words(0.0) == "it gets no new requests, at most 60 s left"
    assert drain.result(60.0) == "ended after 60 s; how many requests were in flight is not known"


def test_its_words() -> None:
    drain = Drain.begin(60.0, 0.0).seen(12, 0.0)
    assert drain.words(20.0) == "12 requests in flight, at most 40 s left"
    assert drain.seen(1, 0.0).words(70.0) == "1 request in flight, at most 0 s left"
    assert drain.result(60.0) == "12 requests cut off after 60 s"
    assert drain.seen(0, 2.0).result(7.0) == "drained after 7 s"


def test_asked_again_it_ends_at_the_earlier_instant() -> None:
    drain = Drain.begin(60.0, 0.0)
    assert drain.within(10.0, 5.0).deadline == 15.0
    assert drain.within(600.0, 5.0).deadline == 60.0


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(0, 3)), max_size=60))
def test_news_are_new_and_never_told_in_quick_succession(steps: list[tuple[float, int]]) -> None:
    now, told = 0.0, []
    drain = Drain.begin(600.0, now)
    for passed, requests in steps:
        now += passed
        drain = drain.seen(requests, 0.0)
        if drain.has_news(now):
            told.append((now, requests))
            drain = drain.reported(now)
    for (before, first), (later, second) in pairwise(told):
        assert later - before >= TELL_SECONDS
        assert first != second
