"""An engine that is to go: it finishes what it answers before its objects are removed, but not for ever.

Its supervisor drains and ends it; what is decided here is whether that is waited for.  The instant of the latest
removal stands in the status: the engine's own word about it would be one that its pod can change.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from vllm_bootstrap import contract
from vllm_operator.api.status import EngineReplica, Reason
from vllm_operator.lifecycle.engine_view import EngineView, own_report
from vllm_operator.lifecycle.entry import draining_entry
from vllm_operator.lifecycle.recovery import format_time, parse_time

ASK_SECONDS = 2.0
"""When a supervisor that has not begun to drain is asked again."""

END_SECONDS = 60.0
"""For the orderly end of the engine after its drain, and for its last report."""

UNREADY_SECONDS = 15.0
"""An engine that has been out of its Service for so long, and does not begin to drain, has nobody who would."""


RELEASE_SECONDS = 45.0
"""For a job on a shared RayCluster to remove what an engine has there."""


@dataclass(frozen=True, kw_only=True)
class Leave:
    """An engine that is waited for.

    Attributes
    ----------
    replica
        Its entry in the status.
    ask
        Its supervisor is to be asked to drain.
    requeue_after
        Look again after so many seconds even if nothing is heard.
    release
        It answers nobody any more, and what it holds of a shared RayCluster is to be freed.
    """

    replica: EngineReplica
    ask: bool
    requeue_after: float
    release: bool = False


def take_leave(view: EngineView, *, why: str, seconds: float, now: datetime.datetime) -> Leave | None:
    """Say how an engine leaves; ``None`` when nothing is waited for and it is to be removed.

    Parameters
    ----------
    why
        Why it goes, for people.
    seconds
        How long it may drain.
    """
    if not seconds or not _may_answer(view, now):
        return None
    known = parse_time(view.previous.drain_until) if view.previous else None
    latest = now + datetime.timedelta(seconds=seconds + END_SECONDS)
    until = min(known, latest) if known else latest
    if until <= now:
        return None
    report = own_report(view)
    drains = report is not None and report.phase is contract.Phase.DRAINING
    # A time that was shortened is told to who drains already.
    ask = not drains or (known is not None and until < known)
    words = report.message if drains and report else "its supervisor is asked to drain it"
    replica = draining_entry(view, f"{why}; {words}", format_time(until))
    left = (until - now).total_seconds()
    return Leave(replica=replica, ask=ask, requeue_after=min(left, ASK_SECONDS) if ask else left)


def release(view: EngineView, *, why: str, now: datetime.datetime) -> Leave | None:
    """Say how an engine that has drained gives back what it holds of a shared RayCluster.

    Returns
    -------
    ``None`` when the cluster had its time: it is removed, and what is left in Ray is an orphan, for whoever comes next.
    """
    known = parse_time(view.previous.drain_until) if view.previous else None
    until = (known or now) + datetime.timedelta(seconds=RELEASE_SECONDS)
    if until <= now:
        return None
    told = f"{why}; its actors and placement groups on RayCluster {view.cluster.ray_cluster} are removed"
    replica = draining_entry(view, told, format_time(known or now))
    return Leave(
        replica=replica.model_copy(update={"reason": Reason.RELEASING}), ask=False, requeue_after=1.0, release=True
    )


def _may_answer(view: EngineView, now: datetime.datetime) -> bool:
    """Say whether an engine may be answering somebody."""
    lead, report = view.lead, own_report(view)
    if not lead or not lead.running:
        return False
    if report and report.phase is contract.Phase.DRAINING:
        return True
    if report and report.phase is not contract.Phase.SERVING:
        return False
    since = parse_time(lead.ready_changed_at)
    unready = 0.0 if lead.ready or not since else (now - since).total_seconds()
    return lead.ready or (report is not None and unready < UNREADY_SECONDS)
