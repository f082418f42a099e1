"""What the nodes offer, looked at once for all deployments that ask at the same moment.

A look costs a list of all nodes and all pods.  When a node comes or goes, every deployment that waits asks for one; and
while engines are made, each must see what was promised to the one before it.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from vllm_operator.api import identity
from vllm_operator.api.placement import Strategy
from vllm_operator.clients.kubernetes import Kind, KubernetesClient, NotFoundError
from vllm_operator.planning.demand import Demand, hold_all
from vllm_operator.planning.inventory import GpuNode, hold_rooms, read_nodes, used_gpus
from vllm_operator.planning.quantity import Amounts, add
from vllm_operator.planning.requests import held_amounts, node_held
from vllm_operator.resources.names import Owner
from vllm_operator.resources.needs import needs_of
from vllm_operator.resources.ray_cluster import gpu_pods

NODE = Kind(api_version="v1", kind="Node")
POD = Kind(api_version="v1", kind="Pod")
RAY_CLUSTER = Kind(api_version="ray.io/v1", kind="RayCluster")
DEPLOYMENT = Kind(api_version="apps/v1", kind="Deployment")
FRESH_SECONDS = 1.0
"""How long a look may serve others, if nothing was made since."""

_MANAGED = {identity.LABEL_MANAGED_BY: identity.MANAGER}


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """The nodes, and what is held or promised of them.

    Attributes
    ----------
    nodes
        The nodes, as if nobody held anything.
    pods
        Pods that hold GPUs.
    held
        What pods of nobody's engine hold beside GPUs, by node.
    engine_pods
        The other pods: their metadata, their node, and what they hold of it beside GPUs.
    promised
        What engines will take whose pods have no node yet, by their RayCluster's namespace and labels.
    """

    nodes: tuple[GpuNode, ...]
    pods: tuple[Mapping[str, Any], ...] = ()
    held: Mapping[str, Amounts] = field(default_factory=dict)
    engine_pods: tuple[tuple[Mapping[str, Any], str, Amounts], ...] = ()
    promised: tuple[tuple[Mapping[str, Any], Demand], ...] = ()

    def room(self, but: Callable[[Mapping[str, Any]], bool] = lambda _: False) -> tuple[GpuNode, ...]:
        """Give the nodes with what is held and promised.

        Parameters
        ----------
        but
            Says of the metadata of a pod or a RayCluster whether it is to be left out.
        """
        mentioned = (
            *(pod["metadata"] for pod in self.pods),
            *(metadata for metadata, _, _ in self.engine_pods),
            *(metadata for metadata, _ in self.promised),
        )
        return self._room(but) if any(map(but, mentioned)) else self._whole

    @cached_property
    def _whole(self) -> tuple[GpuNode, ...]:
        """The room with everything: of many deployments that wait after one event, most have nothing to leave out."""
        return self._room(lambda _: False)

    def _room(self, but: Callable[[Mapping[str, Any]], bool]) -> tuple[GpuNode, ...]:
        pods = [pod for pod in self.pods if not but(pod["metadata"])]
        used, holders = used_gpus(pods), _holders(pods)
        nodes = [
            replace(
                node,
                used=used.get(node.name, {}).get(node.resource, 0),
                holders=holders.get((node.name, node.resource), ()),
            )
            for node in self.nodes
        ]
        beside = dict(self.held)
        for metadata, name, amounts in self.engine_pods:
            if not but(metadata):
                beside[name] = add(beside.get(name, {}), amounts)
        return hold_all(hold_rooms(nodes, beside), (demand for metadata, demand in self.promised if not but(metadata)))


def of_deployment(owner: Owner) -> Callable[[Mapping[str, Any]], bool]:
    """Give the test whether a pod or a RayCluster is one of a deployment's."""

    def test(metadata: Mapping[str, Any]) -> bool:
        return bool(
            metadata.get("namespace") == owner.namespace
            and (metadata.get("labels") or {}).get(identity.LABEL_DEPLOYMENT) == owner.name
        )

    return test


def of_cluster(owner: Owner, name: str) -> Callable[[Mapping[str, Any]], bool]:
    """Give the test whether a pod is one of a RayCluster's, or is the RayCluster."""

    def test(metadata: Mapping[str, Any]) -> bool:
        named = _workload(metadata) or metadata.get("name")
        return bool(metadata.get("namespace") == owner.namespace and named == name)

    return test


def read_inventory(
    nodes: Sequence[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]], clusters: Sequence[Mapping[str, Any]]
) -> Inventory:
    """Read the objects of the API server."""
    bound: dict[tuple[str, str], list[int]] = {}
    heads, holding = set(), []
    for pod in pods:
        labels = _labels(pod)
        cluster = (pod["metadata"].get("namespace", ""), _workload(pod["metadata"]))
        if gpus := sum(sum(held.values()) for held in used_gpus([pod]).values()):
            holding.append(pod)
            bound.setdefault(cluster, []).append(gpus)
        if labels.get("ray.io/node-type") == "head" and node_held(pod):
            heads.add(cluster)
    others, engine_pods = _beside(pods)
    return Inventory(
        nodes=read_nodes(nodes),
        pods=tuple(holding),
        held=others,
        engine_pods=engine_pods,
        promised=tuple(
            (body["metadata"], demand)
            for body in clusters
            if "deletionTimestamp" not in body["metadata"]
            and (demand := _unbound(body, bound.get(key := _key(body), []), head=key not in heads))
        ),
    )


def _labels(body: Mapping[str, Any]) -> Mapping[str, str]:
    return body["metadata"].get("labels") or {}


def _key(body: Mapping[str, Any]) -> tuple[str, str]:
    return body["metadata"]["namespace"], body["metadata"]["name"]


def _beside(
    pods: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, dict[str, int]], tuple[tuple[Mapping[str, Any], str, Amounts], ...]]:
    """Give what pods hold beside GPUs: of those that no engine has the sum, of the others each."""
    mine = [pod for pod in pods if {identity.LABEL_DEPLOYMENT, "ray.io/cluster"} & set(_labels(pod))]
    others = [pod for pod in pods if not {identity.LABEL_DEPLOYMENT, "ray.io/cluster"} & set(_labels(pod))]
    each = ((pod["metadata"], held_amounts([pod])) for pod in mine)
    told = tuple((metadata, node, amounts) for metadata, held in each for node, amounts in held.items())
    return held_amounts(others), told


class InventoryReader:
    """Reads the inventory.

    Parameters
    ----------
    namespaces
        Those whose pods may be read; all when empty.  GPUs that pods of others hold count as free.
    now
        Gives the present instant, UTC.
    """

    def __init__(
        self, api: KubernetesClient, namespaces: Sequence[str] = (), *, now: Callable[[], datetime.datetime]
    ) -> None:
        self._api = api
        self._namespaces = tuple(namespaces) or ("",)
        self._now = now
        self._last: tuple[datetime.datetime, Inventory] | None = None

    async def look(self) -> Inventory:
        """Give the inventory as it is now, or was within the last second.

        Raises
        ------
        ApiError
            Something could not be read: what is there is unknown, not nothing.
        """
        if self._last and (self._now() - self._last[0]).total_seconds() < FRESH_SECONDS:
            return self._last[1]
        at = self._now()
        nodes = await self._api.list(NODE)
        pods = [pod for namespace in self._namespaces for pod in await self._api.list(POD, namespace)]
        inventory = read_inventory(nodes, pods, await self._workloads())
        self._last = (at, inventory)
        return inventory

    def forget(self) -> None:
        """Look anew the next time: something was made or removed."""
        self._last = None

    async def _workloads(self) -> list[dict[str, Any]]:
        found = []
        for kind in (RAY_CLUSTER, DEPLOYMENT):
            try:
                found += [body for place in self._namespaces for body in await self._api.list(kind, place, _MANAGED)]
            except NotFoundError:
                continue  # KubeRay is not installed
        return [body for body in found if identity.LABEL_ENGINE in body["metadata"]["labels"]]


def _workload(metadata: Mapping[str, Any]) -> str:
    """Give the RayCluster or Deployment that a pod belongs to; empty for another pod."""
    labels = metadata.get("labels") or {}
    return str(labels.get("ray.io/cluster") or labels.get(identity.LABEL_WORKLOAD) or "")


def _unbound(body: Mapping[str, Any], bound: Sequence[int], *, head: bool) -> Demand | None:
    """Give what a RayCluster's pods without a node will take; ``None`` when all have one."""
    wanted = gpu_pods(body["spec"])
    sizes = list(wanted.sizes)
    for gpus in bound:
        if gpus in sizes:
            sizes.remove(gpus)
    if not sizes:
        return None
    holder = f"{body['metadata']['namespace']}/{body['metadata']['name']}, planned"
    strategy = Strategy.STRICT_SPREAD if wanted.apart else Strategy.PACK
    return Demand(
        holder=holder,
        sizes=tuple(sizes),
        rules=wanted.rules,
        strategy=strategy,
        resource=wanted.resource,
        needs=needs_of(body["spec"], head=head),
    )


def _holders(pods: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], tuple[str, ...]]:
    """Give the pods that hold GPUs, by node and resource, those that hold most first."""
    found: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for pod in pods:
        meta = pod["metadata"]
        for node, held in used_gpus([pod]).items():
            for resource, gpus in held.items():
                found.setdefault((node, resource), []).append((-gpus, f"{meta.get('namespace', '')}/{meta['name']}"))
    return {place: tuple(name for _, name in sorted(names)) for place, names in found.items()}
