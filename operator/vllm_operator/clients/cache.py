"""A small memory for answers that cost a request: bounded, and each answer with an end."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TimedCache(Generic[K, V]):
    """Keeps the answers that were used last.

    Parameters
    ----------
    size
        Answers that are kept; the one that was not used for longest goes first.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[K, tuple[V, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, key: K, value: V, *, until: float) -> None:
        """Keep an answer; ``until`` is an instant of the caller's clock, in seconds."""
        self._kept[key] = (value, until)
        self._kept.move_to_end(key)
        while len(self._kept) > self._size:
            self._kept.popitem(last=False)

    def fresh(self, key: K, now: float) -> V | None:
        """Give an answer that has not ended."""
        found = self._kept.get(key)
        if found is None or found[1] <= now:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def last(self, key: K) -> V | None:
        """Give the last answer, ended or not."""
        found = self._kept.get(key)
        return found[0] if found else None
