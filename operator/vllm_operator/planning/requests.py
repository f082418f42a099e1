"""What pods ask for beside GPUs, and what nodes have of it: CPU, memory, ephemeral storage, pod slots, further devices.

The scheduler leaves a pod pending for want of any of them, so the planner counts as the scheduler does
(``PodRequests`` of Kubernetes' component-helpers): containers and sidecars together, or the neediest step of the init
containers, and the overhead of the runtime class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_operator.planning.free_form import entries
from vllm_operator.planning.quantity import CPU, MEMORY, PODS, STORAGE, Amounts, add, amounts, larger

STANDARD = (CPU, MEMORY, STORAGE, PODS)
ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, kw_only=True)
class Room:
    """What a node has for pods beside GPUs.

    Attributes
    ----------
    allocatable
        All of it.
    held
        What pods of others hold.
    complete
        A device that is not named is not there; otherwise nothing is known of it.  CPU, memory, storage and pod slots
        that are not named are unknown in both cases, and limit nothing.
    """

    allocatable: Amounts
    held: Amounts = field(default_factory=dict)
    complete: bool = True

    def left(self, resource: str, *, empty: bool = False) -> int | None:
        """Give what is left of a resource, or was there at first; ``None`` when it is not known."""
        if resource not in self.allocatable and (resource in STANDARD or not self.complete):
            return None
        return self.allocatable.get(resource, 0) - (0 if empty else self.held.get(resource, 0))

    def taken(self, more: Amounts) -> Room:
        """Give what it is once pods have taken so much more."""
        return replace(self, held=add(self.held, more))


def pod_requests(spec: Mapping[str, Any], kind: str = "requests") -> dict[str, int]:
    """Give what a pod asks for, as the scheduler counts it.

    Parameters
    ----------
    spec
        ``spec`` of a pod; what has a wrong form asks for nothing: the API server refuses it.
    kind
        ``requests``, or ``limits`` for the sum of what the pod may use at most.
    """
    together: dict[str, int] = {}
    for container in entries(spec, "containers"):
        together = add(together, container_amounts(container, kind))
    beside: dict[str, int] = {}
    first: dict[str, int] = {}
    for container in entries(spec, "initContainers"):
        own = container_amounts(container, kind)
        if container.get("restartPolicy") == "Always":  # a sidecar runs on, beside all that start after it
            together, beside = add(together, own), add(beside, own)
            first = larger(first, beside)
        else:
            first = larger(first, add(beside, own))
    # What is said of the pod as a whole counts instead of its containers.
    whole = larger(together, first) | container_amounts(spec, kind)
    return add(whole, amounts(spec.get("overhead")))


def container_amounts(container: Mapping[str, Any], kind: str = "requests") -> dict[str, int]:
    """Give what a container asks for; a limit without a request is one, too."""
    resources = container.get("resources")
    if not isinstance(resources, Mapping):
        return {}
    own = amounts(resources.get(kind))
    return amounts(resources.get("limits")) | own if kind == "requests" else own


def held_amounts(pods: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Give what pods hold on each node, their slots included; those that have ended or have no node hold nothing."""
    held: dict[str, dict[str, int]] = {}
    for pod in pods:
        if node := node_held(pod):
            held[node] = add(held.get(node, {}), {**pod_requests(pod["spec"]), PODS: 1})
    return held


def node_held(pod: Mapping[str, Any]) -> str:
    """Give the node of which a pod holds something; empty when it holds nothing."""
    if (pod.get("status") or {}).get("phase") in ENDED:
        return ""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def read_room(body: Mapping[str, Any]) -> Room | None:
    """Read what a Node object has; ``None`` when it says nothing."""
    allocatable = amounts((body.get("status") or {}).get("allocatable"))
    return Room(allocatable=allocatable) if allocatable else None
