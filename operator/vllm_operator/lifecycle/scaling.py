"""Which engines stay when there are more than are wanted, and where new ones go.

Kubernetes removes the pod that it thinks the least of; here that is the engine with the fewest requests in flight, for
its drain is the shortest and the fewest answers hang on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An engine that is there.

    Attributes
    ----------
    going
        Its objects are being removed already.
    leaving
        It was chosen to go before, and drains.
    serving
        It has traffic.
    requests
        Requests in flight; ``None`` when they are not known.
    """

    index: int
    going: bool = False
    leaving: bool = False
    serving: bool = False
    requests: int | None = None


def seats(candidates: Sequence[Candidate], wanted: int) -> tuple[int, ...]:
    """Give the indices of so many engines: of those that stay, then the lowest free ones.

    Those go first that go already, then those that were chosen before, those without traffic, and those with the fewest
    requests in flight; of equals the one with the highest index.
    """
    order = sorted(candidates, key=_worth)
    stay = {item.index for item in order[max(0, len(order) - wanted) :]}
    free = (index for index in itertools.count() if index not in stay)
    return tuple(sorted(stay | set(itertools.islice(free, wanted - len(stay)))))


def to_be_asked(candidates: Sequence[Candidate], wanted: int) -> tuple[int, ...]:
    """Give the indices of the engines whose requests in flight decide which of them go."""
    settled = sum(item.going or item.leaving or not item.serving for item in candidates)
    if not settled < len(candidates) - wanted < len(candidates):
        return ()
    return tuple(item.index for item in candidates if item.serving and not (item.going or item.leaving))


def _worth(candidate: Candidate) -> tuple[bool, bool, bool, int, int]:
    # An engine that has traffic and does not tell of it is not well.
    requests = -1 if candidate.requests is None else candidate.requests
    return (not candidate.going, not candidate.leaving, candidate.serving, requests, -candidate.index)
