"""What the nodes offer, read out of Node objects.

Capacity counts, not what is free: whether GPUs are free now is the scheduler's word, whether a node has them at
all is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

GPU_RESOURCE = "nvidia.com/gpu"


@dataclass(frozen=True, kw_only=True)
class GpuNode:
    """A node as the planner sees it.

    Attributes
    ----------
    gpus
        Allocatable GPUs.
    schedulable
        False when the node is cordoned.
    """

    name: str
    gpus: int
    labels: Mapping[str, str] = field(default_factory=dict)
    schedulable: bool = True


def read_node(body: Mapping[str, Any]) -> GpuNode:
    """Read a Node object of the API server."""
    allocatable = body.get("status", {}).get("allocatable", {})
    return GpuNode(
        name=body["metadata"]["name"],
        gpus=_whole_number(allocatable.get(GPU_RESOURCE, "0")),
        labels=body["metadata"].get("labels") or {},
        schedulable=not body.get("spec", {}).get("unschedulable", False),
    )


def candidates(nodes: Iterable[GpuNode], node_selector: Mapping[str, str]) -> list[GpuNode]:
    """Give the nodes that may hold a GPU pod, those with most GPUs first, then by name."""
    fitting = [
        node
        for node in nodes
        if node.gpus > 0
        and node.schedulable
        and all(node.labels.get(key) == value for key, value in node_selector.items())
    ]
    return sorted(fitting, key=lambda node: (-node.gpus, node.name))


def _whole_number(text: Any) -> int:
    try:
        return int(str(text))
    except ValueError:
        return 0
