"""When a deployment that is deleted is kept until its engines have drained, and that it never is for ever.  Pure.

Only engines on Ray need it: when a RayCluster is removed all its pods are ended at once, and what the lead still
answers needs the others; and on a shared RayCluster nothing but us frees what an engine holds.  The pod of an engine
without Ray drains by itself.  So no other deployment is ever stuck
while no operator is there to let it go.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from vllm_operator.api.identity import FINALIZER
from vllm_operator.api.spec import Drain
from vllm_operator.lifecycle.leaving import END_SECONDS
from vllm_operator.lifecycle.recovery import parse_time
from vllm_operator.reconcile.intent import Intent
from vllm_operator.reconcile.observe import Observation

ORPHAN = "orphan"
"""The garbage collector's own finalizer, of ``kubectl delete --cascade=orphan``: what we made is to stay."""

SLACK_SECONDS = 60.0


def is_waited_for(body: Mapping[str, Any]) -> bool:
    """Say whether a deployment that is deleted waits for us, and its engines are to go with it."""
    present = _present(body)
    return FINALIZER in present and ORPHAN not in present


def is_overdue(body: Mapping[str, Any], now: datetime.datetime) -> bool:
    """Say whether a deployment has been kept for so long that it goes, whatever can be seen of it."""
    since = parse_time(str(body["metadata"].get("deletionTimestamp", "")))
    drain = (body.get("spec") or {}).get("drain")
    told = drain.get("timeoutSeconds") if isinstance(drain, Mapping) else None
    seconds = told if isinstance(told, int) else Drain().timeout_seconds
    return since is None or (now - since).total_seconds() > seconds + END_SECONDS + SLACK_SECONDS


def keeps_finalizer(seen: Observation, intent: Intent, now: datetime.datetime) -> bool:
    """Say whether a deployment should bear our finalizer."""
    if seen.is_deleted:
        return bool(intent.leaving) and not is_overdue(seen.body, now)
    bears = FINALIZER in _present(seen.body)
    if seen.spec is None:
        return bears
    if seen.holdings or intent.holdings:
        return True
    # Not while an engine is only replaced: a moment later it would be set again.
    return bool(seen.spec.drain.timeout_seconds and (seen.clusters or (bears and seen.wanted)))


def finalizers(body: Mapping[str, Any], *, ours: bool) -> list[str] | None:
    """Give the finalizers that a deployment should have, with or without ours; ``None`` when they are so."""
    present = _present(body)
    if ours == (FINALIZER in present):
        return None
    return [*present, FINALIZER] if ours else [item for item in present if item != FINALIZER]


def _present(body: Mapping[str, Any]) -> list[str]:
    return list(body["metadata"].get("finalizers") or ())
