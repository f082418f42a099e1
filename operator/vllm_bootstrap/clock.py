"""Time as an argument: a test that waits for nothing is a test that is run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The three uses of time.

    Attributes
    ----------
    wall
        Seconds since the epoch, for what people read.
    monotonic
        Seconds from anywhere, for deadlines.
    sleep
        Wait so many seconds.
    """

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def timestamp(self) -> str:
        """Give the present instant as RFC 3339 in UTC with milliseconds."""
        return timestamp(self.wall())


def timestamp(epoch: float) -> str:
    """Write an instant as RFC 3339 in UTC with milliseconds."""
    return datetime.fromtimestamp(epoch, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def poll(check: Callable[[], T | None], *, seconds: float, clock: Clock, interval: float = 0.2) -> T | None:
    """Ask until there is an answer that is not ``None``, or the time is over; at least once, and once at the end."""
    deadline = clock.monotonic() + seconds
    while True:
        answer = check()
        left = deadline - clock.monotonic()
        if answer is not None or left <= 0:
            return answer
        clock.sleep(min(interval, left))
