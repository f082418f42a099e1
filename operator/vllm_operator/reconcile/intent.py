"""From what was seen to what should be: the revision, the engines that are there, those to make.  Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from vllm_operator.api import identity
from vllm_operator.api.status import Reason
from vllm_operator.lifecycle.actions import Action
from vllm_operator.lifecycle.conditions import Blocker
from vllm_operator.lifecycle.engine import due_turn
from vllm_operator.lifecycle.engine_view import ClusterView
from vllm_operator.reconcile.departing import depart, depart_surplus
from vllm_operator.reconcile.engines import clusters_of, names_of, view_of
from vllm_operator.reconcile.indices import engine_indices, pods_of
from vllm_operator.reconcile.observe import Observation
from vllm_operator.reconcile.placing import prove
from vllm_operator.reconcile.revising import revise
from vllm_operator.reconcile.room import hindrance, sizes_of
from vllm_operator.reconcile.seat import Engine, Leaving, Seat, Wait
from vllm_operator.reconcile.settings import Settings
from vllm_operator.reconcile.shared import is_lost
from vllm_operator.resources.names import EngineNames, engine_name
from vllm_operator.resources.revision import Revision, hashes, read_controller_revision, revision_name
from vllm_operator.resources.tenancy import Tenancy

KUBERAY_MISSING = Blocker(
    reason=Reason.KUBERAY_NOT_INSTALLED,
    message="the API server knows no RayCluster (ray.io/v1): install the KubeRay operator and its CRDs",
)


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
    revision, blocker, actions = revise(seen, settings, known)
    needs_kuberay = revision is None or revision.with_ray
    if not blocker and seen.clusters is None and needs_kuberay and not seen.plan_only:
        blocker = KUBERAY_MISSING
    if revision:
        known[revision.name] = revision
    # What is there is left alone while the present spec cannot be carried out: nothing that serves is lost.
    target = None if blocker or seen.plan_only else revision
    seats = [_seat(seen, index, target, known, settings=settings, now=now) for index in engine_indices(seen)]
    surplus = () if seen.plan_only else depart_surplus(seen, "it is surplus", now)
    if target and seen.inventory:
        seats = prove(seats, target, seen, settings.recovery, now)
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
    seats = depart_surplus(seen, "its deployment is deleted", now)
    return Intent(
        revision=None,
        blocker=None,
        leaving={seat.name: seat.leaving for seat in seats if seat.leaving},
        actions=tuple(action for seat in seats for action in seat.actions),
    )


def _seat(
    seen: Observation,
    index: int,
    target: Revision | None,
    known: Mapping[str, Revision],
    *,
    settings: Settings,
    now: datetime.datetime,
) -> Seat:
    name = engine_name(index)
    clusters = clusters_of(seen, index)
    kept = [item for item in clusters if not item.deleting and (target is None or item.revision == target.name)]
    chosen = next((item for item in kept if item.revision in known), None)
    homeless = _lost_pods(seen, chosen) if target else ""
    if chosen and not homeless:
        return Seat(name=name, engine=_engine(seen, index, chosen, known[chosen.revision], settings=settings, now=now))
    if target is None:
        return Seat(name=name)
    why = f"its pod {homeless} is gone" if homeless else "it is replaced"
    gone = depart(seen, index, [item for item in clusters if not item.deleting], why, now)
    left = [pod.name for pod in pods_of(seen, index)] or [item.name for item in clusters]
    if left and homeless:
        told = f"{why}; what it holds beside it is given back first"
        return replace(gone, waiting=Wait(reason=Reason.REPLACING, message=told))
    if left:
        told = "the engine of the earlier revision goes first: " + ", ".join(left[:4])
        return replace(gone, waiting=Wait(reason=Reason.REPLACING, message=told))
    return Seat(name=name, missing=EngineNames.of(seen.owner, index, target.pods8))


def _lost_pods(seen: Observation, cluster: ClusterView | None) -> str:
    tenancy = cluster.tenancy if cluster else None
    return is_lost(seen.shared.get(tenancy.cluster), tenancy) if tenancy else ""


def _engine(
    seen: Observation,
    index: int,
    cluster: ClusterView,
    revision: Revision,
    *,
    settings: Settings,
    now: datetime.datetime,
) -> Engine:
    seen_so = view_of(seen, index, cluster, now)
    hindered = not cluster.tenancy and any(pod.unscheduled_since for pod in seen_so.pods)
    sizes = tuple(seat.gpus for seat in cluster.tenancy.seats) if cluster.tenancy else sizes_of(revision)
    view = replace(
        seen_so,
        sizes=sizes,
        hindrance=hindrance(seen, cluster.name, revision) if hindered else "",
    )
    return Engine(
        view=view,
        turn=due_turn(view, recovery=settings.recovery, now=now),
        names=names_of(index, cluster),
        revision=revision,
    )
