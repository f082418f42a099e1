"""The RayCluster of one engine replica: a CPU-only head and one worker group for each pod shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm_bootstrap import contract
from vllm_operator.api import identity
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.planning.devices import GPU_RESOURCE
from vllm_operator.planning.eligibility import PodRules, read_rules
from vllm_operator.planning.host import OBJECT_STORE_BYTES
from vllm_operator.planning.inventory import pod_gpus
from vllm_operator.planning.shapes import LEAD_GROUP, PodShape, Shape
from vllm_operator.resources.defaults import RuntimeDefaults
from vllm_operator.resources.names import EngineNames, Owner, engine_labels, metadata
from vllm_operator.resources.pod import Role, pod_template

API_VERSION = "ray.io/v1"
KIND = "RayCluster"


def ray_cluster_spec(
    *, spec: VLLMDeploymentSpec, shape: Shape, owner: Owner, names: EngineNames, defaults: RuntimeDefaults
) -> dict[str, Any]:
    """Render the RayCluster's ``spec``; kept in the revision, so that an upgrade of ours changes no live engine."""

    def template(role: Role, group: PodShape | None = None) -> dict[str, Any]:
        return pod_template(spec=spec, shape=shape, owner=owner, names=names, defaults=defaults, role=role, group=group)

    return {
        "rayVersion": defaults.ray_version,
        "headGroupSpec": {
            "serviceType": "ClusterIP",
            "rayStartParams": {
                "num-cpus": "0",
                "num-gpus": "0",
                "dashboard-host": "0.0.0.0",  # noqa: S104 - the pod's own address, behind Ray's token
                "object-store-memory": str(OBJECT_STORE_BYTES),
            },
            "template": template(Role.HEAD),
        },
        "workerGroupSpecs": [
            {
                "groupName": group.name,
                "replicas": group.pods,
                "minReplicas": group.pods,
                "maxReplicas": group.pods,
                "numOfHosts": 1,
                "rayStartParams": _start_params(group),
                "template": template(Role.LEAD if group.name == LEAD_GROUP else Role.WORKER, group),
            }
            for group in shape.groups
        ],
    }


def ray_cluster(*, owner: Owner, names: EngineNames, revision: str, cluster_spec: dict[str, Any]) -> dict[str, Any]:
    """Build the RayCluster object of an engine from its revision's rendering."""
    tags = {**engine_labels(owner, names.index), identity.LABEL_REVISION: revision}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata(owner, names.ray_cluster, tags),
        "spec": cluster_spec,
    }


@dataclass(frozen=True, kw_only=True)
class GpuPods:
    """The GPU pods of a rendered RayCluster, as the scheduler will see them.

    Attributes
    ----------
    sizes
        GPUs of each pod, largest first.
    rules
        What they say of their nodes.
    apart
        Each must have a node of its own.
    topology_key
        Label whose value is chosen when the engine is made; empty once it is chosen, or where there is none.
    resource
        Name under which they ask for GPUs.
    """

    sizes: tuple[int, ...]
    rules: PodRules
    apart: bool
    topology_key: str
    resource: str


def gpu_pods(cluster_spec: Mapping[str, Any]) -> GpuPods:
    """Read a RayCluster's ``spec`` as :func:`ray_cluster_spec` renders it, or the Deployment's of one without Ray."""
    groups = cluster_spec.get("workerGroupSpecs") or ([cluster_spec] if "template" in cluster_spec else [])
    pods = [group["template"].get("spec") or {} for group in groups for _ in range(group.get("replicas") or 0)]
    pod = pods[0] if pods else {}
    held = [pod_gpus(item) if isinstance(item, Mapping) else {} for item in pods]
    resource = next((name for gpus in held for name in gpus), GPU_RESOURCE)
    rules = read_rules(pod)
    selector = dict(rules.node_selector)
    open_key = next((key for key, value in selector.items() if value == EngineNames.placeholder().domain), "")
    selector.pop(open_key, None)
    anti = (rules.affinity or {}).get("podAntiAffinity")
    return GpuPods(
        sizes=tuple(sorted((gpus.get(resource, 0) for gpus in held), reverse=True)),
        rules=replace(rules, node_selector=selector),
        topology_key=open_key,
        resource=resource,
        apart=isinstance(anti, Mapping) and bool(anti.get("requiredDuringSchedulingIgnoredDuringExecution")),
    )


def _start_params(group: PodShape) -> dict[str, str]:
    params = {
        # Always explicit: KubeRay derives none from nvidia.com/gpu.shared or MIG names (kuberay#2354).
        "num-gpus": str(group.gpus),
        "num-cpus": str(group.gpus),
        "object-store-memory": str(OBJECT_STORE_BYTES),
    }
    if group.name == LEAD_GROUP:
        # Quoted twice: KubeRay hands the value to a shell.
        params["resources"] = json.dumps(json.dumps({contract.LEAD_RESOURCE: 1}))
    return params
