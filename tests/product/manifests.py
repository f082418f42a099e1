"""Manifests of small deployments for the test bed."""

from __future__ import annotations

from typing import Any

from tests.product.install import DUMMY_MODELS, THIN_IMAGE

PIPELINE_ON_CPU = ("-cc.mode=2", "-cc.backend=eager")
"""vLLM's CPU build cannot run pipeline stages with --enforce-eager."""


def dummy(
    name: str,
    folder: str,
    *,
    tensor: int = 1,
    pipeline: int = 1,
    strategy: str = "PACK",
    gpus_per_pod: int | None = None,
    arguments: tuple[str, ...] = (),
    **spec: Any,
) -> dict[str, Any]:
    """Give a deployment of a tiny model without weights.

    Parameters
    ----------
    folder
        Folder that ``make_dummy_models.py`` wrote.
    """
    light = PIPELINE_ON_CPU if pipeline > 1 else ("--enforce-eager",)
    placement: dict[str, Any] = {"strategy": strategy}
    if gpus_per_pod:
        placement["gpusPerPod"] = gpus_per_pod
    return {
        "apiVersion": "vllm-operator.io/v1alpha1",
        "kind": "VLLMDeployment",
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": f"file://{DUMMY_MODELS}/{folder}"},
            "parallelism": {"tensor": tensor, "pipeline": pipeline},
            "placement": placement,
            "vllmConfig": {
                "maxModelLen": 256,
                "dtype": "float32",
                "extraArgs": ["--load-format=dummy", "--kv-cache-memory-bytes=67108864", *light, *arguments],
            },
            "pod": {
                "shmSize": "512Mi",
                "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "16Gi"}},
                # KubeRay's shell is process 1 and hears no SIGTERM: every deletion would take ten seconds.
                "template": {"spec": {"terminationGracePeriodSeconds": 1}},
            },
            "rayHead": {"resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "3Gi"}}},
            # Nobody asks them when they go, and to see that takes six seconds.
            "drain": {"timeoutSeconds": 0},
            **spec,
        },
    }


def pod(name: str, *command: str, node: str | None = None, gpus: int = 0, **spec: Any) -> dict[str, Any]:
    """Give a pod that runs a command of this machine's /usr."""
    limits = {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "volumes": [{"name": "usr", "hostPath": {"path": "/usr"}}],
            "containers": [
                {
                    "name": "main",
                    "image": THIN_IMAGE,
                    "command": list(command),
                    "resources": limits,
                    "volumeMounts": [{"name": "usr", "mountPath": "/usr", "readOnly": True}],
                }
            ],
            **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
            **spec,
        },
    }
