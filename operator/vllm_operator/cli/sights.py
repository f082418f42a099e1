"""What ``why`` sees of each engine, pod, node and event: typed, and only what a reader at night asks for."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm_bootstrap import contract
from vllm_operator.api import identity
from vllm_operator.api.status import EngineReplica, EngineState, Failure
from vllm_operator.cli.loose import dig, instant, items, mapping, number, text, words
from vllm_operator.cli.scene import Scene, is_ready
from vllm_operator.lifecycle.pods import Trouble, read_pod
from vllm_operator.lifecycle.recovery import format_time
from vllm_operator.planning.inventory import pod_gpus
from vllm_operator.resources.names import engine_name

MAX_EVENTS = 20
TAIL_LINES = 10
_EXCERPT = 400
_LONG_AGO = datetime.datetime.min.replace(tzinfo=datetime.UTC)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a container ended.

    Attributes
    ----------
    message
        Its last words, cut.
    """

    reason: str
    exit_code: int
    message: str
    at: str


@dataclass(frozen=True, kw_only=True)
class ContainerSight:
    """A container.

    Attributes
    ----------
    state
        ``running``, ``waiting``, ``terminated`` or empty.
    reason, message
        Why it waits.
    ended
        Its latest end, ``None`` when it never ended.
    """

    name: str
    state: str
    reason: str
    message: str
    restarts: int
    ended: Ended | None


@dataclass(frozen=True, kw_only=True)
class PodSight:
    """A pod.

    Attributes
    ----------
    role
        ``head``, ``lead`` or ``worker``.
    unscheduled
        What the scheduler says while the pod has no node.
    said
        What Kubernetes says of the pod as a whole, such as why it was evicted.
    trouble
        What keeps it from running, as the operator sees it.
    """

    name: str
    cluster: str
    role: str
    phase: str
    ready: bool
    deleting: bool
    node: str
    gpus: int
    unscheduled: str
    said: str
    restarts: int
    containers: tuple[ContainerSight, ...]
    trouble: Trouble | None


@dataclass(frozen=True, kw_only=True)
class NodeSight:
    """A node under a pod that is not ready, or under a failure.

    Attributes
    ----------
    present
        The API server knows it.
    """

    name: str
    present: bool
    ready: str = ""
    reason: str = ""
    message: str = ""
    since: str = ""
    cordoned: bool = False
    taints: tuple[str, ...] = ()

    @property
    def is_well(self) -> bool:
        """It is there and its kubelet answers."""
        return self.present and self.ready == "True"

    @property
    def fault(self) -> str:
        """What is wrong with it, as the end of a sentence."""
        if not self.present:
            return "is gone: the API server knows no such node"
        told = f" ({self.reason}: {words(self.message)})" if self.reason else ""
        return f"is not ready{f' since {self.since}' if self.since else ''}{told}"


@dataclass(frozen=True, kw_only=True)
class ReportSight:
    """What Ray and vLLM say, by the engine's report.

    Attributes
    ----------
    earlier
        It speaks of an earlier attempt than the engine's present one.
    ranks
        Number of ranks by the state that Ray gives them.
    lost
        Ranks that are not alive: rank, pod, node and state.
    fault
        Why the report cannot be read.
    """

    phase: str = ""
    reason: str = ""
    message: str = ""
    time: str = ""
    attempt: int = 0
    earlier: bool = False
    failed_rank: int = -1
    failed_pod: str = ""
    served_at: str = ""
    groups: tuple[contract.PlacementGroupReport, ...] = ()
    ranks: Mapping[str, int]
    lost: tuple[str, ...] = ()
    versions: Mapping[str, str]
    log_tail: tuple[str, ...] = ()
    fault: str = ""


@dataclass(frozen=True, kw_only=True)
class EngineSight:
    """An engine.

    Attributes
    ----------
    state
        By the CR's status; empty for a RayCluster of which the status says nothing, such as one that is being removed.
    retry_at
        When the next attempt starts by itself.
    refused
        Why KubeRay cannot make its pods.
    lost
        Pods that held ranks and are gone, each with its node.
    """

    name: str
    state: str
    reason: str
    message: str
    attempt: int
    restarts: int
    retry_at: str
    ray_cluster: str
    revision: str
    refused: str
    deleting: bool
    lost: Mapping[str, str]
    pods: tuple[PodSight, ...]
    report: ReportSight | None

    @property
    def serves(self) -> bool:
        """It serves."""
        return self.state == EngineState.SERVING

    @property
    def lead(self) -> str:
        """Name of the pod that runs vLLM's server, empty while there is none."""
        return next((pod.name for pod in self.pods if pod.role == "lead"), "")

    @property
    def head(self) -> str:
        """Name of the Ray head pod, empty while there is none."""
        return next((pod.name for pod in self.pods if pod.role == "head"), "")


@dataclass(frozen=True, kw_only=True)
class EventSight:
    """Events of the same words, counted.

    Attributes
    ----------
    objects
        What they speak of, ``Kind/name``.
    """

    last: str
    type: str
    reason: str
    message: str
    count: int
    objects: tuple[str, ...]


def see_engines(scene: Scene, replicas: Iterable[EngineReplica]) -> tuple[EngineSight, ...]:
    """See the engines: those of the status, then RayClusters that it does not name."""
    pods = [see_pod(body) for body in scene.pods]
    clusters = {text(body, "metadata", "name"): body for body in scene.clusters}
    reports = {text(body, "metadata", "name"): text(body, "data", contract.REPORT_KEY) for body in scene.reports}
    seen: list[EngineSight] = []
    for replica in replicas:
        body = clusters.pop(replica.ray_cluster, {})
        told = reports.get(replica.report or f"{replica.ray_cluster}-report", "")
        seen.append(_engine(replica, body, _pods_of(pods, replica.ray_cluster), told))
    for name, body in sorted(clusters.items()):
        seen.append(_unnamed(name, body, _pods_of(pods, name)))
    return tuple(seen)


def see_pod(body: Mapping[str, Any]) -> PodSight:
    """See a pod."""
    tags = mapping(body, "metadata", "labels")
    scheduled = next((c for c in items(body, "status", "conditions") if text(c, "type") == "PodScheduled"), {})
    statuses = [*items(body, "status", "initContainerStatuses"), *items(body, "status", "containerStatuses")]
    containers = tuple(_container(item) for item in statuses)
    lead = text(tags, identity.LABEL_LEAD) == "true"
    role = "head" if text(tags, "ray.io/node-type") == "head" else "lead" if lead else "worker"
    return PodSight(
        name=text(body, "metadata", "name"),
        cluster=text(tags, "ray.io/cluster") or text(tags, identity.LABEL_WORKLOAD),
        role=role,
        phase=text(body, "status", "phase") or "Pending",
        ready=is_ready(body),
        deleting=dig(body, "metadata", "deletionTimestamp") is not None,
        node=text(body, "spec", "nodeName"),
        gpus=sum(pod_gpus(mapping(body, "spec")).values()),
        unscheduled=(text(scheduled, "message") or "not scheduled") if text(scheduled, "status") == "False" else "",
        said=words(": ".join(filter(None, (text(body, "status", "reason"), text(body, "status", "message"))))),
        restarts=sum(item.restarts for item in containers),
        containers=containers,
        trouble=_trouble(body),
    )


def see_node(name: str, body: Mapping[str, Any] | None) -> NodeSight:
    """See a node; ``None`` is one that is gone."""
    if body is None:
        return NodeSight(name=name, present=False)
    ready = next((item for item in items(body, "status", "conditions") if text(item, "type") == "Ready"), {})
    return NodeSight(
        name=name,
        present=True,
        ready=text(ready, "status") or "Unknown",
        reason=text(ready, "reason"),
        message=text(ready, "message"),
        since=text(ready, "lastTransitionTime"),
        cordoned=dig(body, "spec", "unschedulable") is True,
        taints=tuple(
            f"{text(item, 'key')}{'=' if text(item, 'value') else ''}{text(item, 'value')}:{text(item, 'effect')}"
            for item in items(body, "spec", "taints")
        ),
    )


def see_events(scene: Scene, engines: Iterable[EngineSight]) -> tuple[EventSight, ...]:
    """See the events of the deployment, its RayClusters and their pods, those that are gone too; the newest last."""
    ours = _Ours(scene, tuple(engines))
    found: dict[tuple[str, str, str], EventSight] = {}
    for body in scene.events:
        if not ours.has(mapping(body, "involvedObject")):
            continue
        event = _event(body)
        key = (event.type, event.reason, event.message)
        found[key] = _joined(found[key], event) if key in found else event
    return tuple(sorted(found.values(), key=lambda event: (_moment(event.last), event.objects)))


def ended_since(failures: Iterable[Failure], engine: EngineSight) -> datetime.datetime:
    """Give the instant from which on the end of a container can be the cause of an engine's present trouble."""
    slack = datetime.timedelta(minutes=5)
    failed = [_moment(item.time) for item in failures if item.engine == engine.name]
    known = [moment - slack for moment in failed if moment > _LONG_AGO + slack]
    served = _moment(engine.report.served_at) if engine.report else _LONG_AGO
    return max([served, *known])


class _Ours:
    """Which objects of events belong to the deployment."""

    def __init__(self, scene: Scene, engines: tuple[EngineSight, ...]) -> None:
        bodies = [scene.deployment, *scene.clusters, *scene.pods]
        self._uids = {text(body, "metadata", "name"): text(body, "metadata", "uid") for body in bodies}
        self._deployment = text(scene.deployment, "metadata", "name")
        self._clusters = {engine.ray_cluster for engine in engines if engine.ray_cluster}
        self._pods = {pod.name for engine in engines for pod in engine.pods}

    def has(self, target: Mapping[str, Any]) -> bool:
        name, uid = text(target, "name"), text(target, "uid")
        match text(target, "kind"):
            case identity.KIND:
                # An earlier object of the same name is another one.
                return name == self._deployment and self._is_same(name, uid)
            case "RayCluster":
                return name in self._clusters and self._is_same(name, uid)
            case "Pod":
                return name in self._pods or any(name.startswith(f"{cluster}-") for cluster in self._clusters)
        return False

    def _is_same(self, name: str, uid: str) -> bool:
        known = self._uids.get(name, "")
        return not uid or not known or uid == known


def _engine(replica: EngineReplica, cluster: Mapping[str, Any], pods: tuple[PodSight, ...], report: str) -> EngineSight:
    return EngineSight(
        name=replica.name,
        state=replica.state.value,
        reason=replica.reason,
        message=replica.message,
        attempt=replica.attempt,
        restarts=replica.restarts,
        retry_at=replica.retry_at,
        ray_cluster=replica.ray_cluster,
        revision=replica.revision,
        refused=_refused(cluster),
        deleting=dig(cluster, "metadata", "deletionTimestamp") is not None,
        lost=_lost(replica, pods),
        pods=pods,
        report=_report(report, replica.attempt) if report else None,
    )


def _lost(replica: EngineReplica, pods: Iterable[PodSight]) -> dict[str, str]:
    there = {pod.name for pod in pods}
    return {rank.pod: rank.node for rank in replica.ranks if rank.pod and rank.pod not in there}


def _unnamed(name: str, body: Mapping[str, Any], pods: tuple[PodSight, ...]) -> EngineSight:
    tags = mapping(body, "metadata", "labels")
    return EngineSight(
        name=engine_name(text(tags, identity.LABEL_ENGINE) or "?"),
        state="",
        reason="",
        message="the status does not name its RayCluster",
        attempt=0,
        restarts=0,
        retry_at="",
        ray_cluster=name,
        revision=text(tags, identity.LABEL_REVISION),
        refused=_refused(body),
        deleting=dig(body, "metadata", "deletionTimestamp") is not None,
        lost={},
        pods=pods,
        report=None,
    )


def _pods_of(pods: Iterable[PodSight], cluster: str) -> tuple[PodSight, ...]:
    return tuple(sorted((pod for pod in pods if cluster and pod.cluster == cluster), key=lambda pod: pod.name))


def _refused(cluster: Mapping[str, Any]) -> str:
    told = next((c for c in items(cluster, "status", "conditions") if text(c, "type") == "ReplicaFailure"), {})
    return (text(told, "message") or text(told, "reason")) if text(told, "status") == "True" else ""


def _container(body: Mapping[str, Any]) -> ContainerSight:
    state = mapping(body, "state")
    name = next((key for key in ("running", "waiting", "terminated") if key in state), "")
    ended = mapping(state, "terminated") or mapping(body, "lastState", "terminated")
    return ContainerSight(
        name=text(body, "name"),
        state=name,
        reason=text(state, "waiting", "reason"),
        message=text(state, "waiting", "message"),
        restarts=number(body, "restartCount"),
        ended=_ended(ended) if ended else None,
    )


def _ended(body: Mapping[str, Any]) -> Ended:
    return Ended(
        reason=text(body, "reason"),
        exit_code=number(body, "exitCode"),
        message=words(text(body, "message"))[-_EXCERPT:],
        at=text(body, "finishedAt"),
    )


def _trouble(body: Mapping[str, Any]) -> Trouble | None:
    try:
        return read_pod(body).trouble
    except (AttributeError, LookupError, TypeError, ValueError):
        # The operator trusts the form of pods; what was said of this one must do.
        return None


def _report(content: str, attempt: int) -> ReportSight:
    try:
        told = contract.loads(contract.EngineReport, content)
    except (contract.ContractError, RecursionError) as error:
        return ReportSight(ranks={}, versions={}, fault=str(error))
    seat = next((rank for rank in told.ranks if rank.rank == told.failed_rank), None)
    return ReportSight(
        phase=told.phase.value,
        reason=told.reason,
        message=told.message,
        time=told.time,
        attempt=told.attempt,
        earlier=told.attempt < attempt,
        failed_rank=told.failed_rank,
        failed_pod=seat.pod if seat else "",
        served_at=told.timings.first_token,
        groups=told.placement_groups,
        ranks=dict(sorted(Counter(rank.state for rank in told.ranks).items())),
        lost=tuple(
            f"rank {rank.rank} on {rank.pod or rank.ray_node or '?'} ({rank.node or '?'}): {rank.state}"
            for rank in told.ranks
            if rank.state != _ALIVE
        ),
        versions=dict(sorted(told.versions.items())),
        log_tail=tuple(words(line) for line in told.log_tail[-TAIL_LINES:]),
    )


_ALIVE = "ALIVE"


def _event(body: Mapping[str, Any]) -> EventSight:
    seen = [instant(body, "lastTimestamp"), instant(body, "series", "lastObservedTime"), instant(body, "eventTime")]
    made = instant(body, "firstTimestamp") or instant(body, "metadata", "creationTimestamp")
    last = max((moment for moment in seen if moment), default=made)
    return EventSight(
        last=format_time(last) if last else "",
        type=text(body, "type") or "Normal",
        reason=text(body, "reason"),
        message=words(text(body, "message")),
        count=max(1, number(body, "count"), number(body, "series", "count")),
        objects=(f"{text(body, 'involvedObject', 'kind')}/{text(body, 'involvedObject', 'name')}",),
    )


def _joined(one: EventSight, other: EventSight) -> EventSight:
    return replace(
        one,
        last=max(one.last, other.last, key=_moment),
        count=one.count + other.count,
        objects=tuple(dict.fromkeys((*one.objects, *other.objects))),
    )


def _moment(value: str) -> datetime.datetime:
    return instant({"at": value}, "at") or _LONG_AGO
