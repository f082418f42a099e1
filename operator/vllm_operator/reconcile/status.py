"""The status of a deployment, computed in one place and written only when it changed."""

from __future__ import annotations

import datetime
from typing import Any

from vllm_operator.api import identity
from vllm_operator.api.status import Failure, VLLMDeploymentStatus
from vllm_operator.lifecycle.conditions import Blocker, Summary, conditions, serving
from vllm_operator.lifecycle.recovery import parse_time
from vllm_operator.reconcile.decide import Decision
from vllm_operator.reconcile.observe import Observation
from vllm_operator.resources.service import url

MAX_FAILURES = 10
_LONG_AGO = datetime.datetime.min.replace(tzinfo=datetime.UTC)


def new_status(
    seen: Observation, decision: Decision, refused: Blocker | None, now: datetime.datetime
) -> VLLMDeploymentStatus:
    """Compute the status.

    Parameters
    ----------
    refused
        What stopped the actions, if anything did.
    """
    wanted = seen.wanted if seen.spec else len(decision.engines)
    summary = Summary(
        replicas=wanted,
        engines=decision.engines,
        lasting=decision.lasting,
        joined=decision.joined,
        plan=decision.plan,
        plan_only=decision.plan_only,
        suspended=bool(seen.spec and seen.spec.suspend),
        blocker=refused or decision.blocker,
        versions=decision.versions,
    )
    selector = ",".join(f"{key}={value}" for key, value in sorted(identity.lead_selector(seen.owner.name).items()))
    return VLLMDeploymentStatus(
        observed_generation=seen.generation,
        conditions=conditions(summary, seen.status.conditions, generation=seen.generation, now=now),
        url=url(seen.owner),
        replicas=len(decision.engines),
        ready_replicas=len(serving(summary)),
        selector=selector,
        revision=decision.revision,
        plan=decision.plan or seen.status.plan,
        engine_replicas=list(decision.engines),
        last_failures=_failures(seen.status.last_failures, decision),
    )


def dump(status: VLLMDeploymentStatus) -> dict[str, Any]:
    """Give the status as it is written: what is empty is left out."""
    data = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    conditions_ = data.pop("conditions")
    pruned: dict[str, Any] = _prune(data)
    pruned["conditions"] = conditions_
    return pruned


def _failures(known: list[Failure], decision: Decision) -> list[Failure]:
    """Keep the latest failures, the newest first; one attempt of an engine fails once.

    Sorted, not just put in front: an engine tells its failure in every round, and one that has no room among the ten
    must stay out, or each round would write the status anew.
    """
    fresh = [failure for failure in decision.failures if not _is_known(failure, known)]
    latest = sorted([*fresh, *known], key=lambda item: (parse_time(item.time) or _LONG_AGO, item.engine), reverse=True)
    return latest[:MAX_FAILURES]


def _is_known(failure: Failure, known: list[Failure]) -> bool:
    return any(
        (item.engine, item.attempt, item.reason, item.time)
        == (failure.engine, failure.attempt, failure.reason, failure.time)
        for item in known
    )


def _prune(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _prune(item) for key, item in value.items() if item not in ("", None, {}, [])}
    if isinstance(value, list):
        return [_prune(item) for item in value]
    return value
