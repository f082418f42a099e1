"""From what was seen to what should be: the revision, the engines that are there, those to make.  Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_bootstrap import contract
from vllm_operator.api import identity
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.api.status import Reason
from vllm_operator.lifecycle.actions import Action, Create, Delete
from vllm_operator.lifecycle.conditions import Blocker
from vllm_operator.lifecycle.engine import ClusterView, EngineView, Turn, due_turn, needs_ray
from vllm_operator.lifecycle.pods import PodView
from vllm_operator.lifecycle.recovery import Recovery
from vllm_operator.planning.catalogue import BUILT_IN, Catalogue
from vllm_operator.planning.facts import FactsError
from vllm_operator.planning.plan import GPUsTakenError, NoSuchGPUsError, describe, plan
from vllm_operator.reconcile.observe import Observation
from vllm_operator.resources.defaults import RuntimeDefaults
from vllm_operator.resources.engine import engine_part
from vllm_operator.resources.names import EngineNames, engine_name
from vllm_operator.resources.ray_cluster import ray_cluster_spec
from vllm_operator.resources.revision import (
    Revision,
    controller_revision,
    hashes,
    read_controller_revision,
    revision_name,
)

HISTORY = 10

KUBERAY_MISSING = Blocker(
    reason=Reason.KUBERAY_NOT_INSTALLED,
    message="the API server knows no RayCluster (ray.io/v1): install the KubeRay operator and its CRDs",
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the installation sets and decisions depend on."""

    defaults: RuntimeDefaults = field(default_factory=RuntimeDefaults)
    recovery: Recovery = field(default_factory=Recovery)
    deadlines: contract.Deadlines = field(default_factory=contract.Deadlines)
    catalogue: Catalogue = BUILT_IN


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine whose RayCluster is there: what was seen, the attempt that is due, and its revision."""

    view: EngineView
    turn: Turn
    names: EngineNames
    revision: Revision

    @property
    def asks_ray(self) -> bool:
        """Whether the Ray head must be asked before anything is decided."""
        return needs_ray(self.view, self.turn)


@dataclass(frozen=True, kw_only=True)
class Intent:
    """What should be, before Ray is asked.

    Attributes
    ----------
    revision
        Revision of the present spec, ``None`` while it is blocked.
    engines
        Engines whose RayCluster is there, by name.
    missing
        Names of the RayClusters to make.
    waiting
        For each engine that must be replaced or is being removed: what it waits for.
    """

    revision: Revision | None
    blocker: Blocker | None
    engines: Mapping[str, Engine] = field(default_factory=dict)
    missing: tuple[EngineNames, ...] = ()
    waiting: Mapping[str, str] = field(default_factory=dict)
    actions: tuple[Action, ...] = ()


def intend(seen: Observation, settings: Settings, now: datetime.datetime) -> Intent:
    """Say what should be: the revision, the engines, and what is to be made or removed first."""
    known = {item.name: item for item in map(read_controller_revision, seen.revisions)}
    revision, blocker, actions = _revision(seen, settings, known)
    if not blocker and seen.clusters is None:
        blocker = KUBERAY_MISSING
    if revision:
        known[revision.name] = revision
    wanted = seen.spec.replicas if seen.spec else len(seen.status.engine_replicas)
    # What is there is left alone while the present spec cannot be carried out: nothing that serves is lost.
    target = None if blocker else revision
    seats = [_seat(seen, index, target, known, settings=settings, now=now) for index in range(wanted)]
    return Intent(
        revision=revision,
        blocker=blocker,
        engines={seat.name: seat.engine for seat in seats if seat.engine},
        missing=tuple(seat.missing for seat in seats if seat.missing),
        waiting={seat.name: seat.waiting for seat in seats if seat.waiting},
        actions=(*actions, *(action for seat in seats for action in seat.actions), *_surplus(seen)),
    )


@dataclass(frozen=True, kw_only=True)
class _Seat:
    """What should be in the place of one engine: the engine that is there, a new one, or nothing yet."""

    name: str
    engine: Engine | None = None
    missing: EngineNames | None = None
    waiting: str = ""
    actions: tuple[Action, ...] = ()


def _seat(
    seen: Observation,
    index: int,
    target: Revision | None,
    known: Mapping[str, Revision],
    *,
    settings: Settings,
    now: datetime.datetime,
) -> _Seat:
    name = engine_name(index)
    clusters = _clusters_of(seen, index)
    kept = [item for item in clusters if not item.deleting and (target is None or item.revision == target.name)]
    chosen = next((item for item in kept if item.revision in known), None)
    if chosen:
        return _Seat(name=name, engine=_engine(seen, index, chosen, known[chosen.revision], settings=settings, now=now))
    if target is None:
        return _Seat(name=name)
    actions = tuple(action for item in clusters if not item.deleting for action in _remove(index, item))
    left = [pod.name for pod in _pods_of(seen, index)] or [item.name for item in clusters]
    if left:
        told = "the engine of the earlier revision goes first: " + ", ".join(left[:4])
        return _Seat(name=name, waiting=told, actions=actions)
    return _Seat(name=name, missing=EngineNames.of(seen.owner, index, target.pods8))


def _engine(
    seen: Observation,
    index: int,
    cluster: ClusterView,
    revision: Revision,
    *,
    settings: Settings,
    now: datetime.datetime,
) -> Engine:
    name = engine_name(index)
    previous = next((item for item in seen.status.engine_replicas if item.name == name), None)
    same = previous and previous.ray_cluster == cluster.name and previous.timings.created == cluster.created_at
    sizes = sorted((g["gpus"] for g in revision.engine["groups"] for _ in range(g["pods"])), reverse=True)
    view = EngineView(
        name=name,
        uid=seen.owner.uid,
        revision=revision.name,
        cluster=cluster,
        sizes=tuple(sizes),
        pods=tuple(pod for pod in seen.pods if pod.cluster == cluster.name),
        report=seen.reports.get(cluster.name),
        previous=previous if same else None,
        retry_requested_at=(seen.body["metadata"].get("annotations") or {}).get(identity.ANNOTATION_RETRY, ""),
    )
    return Engine(
        view=view,
        turn=due_turn(view, recovery=settings.recovery, now=now),
        names=EngineNames(index=str(index), ray_cluster=cluster.name),
        revision=revision,
    )


def _revision(
    seen: Observation, settings: Settings, known: Mapping[str, Revision]
) -> tuple[Revision | None, Blocker | None, list[Action]]:
    if seen.blocker or not seen.spec:
        return None, seen.blocker, []
    wanted = revision_name(*hashes(seen.spec))
    if wanted in known:
        return known[wanted], None, []
    image = seen.spec.image or settings.defaults.image
    if not image:
        message = "spec.image is empty and the chart sets no runtime.image: name an image with Ray and vLLM"
        return None, Blocker(reason=Reason.IMAGE_MISSING, message=message), []
    try:
        revision = render(seen.spec, seen, settings, image)
    except (FactsError, NoSuchGPUsError, GPUsTakenError) as error:
        return None, _unplanned(error), []
    number = max((int(item.get("revision", 0)) for item in seen.revisions), default=0) + 1
    body = controller_revision(seen.owner, revision, number=number)
    return revision, None, [Create(body=body), *_old_history(seen)]


def _unplanned(error: FactsError | NoSuchGPUsError | GPUsTakenError) -> Blocker:
    match error:
        case FactsError():
            return Blocker(reason=Reason.INVALID_SPEC, message=f"spec.model.facts: {error}")
        case NoSuchGPUsError():
            return Blocker(reason=Reason.NO_SUCH_GPUS, message=str(error))
        case GPUsTakenError():
            return Blocker(reason=Reason.WAITING_FOR_GPUS, message=str(error), lasting=False)


def render(spec: VLLMDeploymentSpec, seen: Observation, settings: Settings, image: str) -> Revision:
    """Render a spec to a revision.

    Raises
    ------
    FactsError
        What the spec says of the model cannot be read.
    NoSuchGPUsError
        No nodes could hold it.
    GPUsTakenError
        No nodes can hold it now.
    """
    planned = plan(spec, seen.nodes or (), settings.catalogue)
    shape = planned.shape
    engine8, pods8 = hashes(spec)
    return Revision(
        engine8=engine8,
        pods8=pods8,
        image=image,
        cluster_spec=ray_cluster_spec(
            spec=spec, shape=shape, owner=seen.owner, names=EngineNames.placeholder(), defaults=settings.defaults
        ),
        engine=engine_part(spec=spec, shape=shape, owner=seen.owner),
        plan=describe(planned),
    )


def _old_history(seen: Observation) -> list[Action]:
    used = {body["metadata"].get("labels", {}).get(identity.LABEL_REVISION) for body in (seen.clusters or {}).values()}
    idle = sorted(
        (item for item in seen.revisions if item["metadata"]["labels"][identity.LABEL_REVISION] not in used),
        key=lambda item: int(item.get("revision", 0)),
    )
    surplus = idle[: max(0, len(idle) - HISTORY + 1)]
    return [Delete(api_version="apps/v1", kind="ControllerRevision", name=item["metadata"]["name"]) for item in surplus]


def _clusters_of(seen: Observation, index: int) -> list[ClusterView]:
    return [
        ClusterView(
            name=name,
            uid=body["metadata"]["uid"],
            revision=body["metadata"]["labels"].get(identity.LABEL_REVISION, ""),
            created_at=body["metadata"].get("creationTimestamp", ""),
            deleting="deletionTimestamp" in body["metadata"],
            trouble=_cluster_trouble(body),
        )
        for name, body in sorted((seen.clusters or {}).items())
        if body["metadata"]["labels"].get(identity.LABEL_ENGINE) == str(index)
    ]


def _cluster_trouble(body: Mapping[str, Any]) -> str:
    """Give what KubeRay says while it cannot make pods: it takes this condition away again, unlike most others."""
    told = {item["type"]: item for item in (body.get("status") or {}).get("conditions") or []}
    failure = told.get("ReplicaFailure", {})
    return str(failure.get("message", "")) if failure.get("status") == "True" else ""


def _pods_of(seen: Observation, index: int) -> list[PodView]:
    prefix = f"{seen.owner.name}-{index}-"
    return [pod for pod in seen.pods if pod.cluster.startswith(prefix)]


def _remove(index: int, cluster: ClusterView) -> list[Action]:
    """Remove an engine: its RayCluster last, so that an interrupted removal is seen and taken up again."""
    names = EngineNames(index=str(index), ray_cluster=cluster.name)
    rbac = "rbac.authorization.k8s.io/v1"
    return [
        Delete(api_version=rbac, kind="RoleBinding", name=names.report),
        Delete(api_version=rbac, kind="Role", name=names.report),
        Delete(api_version="v1", kind="ConfigMap", name=names.report),
        Delete(api_version="v1", kind="ServiceAccount", name=names.service_account),
        Delete(api_version="v1", kind="Secret", name=names.secret),
        Delete(api_version="ray.io/v1", kind="RayCluster", name=cluster.name, uid=cluster.uid),
    ]


def _surplus(seen: Observation) -> list[Action]:
    """Remove the engines beyond ``replicas``."""
    if not seen.spec:
        return []
    there = {int(body["metadata"]["labels"].get(identity.LABEL_ENGINE, 0)) for body in (seen.clusters or {}).values()}
    return [
        action
        for index in sorted(there)
        if index >= seen.spec.replicas
        for cluster in _clusters_of(seen, index)
        if not cluster.deleting
        for action in _remove(index, cluster)
    ]
