"""Conditions and the summary of a deployment, by kstatus rules.

``Ready`` is the desired state reached; while it is not, either ``Reconciling`` (it gets there by itself) or ``Stalled``
(somebody must change something) is True, never both.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from vllm_operator.api.status import (
    AdapterState,
    AdapterStatus,
    Condition,
    ConditionType,
    EngineReplica,
    EngineState,
    PlanStatus,
    Reason,
)
from vllm_operator.lifecycle.recovery import format_time


@dataclass(frozen=True, kw_only=True)
class Blocker:
    """What keeps the whole deployment from being brought up.

    Attributes
    ----------
    lasting
        Somebody must change something; otherwise it may pass.
    """

    reason: Reason
    message: str
    lasting: bool = True


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What is known of a deployment after one look.

    Attributes
    ----------
    engines
        State of each engine that should be, by index.
    lasting
        Names of the engines that do not get further by themselves.
    joined
        Names of the engines whose Ray nodes have joined.
    plan_only
        The plan is all that is asked for.
    suspended
        No engine is wanted for now.
    """

    replicas: int
    engines: tuple[EngineReplica, ...] = ()
    lasting: frozenset[str] = frozenset()
    joined: frozenset[str] = frozenset()
    plan: PlanStatus | None = None
    plan_only: bool = False
    suspended: bool = False
    blocker: Blocker | None = None
    versions: str = ""


_FIRST_SIGHT_ORDER = tuple(ConditionType)


def conditions(
    summary: Summary, previous: Sequence[Condition], *, generation: int, now: datetime.datetime
) -> list[Condition]:
    """Give the conditions; one whose status did not change keeps its ``lastTransitionTime``."""
    drafts = {
        ConditionType.READY: _ready(summary),
        ConditionType.AVAILABLE: _available(summary),
        ConditionType.RECONCILING: _reconciling(summary),
        ConditionType.STALLED: _stalled(summary),
        ConditionType.PLANNED: _planned(summary),
        ConditionType.RAY_CLUSTERS_READY: _ray_clusters(summary),
        ConditionType.RUNTIME_COMPATIBLE: _runtime(summary),
    }
    before = {condition.type: condition for condition in previous}
    return [_condition(kind, drafts[kind], before, generation, now) for kind in _FIRST_SIGHT_ORDER]


_Draft = tuple[str, Reason | str, str]


def _condition(
    kind: ConditionType, draft: _Draft, before: dict[str, Condition], generation: int, now: datetime.datetime
) -> Condition:
    status, reason, message = draft
    old = before.get(kind)
    kept = old.last_transition_time if old and old.status == status else format_time(now)
    return Condition(
        type=kind,
        status=status,
        reason=str(reason),
        message=message[:8192],
        observed_generation=generation,
        last_transition_time=kept,
    )


def serving(summary: Summary) -> list[EngineReplica]:
    """Give the engines that serve."""
    return [engine for engine in summary.engines if engine.state is EngineState.SERVING]


def _is_ready(summary: Summary) -> bool:
    if summary.plan_only:
        return not summary.blocker
    serves = len(serving(summary)) == summary.replicas == len(summary.engines)
    return not summary.blocker and serves and not _lacking(summary)


def _lacking(summary: Summary) -> list[tuple[EngineReplica, AdapterStatus]]:
    """Give the LoRA adapters that engines which serve are still to load or to remove, those that failed first."""
    found = [
        (engine, adapter)
        for engine in serving(summary)
        for adapter in engine.adapters
        if adapter.state is not AdapterState.LOADED
    ]
    return sorted(found, key=lambda item: item[1].state is not AdapterState.FAILED)


def _why_lacking(lacking: list[tuple[EngineReplica, AdapterStatus]]) -> tuple[Reason, str]:
    engine, adapter = lacking[0]
    if adapter.state is AdapterState.FAILED:
        failed = sum(item.state is AdapterState.FAILED for _, item in lacking)
        more = f" (and {failed - 1} more)" if failed > 1 else ""
        told = f"{engine.name} serves, but without the LoRA adapter {adapter.name}{more}: {adapter.message}"
        return Reason.ADAPTER_FAILED, told
    names = ", ".join(dict.fromkeys(item.name for _, item in lacking[:8]))
    message = next((f" ({item.message})" for _, item in lacking if item.message), "")
    return Reason.LOADING_ADAPTERS, f"{engine.name} loads or removes LoRA adapters: {names}{message}"


def _worst(summary: Summary) -> EngineReplica | None:
    waiting = [engine for engine in summary.engines if engine.state is not EngineState.SERVING]
    waiting.sort(key=lambda engine: engine.name not in summary.lasting)
    return waiting[0] if waiting else None


def _ready(summary: Summary) -> _Draft:
    if _is_ready(summary):
        if summary.plan_only:
            return "True", Reason.PLANNED, "planOnly: the plan is made, and nothing else"
        if summary.suspended:
            return "True", Reason.SUSPENDED, "suspend is true: its engines are removed until it is false"
        if summary.replicas == 0:
            return "True", Reason.SCALED_TO_ZERO, "replicas is 0"
        return "True", Reason.SERVING, f"{summary.replicas} of {summary.replicas} engines serve"
    reason, message = _why_not(summary)
    return "False", reason, message


def _why_not(summary: Summary) -> tuple[Reason | str, str]:
    if summary.blocker:
        return summary.blocker.reason, summary.blocker.message
    worst = _worst(summary)
    if worst:
        counted = f"{len(serving(summary))} of {summary.replicas} engines serve; " if summary.replicas > 1 else ""
        return worst.reason or Reason.PROGRESSING, f"{counted}{worst.name}: {worst.message}"
    if lacking := _lacking(summary):
        return _why_lacking(lacking)
    return Reason.PROGRESSING, f"{len(summary.engines)} of {summary.replicas} engines are there"


def _available(summary: Summary) -> _Draft:
    count = len(serving(summary))
    if count:
        reason = Reason.SERVING if count == summary.replicas else Reason.PARTLY_SERVING
        return "True", reason, f"{count} of {summary.replicas} engines serve"
    return "False", Reason.NOT_SERVING, "no engine serves"


def _is_stalled(summary: Summary) -> bool:
    if summary.blocker:
        return summary.blocker.lasting
    if summary.plan_only:
        return False
    if any(engine.name in summary.lasting for engine in summary.engines):
        return True
    failed = any(adapter.state is AdapterState.FAILED for _, adapter in _lacking(summary))
    return failed and not _worst(summary)


def _reconciling(summary: Summary) -> _Draft:
    if _is_ready(summary) or _is_stalled(summary):
        return "False", Reason.PROGRESSING, ""
    reason, message = _why_not(summary)
    return "True", reason, message


def _stalled(summary: Summary) -> _Draft:
    if not _is_stalled(summary):
        return "False", Reason.PROGRESSING, ""
    reason, message = _why_not(summary)
    return "True", reason, message


def _planned(summary: Summary) -> _Draft:
    if summary.plan:
        return "True", Reason.PLANNED, summary.plan.reason
    if summary.blocker:
        return "False", summary.blocker.reason, summary.blocker.message
    return "Unknown", Reason.UNKNOWN, "not planned yet"


def _ray_clusters(summary: Summary) -> _Draft:
    if summary.plan_only and not summary.engines:
        return "Unknown", Reason.PLANNED, "planOnly: no RayCluster is made"
    executor = summary.plan.distributed_executor_backend if summary.plan else ""
    if executor not in ("", "ray") and not any(engine.ray_cluster for engine in summary.engines):
        return "True", Reason.NO_RAY, f"{executor}: no Ray cluster is needed"
    joined = sum(engine.name in summary.joined for engine in summary.engines)
    message = f"{joined} of {summary.replicas} Ray clusters have all their nodes"
    if joined == summary.replicas and not summary.blocker:
        return "True", Reason.RAY_NODES_JOINED, message
    reason, why = _why_not(summary) if not _is_ready(summary) else (Reason.WAITING_FOR_RAY_NODES, message)
    return "False", reason, f"{message}; {why}" if why else message


def _runtime(summary: Summary) -> _Draft:
    bad = {Reason.RUNTIME_INCOMPATIBLE.value, Reason.IMAGE_WITHOUT_RAY.value}
    for engine in summary.engines:
        if engine.reason in bad:
            return "False", engine.reason, engine.message
    if summary.versions:
        return "True", Reason.COMPATIBLE, summary.versions
    return "Unknown", Reason.UNKNOWN, "the runtime image was not seen running yet"
