"""RayClusters that users made and several deployments share: what is there, who holds what of it.  Pure.

A shared cluster is planned like nodes: each of its pods is one, with the GPUs that Ray counts in it, less what others
hold by their tenancies.  No pod of it is ours, so what an engine's pods would say of themselves is put together here.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_bootstrap import contract
from vllm_operator.api import identity
from vllm_operator.api.status import Reason
from vllm_operator.clients.ray import PlacementGroup, RayNode
from vllm_operator.lifecycle.conditions import Blocker
from vllm_operator.lifecycle.pods import PodView, read_pod
from vllm_operator.lifecycle.recovery import format_time, parse_time
from vllm_operator.planning.free_form import entries, mapping
from vllm_operator.planning.inventory import GpuNode, pod_gpus
from vllm_operator.resources.tenancy import Auth, Tenancy

TOKEN_MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
STALE_SECONDS = 30.0
"""Three signs of life that did not come: the engine gets no more traffic."""

START_SECONDS = 600.0
"""For a pod that has its node to pull its image and start."""

JOIN_SECONDS = 120.0
"""For a pod that runs to join Ray."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """A pod of a shared RayCluster.

    Attributes
    ----------
    account
        Its ServiceAccount.
    has_token
        Its main container can talk to the API server.
    requested
        GPUs that it asks Kubernetes for, by resource.
    """

    view: PodView
    account: str
    has_token: bool
    image: str
    requested: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class SharedCluster:
    """A shared RayCluster as it was seen.

    Attributes
    ----------
    found
        It is there, and not being removed.
    owner
        The deployment of ours that made it, if one did; such a cluster is not shared.
    tenancies
        Of all engines on it, by namespaced ConfigMap name.
    nodes
        Its alive Ray nodes; ``None`` when its head was not asked.
    groups
        Its placement groups, as they were before the tenancies were read.
    auth
        Where its token is, when its head was asked.
    trouble
        Why its head does not answer as it should.
    """

    name: str
    found: bool = False
    owner: str = ""
    members: tuple[Member, ...] = ()
    tenancies: Mapping[str, Tenancy] = field(default_factory=dict)
    nodes: tuple[RayNode, ...] | None = None
    groups: tuple[PlacementGroup, ...] = ()
    auth: Auth | None = None
    trouble: Blocker | None = None

    @property
    def head(self) -> PodView | None:
        """The head pod."""
        return next((item.view for item in self.members if item.view.head and not item.view.deleting), None)

    def member(self, pod: str, uid: str) -> Member | None:
        """Give a pod by name and uid."""
        return next((item for item in self.members if (item.view.name, item.view.uid) == (pod, uid)), None)


def read_member(body: Mapping[str, Any]) -> Member:
    """Read a Pod object."""
    spec = mapping(body.get("spec"))
    containers = list(entries(spec, "containers"))
    main = containers[0] if containers else {}
    mounts = {str(item.get("mountPath")) for item in entries(main, "volumeMounts")}
    return Member(
        view=read_pod(body),
        account=str(spec.get("serviceAccountName") or "default"),
        has_token=TOKEN_MOUNT in mounts,
        image=str(main.get("image", "")),
        requested=pod_gpus(spec),
    )


def find_fault(cluster: SharedCluster, namespace: str) -> Blocker | None:
    """Say why engines cannot live on a cluster; ``None`` when they can."""
    if not cluster.found:
        text = f"spec.rayClusterRef: RayCluster {cluster.name} does not exist in namespace {namespace}; create it"
        return Blocker(reason=Reason.RAY_CLUSTER_NOT_FOUND, message=text)
    if cluster.owner:
        text = (
            f"spec.rayClusterRef: RayCluster {cluster.name} belongs to {identity.KIND} {cluster.owner}, which removes "
            "it as it needs; name one that you made"
        )
        return Blocker(reason=Reason.RAY_CLUSTER_UNFIT, message=text)
    if not cluster.head or not cluster.head.running:
        text = f"RayCluster {cluster.name} has no running head pod; see kubectl describe raycluster {cluster.name}"
        return Blocker(reason=Reason.RAY_CLUSTER_NOT_READY, message=text, lasting=False)
    return None


def find_unfit(cluster: SharedCluster) -> Blocker | None:
    """Say why no further engine can be put on a cluster; ``None`` when one can."""
    for member in cluster.members:
        fault = "" if member.view.deleting else _account_fault(member)
        if fault:
            text = f"pod {member.view.name} of RayCluster {cluster.name} {fault}"
            return Blocker(reason=Reason.RAY_CLUSTER_UNFIT, message=text)
    return None


def _account_fault(member: Member) -> str:
    if member.account == "default":
        return (
            "runs as ServiceAccount default, and rights that are bound to it every pod of the namespace would have; "
            "set serviceAccountName in the pod templates of the RayCluster to one of its own"
        )
    if not member.has_token:
        return (
            "has no ServiceAccount token mounted, and engines report with it; set automountServiceAccountToken: true "
            "in the pod templates of the RayCluster"
        )
    return ""


def find_joining(cluster: SharedCluster, now: datetime.datetime) -> Blocker | None:
    """Say which pods of a cluster are on their way into Ray; ``None`` when nobody has to be waited for.

    A plan made meanwhile would see too little: a tensor parallel group might be torn apart over small pods although a
    large one is seconds away.  Pods that have no node yet, or had their time, are not waited for.
    """
    joined = {node.address for node in cluster.nodes or ()}
    coming = [item.view for item in cluster.members if item.view.ip not in joined and _is_coming(item.view, now)]
    if not coming:
        return None
    names = ", ".join(sorted(view.name for view in coming)[:4])
    text = f"pods of RayCluster {cluster.name} are starting, and have not joined Ray yet: {names}"
    return Blocker(reason=Reason.RAY_CLUSTER_NOT_READY, message=text, lasting=False)


def _is_coming(view: PodView, now: datetime.datetime) -> bool:
    if view.deleting or view.phase in ("Failed", "Succeeded") or (view.trouble and view.trouble.lasting):
        return False
    since, seconds = (view.started_at, JOIN_SECONDS) if view.running else (view.scheduled_at, START_SECONDS)
    instant = parse_time(since)
    return instant is not None and (now - instant).total_seconds() < seconds


def token_fault(cluster: str, *, given: bool) -> Blocker:
    """Say that a head wants a token, or another one."""
    told = "refuses the token of spec.rayClusterRef.authSecret" if given else "asks for a token"
    mend = "put Ray's token (RAY_AUTH_TOKEN of its pods) into that Secret" if given else "set authSecret"
    return Blocker(reason=Reason.RAY_TOKEN_REFUSED, message=f"spec.rayClusterRef: RayCluster {cluster} {told}; {mend}")


def room(
    cluster: SharedCluster, nodes: Iterable[GpuNode], but: Callable[[Tenancy], bool] = lambda _: False
) -> tuple[GpuNode, ...]:
    """Give the pods of a cluster as nodes that the planner can seat ranks on.

    Parameters
    ----------
    nodes
        The nodes of Kubernetes, which tell the product of a pod's GPUs.
    but
        Says which tenancies are left out.
    """
    by_name: dict[str, list[GpuNode]] = {}
    for node in nodes:
        by_name.setdefault(node.name, []).append(node)
    held: dict[str, list[tuple[int, str]]] = {}
    for _, tenancy in sorted(cluster.tenancies.items()):
        if not but(tenancy):
            for seat in tenancy.seats:
                held.setdefault(seat.pod, []).append((seat.gpus, tenancy.holder))
    gpus = {node.address: node.gpus for node in cluster.nodes or () if node.gpus}
    return tuple(
        _as_node(item, gpus[item.view.ip], by_name.get(item.view.node, []), held.get(item.view.name, []))
        for item in sorted(cluster.members, key=lambda item: item.view.name)
        if item.view.ip in gpus and item.view.running and not item.view.deleting
    )


def _as_node(member: Member, gpus: int, nodes: list[GpuNode], held: list[tuple[int, str]]) -> GpuNode:
    wanted = [node for node in nodes if node.resource in member.requested]
    base = next(iter(wanted or nodes), GpuNode(name="", gpus=0))
    return replace(
        base,
        name=member.view.name,
        gpus=gpus,
        used=sum(number for number, _ in held),
        holders=tuple(f"{holder}: {number}" for number, holder in held),
        taints=(),
        schedulable=True,
        room=None,
    )


def is_lost(cluster: SharedCluster | None, tenancy: Tenancy) -> str:
    """Give the pods of an engine that are gone and will not come back; empty when all are there, or none was seen."""
    if cluster is None:
        return ""
    gone = [seat.pod for seat in tenancy.seats if not cluster.member(seat.pod, seat.uid)]
    return ", ".join(gone)


def engine_pods(
    cluster: SharedCluster | None, tenancy: Tenancy, report: contract.EngineReport | None, now: datetime.datetime
) -> tuple[PodView, ...]:
    """Give the head and the pods that an engine has GPUs of, as if they were its own."""
    if cluster is None:
        return ()
    pods = [replace(cluster.head, lead=False)] if cluster.head else []
    for index, seat in enumerate(tenancy.seats):
        if member := cluster.member(seat.pod, seat.uid):
            view = replace(member.view, head=False, lead=index == 0)
            pods.append(_with_readiness(view, report, now) if view.lead else view)
    return tuple(pods)


def _with_readiness(lead: PodView, report: contract.EngineReport | None, now: datetime.datetime) -> PodView:
    """Let a pod be ready as its engine is: no probe of ours asks it, only the report tells."""
    if report is None:
        return replace(lead, ready=False, ready_changed_at="")
    left = stale_in(report, now)
    alive = report.phase is contract.Phase.SERVING and not report.unready and left is not None and left > 0
    return replace(lead, ready=alive and lead.running and lead.ready, ready_changed_at=_last_sign(report))


def stale_in(report: contract.EngineReport, now: datetime.datetime) -> float | None:
    """Give the seconds until an engine has been silent for too long; ``None`` when it never gave a sign."""
    last = parse_time(_last_sign(report))
    return None if last is None else STALE_SECONDS - (now - last).total_seconds()


def _last_sign(report: contract.EngineReport) -> str:
    instants = [instant for text in (report.heartbeat, report.time) if (instant := parse_time(text))]
    return format_time(max(instants)) if instants else ""


def orphans(cluster: SharedCluster) -> tuple[contract.Tenancy, ...]:
    """Give what engines of deployments that are gone still hold in Ray.

    The groups were read before the tenancies, and a tenancy is written before its group is made: a group whose engine
    is being made is never among them.
    """
    kept = {tenancy.stem for tenancy in cluster.tenancies.values()}
    found: dict[str, list[str]] = {}
    for group in cluster.groups:
        match = contract.GROUP_NAME.fullmatch(group.name)
        if match and match["stem"] not in kept:
            found.setdefault(match["stem"], []).append(group.id)
    return tuple(contract.Tenancy(stem=stem, groups=tuple(sorted(ids))) for stem, ids in sorted(found.items()))


def release_id(seed: str, session: str) -> str:
    """Give the id of a release job: the same engine on the same Ray session is released once."""
    return f"release-{hashlib.sha256(f'{seed}/{session}'.encode()).hexdigest()[:16]}"
