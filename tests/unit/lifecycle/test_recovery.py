"""Backoff between attempts, and the instants of the API."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_operator.lifecycle.recovery import Recovery, format_time, parse_time


def test_backoff_doubles_up_to_its_limit() -> None:
    recovery = Recovery(backoff_seconds=5, max_backoff_seconds=60)
    assert [recovery.delay(attempt) for attempt in range(1, 7)] == [5, 10, 20, 40, 60, 60]


@given(st.integers(1, 10**9), st.floats(0.1, 100), st.floats(0.1, 1000))
def test_backoff_is_bounded(attempt: int, base: float, limit: float) -> None:
    recovery = Recovery(backoff_seconds=base, max_backoff_seconds=limit)
    assert 0 < recovery.delay(attempt) <= limit
    assert recovery.delay(attempt) <= recovery.delay(attempt + 1)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-03-01T12:00:00Z", 0),
        ("2026-03-01T12:00:00.250Z", 0.25),
        ("2026-03-01T13:00:01+01:00", 1),
        ("2026-03-01T12:00:02", 2),
    ],
)
def test_instants_are_read(text: str, seconds: float) -> None:
    noon = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
    assert parse_time(text) == noon + datetime.timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "yes", "true"])
def test_what_is_no_instant_is_none(text: str) -> None:
    assert parse_time(text) is None


def test_instants_are_written_as_kubernetes_does() -> None:
    there = datetime.timezone(datetime.timedelta(hours=2))
    assert format_time(datetime.datetime(2026, 3, 1, 14, 0, 0, 999999, tzinfo=there)) == "2026-03-01T12:00:00Z"
