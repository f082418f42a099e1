"""Engines that go: at once, when they have drained, or when they gave back what they held.  Pure."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from vllm_operator.lifecycle.actions import Action, Delete
from vllm_operator.lifecycle.engine_view import ClusterView
from vllm_operator.lifecycle.leaving import release, take_leave
from vllm_operator.reconcile.engines import clusters_of, names_of, view_of
from vllm_operator.reconcile.indices import surplus_indices
from vllm_operator.reconcile.inventory import DEPLOYMENT, RAY_CLUSTER
from vllm_operator.reconcile.observe import CONFIG_MAP, ENDPOINT_SLICE, Observation
from vllm_operator.reconcile.seat import Leaving, Seat
from vllm_operator.resources.names import engine_name
from vllm_operator.resources.tenancy import Tenancy


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


def depart_surplus(seen: Observation, why: str, now: datetime.datetime) -> tuple[Seat, ...]:
    """Give the engines beyond those that are wanted: each is removed, or leaves."""
    if not seen.spec:
        return ()
    return tuple(
        depart(seen, index, [item for item in clusters_of(seen, index) if not item.deleting], why, now)
        for index in surplus_indices(seen)
    )


def depart(seen: Observation, index: int, clusters: Sequence[ClusterView], why: str, now: datetime.datetime) -> Seat:
    """Let the engines of an index go: one that may answer somebody drains, the others are removed."""
    seconds = seen.spec.drain.timeout_seconds if seen.spec else 0
    leaving: Leaving | None = None
    actions: list[Action] = []
    for cluster in clusters:
        view = view_of(seen, index, cluster, now)
        leave = take_leave(view, why=why, seconds=seconds, now=now)
        if not leave and cluster.tenancy and _has_head(seen, cluster.tenancy):
            leave = release(view, why=why, now=now)
        if leave and not leaving:
            leaving = Leaving(view=view, names=names_of(index, cluster), leave=leave)
        elif not (leave and cluster.tenancy):
            actions += remove_engine(index, cluster)
    return Seat(name=engine_name(index), leaving=leaving, actions=tuple(actions))


def _has_head(seen: Observation, tenancy: Tenancy) -> bool:
    """Say whether there is a cluster that something can be given back to; with its head all of it is gone."""
    cluster = seen.shared.get(tenancy.cluster)
    return cluster is not None and cluster.head is not None
