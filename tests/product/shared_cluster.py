"""A RayCluster as a user makes it, on which several deployments run."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from tests.product.install import RANK_DUMP, THIN_IMAGE, pod_template
from tests.testbed.bed import Bed

TOKEN = "ray-token-of-the-pool"
AUTH = "pool-auth"
ACCOUNT = "pool"
ALIVE = {"exec": {"command": ["true"]}}


@dataclass(frozen=True)
class RayPool:
    """A shared RayCluster on the bed."""

    bed: Bed
    namespace: str
    name: str

    @property
    def pods(self) -> list[dict[str, Any]]:
        """Its pods."""
        found = self.bed.api.json("get", "pods", "-n", self.namespace, "-l", f"ray.io/cluster={self.name}")
        return list(found["items"])

    @property
    def head(self) -> str:
        """Name of its head pod."""
        kinds = {str(pod["metadata"]["name"]): pod["metadata"]["labels"]["ray.io/node-type"] for pod in self.pods}
        return next(name for name, kind in kinds.items() if kind == "head")

    def workers(self, gpus: int) -> list[str]:
        """Names of its worker pods with so many GPUs."""
        groups = [(pod["metadata"]["name"], pod["metadata"]["labels"].get("ray.io/group")) for pod in self.pods]
        return sorted(name for name, group in groups if group == _group(gpus))


def manifests(bed: Bed, name: str, workers: dict[int, int]) -> list[dict[str, Any]]:
    """Give the RayCluster with what it needs: a head without GPUs, and workers.

    Ray is told of GPUs that Kubernetes knows nothing of: on the bed they are only numbers.

    Parameters
    ----------
    workers
        GPUs of a pod → number of such pods.
    """
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": AUTH}, "stringData": {"auth_token": TOKEN}}
    service_account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}
    head = {"num-cpus": "0", "num-gpus": "0", "dashboard-host": "0.0.0.0", "object-store-memory": "100000000"}  # noqa: S104
    cluster = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name},
        "spec": {
            "rayVersion": "2.60.0",
            "headGroupSpec": {"rayStartParams": head, "template": _template(bed)},
            "workerGroupSpecs": [
                {
                    "groupName": _group(gpus),
                    "replicas": number,
                    "minReplicas": number,
                    "maxReplicas": number,
                    "rayStartParams": {
                        "object-store-memory": "100000000",
                        "num-cpus": str(gpus),
                        "num-gpus": str(gpus),
                    },
                    "template": _template(bed),
                }
                for gpus, number in workers.items()
            ],
        },
    }
    return [secret, service_account, cluster]


def _group(gpus: int) -> str:
    return f"gpus-{gpus}"


def _template(bed: Bed) -> dict[str, Any]:
    template = copy.deepcopy(pod_template(bed))
    spec = template["spec"]
    container = spec["containers"][0]
    # Each deployment names a folder of its own for what its ranks say of themselves.
    kept = [item for item in container["env"] if item.get("value") != RANK_DUMP]
    container |= {
        "name": "ray",
        "image": THIN_IMAGE,
        "env": [
            *kept,
            {"name": "RAY_AUTH_MODE", "value": "token"},
            {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": {"name": AUTH, "key": "auth_token"}}},
            {"name": "RAY_memory_monitor_refresh_ms", "value": "0"},
            {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"},
            {"name": "RAY_worker_niceness", "value": "0"},
        ],
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "16Gi"}},
        # KubeRay's own probes ask with wget.
        "readinessProbe": ALIVE,
        "livenessProbe": ALIVE,
    }
    container["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108
    spec["volumes"].append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}})
    spec |= {"serviceAccountName": ACCOUNT, "terminationGracePeriodSeconds": 1, "enableServiceLinks": False}
    return template
