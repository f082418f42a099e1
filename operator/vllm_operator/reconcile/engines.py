"""The engines that are there, put together from what was seen of them.  Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from vllm_operator.api import identity
from vllm_operator.lifecycle.engine_view import ClusterView, EngineView
from vllm_operator.reconcile.inventory import DEPLOYMENT, RAY_CLUSTER
from vllm_operator.reconcile.observe import CONFIG_MAP, Observation
from vllm_operator.reconcile.shared import engine_pods as engine_pods_of
from vllm_operator.resources.names import EngineNames, engine_name


def clusters_of(seen: Observation, index: int) -> list[ClusterView]:
    """Give what there is under the index of an engine: of all revisions, also what is being removed."""
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


def names_of(index: int, cluster: ClusterView) -> EngineNames:
    """Give the names of an engine that is there."""
    stem = cluster.tenancy.stem if cluster.tenancy else ""
    return EngineNames(index=str(index), ray_cluster=cluster.name, stem=stem)


def view_of(seen: Observation, index: int, cluster: ClusterView, now: datetime.datetime) -> EngineView:
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
