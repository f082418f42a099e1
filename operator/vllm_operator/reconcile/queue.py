"""The work queue: which deployment to look at next.

Watch events only put keys here.  A key is worked on by one worker at a time, an event that comes meanwhile makes it
run once more, a failure comes back with a growing delay.  The same rules as client-go's work queue.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """Keys to work on, each once however often it was added.

    Parameters
    ----------
    jitter
        Gives a factor for each delay after a failure, so that many keys do not come back at once.
    base, limit
        First and longest delay after a failure, in seconds.
    """

    def __init__(self, jitter: random.Random, *, base: float = 0.5, limit: float = 120.0) -> None:
        self._jitter = jitter
        self._base = base
        self._limit = limit
        self._order: asyncio.Queue[K] = asyncio.Queue()
        self._waiting: set[K] = set()
        self._working: set[K] = set()
        self._again: set[K] = set()
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: K) -> None:
        """Ask for a key to be worked on soon."""
        if key in self._working:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._order.put_nowait(key)

    def add_all(self, keys: Iterable[K]) -> None:
        """Ask for several keys."""
        for key in keys:
            self.add(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Ask for a key to be worked on later; of several such wishes the earliest counts."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        known = self._timers.get(key)
        if known and known.when() <= due:
            return
        if known:
            known.cancel()
        self._timers[key] = loop.call_at(due, self._due, key)

    async def get(self) -> K:
        """Wait for a key and take it."""
        key = await self._order.get()
        self._waiting.discard(key)
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        """Say that a taken key was worked on."""
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def failed(self, key: K) -> float:
        """Say that a taken key failed; it comes back after the delay that is returned."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay: float = min(self._limit, self._base * 2 ** min(count, 16)) * (0.8 + 0.4 * self._jitter.random())
        self.add_after(key, delay)
        return delay

    def succeeded(self, key: K) -> None:
        """Forget a key's failures."""
        self._failures.pop(key, None)

    def forget(self, key: K) -> None:
        """Forget all about a key that is gone."""
        self._failures.pop(key, None)
        timer = self._timers.pop(key, None)
        if timer:
            timer.cancel()

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)
