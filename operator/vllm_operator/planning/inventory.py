"""What the nodes offer: GPUs, their kind and memory, and what other pods hold of them.

Read out of Node and Pod objects, with the labels of the feature discoveries of NVIDIA, AMD and Intel.  A node has GPUs
of one product (the feature discovery of a node with several names them all in one label, and is left out).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

GIB = 1024**3
MIB = 1024**2

GPU_RESOURCE = "nvidia.com/gpu"

ZONE_LABEL = "topology.kubernetes.io/zone"
_ENDED = ("Succeeded", "Failed")
_PRODUCT_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "gpu.intel.com/product",
)
_MEMORY_LABELS = (
    ("nvidia.com/gpu.memory", MIB),
    ("amd.com/gpu.vram", GIB),
    ("gpu.intel.com/memory", 1),
)


@dataclass(frozen=True, kw_only=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True, kw_only=True)
class GpuNode:
    """A node as the planner sees it.

    Attributes
    ----------
    gpus
        Allocatable GPUs.
    used
        GPUs that pods of others hold.
    product
        Name of the GPUs as their feature discovery gives it; empty when no label says it.
    memory
        Bytes of one GPU; 0 when no label says it.
    schedulable
        False when the node is cordoned.
    holders
        Who holds the used ones, most first; for people.
    """

    name: str
    gpus: int
    used: int = 0
    product: str = ""
    memory: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    schedulable: bool = True
    holders: tuple[str, ...] = ()

    @property
    def free(self) -> int:
        """GPUs that nobody holds."""
        return max(0, self.gpus - self.used)

    @property
    def product_selector(self) -> dict[str, str]:
        """Node selector for the nodes that have GPUs of this product; empty when no label says what they are."""
        label = next((label for label in _PRODUCT_LABELS if self.labels.get(label)), "")
        return {label: self.labels[label]} if label else {}

    @property
    def zone(self) -> str:
        """Its zone."""
        return self.labels.get(ZONE_LABEL, "")


def read_node(body: Mapping[str, Any], used: Mapping[str, int] | None = None) -> GpuNode:
    """Read a Node object of the API server.

    Parameters
    ----------
    used
        GPUs that pods hold, by node; see :func:`used_gpus`.
    """
    name = body["metadata"]["name"]
    labels = body["metadata"].get("labels") or {}
    spec = body.get("spec") or {}
    return GpuNode(
        name=name,
        gpus=_whole_number((body.get("status", {}).get("allocatable") or {}).get(GPU_RESOURCE, "0")),
        used=(used or {}).get(name, 0),
        product=next((labels[label] for label in _PRODUCT_LABELS if labels.get(label)), ""),
        memory=next((size for label, unit in _MEMORY_LABELS if (size := _memory(labels.get(label, ""), unit))), 0),
        labels=labels,
        taints=tuple(
            Taint(key=item["key"], value=item.get("value") or "", effect=item.get("effect") or "")
            for item in spec.get("taints") or ()
        ),
        schedulable=not spec.get("unschedulable", False),
    )


def used_gpus(pods: Iterable[Mapping[str, Any]], *, but: frozenset[str] = frozenset()) -> dict[str, int]:
    """Count the GPUs that pods hold on each node.

    Parameters
    ----------
    pods
        Pod objects; those that have ended or have no node yet hold nothing.
    but
        Uids of pods that are not counted, because they are the planned engine's own.
    """
    held: Counter[str] = Counter()
    for pod in pods:
        node = pod.get("spec", {}).get("nodeName")
        if node and pod.get("status", {}).get("phase") not in _ENDED and pod["metadata"].get("uid") not in but:
            held[node] += pod_gpus(pod["spec"])
    return dict(held)


def pod_gpus(spec: Mapping[str, Any]) -> int:
    """Give the GPUs of a pod as the scheduler counts them: all containers together, or its largest init container."""

    def asked(container: Mapping[str, Any]) -> int:
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        return _whole_number(requests.get(GPU_RESOURCE, limits.get(GPU_RESOURCE, "0")))

    together = sum(asked(item) for item in spec.get("containers") or ())
    return max(together, max((asked(item) for item in spec.get("initContainers") or ()), default=0))


def _memory(text: str, unit: int) -> int:
    """Read a memory label: a bare number in its own unit, or one with ``G`` or ``Gi`` behind it."""
    match = re.fullmatch(r"(\d+)(Gi?B?|Mi?B?)?", text)
    if not match:
        return 0
    return int(match[1]) * {"": unit, "G": GIB, "M": MIB}[(match[2] or "")[:1]]


def _whole_number(text: Any) -> int:
    try:
        return int(str(text))
    except ValueError:
        return 0
