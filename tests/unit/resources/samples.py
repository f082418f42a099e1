"""Specs, owners and renderings for tests."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vllm_operator.api.placement import Executor
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.planning.catalogue import BUILT_IN
from vllm_operator.planning.inventory import GpuNode
from vllm_operator.planning.plan import plan
from vllm_operator.planning.shapes import Shape
from vllm_operator.resources.defaults import RuntimeDefaults
from vllm_operator.resources.engine import engine_part
from vllm_operator.resources.names import EngineNames, Owner
from vllm_operator.resources.ray_cluster import ray_cluster_spec
from vllm_operator.resources.revision import Revision, hashes

Object = dict[str, Any]

OWNER = Owner(name="demo", namespace="models", uid="0f0e0d0c-0000-4000-8000-000000000001")
NODES = (GpuNode(name="gpu-a", gpus=4), GpuNode(name="gpu-b", gpus=4))
DEFAULTS = RuntimeDefaults(image="registry.example/runtime:1", ray_version="2.60.0")

TYPICAL: Object = {
    "model": {"uri": "file:///opt/models/smollm2"},
    "parallelism": {"pipeline": 2},
    "placement": {"gpusPerPod": 1},
    "vllmConfig": {"maxModelLen": 2048, "dtype": "bfloat16", "extraArgs": ["-cc.mode=2"]},
    "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
    "pod": {
        "shmSize": "512Mi",
        "resources": {"requests": {"cpu": "200m", "memory": "2Gi"}, "limits": {"memory": "6Gi"}},
    },
    "rayHead": {"resources": {"requests": {"cpu": "200m", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}},
}

EVERYTHING: Object = {
    "model": {
        "uri": "hf://org/name",
        "revision": "v1",
        "name": "served",
        "hfTokenSecret": {"name": "hub"},
        "cache": {"persistentVolumeClaim": "models"},
    },
    "image": "registry.example/own:2",
    "parallelism": {"tensor": 2},
    "placement": {"strategy": "STRICT_SPREAD"},
    "vllmConfig": {"gpuMemoryUtilization": 0.9, "quantization": "fp8", "kvCacheDtype": "fp8", "maxNumSeqs": 64},
    "env": [
        {"name": "PLAIN", "value": "1"},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "s3"}}},
        {"name": "CONFIG", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "c", "optional": True}}},
    ],
    "envFrom": [
        {"prefix": "A_", "secretRef": {"name": "all-keys"}},
        {"configMapRef": {"name": "all-conf", "optional": True}},
    ],
    "pod": {
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "os", "operator": "DoesNotExist"}]}]
                }
            }
        },
        "serviceAccountName": "own",
        "imagePullSecrets": [{"name": "pull"}],
        "labels": {"team": "a"},
        "annotations": {"example.org/note": "b"},
        "template": {"spec": {"priorityClassName": "high"}},
    },
    "rayHead": {"nodeSelector": {"pool": "cpu"}, "tolerations": [{"operator": "Exists"}]},
}


def spec_of(*parts: Object) -> VLLMDeploymentSpec:
    """Give a spec of a model and further parts, later ones over earlier ones."""
    whole: Object = {"model": {"uri": "file:///m"}}
    for part in parts:
        whole |= copy.deepcopy(part)
    return VLLMDeploymentSpec.model_validate(whole)


def shape_of(spec: VLLMDeploymentSpec, nodes: Sequence[GpuNode]) -> Shape:
    """Give the pods of a spec on some nodes."""
    return plan(spec, nodes, BUILT_IN).shape


def ray_shape_of(spec: VLLMDeploymentSpec, nodes: Sequence[GpuNode]) -> Shape:
    """Give the same for a RayCluster, also where one pod would do it without Ray."""
    return replace(shape_of(spec, nodes), executor=Executor.RAY)


def rendered(
    spec: VLLMDeploymentSpec,
    *,
    nodes: Sequence[GpuNode] = (),
    defaults: RuntimeDefaults = DEFAULTS,
    names: EngineNames | None = None,
) -> Object:
    """Give the spec of an engine's RayCluster."""
    there = nodes or [GpuNode(name=node.name, gpus=node.gpus, labels=spec.pod.node_selector) for node in NODES]
    return ray_cluster_spec(
        spec=spec,
        shape=ray_shape_of(spec, there),
        owner=OWNER,
        names=names or EngineNames.of(OWNER, 0, hashes(spec)[1]),
        defaults=defaults,
    )


def revision_of(spec: VLLMDeploymentSpec, *, nodes: Sequence[GpuNode] = NODES) -> Revision:
    """Give the revision of a spec, as RayClusters."""
    shape = ray_shape_of(spec, nodes)
    engine8, pods8 = hashes(spec)
    return Revision(
        engine8=engine8,
        pods8=pods8,
        image=spec.image or DEFAULTS.image,
        cluster_spec=rendered(spec, nodes=nodes, names=EngineNames.placeholder()),
        engine=engine_part(spec=spec, shape=shape, owner=OWNER),
    )


def templates(cluster: Object) -> dict[str, Object]:
    """Give the pod templates of a RayCluster by group name, the head's as ``head``."""
    head = {"head": cluster["headGroupSpec"]["template"]}
    return head | {group["groupName"]: group["template"] for group in cluster["workerGroupSpecs"]}


def main(template: Object) -> Object:
    """Give the Ray container of a pod template: KubeRay takes the first."""
    container: Object = template["spec"]["containers"][0]
    assert container["name"] == "vllm"
    return container


def named(items: Sequence[Object], key: str = "name") -> dict[str, Object]:
    """Give a list of named items as a mapping; a name that stands twice is an error."""
    found = {item[key]: item for item in items}
    assert len(found) == len(items)
    return found
