"""When a failed engine is tried again."""

from __future__ import annotations

import datetime
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """Backoff between attempts: doubled each time, up to a limit.

    Attributes
    ----------
    backoff_seconds
        Wait before the second attempt.
    max_backoff_seconds
        Longest wait.
    silence_seconds
        How long an engine that reported ``Serving`` may be unready before it is started anew.
    unscheduled_seconds
        How long the scheduler may find no node for a pod before the engine gives its other GPUs back.
    """

    backoff_seconds: float = 5.0
    max_backoff_seconds: float = 300.0
    silence_seconds: float = 30.0
    unscheduled_seconds: float = 180.0

    def delay(self, attempt: int) -> float:
        """Seconds between the failure of ``attempt`` (1 for the first) and the next one."""
        return float(min(self.max_backoff_seconds, self.backoff_seconds * 2 ** min(attempt - 1, 16)))


def parse_time(text: str) -> datetime.datetime | None:
    """Read an RFC 3339 instant; ``None`` for an empty or unreadable one."""
    try:
        instant = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return instant if instant.tzinfo else instant.replace(tzinfo=datetime.UTC)


def format_time(instant: datetime.datetime) -> str:
    """Write an instant as the Kubernetes API does: RFC 3339, UTC, seconds."""
    return instant.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
