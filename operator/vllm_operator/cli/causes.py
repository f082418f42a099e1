"""The one cause to tell of all that is wrong: the deepest that is concrete.

An engine that is pending is a symptom of its pod, the pod of its node.  So each level is asked in turn, from the node
up to the engine, and the first that knows something concrete is believed; the conditions of the CR come last.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from vllm_bootstrap import contract
from vllm_operator.api import identity
from vllm_operator.api.status import EngineState, Failure, Reason
from vllm_operator.cli.loose import instant, words
from vllm_operator.cli.sights import ContainerSight, EngineSight, EventSight, NodeSight, PodSight, ended_since

OOM_KILLED = "OOMKilled"


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why a deployment is not Ready.

    Attributes
    ----------
    level
        Where it was found: node, container, scheduler, KubeRay, start, Ray, engine, deployment.
    message
        A sentence.
    next
        What to do, or the command that says more; empty when there is nothing to do.
    """

    level: str
    reason: str
    message: str
    next: str = ""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the cause of one engine's trouble is looked for in.

    Attributes
    ----------
    nodes
        By name; one that could not be read is not among them.
    """

    namespace: str
    name: str
    engine: EngineSight
    nodes: Mapping[str, NodeSight]
    events: Sequence[EventSight]
    failures: Sequence[Failure]

    def logs(self, pod: str, container: str = "vllm", *, previous: bool = False) -> str:
        """Give the command that shows a log."""
        return f"kubectl logs -n {self.namespace} {pod} -c {container}{' --previous' if previous else ''}"

    def describe(self, kind: str, name: str) -> str:
        """Give the command that describes an object of the namespace."""
        return f"kubectl describe {kind} -n {self.namespace} {name}".rstrip()

    @property
    def retry(self) -> str:
        """The command that asks for another attempt."""
        mark = f"{identity.ANNOTATION_RETRY}=$(date -u +%FT%TZ)"
        return f"kubectl annotate {identity.SHORT_NAME} -n {self.namespace} {self.name} {mark} --overwrite"


def engine_causes(evidence: Evidence) -> Iterator[tuple[int, Cause]]:
    """Give what each level knows of an engine that does not serve, with its depth; the smallest is the deepest."""
    for depth, ask in enumerate(_LEVELS):
        if cause := ask(evidence):
            yield depth, cause


def _node(seen: Evidence) -> Cause | None:
    for pod in seen.engine.pods:
        node = seen.nodes.get(pod.node)
        if node and not node.is_well and not pod.ready:
            message = f"node {node.name}, on which pod {pod.name} runs, {node.fault}"
            more = f"kubectl describe node {node.name}" if node.present else "kubectl get nodes; the pod is made anew"
            return Cause(
                level="node", reason="NodeNotReady" if node.present else "NodeGone", message=message, next=more
            )
    return None


def _lost_node(seen: Evidence) -> Cause | None:
    """Find the node that went with a pod: its ranks are lost, whatever became of the pod."""
    bad = _bad_before(seen)
    if seen.engine.reason not in _SYMPTOMS or not bad:
        return None
    message = f"{seen.engine.name} lost ranks with node {bad.name}, which {bad.fault}"
    more = f"kubectl describe node {bad.name}" if bad.present else "kubectl get nodes"
    return Cause(level="node", reason="NodeNotReady" if bad.present else "NodeGone", message=message, next=more)


def _bad_before(seen: Evidence) -> NodeSight | None:
    failed = [item.node for item in seen.failures if item.engine == seen.engine.name]
    lost = [seen.nodes[name] for name in (*seen.engine.lost.values(), *failed) if name in seen.nodes]
    return next((node for node in lost if not node.is_well), None)


def _container(seen: Evidence) -> Cause | None:
    for pod in seen.engine.pods:
        if pod.phase == "Failed" and pod.said:
            message = f"pod {pod.name} was ended on node {pod.node or '?'}: {pod.said}"
            return Cause(level="container", reason="PodFailed", message=message, next=seen.describe("pod", pod.name))
    troubled = [pod for pod in seen.engine.pods if pod.trouble and not pod.unscheduled]
    troubled.sort(key=lambda pod: (not (pod.trouble and pod.trouble.lasting), pod.role != "head", pod.name))
    for pod in troubled:
        if pod.trouble:
            ended = next((item for item in pod.containers if _failed(item)), None)
            crashed = pod.trouble.reason is Reason.CONTAINER_CRASHED and ended and _is_down(ended)
            if crashed and ended:
                return _crash(seen, pod, ended)
            return _not_started(seen, pod, pod.trouble.reason, pod.trouble.message)
    return None


def _not_started(seen: Evidence, pod: PodSight, reason: Reason, message: str) -> Cause:
    mend = {
        Reason.IMAGE_PULL_FAILED: f"mend spec.image or spec.pod.imagePullSecrets; {seen.describe('pod', pod.name)}",
        Reason.IMAGE_WITHOUT_RAY: "use an image with ray[default] and vllm as spec.image (images/runtime builds one)",
    }
    return Cause(
        level="container",
        reason=reason.value,
        message=words(message),
        next=mend.get(reason, seen.describe("pod", pod.name)),
    )


def _crash(seen: Evidence, pod: PodSight, container: ContainerSight) -> Cause:
    ended = container.ended
    assert ended is not None  # noqa: S101 - the caller looked
    previous = container.state != "terminated"
    log = seen.logs(pod.name, container.name, previous=previous)
    times = f" ({container.restarts} restart{'s' * (container.restarts != 1)})" if container.restarts else ""
    at = f" at {ended.at}" if ended.at else ""
    last = f": {ended.message}" if ended.message else ""
    where = f"pod {pod.name}, container {container.name}"
    if ended.reason == OOM_KILLED:
        field = "spec.rayHead.resources" if pod.role == "head" else "spec.pod.resources.limits.memory"
        message = f"{where} was killed for memory (OOMKilled, exit code {ended.exit_code}){at}{times}{last}"
        return Cause(level="container", reason=OOM_KILLED, message=message, next=f"raise {field}; {log}")
    message = f"{where} ended with exit code {ended.exit_code}{at}{times}{last}"
    return Cause(level="container", reason=ended.reason or "Error", message=message, next=log)


def _scheduler(seen: Evidence) -> Cause | None:
    waiting = [pod for pod in seen.engine.pods if pod.unscheduled and not pod.deleting]
    if not waiting:
        return None
    pod = waiting[0]
    others = f" (and {len(waiting) - 1} more)" if len(waiting) > 1 else ""
    bad = _bad_before(seen)
    before = f"; node {bad.name}, where it ran before, {bad.fault}" if bad else ""
    said = words(pod.unscheduled).rstrip(".")
    # Behind the scheduler's words the operator says who holds what.
    holders = words(seen.engine.message.partition(pod.unscheduled)[2]).strip("; ")
    return Cause(
        level="scheduler",
        reason=Reason.UNSCHEDULABLE.value,
        message=f"pod {pod.name}{others} has no node: {said}{f'; {holders}' if holders else ''}{before}",
        next=next((more for word, more in _SCHEDULER_HINTS if word in pod.unscheduled.lower()), "{describe}").format(
            describe=seen.describe("pod", pod.name), name=seen.name, namespace=seen.namespace
        ),
    )


_NO_GPUS = "free GPUs or add nodes; kubectl vllm explain {name} -n {namespace} --live"
_SCHEDULER_HINTS = (
    *((f"insufficient {maker}/", _NO_GPUS) for maker in ("nvidia.com", "amd.com", "gpu.intel.com")),
    ("persistentvolumeclaim", "kubectl describe pvc -n {namespace}"),
    ("volume node affinity", "the volume is in another zone than the free nodes; kubectl describe pvc -n {namespace}"),
    ("insufficient memory", "lower spec.pod.resources.requests or free memory; {describe}"),
    ("insufficient cpu", "lower spec.pod.resources.requests or free CPU; {describe}"),
    ("untolerated taint", "add spec.pod.tolerations or take the taint off; kubectl describe nodes"),
    ("node affinity/selector", "change spec.pod.nodeSelector or spec.pod.affinity, or label the nodes; {describe}"),
    ("anti-affinity", "the strategy wants more nodes than are free: add nodes or change spec.placement.strategy"),
)


def _kuberay(seen: Evidence) -> Cause | None:
    engine = seen.engine
    if engine.refused:
        quota = "quota" in engine.refused
        return Cause(
            level="KubeRay",
            reason="ReplicaFailure",
            message=f"KubeRay cannot make the pods of RayCluster {engine.ray_cluster}: {words(engine.refused)}",
            next=seen.describe("resourcequota", "") if quota else seen.describe("raycluster", engine.ray_cluster),
        )
    told = _warning(seen, f"RayCluster/{engine.ray_cluster}")
    if engine.ray_cluster and told and not engine.pods:
        return Cause(
            level="KubeRay",
            reason=told.reason,
            message=f"KubeRay says of RayCluster {engine.ray_cluster}: {told.message}",
            next=seen.describe("raycluster", engine.ray_cluster),
        )
    return None


def _start(seen: Evidence) -> Cause | None:
    """Find what keeps a pod that has its node from starting: a volume, a network, a sandbox."""
    for pod in seen.engine.pods:
        waits = any(item.state == "waiting" for item in pod.containers) or (not pod.containers and pod.node)
        told = _warning(seen, f"Pod/{pod.name}")
        if waits and told and pod.node and not pod.deleting and told.reason != "FailedScheduling":
            message = f"pod {pod.name} does not start on node {pod.node}: {told.message}"
            return Cause(level="start", reason=told.reason, message=message, next=seen.describe("pod", pod.name))
    return None


def _past_end(seen: Evidence) -> Cause | None:
    """Find the end of a container that runs again: what was lost with it, Ray and the operator see as symptoms only."""
    if seen.engine.reason not in _SYMPTOMS:
        return None
    since = ended_since(seen.failures, seen.engine)
    ends = [
        (container.ended.reason != OOM_KILLED, pod, container)
        for pod in seen.engine.pods
        for container in pod.containers
        if container.ended and _failed(container) and _at(container.ended.at, since) >= since
    ]
    if not ends:
        return None
    _, pod, container = min(ends, key=lambda item: (item[0], item[1].name))
    return _crash(seen, pod, container)


_SYMPTOMS = frozenset(
    reason.value
    for reason in (
        Reason.CONTAINER_CRASHED,
        Reason.PODS_STARTING,
        Reason.CREATING_PODS,
        Reason.WAITING_FOR_RAY_NODES,
        Reason.PLACING,
        Reason.LOADING,
        Reason.NOT_SERVING,
        Reason.RAY_UNREACHABLE,
        Reason.RAY_NODES_MISSING,
        Reason.RAY_SESSION_LOST,
        Reason.POD_REPLACED,
        Reason.SUPERVISOR_SILENT,
        Reason.BOOTSTRAP_FAILED,
        Reason.BOOTSTRAP_ERROR,
        Reason.RANK_DIED,
        Reason.LAUNCHER_EXITED,
        Reason.LOAD_FAILED,
        Reason.LOAD_TIMEOUT,
        Reason.WARMUP_FAILED,
    )
)


def _ray(seen: Evidence) -> Cause | None:
    engine, report = seen.engine, seen.engine.report
    if not report or report.fault or report.earlier:
        return None
    if report.phase == contract.Phase.FAILED and report.reason:
        return _reported(seen)
    if engine.reason == Reason.DOWNLOADING:
        message = f"{engine.name} gets its model: {words(report.message)}"
        return Cause(level="engine", reason=Reason.DOWNLOADING.value, message=message, next="it goes on by itself")
    pending = next((group for group in report.groups if group.state == "PENDING"), None)
    if report.phase == contract.Phase.PLACING and (pending or report.message):
        group = f"placement group {pending.name} is PENDING" if pending else ""
        said = "; ".join(part for part in (words(report.message), group) if part)
        return Cause(
            level="Ray",
            reason=engine.reason or Reason.PLACING.value,
            message=f"{engine.name} is not placed by Ray yet: {said}",
            next=_head_status(seen),
        )
    return None


def _reported(seen: Evidence) -> Cause:
    engine, report = seen.engine, seen.engine.report
    assert report is not None  # noqa: S101 - the caller looked
    fatal = report.reason in contract.FATAL
    pod = report.failed_pod or engine.lead
    if report.reason in (Reason.PLACEMENT_TIMEOUT, Reason.RAY_NODES_MISSING):
        more = _head_status(seen)
    elif fatal:
        more = f"mend the spec; when the image or a volume was mended instead: {seen.retry}"
    elif report.reason in contract.MENDED_ELSEWHERE:
        more = f"mend what it names; it is tried again by itself, and at once with: {seen.retry}"
    else:
        more = seen.logs(pod) if pod else seen.describe("raycluster", engine.ray_cluster)
    rank = f", rank {report.failed_rank} first" if report.failed_rank >= 0 else ""
    message = f"{engine.name} failed in attempt {report.attempt} ({report.reason}{rank}): {words(report.message)}"
    return Cause(level="Ray", reason=report.reason, message=f"{message}{_retried(engine)}", next=more)


def _head_status(seen: Evidence) -> str:
    head = seen.engine.head
    return f"kubectl exec -n {seen.namespace} {head} -c vllm -- ray status" if head else seen.describe("pods", "")


def _engine(seen: Evidence) -> Cause | None:
    engine = seen.engine
    if not engine.state and not engine.deleting:
        return None
    told = words(engine.message) or "it says no more"
    if engine.deleting:
        told = f"its RayCluster {engine.ray_cluster} is being removed"
    state = engine.state or "going"
    reason = f" ({engine.reason})" if engine.reason not in ("", state) else ""
    attempt = f", attempt {engine.attempt}" if engine.attempt else ""
    return Cause(
        level="engine",
        reason=engine.reason or engine.state or "Deleting",
        message=f"{engine.name} is {state}{reason}{attempt}: {told}{_retried(engine)}",
        next=_engine_next(seen),
    )


_UNPLACED = (
    Reason.WAITING_FOR_GPUS,
    Reason.NO_SUCH_GPUS,
    Reason.GPUS_GIVEN_BACK,
    Reason.QUOTA_EXCEEDED,
    Reason.RESOURCES_NOT_STATED,
)


def _engine_next(seen: Evidence) -> str:
    engine = seen.engine
    if engine.state == EngineState.FAILED and not engine.retry_at:
        return f"mend what is named; when it is outside of the spec: {seen.retry}"
    if engine.reason in _UNPLACED:
        return f"kubectl vllm explain {seen.name} -n {seen.namespace} --live"
    if engine.reason == Reason.RAY_UNREACHABLE and engine.head:
        return seen.logs(engine.head)
    starting = next((pod for pod in engine.pods if pod.phase == "Pending" or not pod.ready), None)
    if engine.reason in (Reason.PODS_STARTING, Reason.WAITING_FOR_RAY_NODES) and starting:
        return seen.describe("pod", starting.name) if starting.phase == "Pending" else seen.logs(starting.name)
    if engine.reason == Reason.CREATING_PODS and engine.ray_cluster:
        return seen.describe("raycluster", engine.ray_cluster)
    return seen.logs(engine.lead) if engine.lead else f"kubectl get pods -n {seen.namespace}"


_LEVELS: tuple[Callable[[Evidence], Cause | None], ...] = (
    _node,
    _container,
    _scheduler,
    _kuberay,
    _lost_node,
    _start,
    _past_end,
    _ray,
    _engine,
)


def _retried(engine: EngineSight) -> str:
    return f"; it is tried again at {engine.retry_at}" if engine.retry_at else ""


def _failed(container: ContainerSight) -> bool:
    return bool(container.ended and (container.ended.exit_code or container.ended.reason == OOM_KILLED))


def _is_down(container: ContainerSight) -> bool:
    return container.state == "terminated" or (
        container.state == "waiting" and not container.reason.startswith("CreateContainer")
    )


def _at(value: str, unknown: datetime.datetime) -> datetime.datetime:
    return instant({"at": value}, "at") or unknown


def _warning(seen: Evidence, target: str) -> EventSight | None:
    found = [event for event in seen.events if event.type == "Warning" and target in event.objects]
    return found[-1] if found else None
