"""What the nodes offer: GPUs, their kind and memory, and what other pods hold of them.

Read out of Node and Pod objects, with the labels of the feature discoveries of NVIDIA, AMD and Intel.  A node may offer
GPUs under several resource names (whole ones and slices of MIG); it is then seen once for each.  Under one name it has
GPUs of one product (the feature discovery of a node with several names them all in one label, and is left out).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_operator.planning.devices import (
    GPU_RESOURCE,
    Sharing,
    is_gpu,
    memory_label,
    physical_gpus,
    product_label,
    product_of,
    replicas_of,
    sharing_of,
    whole_number,
)
from vllm_operator.planning.free_form import items
from vllm_operator.planning.quantity import Amounts
from vllm_operator.planning.requests import Room, read_room

GIB = 1024**3
MIB = 1024**2

ZONE_LABEL = "topology.kubernetes.io/zone"
_ENDED = ("Succeeded", "Failed")
_MEMORY_UNITS = {"nvidia.com": MIB, "amd.com": GIB, "gpu.intel.com": 1}


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
    """A node as the planner sees it, with the GPUs that it offers under one resource name.

    Attributes
    ----------
    resource
        The name, as pods ask for it.
    gpus
        Allocatable GPUs; slices or shares of GPUs count as such.
    used
        GPUs that pods of others hold.
    product
        Name of the GPUs as their feature discovery gives it; empty when no label says it.
    memory
        Bytes that a pod gets with one of them; 0 when no label says it.
    schedulable
        False when the node is cordoned.
    holders
        Who holds the used ones, most first; for people.
    room
        What it has beside GPUs; ``None`` when nothing is known of it, and nothing limits then.
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
    resource: str = GPU_RESOURCE
    room: Room | None = None

    @property
    def free(self) -> int:
        """GPUs that nobody holds."""
        return max(0, self.gpus - self.used)

    @property
    def product_selector(self) -> dict[str, str]:
        """Node selector for the nodes that have GPUs of this product; empty when no label says what they are."""
        label = product_label(self.resource)
        return {label: self.labels[label]} if self.labels.get(label) else {}

    @property
    def replicas(self) -> int:
        """Pods that share one of its GPUs; 0 when they are shared and no label says by how many."""
        return replicas_of(self.resource, self.product, self.labels, self.gpus)

    @property
    def sharing(self) -> Sharing:
        """Whether its GPUs are whole, slices, or shared."""
        return sharing_of(self.resource, self.product, self.labels, self.gpus)

    @property
    def zone(self) -> str:
        """Its zone."""
        return self.labels.get(ZONE_LABEL, "")


def read_nodes(
    bodies: Iterable[Mapping[str, Any]], used: Mapping[str, Mapping[str, int]] | None = None
) -> tuple[GpuNode, ...]:
    """Read Node objects: each as :func:`read_node` does, and those without GPUs once: a Ray head may go there."""
    return tuple(node for body in bodies for node in read_node(body, used) or (_bare(body),))


def read_node(body: Mapping[str, Any], used: Mapping[str, Mapping[str, int]] | None = None) -> tuple[GpuNode, ...]:
    """Read a Node object of the API server: once for each GPU resource that it offers, not at all without one.

    Parameters
    ----------
    used
        GPUs that pods hold, by node and resource; see :func:`used_gpus`.
    """
    node, held = _bare(body), (used or {}).get(body["metadata"]["name"], {})
    offered = _gpus_of((body.get("status") or {}).get("allocatable") or {})
    return tuple(_pool(node, resource, gpus, held.get(resource, 0)) for resource, gpus in sorted(offered.items()))


def _bare(body: Mapping[str, Any]) -> GpuNode:
    """Give a node without its GPUs."""
    spec = body.get("spec") or {}
    return GpuNode(
        name=body["metadata"]["name"],
        gpus=0,
        labels=body["metadata"].get("labels") or {},
        taints=tuple(
            Taint(key=item["key"], value=item.get("value") or "", effect=item.get("effect") or "")
            for item in spec.get("taints") or ()
        ),
        schedulable=not spec.get("unschedulable", False),
        room=read_room(body),
    )


def _pool(node: GpuNode, resource: str, gpus: int, used: int) -> GpuNode:
    """Give a node with what it offers under one name."""
    pool = replace(node, resource=resource, gpus=gpus, used=used, product=product_of(resource, node.labels))
    memory = _memory(node.labels.get(memory_label(resource), ""), _MEMORY_UNITS[resource.partition("/")[0]])
    if not memory and resource.startswith("gpu.intel.com/"):
        # Intel's label is the sum over all GPUs of the node.
        memory = _memory(node.labels.get("gpu.intel.com/memory.max", ""), 1) // (physical_gpus(node.labels) or gpus)
    # The label tells the memory of the whole device, however many share it.
    return replace(pool, memory=memory // pool.replicas if pool.replicas else 0)


def used_gpus(pods: Iterable[Mapping[str, Any]], *, but: frozenset[str] = frozenset()) -> dict[str, dict[str, int]]:
    """Count the GPUs that pods hold on each node, by resource.

    Parameters
    ----------
    pods
        Pod objects; those that have ended or have no node yet hold nothing.
    but
        Uids of pods that are not counted, because they are the planned engine's own.
    """
    held: dict[str, Counter[str]] = {}
    for pod in pods:
        node = pod.get("spec", {}).get("nodeName")
        if node and pod.get("status", {}).get("phase") not in _ENDED and pod["metadata"].get("uid") not in but:
            held.setdefault(node, Counter()).update(pod_gpus(pod["spec"]))
    return {node: dict(counted) for node, counted in held.items() if counted}


def hold_rooms(nodes: Iterable[GpuNode], held: Mapping[str, Amounts]) -> tuple[GpuNode, ...]:
    """Give the nodes with what pods hold of them beside GPUs, by node, on top of what is held already."""
    return tuple(
        replace(node, room=node.room.taken(held[node.name])) if node.room and node.name in held else node
        for node in nodes
    )


def pod_gpus(spec: Mapping[str, Any]) -> dict[str, int]:
    """Give a pod's GPUs by resource as the scheduler counts them.

    All containers and sidecars together, or an init container with the sidecars before it, whichever is more.
    """
    together: Counter[str] = Counter()
    for container in items(spec.get("containers")):
        together.update(_asked(container))
    beside: Counter[str] = Counter()
    first: Counter[str] = Counter()
    for container in items(spec.get("initContainers")):
        asked = Counter(_asked(container))
        first |= beside + asked
        if isinstance(container, Mapping) and container.get("restartPolicy") == "Always":
            beside += asked
    return dict((together + beside) | first)


def _asked(container: object) -> dict[str, int]:
    resources = container.get("resources") if isinstance(container, Mapping) else None
    asked: dict[str, Any] = {}
    for key in ("limits", "requests"):
        values = resources.get(key) if isinstance(resources, Mapping) else None
        asked |= values if isinstance(values, Mapping) else {}
    return _gpus_of(asked)


def _gpus_of(quantities: Mapping[str, Any]) -> dict[str, int]:
    """Give the GPUs among a node's or container's quantities, by resource."""
    found = {resource: whole_number(quantity) for resource, quantity in quantities.items() if is_gpu(resource)}
    return {resource: gpus for resource, gpus in found.items() if gpus > 0}


def _memory(text: str, unit: int) -> int:
    """Read a memory label: a bare number in its own unit, or one with ``G`` or ``Gi`` behind it."""
    match = re.fullmatch(r"(\d+)(Gi?B?|Mi?B?)?", text)
    if not match:
        return 0
    return int(match[1]) * {"": unit, "G": GIB, "M": MIB}[(match[2] or "")[:1]]
