"""Why a deployment is not Ready: the chain from its conditions down to the node, and the one cause in a sentence.

Pure, from plain objects: whatever the API server holds is read, and what cannot be is said.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vllm_operator.api.status import Condition, ConditionType, EngineReplica, Failure, Reason
from vllm_operator.cli.causes import Cause, Evidence, engine_causes
from vllm_operator.cli.loose import dig, items, mapping, models, number, text, words
from vllm_operator.cli.scene import Scene
from vllm_operator.cli.sights import EngineSight, EventSight, NodeSight, see_engines, see_events, see_node

OPERATOR_PODS = "kubectl get pods -A -l app.kubernetes.io/component=operator,app.kubernetes.io/name=vllm-operator"


class State(enum.StrEnum):
    """Where a deployment is, for who waits for it."""

    READY = "Ready"
    ON_ITS_WAY = "OnItsWay"
    STALLED = "Stalled"


EXIT_CODES = {State.READY: 0, State.ON_ITS_WAY: 2, State.STALLED: 5}


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What is known of a deployment, from the outside in.

    Attributes
    ----------
    state
        Whether it is Ready, gets there by itself, or needs somebody.
    since
        RFC 3339 instant at which it became Ready, or ceased to be; empty when the operator has not said.
    events
        Of the deployment and what belongs to it, the newest last.
    unread
        What could not be read, and why.
    """

    namespace: str
    name: str
    state: State
    since: str
    conditions: tuple[Condition, ...]
    engines: tuple[EngineSight, ...]
    nodes: tuple[NodeSight, ...]
    events: tuple[EventSight, ...]
    failures: tuple[Failure, ...]
    unread: tuple[str, ...]
    cause: Cause

    @property
    def exit_code(self) -> int:
        """Exit status of the command."""
        return EXIT_CODES[self.state]


def diagnose(scene: Scene) -> Diagnosis:
    """Say why a deployment is not Ready, or that it is."""
    body = scene.deployment
    conditions, bad_conditions = models(Condition, items(body, "status", "conditions"))
    replicas, bad_replicas = models(EngineReplica, items(body, "status", "engineReplicas"))
    failures, bad_failures = models(Failure, items(body, "status", "lastFailures"))
    engines = see_engines(scene, replicas)
    nodes = {name: see_node(name, found) for name, found in scene.nodes.items()}
    events = see_events(scene, engines)
    view = _View(
        scene=scene,
        conditions={item.type: item for item in conditions},
        engines=engines,
        nodes=nodes,
        events=events,
        failures=failures,
    )
    unread = [f"{what}: {why}" for what, why in sorted(scene.unread.items())]
    if bad := bad_conditions + bad_replicas + bad_failures:
        unread.append(
            f"{bad} entries of the status: of another form than this command knows; is it of the same version?"
        )
    ready = view.condition(ConditionType.READY)
    return Diagnosis(
        namespace=view.namespace,
        name=view.name,
        state=view.state,
        since=ready.last_transition_time if ready else "",
        conditions=conditions,
        engines=engines,
        nodes=tuple(nodes.values()),
        events=events,
        failures=failures,
        unread=tuple(unread),
        cause=_cause(view),
    )


@dataclass(frozen=True, kw_only=True)
class _View:
    scene: Scene
    conditions: Mapping[str, Condition]
    engines: tuple[EngineSight, ...]
    nodes: Mapping[str, NodeSight]
    events: tuple[EventSight, ...]
    failures: tuple[Failure, ...]

    @property
    def namespace(self) -> str:
        return text(self.scene.deployment, "metadata", "namespace")

    @property
    def name(self) -> str:
        return text(self.scene.deployment, "metadata", "name")

    @property
    def deleting(self) -> bool:
        return dig(self.scene.deployment, "metadata", "deletionTimestamp") is not None

    @property
    def behind(self) -> bool:
        """The operator has not seen the present spec."""
        generation = number(self.scene.deployment, "metadata", "generation")
        return number(mapping(self.scene.deployment, "status"), "observedGeneration") < generation

    @property
    def state(self) -> State:
        if self.deleting or self.behind or not self.conditions:
            return State.ON_ITS_WAY
        if self._holds(ConditionType.READY):
            return State.READY
        return State.STALLED if self._holds(ConditionType.STALLED) else State.ON_ITS_WAY

    def condition(self, kind: ConditionType) -> Condition | None:
        return self.conditions.get(kind)

    def _holds(self, kind: ConditionType) -> bool:
        found = self.condition(kind)
        return found is not None and found.status == "True"

    @property
    def blocker(self) -> Condition | None:
        """The condition that tells what keeps the whole deployment back, when no engine is what keeps it back."""
        ready = self.condition(ConditionType.READY)
        if not ready or ready.status == "True" or ready.reason not in _BLOCKERS:
            return None
        told = any(
            item.reason == ready.reason and item.message and item.message in ready.message for item in self.engines
        )
        return None if told else ready


_BLOCKERS: Mapping[str, str] = {
    Reason.INVALID_SPEC: "mend the field: kubectl edit vllm -n {namespace} {name}",
    Reason.NAME_CONFLICT: "rename the deployment or remove the other object; kubectl get svc,raycluster -n {namespace}",
    Reason.NO_SUCH_GPUS: "kubectl vllm explain {name} -n {namespace} --live; then change spec or add nodes",
    Reason.WAITING_FOR_GPUS: "it starts when GPUs are free; kubectl vllm explain {name} -n {namespace} --live",
    Reason.QUOTA_EXCEEDED: "it starts when quota is free; kubectl describe resourcequota -n {namespace}",
    Reason.RESOURCES_NOT_STATED: "state it, or add a LimitRange; kubectl describe resourcequota -n {namespace}",
    Reason.MODEL_NOT_FOUND: "mend spec.model.uri or spec.model.revision: kubectl edit vllm -n {namespace} {name}",
    Reason.MODEL_NOT_READABLE: "mend spec.model.hfTokenSecret, or set spec.model.facts or spec.parallelism",
    Reason.MODEL_FACTS_UNAVAILABLE: "it is asked again; or set spec.model.facts, or the chart's hub.endpoint",
    Reason.SECRET_NOT_FOUND: "create the Secret or mend its name; kubectl get secrets -n {namespace}",
    Reason.CONFIG_MAP_NOT_FOUND: "create the ConfigMap or mend its name; kubectl get configmaps -n {namespace}",
    Reason.CLAIM_NOT_FOUND: "create the claim or mend its name; kubectl get pvc -n {namespace}",
    Reason.IMAGE_MISSING: "set spec.image, or runtime.image of the chart",
    Reason.KUBERAY_NOT_INSTALLED: "install the KubeRay operator with its CRDs; kubectl get crd rayclusters.ray.io",
    Reason.RAY_CLUSTER_NOT_FOUND: "create the RayCluster or mend its name; kubectl get raycluster -n {namespace}",
    Reason.RAY_CLUSTER_NOT_READY: "it goes on when the head runs; kubectl describe raycluster -n {namespace}",
    Reason.RAY_CLUSTER_UNFIT: "mend the pod templates of the RayCluster; kubectl edit raycluster -n {namespace}",
    Reason.RAY_TOKEN_REFUSED: "mend spec.rayClusterRef.authSecret: kubectl edit vllm -n {namespace} {name}",
    Reason.FORBIDDEN: "mend the quota or the operator's roles; kubectl describe resourcequota -n {namespace}",
    Reason.ADAPTER_FAILED: "it is tried again by itself; mend the adapter, or spec.lora: "
    "kubectl edit vllm -n {namespace} {name}",
    Reason.REFUSED_BY_API_SERVER: "kubectl describe vllm -n {namespace} {name}; the operator's log: " + OPERATOR_PODS,
}
"""What to do about each reason that keeps a whole deployment back."""


def _cause(view: _View) -> Cause:
    ready = view.condition(ConditionType.READY)
    if early := _before_all(view):
        return early
    if view.state is State.READY and ready:
        message = f"it is Ready since {ready.last_transition_time}: {words(ready.message) or ready.reason}"
        return Cause(level="deployment", reason=ready.reason, message=message)
    if blocker := view.blocker:
        more = _BLOCKERS[blocker.reason].format(namespace=view.namespace, name=view.name)
        return Cause(level="deployment", reason=blocker.reason, message=words(blocker.message), next=more)
    if not view.scene.kuberay:
        more = _BLOCKERS[Reason.KUBERAY_NOT_INSTALLED]
        message = "the API server knows no RayCluster (ray.io/v1): KubeRay is not installed"
        return Cause(level="deployment", reason=Reason.KUBERAY_NOT_INSTALLED.value, message=message, next=more)
    found = sorted(_engine_causes(view), key=lambda item: item[0])
    return found[0][1] if found else _condition_cause(view)


def _before_all(view: _View) -> Cause | None:
    if view.deleting:
        at = text(view.scene.deployment, "metadata", "deletionTimestamp")
        finalizers = dig(view.scene.deployment, "metadata", "finalizers")
        holders = ", ".join(map(str, finalizers)) if isinstance(finalizers, list) else ""
        more = f"finalizers that hold it: {holders}" if holders else "its pods go with it"
        return Cause(level="deployment", reason="Deleting", message=f"it is being deleted since {at}", next=more)
    if not view.conditions or view.behind:
        generation = number(view.scene.deployment, "metadata", "generation")
        message = f"the operator has not looked at generation {generation} yet: does it run, and watch this namespace?"
        return Cause(level="deployment", reason="NotSeen", message=message, next=OPERATOR_PODS)
    return None


def _engine_causes(view: _View) -> Iterator[tuple[tuple[bool, int, int], Cause]]:
    """Give the causes of all engines: those of the engine that is stalled first, then the deepest."""
    stalled = view.condition(ConditionType.STALLED) if view.state is State.STALLED else None
    for index, engine in enumerate(view.engines):
        if engine.serves:
            continue
        named = stalled is None or f"{engine.name}: " in stalled.message
        evidence = Evidence(
            namespace=view.namespace,
            name=view.name,
            engine=engine,
            nodes=view.nodes,
            events=view.events,
            failures=view.failures,
        )
        for depth, cause in engine_causes(evidence):
            yield (not named, depth, index), cause


def _condition_cause(view: _View) -> Cause:
    kinds = (ConditionType.STALLED, ConditionType.RECONCILING, ConditionType.READY)
    found = (item for kind in kinds if (item := view.condition(kind)) and item.message)
    told = next(found, None)
    return Cause(
        level="deployment",
        reason=told.reason if told else Reason.UNKNOWN.value,
        message=words(told.message) if told else "the status says nothing",
        next=f"kubectl describe vllm -n {view.namespace} {view.name}",
    )
