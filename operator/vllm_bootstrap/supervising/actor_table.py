"""Rows of Ray's actor table, read: who died by itself, and who was ended because something else had ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_bootstrap.supervising.events import DEAD, RankSight

STATE_API_SECONDS = 10
STATE_API_LIMIT = 10_000

ADVICE = "Some common causes include"
TRACEBACK = "Traceback (most recent call last):"

# Ray's words for an actor whose process, or whose constructor, did not come up.
NEVER_ALIVE = ("could not create the actor", "creation task")

# Ray's words when it killed an actor because somebody wanted it or its owner ended: an effect, not a cause.
CONSEQUENCES = (
    "ray.kill",
    "owner has died",
    "owner died",
    "owned by a job",
    "job finished",
    "job has finished",
    "ref count",
    "all references",
    "out of scope",
    "exit_actor",
)


def rows(class_name: str, address: str) -> list[Any]:
    """Read the rows of a class of actors.

    Parameters
    ----------
    address
        Of the GCS.  Without it Ray looks for clusters on this machine, and may find another's.
    """
    # A quarter of a second of imports: in a thread of the supervisor's, and in a bootstrap job that has to know.
    from ray.util.state import list_actors  # noqa: PLC0415

    return list(
        list_actors(
            address=address,
            filters=[("class_name", "=", class_name)],
            detail=True,
            limit=STATE_API_LIMIT,
            timeout=STATE_API_SECONDS,
            raise_on_missing_output=False,
        )
    )


def sight(row: Any) -> RankSight:
    """Read one row of Ray's actor table."""
    cause = describe_death(row.death_cause) if row.state == DEAD else ""
    return RankSight(
        state=row.state,
        actor_id=row.actor_id,
        pid=row.pid or 0,
        cause=cause,
        own=bool(cause) and not any(words in cause.lower() for words in CONSEQUENCES),
        unborn=any(words in cause.lower() for words in NEVER_ALIVE),
        kind=row.class_name,
    )


def describe_death(death_cause: Mapping[str, Any] | None) -> str:
    """Give Ray's words for a death, without the fields around them and the advice behind them."""
    for context in (death_cause or {}).values():
        if isinstance(context, Mapping):
            for name in ("error_message", "errorMessage", "formatted_exception_string", "formattedExceptionString"):
                if context.get(name):
                    return _essence(str(context[name]))
    return str(death_cause) if death_cause else ""


def _essence(text: str) -> str:
    """Leave out advice, and of a traceback all but its last line."""
    head, traceback, rest = text.partition(ADVICE)[0].partition(TRACEBACK)
    lines = [line.strip() for line in rest.splitlines() if line.strip()]
    return " ".join(f"{head.strip()} {lines[-1] if traceback and lines else ''}".split())
