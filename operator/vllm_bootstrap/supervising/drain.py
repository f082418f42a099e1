"""When an engine that is to go may be ended: nobody must wait for an answer of it, and nobody must still come to it.

Nothing in flight is not enough at first: the Services need a second or two to hear that the pod is no more ready, and
clients keep connections open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SETTLE_SECONDS = 6.0
"""vLLM's HTTP server closes connections that nobody uses after five seconds; used ones are told to close."""

QUIET_SECONDS = 1.0
"""So long nobody must have come: a slow kube-proxy sends some late."""

TELL_SECONDS = 5.0
"""Least time between two reports of how many requests are in flight."""

UNKNOWN = -1


@dataclass(frozen=True, kw_only=True)
class Drain:
    """A drain as it stands; instants are of a monotonic clock.

    Attributes
    ----------
    begun, deadline
        Instants of its beginning and its latest end.
    requests
        In flight; ``UNKNOWN`` until it was seen.
    quiet
        For so many seconds nothing has been in flight.
    told, told_at
        Number that was reported last, and when.
    """

    begun: float
    deadline: float
    requests: int = UNKNOWN
    quiet: float = 0.0
    told: int = UNKNOWN
    told_at: float = float("-inf")

    @classmethod
    def begin(cls, seconds: float, now: float) -> Drain:
        """Begin one that ends within so many seconds."""
        return cls(begun=now, deadline=now + seconds)

    def within(self, seconds: float, now: float) -> Drain:
        """Shorten it: asked again, it ends at the earlier of the two instants."""
        return replace(self, deadline=min(self.deadline, now + seconds))

    def seen(self, requests: int, quiet: float) -> Drain:
        """Take what the gate says."""
        return replace(self, requests=requests, quiet=quiet)

    def reported(self, now: float) -> Drain:
        """Note that the present number was reported."""
        return replace(self, told=self.requests, told_at=now)

    def has_news(self, now: float) -> bool:
        """Say whether another number is to be reported, and not too soon."""
        return self.requests != self.told and now - self.told_at >= TELL_SECONDS

    def left(self, now: float) -> float:
        """Give the seconds until its latest end."""
        return max(0.0, self.deadline - now)

    def is_over(self, now: float) -> bool:
        """Say whether the engine may be ended."""
        settled = now - self.begun >= SETTLE_SECONDS
        return now >= self.deadline or (settled and self.requests == 0 and self.quiet >= QUIET_SECONDS)

    def words(self, now: float) -> str:
        """Say how it stands."""
        if self.requests == UNKNOWN:
            return f"it gets no new requests, at most {self.left(now):.0f} s left"
        return f"{_count(self.requests)} in flight, at most {self.left(now):.0f} s left"

    def result(self, now: float) -> str:
        """Say how it ended."""
        after = f"after {now - self.begun:.0f} s"
        if self.requests == UNKNOWN:
            return f"ended {after}; how many requests were in flight is not known"
        return f"{_count(self.requests)} cut off {after}" if self.requests else f"drained {after}"


def _count(requests: int) -> str:
    return f"{requests} request" + ("" if requests == 1 else "s")
