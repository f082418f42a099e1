"""From what was seen to what should be: the revision, the engines that are there, those to make.  Pure."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_bootstrap import contract
from vllm_operator.api import identity
from vllm_operator.api.spec import Strategy, VLLMDeploymentSpec
from vllm_operator.api.status import Reason
from vllm_operator.lifecycle.actions import Action, Create, Delete
from vllm_operator.lifecycle.conditions import Blocker
from vllm_operator.lifecycle.engine import ClusterView, EngineView, Turn, due_turn, needs_ray
from vllm_operator.lifecycle.leaving import Leave, release, take_leave
from vllm_operator.lifecycle.recovery import Recovery, format_time, parse_time
from vllm_operator.planning.catalogue import BUILT_IN, Catalogue
from vllm_operator.planning.demand import Demand, hold, prove_demand
from vllm_operator.planning.eligibility import PodRules
from vllm_operator.planning.facts import FactsError
from vllm_operator.planning.inventory import GpuNode
from vllm_operator.planning.known import ModelUnknownError, Trouble
from vllm_operator.planning.plan import GPUsTakenError, NoSuchGPUsError, describe, plan
from vllm_operator.planning.proof import Verdict, of_pods
from vllm_operator.planning.quota import QuotaError, UnstatedResourcesError, check_quotas
from vllm_operator.reconcile.inventory import DEPLOYMENT, RAY_CLUSTER, of_cluster, of_deployment
from vllm_operator.reconcile.observe import CONFIG_MAP, ENDPOINT_SLICE, Observation
from vllm_operator.reconcile.seats import engine_indices, pods_of, surplus_indices
from vllm_operator.reconcile.shared import SharedCluster, is_lost
from vllm_operator.reconcile.shared import engine_pods as engine_pods_of
from vllm_operator.reconcile.shared import room as shared_room
from vllm_operator.resources.defaults import RuntimeDefaults
from vllm_operator.resources.deployment import deployment_spec
from vllm_operator.resources.engine import engine_part
from vllm_operator.resources.names import EngineNames, engine_name
from vllm_operator.resources.needs import engine_pods, host_needs, needs_of
from vllm_operator.resources.pod import node_rules
from vllm_operator.resources.ray_cluster import gpu_pods, ray_cluster_spec
from vllm_operator.resources.revision import (
    Revision,
    controller_revision,
    hashes,
    read_controller_revision,
    revision_name,
)
from vllm_operator.resources.tenancy import Auth, PodSeat, Tenancy, free_ports, stem_of

HISTORY = 10

KUBERAY_MISSING = Blocker(
    reason=Reason.KUBERAY_NOT_INSTALLED,
    message="the API server knows no RayCluster (ray.io/v1): install the KubeRay operator and its CRDs",
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the installation sets and decisions depend on.

    Attributes
    ----------
    hub
        Address that the engines download models from.
    """

    defaults: RuntimeDefaults = field(default_factory=RuntimeDefaults)
    recovery: Recovery = field(default_factory=Recovery)
    deadlines: contract.Deadlines = field(default_factory=contract.Deadlines)
    catalogue: Catalogue = BUILT_IN
    hub: str = "https://huggingface.co"


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
class Leaving:
    """An engine that goes, and finishes first what it answers."""

    view: EngineView
    names: EngineNames
    leave: Leave


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Why an engine is not made yet.

    Attributes
    ----------
    lasting
        Somebody must change something; otherwise it may pass.
    seconds
        After which to look again; ``None`` when something will be heard.
    """

    reason: Reason
    message: str
    lasting: bool = False
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Intent:
    """What should be, before Ray is asked.

    Attributes
    ----------
    revision
        Revision of the present spec, ``None`` while it is blocked.
    plan_only
        The revision is only told; nothing is made, changed or removed for it.
    engines
        Engines whose RayCluster is there, by name.
    missing
        Names of the RayClusters to make.
    holdings
        What engines to make are promised of a shared RayCluster, by name of theirs.
    waiting
        For each engine that cannot be made yet: why.
    leaving
        Engines that go, and finish first what they answer, by name.
    """

    revision: Revision | None
    blocker: Blocker | None
    plan_only: bool = False
    engines: Mapping[str, Engine] = field(default_factory=dict)
    missing: tuple[EngineNames, ...] = ()
    waiting: Mapping[str, Wait] = field(default_factory=dict)
    leaving: Mapping[str, Leaving] = field(default_factory=dict)
    holdings: Mapping[str, Tenancy] = field(default_factory=dict)
    actions: tuple[Action, ...] = ()


def needs_inventory(seen: Observation) -> bool:
    """Say whether it must be known what the nodes offer: something is to be placed, or cannot be."""
    if seen.blocker or not seen.spec or seen.is_deleted:
        return False
    if seen.plan_only:
        return True
    revisions = {item["metadata"]["labels"].get(identity.LABEL_REVISION) for item in seen.revisions}
    if revision_name(*hashes(seen.spec)) not in revisions:
        return True
    living = [item for item in seen.workloads.values() if "deletionTimestamp" not in item["metadata"]]
    lost = any(is_lost(seen.shared.get(item.cluster), item) for item in seen.tenancies.values())
    return lost or len(living) < seen.wanted or any(pod.unscheduled_since for pod in seen.pods)


def may_be_planned(seen: Observation) -> bool:
    """Say whether a plan may be made, for which must be known what the model is; a revision in use is not planned."""
    if seen.blocker or not seen.spec or seen.is_deleted:
        return False
    revisions = {item["metadata"]["labels"].get(identity.LABEL_REVISION) for item in seen.revisions}
    is_new = seen.plan_only or revision_name(*hashes(seen.spec)) not in revisions
    return is_new or not (seen.clusters or seen.pods or seen.holdings or seen.wanted == 0)


def intend(seen: Observation, settings: Settings, now: datetime.datetime) -> Intent:
    """Say what should be: the revision, the engines, and what is to be made or removed first."""
    if seen.is_deleted:
        return _farewell(seen, now)
    known = {item.name: item for item in map(read_controller_revision, seen.revisions)}
    revision, blocker, actions = _revision(seen, settings, known)
    needs_kuberay = revision is None or revision.with_ray
    if not blocker and seen.clusters is None and needs_kuberay and not seen.plan_only:
        blocker = KUBERAY_MISSING
    if revision:
        known[revision.name] = revision
    # What is there is left alone while the present spec cannot be carried out: nothing that serves is lost.
    target = None if blocker or seen.plan_only else revision
    seats = [_seat(seen, index, target, known, settings=settings, now=now) for index in engine_indices(seen)]
    surplus = () if seen.plan_only else _surplus(seen, "it is surplus", now)
    if target and seen.inventory:
        seats = _proved(seats, target, seen, settings.recovery, now)
    return Intent(
        revision=revision,
        blocker=blocker,
        plan_only=seen.plan_only,
        engines={seat.name: seat.engine for seat in seats if seat.engine},
        missing=tuple(seat.missing for seat in seats if seat.missing),
        holdings={seat.missing.ray_cluster: seat.holding for seat in seats if seat.missing and seat.holding},
        waiting={seat.name: seat.waiting for seat in seats if seat.waiting},
        leaving={seat.name: seat.leaving for seat in (*seats, *surplus) if seat.leaving},
        actions=()
        if seen.plan_only
        else (*actions, *(action for seat in (*seats, *surplus) for action in seat.actions)),
    )


def _farewell(seen: Observation, now: datetime.datetime) -> Intent:
    """Let every engine of a deployment go that is deleted; what is left then is the garbage collector's."""
    seats = _surplus(seen, "its deployment is deleted", now)
    return Intent(
        revision=None,
        blocker=None,
        leaving={seat.name: seat.leaving for seat in seats if seat.leaving},
        actions=tuple(action for seat in seats for action in seat.actions),
    )


@dataclass(frozen=True, kw_only=True)
class _Seat:
    """What should be in the place of one engine: the engine that is there, a new one, or nothing yet."""

    name: str
    engine: Engine | None = None
    missing: EngineNames | None = None
    holding: Tenancy | None = None
    waiting: Wait | None = None
    leaving: Leaving | None = None
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
    homeless = _lost_pods(seen, chosen) if target else ""
    if chosen and not homeless:
        return _Seat(name=name, engine=_engine(seen, index, chosen, known[chosen.revision], settings=settings, now=now))
    if target is None:
        return _Seat(name=name)
    why = f"its pod {homeless} is gone" if homeless else "it is replaced"
    gone = _left(seen, index, [item for item in clusters if not item.deleting], why, now)
    left = [pod.name for pod in pods_of(seen, index)] or [item.name for item in clusters]
    if left and homeless:
        told = f"{why}; what it holds beside it is given back first"
        return replace(gone, waiting=Wait(reason=Reason.REPLACING, message=told))
    if left:
        told = "the engine of the earlier revision goes first: " + ", ".join(left[:4])
        return replace(gone, waiting=Wait(reason=Reason.REPLACING, message=told))
    return _Seat(name=name, missing=EngineNames.of(seen.owner, index, target.pods8))


def _proved(
    seats: list[_Seat], target: Revision, seen: Observation, recovery: Recovery, now: datetime.datetime
) -> list[_Seat]:
    """Let those engines wait that the nodes cannot hold now, beside those that are there and those made before them."""
    room = _room(seen, target.shared_cluster)
    ports = {port for item in _tenancies_on(seen, target) for port in (item.http_port, item.supervisor_port)}
    proved: list[_Seat] = []
    for seat in seats:
        if seat.missing and (wait := _pause(seen, seat.name, recovery, now)):
            proved.append(_Seat(name=seat.name, waiting=wait))
        elif seat.missing:
            made = sum(item.missing is not None for item in proved)
            placed, room = _placed(seat.name, seat.missing, target, room, seen, before=made, ports=ports)
            proved.append(placed)
            if placed.holding:
                ports |= {placed.holding.http_port, placed.holding.supervisor_port}
        else:
            proved.append(seat)
    return proved


def _placed(
    name: str,
    names: EngineNames,
    target: Revision,
    room: tuple[GpuNode, ...],
    seen: Observation,
    *,
    before: int,
    ports: set[int],
) -> tuple[_Seat, tuple[GpuNode, ...]]:
    """Place an engine beside those that the same round makes before it; gives also what it leaves of the nodes."""
    demand = _demand(seen, target, f"{seen.owner.namespace}/{names.ray_cluster}, planned")
    proof = prove_demand(room, demand)
    if proof.verdict is not Verdict.FITS:
        never = proof.verdict is Verdict.NEVER
        reason = Reason.NO_SUCH_GPUS if never else Reason.WAITING_FOR_GPUS
        return _Seat(name=name, waiting=Wait(reason=reason, message=proof.reason, lasting=never)), room
    if target.shared_cluster:
        seated: Counter[str] = Counter()
        for size, pod in zip(demand.sizes, proof.seats, strict=True):
            seated[pod] += size
        holding = _holding(seen, target, names, seated, ports)
        return _Seat(name=name, missing=names, holding=holding), hold(room, demand, proof)
    try:
        check_quotas(seen.rules.kept, engine_pods(target.cluster_spec), before + 1, with_ray=target.with_ray)
    except QuotaError as error:
        told = _unplanned(error)
        wait = Wait(reason=told.reason, message=told.message, lasting=told.lasting)
        return _Seat(name=name, waiting=wait), room
    domain = next(node.labels.get(demand.topology_key, "") for node in room if node.name == proof.seats[0])
    return _Seat(name=name, missing=replace(names, domain=domain)), hold(room, demand, proof)


def _room(
    seen: Observation, shared: str, but: Callable[[Mapping[str, Any]], bool] = lambda _: False
) -> tuple[GpuNode, ...]:
    """Give what an engine may be put on: the nodes, or the pods of a shared RayCluster.

    Parameters
    ----------
    but
        Says of the metadata of an object that holds GPUs whether it is to be left out.
    """
    nodes = seen.inventory.nodes if seen.inventory else ()
    if not shared:
        return seen.inventory.room(but=but) if seen.inventory else ()
    cluster = seen.shared.get(shared, SharedCluster(name=shared))
    own = {item.stem for name, item in seen.tenancies.items() if but(seen.holdings[name]["metadata"])}
    return shared_room(cluster, nodes, but=lambda item: item.stem in own)


def _tenancies_on(seen: Observation, target: Revision) -> Sequence[Tenancy]:
    cluster = seen.shared.get(target.shared_cluster)
    return tuple(cluster.tenancies.values()) if cluster else ()


def _holding(
    seen: Observation, target: Revision, names: EngineNames, seated: Mapping[str, int], ports: set[int]
) -> Tenancy:
    """Write down what an engine is promised of a shared RayCluster; the pod with the most of its GPUs is its lead."""
    cluster, part = seen.shared[target.shared_cluster], target.engine["rayCluster"]
    members = {item.view.name: item for item in cluster.members}
    http_port, supervisor_port = free_ports(ports)
    head = [item for item in cluster.members if item.view.head]
    return Tenancy(
        cluster=cluster.name,
        holder=f"{seen.owner.namespace}/{seen.owner.name} {names.engine}",
        owner=seen.owner.uid,
        stem=stem_of(seen.owner, names),
        seats=tuple(
            PodSeat(pod=pod, uid=members[pod].view.uid, gpus=number, node=members[pod].view.node)
            for pod, number in sorted(seated.items(), key=lambda item: (-item[1], item[0]))
        ),
        http_port=http_port,
        supervisor_port=supervisor_port,
        auth=Auth(**part["authSecret"]),
        accounts=tuple(sorted({item.account for item in (*head, *(members[pod] for pod in seated))})),
    )


def _lost_pods(seen: Observation, cluster: ClusterView | None) -> str:
    tenancy = cluster.tenancy if cluster else None
    return is_lost(seen.shared.get(tenancy.cluster), tenancy) if tenancy else ""


def _pause(seen: Observation, name: str, recovery: Recovery, now: datetime.datetime) -> Wait | None:
    """Wait longer each time an engine gave its GPUs back: what is in its way may be nothing that a plan can see."""
    returns = [
        failure
        for failure in seen.status.last_failures
        if (failure.engine, failure.reason) == (name, Reason.GPUS_GIVEN_BACK)
    ]
    last = max(returns, key=lambda failure: failure.time, default=None)
    at = parse_time(last.time) if last else None
    if not last or not at:
        return None
    until = at + datetime.timedelta(seconds=recovery.delay(len(returns)))
    if until <= now:
        return None
    told = f"{last.message}; tried again at {format_time(until)}"
    return Wait(reason=Reason.GPUS_GIVEN_BACK, message=told, seconds=(until - now).total_seconds())


def _demand(seen: Observation, revision: Revision, holder: str) -> Demand:
    if revision.shared_cluster:
        return Demand(
            holder=holder,
            sizes=_sizes(revision),
            rules=PodRules(node_selector=revision.engine.get("nodeSelector", {})),
            strategy=Strategy(revision.engine.get("strategy", "PACK")),
            resource=revision.plan["resource"],
        )
    pods = gpu_pods(revision.cluster_spec)
    return Demand(
        holder=holder,
        sizes=pods.sizes,
        rules=replace(pods.rules, volume=seen.volume),
        strategy=of_pods(Strategy(revision.engine.get("strategy", "PACK")), revision.engine.get("data", 1)),
        topology_key=pods.topology_key,
        resource=pods.resource,
        needs=needs_of(revision.cluster_spec, seen.spec, seen.rules.defaults),
    )


def _engine(
    seen: Observation,
    index: int,
    cluster: ClusterView,
    revision: Revision,
    *,
    settings: Settings,
    now: datetime.datetime,
) -> Engine:
    seen_so = _view(seen, index, cluster, now)
    hindered = not cluster.tenancy and any(pod.unscheduled_since for pod in seen_so.pods)
    sizes = tuple(seat.gpus for seat in cluster.tenancy.seats) if cluster.tenancy else _sizes(revision)
    view = replace(
        seen_so,
        sizes=sizes,
        hindrance=_hindrance(seen, cluster.name, revision) if hindered else "",
    )
    return Engine(
        view=view,
        turn=due_turn(view, recovery=settings.recovery, now=now),
        names=names_of(index, cluster),
        revision=revision,
    )


def _sizes(revision: Revision) -> tuple[int, ...]:
    return tuple(sorted((g["gpus"] for g in revision.engine["groups"] for _ in range(g["pods"])), reverse=True))


def names_of(index: int, cluster: ClusterView) -> EngineNames:
    """Give the names of an engine that is there."""
    stem = cluster.tenancy.stem if cluster.tenancy else ""
    return EngineNames(index=str(index), ray_cluster=cluster.name, stem=stem)


def _view(seen: Observation, index: int, cluster: ClusterView, now: datetime.datetime) -> EngineView:
    """Give what was seen of an engine, its size apart: that is its revision's to say."""
    name = engine_name(index)
    previous = next((item for item in seen.status.engine_replicas if item.name == name), None)
    same = (
        previous
        and (cluster.ray_cluster, cluster.deployment) == (previous.ray_cluster, previous.deployment)
        and previous.timings.created == cluster.created_at
    )
    report = seen.reports.get(cluster.name)
    pods = tuple(pod for pod in seen.pods if pod.cluster == cluster.name)
    if tenancy := cluster.tenancy:
        pods = engine_pods_of(seen.shared.get(tenancy.cluster), tenancy, report, now)
    return EngineView(
        name=name,
        uid=seen.owner.uid,
        revision=cluster.revision,
        cluster=cluster,
        sizes=(),
        pods=pods,
        report=report,
        previous=previous if same else None,
        retry_requested_at=(seen.body["metadata"].get("annotations") or {}).get(identity.ANNOTATION_RETRY, ""),
    )


def _hindrance(seen: Observation, cluster: str, revision: Revision) -> str:
    """Say why the nodes do not hold an engine, and who holds what it would need."""
    if not seen.inventory:
        return ""
    room = seen.inventory.room(but=of_cluster(seen.owner, cluster))
    proof = prove_demand(room, _demand(seen, revision, cluster))
    return "" if proof.verdict is Verdict.FITS else proof.reason


def _revision(
    seen: Observation, settings: Settings, known: Mapping[str, Revision]
) -> tuple[Revision | None, Blocker | None, list[Action]]:
    if seen.blocker or not seen.spec:
        return None, seen.blocker, []
    wanted = revision_name(*hashes(seen.spec))
    if wanted in known and not seen.plan_only and not _is_homeless(seen, known[wanted]):
        return known[wanted], None, []
    image = seen.spec.image or settings.defaults.image
    if seen.spec.ray_cluster_ref:
        image = _shared_image(seen, seen.spec.ray_cluster_ref.name)
    elif not image:
        message = "spec.image is empty and the chart sets no runtime.image: name an image with Ray and vLLM"
        return None, Blocker(reason=Reason.IMAGE_MISSING, message=message), []
    try:
        revision = render(seen.spec, seen, settings, image)
    except (FactsError, ModelUnknownError, NoSuchGPUsError, GPUsTakenError, QuotaError) as error:
        return None, _unplanned(error), []
    if wanted in known and (revision.cluster_spec, revision.engine) == (
        known[wanted].cluster_spec,
        known[wanted].engine,
    ):
        return known[wanted], None, []
    forget = (
        [Delete(api_version="apps/v1", kind="ControllerRevision", name=f"{seen.owner.name}-{wanted}")]
        if wanted in known
        else []
    )
    number = max((int(item.get("revision", 0)) for item in seen.revisions), default=0) + 1
    body = controller_revision(seen.owner, revision, number=number)
    return revision, None, [*forget, Create(body=body), *_old_history(seen)]


def _is_homeless(seen: Observation, revision: Revision) -> bool:
    """Say whether nothing of a deployment is there, and what was planned for it fits no more: it is planned anew."""
    if not seen.inventory or not seen.wanted or seen.workloads or seen.pods:
        return False
    room = _room(seen, revision.shared_cluster)
    return prove_demand(room, _demand(seen, revision, "")).verdict is not Verdict.FITS


def _shared_image(seen: Observation, name: str) -> str:
    """Give the image that a shared RayCluster runs; its pods are there, so it is only told."""
    cluster = seen.shared.get(name)
    return next((item.image for item in cluster.members if item.view.head), "") if cluster else ""


_UNKNOWN = {Trouble.MISSING: Reason.MODEL_NOT_FOUND, Trouble.UNAVAILABLE: Reason.MODEL_FACTS_UNAVAILABLE}


def _unplanned(error: FactsError | ModelUnknownError | NoSuchGPUsError | GPUsTakenError | QuotaError) -> Blocker:
    match error:
        case ModelUnknownError(trouble=trouble):
            reason = _UNKNOWN.get(trouble, Reason.MODEL_NOT_READABLE)
            return Blocker(reason=reason, message=str(error), lasting=trouble is not Trouble.UNAVAILABLE)
        case FactsError():
            return Blocker(reason=Reason.INVALID_SPEC, message=f"spec.model.facts: {error}")
        case NoSuchGPUsError():
            return Blocker(reason=Reason.NO_SUCH_GPUS, message=str(error))
        case GPUsTakenError():
            return Blocker(reason=Reason.WAITING_FOR_GPUS, message=str(error), lasting=False)
        case UnstatedResourcesError():
            return Blocker(reason=Reason.RESOURCES_NOT_STATED, message=str(error))
        case QuotaError():
            return Blocker(reason=Reason.QUOTA_EXCEEDED, message=str(error), lasting=False)


def render(spec: VLLMDeploymentSpec, seen: Observation, settings: Settings, image: str) -> Revision:
    """Render a spec to a revision.

    Raises
    ------
    FactsError
        What the spec says of the model cannot be read.
    ModelUnknownError
        Sizes were left out, and the hub did not tell what they depend on.
    NoSuchGPUsError
        No nodes could hold it.
    GPUsTakenError
        No nodes can hold it now.
    QuotaError
        A quota of its namespace keeps it out.
    """
    if spec.ray_cluster_ref:
        return _render_shared(spec, spec.ray_cluster_ref.name, seen, settings, image)
    nodes = seen.inventory.room(but=of_deployment(seen.owner)) if seen.inventory else ()
    rules = replace(node_rules(spec, settings.defaults), volume=seen.volume)
    needs, bare = (
        host_needs(spec, settings.defaults, seen.rules.defaults, with_ray=with_ray) for with_ray in (True, False)
    )
    planned = plan(spec, nodes, settings.catalogue, rules=rules, told=seen.told, needs=needs, bare=bare)
    shape = planned.shape
    cluster_spec = (ray_cluster_spec if shape.with_ray else deployment_spec)(
        spec=spec, shape=shape, owner=seen.owner, names=EngineNames.placeholder(), defaults=settings.defaults
    )
    notes = check_quotas(seen.rules, engine_pods(cluster_spec), with_ray=shape.with_ray)
    engine8, pods8 = hashes(spec)
    return Revision(
        engine8=engine8,
        pods8=pods8,
        image=image,
        cluster_spec=cluster_spec,
        engine=engine_part(
            spec=spec,
            shape=shape,
            owner=seen.owner,
            checkpoint_bytes=planned.survey.checkpoint_bytes,
            pod=engine_pods(cluster_spec)[-1].spec,
        ),
        plan=describe(planned, notes),
    )


def _render_shared(spec: VLLMDeploymentSpec, name: str, seen: Observation, settings: Settings, image: str) -> Revision:
    """Render a spec for a shared RayCluster: its pods are there, and only what vLLM is told is ours."""
    nodes = _room(seen, name, but=of_deployment(seen.owner))
    planned = plan(spec, nodes, settings.catalogue, rules=PodRules(), told=seen.told)
    engine8, pods8 = hashes(spec)
    checkpoint = planned.survey.checkpoint_bytes
    return Revision(
        engine8=engine8,
        pods8=pods8,
        image=image,
        cluster_spec={},
        engine=engine_part(spec=spec, shape=planned.shape, owner=seen.owner, checkpoint_bytes=checkpoint),
        plan=describe(planned),
    )


def _old_history(seen: Observation) -> list[Action]:
    used = {body["metadata"].get("labels", {}).get(identity.LABEL_REVISION) for body in seen.workloads.values()}
    idle = sorted(
        (item for item in seen.revisions if item["metadata"]["labels"][identity.LABEL_REVISION] not in used),
        key=lambda item: int(item.get("revision", 0)),
    )
    surplus = idle[: max(0, len(idle) - HISTORY + 1)]
    return [Delete(api_version="apps/v1", kind="ControllerRevision", name=item["metadata"]["name"]) for item in surplus]


def _clusters_of(seen: Observation, index: int) -> list[ClusterView]:
    tenancies = seen.tenancies
    return [
        ClusterView(
            name=name,
            uid=body["metadata"]["uid"],
            revision=body["metadata"]["labels"].get(identity.LABEL_REVISION, ""),
            created_at=body["metadata"].get("creationTimestamp", ""),
            deleting="deletionTimestamp" in body["metadata"],
            trouble=_cluster_trouble(body),
            kind=_kind(seen, name),
            tenancy=tenancies.get(name),
        )
        for name, body in sorted(seen.workloads.items())
        if body["metadata"]["labels"].get(identity.LABEL_ENGINE) == str(index)
    ]


def _kind(seen: Observation, name: str) -> str:
    if name in seen.holdings:
        return CONFIG_MAP.kind
    return DEPLOYMENT.kind if name in seen.deployments else RAY_CLUSTER.kind


def _cluster_trouble(body: Mapping[str, Any]) -> str:
    """Give what keeps KubeRay or the Deployment's controller from making pods; both take this condition away again."""
    told = {item["type"]: item for item in (body.get("status") or {}).get("conditions") or []}
    failure = told.get("ReplicaFailure", {})
    return str(failure.get("message", "")) if failure.get("status") == "True" else ""


def remove_engine(index: int, cluster: ClusterView) -> list[Action]:
    """Remove an engine: what holds its pods last, so that an interrupted removal is seen and taken up again."""
    names = names_of(index, cluster)
    slices = (
        [Delete(api_version=ENDPOINT_SLICE.api_version, kind=ENDPOINT_SLICE.kind, name=names.endpoint_slice)]
        if cluster.tenancy
        else []
    )
    kinds = {kind.kind: kind for kind in (RAY_CLUSTER, DEPLOYMENT, CONFIG_MAP)}
    rbac = "rbac.authorization.k8s.io/v1"
    return [
        Delete(api_version=rbac, kind="RoleBinding", name=names.report),
        Delete(api_version=rbac, kind="Role", name=names.report),
        Delete(api_version="v1", kind="ConfigMap", name=names.report),
        Delete(api_version="v1", kind="ServiceAccount", name=names.service_account),
        Delete(api_version="v1", kind="Secret", name=names.secret),
        *([] if cluster.with_ray else [Delete(api_version="v1", kind="ConfigMap", name=names.code)]),
        *slices,
        Delete(
            api_version=kinds[cluster.kind].api_version,
            kind=cluster.kind,
            name=cluster.name,
            uid=cluster.uid,
        ),
    ]


def _surplus(seen: Observation, why: str, now: datetime.datetime) -> tuple[_Seat, ...]:
    """Give the engines beyond those that are wanted: each is removed, or leaves."""
    if not seen.spec:
        return ()
    return tuple(
        _left(seen, index, [item for item in _clusters_of(seen, index) if not item.deleting], why, now)
        for index in surplus_indices(seen)
    )


def _left(seen: Observation, index: int, clusters: Sequence[ClusterView], why: str, now: datetime.datetime) -> _Seat:
    """Let the engines of an index go: one that may answer somebody drains, the others are removed."""
    seconds = seen.spec.drain.timeout_seconds if seen.spec else 0
    leaving: Leaving | None = None
    actions: list[Action] = []
    for cluster in clusters:
        view = _view(seen, index, cluster, now)
        leave = take_leave(view, why=why, seconds=seconds, now=now)
        if not leave and cluster.tenancy and _has_head(seen, cluster.tenancy):
            leave = release(view, why=why, now=now)
        if leave and not leaving:
            leaving = Leaving(view=view, names=names_of(index, cluster), leave=leave)
        elif not (leave and cluster.tenancy):
            actions += remove_engine(index, cluster)
    return _Seat(name=engine_name(index), leaving=leaving, actions=tuple(actions))


def _has_head(seen: Observation, tenancy: Tenancy) -> bool:
    """Say whether there is a cluster that something can be given back to; with its head all of it is gone."""
    cluster = seen.shared.get(tenancy.cluster)
    return cluster is not None and cluster.head is not None
