"""A diagnosis for people: from the outside in, and the cause last, where the eye is when the command has ended."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence

from vllm_operator.api.status import ConditionType
from vllm_operator.cli.loose import harmless, words
from vllm_operator.cli.sights import MAX_EVENTS, ContainerSight, EngineSight, NodeSight, PodSight, ReportSight
from vllm_operator.cli.tables import age, fold, table
from vllm_operator.cli.why import Diagnosis, State

MAX_ENGINES, MAX_PODS = 12, 12
MAX_FAILURES = 5
MAX_LOST = 4
_LONGEST = 700
_STATES = {State.READY: "Ready", State.ON_ITS_WAY: "not Ready, on its way", State.STALLED: "Stalled"}


def why_text(told: Diagnosis, now: datetime.datetime, *, width: int) -> str:
    """Give a diagnosis as text.

    Parameters
    ----------
    now
        Ages are reckoned to it.
    width
        Columns to keep to; commands are never broken.
    """
    since = f" since {told.since} ({age(told.since, now)})" if told.since else ""
    parts = [f"{told.namespace}/{told.name}: {_STATES[told.state]}{since}"]
    parts += [part for part in (_conditions(told, now, width), *_engines(told, now, width)) if part]
    parts += [part for part in (_nodes(told.nodes, width), _events(told, now, width), _failures(told, width)) if part]
    parts += ["\n".join(f"({item})" for item in told.unread)] if told.unread else []
    last = [f"cause: {_cut(told.cause.message)}"] + ([f"next:  {told.cause.next}"] if told.cause.next else [])
    return harmless("\n\n".join([*parts, "\n".join(last)]))


def _conditions(told: Diagnosis, now: datetime.datetime, width: int) -> str:
    known: dict[str, str] = {}
    rows: list[list[object]] = []
    for item in told.conditions:
        if not _matters(item.type, item.status):
            continue
        full = message = _cut(item.message)
        for said, kind in known.items():
            message = message.replace(said, f"as {kind}")
        if full and message == full:
            known[full] = item.type
        rows.append([item.type, item.status, item.reason, age(item.last_transition_time, now), message])
    return table(["condition", "status", "reason", "since", "message"], rows, width=width) if rows else ""


def _matters(kind: str, status: str) -> bool:
    """Say whether a condition tells something: what holds as it should is left out, beside the two of the summary."""
    if kind in (ConditionType.READY, ConditionType.AVAILABLE):
        return True
    return status == ("True" if kind in (ConditionType.RECONCILING, ConditionType.STALLED) else "False")


def _engines(told: Diagnosis, now: datetime.datetime, width: int) -> Iterator[str]:
    if not told.engines:
        return
    head = ["engine", "state", "reason", "attempt", "restarts", "retry at", "raycluster"]
    shown = sorted(told.engines, key=lambda item: item.serves)[:MAX_ENGINES]
    rows = [
        [item.name, item.state, item.reason, item.attempt, item.restarts, item.retry_at, item.ray_cluster]
        for item in shown
    ]
    more = f"\nand {len(told.engines) - len(shown)} more: -o json" if len(told.engines) > len(shown) else ""
    yield table(head, rows) + more
    known = {item.message for item in told.conditions}
    for engine in [item for item in shown if not item.serves or len(told.engines) == 1]:
        lines = list(_engine(engine, known, now, width))
        if lines:
            yield "\n".join(lines)
    yield _pods([pod for engine in told.engines for pod in engine.pods], width)


def _engine(engine: EngineSight, known: set[str], now: datetime.datetime, width: int) -> Iterator[str]:
    if engine.message and not any(engine.message in item for item in known):
        yield from _said(f"{engine.name}: ", _cut(engine.message), width)
    if engine.refused and engine.refused not in engine.message:
        yield from _said(f"{engine.name}, KubeRay: ", _cut(engine.refused), width)
    if engine.report:
        yield from _said(f"{engine.name}, Ray: ", _ray(engine.report, now), width)
        for line in engine.report.log_tail:
            yield f"  | {_cut(line, 200)}"


def _ray(report: ReportSight, now: datetime.datetime) -> str:
    if report.fault:
        return f"its report cannot be read: {_cut(report.fault)}"
    attempt = f" (of attempt {report.attempt}, an earlier one)" if report.earlier else ""
    parts = [f"{report.phase}{attempt}, {age(report.time, now) or '?'} ago"]
    parts += [f"{report.reason}: {_cut(report.message)}" if report.reason else _cut(report.message)]
    parts += [f"placement group {group.name} {group.strategy} {group.state}" for group in report.groups]
    ranks = ", ".join(f"{count} {state}" for state, count in report.ranks.items())
    parts += [f"ranks: {ranks}" if ranks else ""]
    parts += report.lost[:MAX_LOST] if "ALIVE" in report.ranks else []
    parts += [", ".join(f"{name} {version}" for name, version in report.versions.items())]
    return words("; ".join(part for part in parts if part))


def _pods(pods: Sequence[PodSight], width: int) -> str:
    if not pods:
        return ""
    shown = sorted(pods, key=lambda pod: pod.ready and not pod.deleting)[:MAX_PODS]
    head = ["pod", "role", "phase", "ready", "restarts", "node", "says"]
    rows = [
        [pod.name, pod.role, "Terminating" if pod.deleting else pod.phase, pod.ready, pod.restarts, pod.node, _pod(pod)]
        for pod in shown
    ]
    more = f"\nand {len(pods) - len(shown)} more: -o json" if len(pods) > len(shown) else ""
    return table(head, rows, width=width) + more


def _pod(pod: PodSight) -> str:
    told = [pod.said, words(pod.unscheduled), *(_container(item) for item in pod.containers)]
    return _cut("; ".join(part for part in told if part)) or "-"


def _container(container: ContainerSight) -> str:
    parts: list[str] = []
    if container.state == "waiting":
        message = f": {words(container.message)}" if container.message else ""
        parts.append(f"waiting, {container.reason or '?'}{message}")
    ended = container.ended
    if ended and (ended.exit_code or ended.reason not in ("", "Completed")):
        at = f" at {ended.at}" if ended.at else ""
        last = f": {ended.message}" if ended.message else ""
        now = "" if container.state == "terminated" else "last "
        parts.append(f"{now}ended {ended.reason or 'Error'}, exit code {ended.exit_code}{at}{last}")
    return f"{container.name} {'; '.join(parts)}" if parts else ""


def _nodes(nodes: Sequence[NodeSight], width: int) -> str:
    if not nodes:
        return ""
    rows = [
        [
            item.name,
            item.ready if item.present else "gone",
            "cordoned" if item.cordoned else "",
            ",".join(item.taints),
            _cut(item.fault) if not item.is_well else "-",
        ]
        for item in nodes
    ]
    return table(["node", "ready", "scheduling", "taints", "says"], rows, width=width)


def _events(told: Diagnosis, now: datetime.datetime, width: int) -> str:
    shown = told.events[-MAX_EVENTS:]
    if not shown:
        return ""
    rows = [
        [age(item.last, now), item.type, item.reason, _objects(item.objects), f"x{item.count}", _cut(item.message)]
        for item in shown
    ]
    more = f"({len(told.events) - len(shown)} earlier events are left out: -o json)\n"
    cut = more if len(told.events) > len(shown) else ""
    return cut + table(["last seen", "type", "reason", "object", "count", "message"], rows, width=width)


def _objects(objects: Sequence[str]) -> str:
    return objects[0] if len(objects) == 1 else f"{objects[0]} +{len(objects) - 1}"


def _failures(told: Diagnosis, width: int) -> str:
    rows = [
        [item.time, item.engine, item.attempt, item.reason, item.pod, item.node, _cut(item.message)]
        for item in told.failures[:MAX_FAILURES]
    ]
    return (
        table(["failed at", "engine", "attempt", "reason", "pod", "node", "message"], rows, width=width) if rows else ""
    )


def _said(title: str, text: str, width: int) -> list[str]:
    first, *more = fold(text, width - len(title) if width else 0)
    return [title + first, *(" " * len(title) + line for line in more)]


def _cut(text: str, longest: int = _LONGEST) -> str:
    told = words(text)
    return told if len(told) <= longest else f"{told[: longest - 1]}…"
