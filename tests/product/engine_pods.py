"""The GPU pods of an engine as KubeRay would make them, for tests in which nothing but the scheduler looks at them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from vllm_operator.api.placement import Executor
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.planning.shapes import Shape
from vllm_operator.resources.defaults import RuntimeDefaults
from vllm_operator.resources.names import EngineNames, Owner
from vllm_operator.resources.ray_cluster import ray_cluster_spec

DEFAULTS = RuntimeDefaults(image="localhost/never-pulled:1")


def engine_pods(spec: VLLMDeploymentSpec, shape: Shape, *, name: str, namespace: str) -> list[dict[str, Any]]:
    """Render the pods with the operator's own code, in the order in which KubeRay makes them: group by group.

    Left out is what other objects would have to be there for (the ServiceAccount) and what the scheduler never sees.

    Parameters
    ----------
    name
        Name of the deployment.
    """
    owner = Owner(name=name, namespace=namespace, uid="0")
    names = EngineNames.of(owner, 0, "00000000")
    with_ray = replace(shape, executor=Executor.RAY)
    cluster = ray_cluster_spec(spec=spec, shape=with_ray, owner=owner, names=names, defaults=DEFAULTS)
    return [
        _pod(group["template"], names.ray_cluster, group["groupName"], index)
        for group in cluster["workerGroupSpecs"]
        for index in range(group["replicas"])
    ]


def _pod(template: dict[str, Any], cluster: str, group: str, index: int) -> dict[str, Any]:
    made = copy.deepcopy(template)
    made["spec"].pop("serviceAccountName", None)
    made["spec"]["automountServiceAccountToken"] = False
    tags = {"ray.io/cluster": cluster, "ray.io/group": group, "ray.io/node-type": "worker"}
    name = f"{cluster}-{group}-{index}"
    metadata = {**made["metadata"], "name": name, "labels": {**made["metadata"]["labels"], **tags}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": made["spec"]}
