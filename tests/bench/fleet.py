"""A fleet as an API server has it: nodes and pods with all that makes such objects large, as JSON text."""

from __future__ import annotations

import json
from typing import Any

Object = dict[str, Any]

PRODUCT = "NVIDIA-H100-80GB-HBM3"
PODS_OF_A_NODE = 10


def node_list(nodes: int, *, cordoned: str = "") -> str:
    """Give the answer to a list of nodes of 8 GPUs."""
    bodies = [_node(f"node-{index}") for index in range(nodes)]
    for body in bodies:
        body["spec"]["unschedulable"] = body["metadata"]["name"] == cordoned
    return json.dumps({"kind": "NodeList", "apiVersion": "v1", "items": bodies})


def pod_list(nodes: int) -> str:
    """Give the answer to a list of all pods; the first of each node holds its GPUs."""
    pods = [
        _pod(f"node-{node}", number, gpus=8 if number == 0 else 0)
        for node in range(nodes)
        for number in range(PODS_OF_A_NODE)
    ]
    return json.dumps({"kind": "PodList", "apiVersion": "v1", "items": pods})


def _node(name: str) -> Object:
    capacity = {
        "cpu": "192",
        "memory": "2113482112Ki",
        "nvidia.com/gpu": "8",
        "pods": "110",
        "ephemeral-storage": "7Ti",
    }
    features = {f"feature.node.kubernetes.io/cpu-cpuid.FEATURE{index}": "true" for index in range(60)}
    gpu = {"nvidia.com/gpu.product": PRODUCT, "nvidia.com/gpu.memory": "81559", "nvidia.com/gpu.count": "8"}
    image = "registry.example/team/service@sha256:" + "0" * 64
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": "z1", **gpu, **features},
            "annotations": {f"annotation.example/{index}": "x" * 80 for index in range(10)},
            "managedFields": [_managed(40)] * 4,
        },
        "spec": {"podCIDR": "10.0.0.0/24", "taints": []},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [_condition(kind) for kind in ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")],
            "images": [{"names": [f"{image}{index}"], "sizeBytes": 10**9} for index in range(50)],
        },
    }


def _pod(node: str, number: int, *, gpus: int) -> Object:
    name = f"pod-{node}-{number}"
    limits = {"cpu": "4", "memory": "16Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    container = {
        "name": "main",
        "image": "registry.example/team/service@sha256:" + "0" * 64,
        "env": [{"name": f"VARIABLE_{index}", "value": "x" * 30} for index in range(15)],
        "resources": {"limits": limits, "requests": limits},
        "volumeMounts": [{"name": f"volume-{index}", "mountPath": f"/mnt/{index}"} for index in range(4)],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "others",
            "uid": f"uid-{name}",
            "labels": {f"app.example/label-{index}": "value" for index in range(6)},
            "managedFields": [_managed(30)] * 3,
        },
        "spec": {
            "nodeName": node,
            "containers": [container],
            "volumes": [{"name": f"volume-{index}", "emptyDir": {}} for index in range(4)],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        },
        "status": {
            "phase": "Running",
            "conditions": [_condition(kind) for kind in ("Ready", "Initialized", "ContainersReady", "PodScheduled")],
            "containerStatuses": [{"name": "main", "ready": True, "containerID": "containerd://" + "0" * 64}],
        },
    }


def _managed(fields: int) -> Object:
    return {
        "manager": "kubelet",
        "operation": "Update",
        "time": "2026-03-01T12:00:00Z",
        "fieldsV1": {f"f:field-{index}": {"f:part": {}} for index in range(fields)},
    }


def _condition(kind: str) -> Object:
    return {"type": kind, "status": "True", "reason": "Because", "message": "x" * 60, "lastTransitionTime": "x" * 20}
