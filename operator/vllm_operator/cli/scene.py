"""What is read of one deployment and of all that belongs to it, in a handful of requests.

What the user may not read is left out and named: at night one has the rights that one has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from vllm_operator.api import identity
from vllm_operator.cli.loose import dig, items, mapping, text
from vllm_operator.clients.kubernetes import ApiError, Kind, KubernetesClient, NotFoundError

DEPLOYMENT = Kind(api_version=identity.API_VERSION, kind=identity.KIND)
NODE, POD = Kind(api_version="v1", kind="Node"), Kind(api_version="v1", kind="Pod")
RAY_CLUSTER = Kind(api_version="ray.io/v1", kind="RayCluster")
EVENT, CONFIG_MAP = Kind(api_version="v1", kind="Event"), Kind(api_version="v1", kind="ConfigMap")

MAX_NODES = 20
"""Nodes that are asked for, one by one: a cluster may have thousands."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A deployment and what belongs to it, as the API server gave it.

    Attributes
    ----------
    clusters, pods, reports
        RayClusters, pods and ConfigMaps that carry its label.
    events
        All events of its namespace.
    nodes
        Nodes under pods that are not ready and under the latest failures, by name; ``None`` for one that is gone.
    kuberay
        Whether the API server knows RayClusters.
    unread
        What could not be read, and why.
    """

    deployment: Mapping[str, Any]
    clusters: tuple[Mapping[str, Any], ...] = ()
    pods: tuple[Mapping[str, Any], ...] = ()
    reports: tuple[Mapping[str, Any], ...] = ()
    events: tuple[Mapping[str, Any], ...] = ()
    nodes: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    kuberay: bool = True
    unread: Mapping[str, str] = field(default_factory=dict)


async def read_scene(api: KubernetesClient, namespace: str, name: str) -> Scene:
    """Read a deployment and what belongs to it.

    Raises
    ------
    ApiError
        The deployment itself cannot be read.
    """
    body = await api.get(DEPLOYMENT, namespace, name)
    tags = {identity.LABEL_DEPLOYMENT: name}
    unread: dict[str, str] = {}
    clusters, pods, reports, events = await asyncio.gather(
        _may_read("RayClusters", api.list(RAY_CLUSTER, namespace, tags), unread),
        _may_read("pods", api.list(POD, namespace, tags), unread),
        _may_read("reports", api.list(CONFIG_MAP, namespace, tags), unread),
        _may_read("events", api.list(EVENT, namespace), unread),
    )
    if shared := text(body, "spec", "rayClusterRef", "name"):
        # These pods are not ours and bear no label of ours.
        theirs = api.list(POD, namespace, {"ray.io/cluster": shared})
        pods = [*(pods or ()), *(await _may_read("pods", theirs, unread) or ())]
    nodes = await _nodes(api, node_names(body, pods or ()), unread)
    kuberay = unread.get("RayClusters") != _NO_KIND
    return Scene(
        deployment=body,
        clusters=tuple(clusters or ()),
        pods=tuple(pods or ()),
        reports=tuple(reports or ()),
        events=tuple(events or ()),
        nodes=nodes,
        kuberay=kuberay,
        unread=unread,
    )


_NO_KIND = "the API server does not know them"


async def _may_read(what: str, reading: Awaitable[T], unread: dict[str, str]) -> T | None:
    try:
        return await reading
    except NotFoundError:
        unread[what] = _NO_KIND
    except ApiError as error:
        unread[what] = reason(error)
    return None


def reason(error: ApiError) -> str:
    """Say why something could not be read."""
    return "forbidden for you" if error.code in (401, 403) else error.message


async def _nodes(
    api: KubernetesClient, names: Iterable[str], unread: dict[str, str]
) -> dict[str, Mapping[str, Any] | None]:
    async def read(name: str) -> tuple[str, Mapping[str, Any] | None] | None:
        return await _may_read("nodes", _named(name), unread)

    async def _named(name: str) -> tuple[str, Mapping[str, Any] | None]:
        return name, await api.find(NODE, "", name)

    found = await asyncio.gather(*(read(name) for name in islice(names, MAX_NODES)))
    return dict(item for item in found if item)


def node_names(deployment: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> list[str]:
    """Give the nodes to look at: those of pods that are not ready, of ranks whose pod is gone, of latest failures."""
    there = [(text(pod, "metadata", "name"), text(pod, "spec", "nodeName"), is_ready(pod)) for pod in pods]
    known = {name for name, _, _ in there}
    troubled = [node for _, node, ready in there if not ready]
    ranks = [rank for engine in items(deployment, "status", "engineReplicas") for rank in items(engine, "ranks")]
    lost = [text(rank, "node") for rank in ranks if text(rank, "pod") not in known]
    failed = [text(item, "node") for item in items(deployment, "status", "lastFailures")]
    return list(dict.fromkeys(name for name in (*troubled, *lost, *failed[:3]) if name))


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Say whether a pod is ready and stays."""
    told = {text(item, "type"): text(item, "status") for item in items(pod, "status", "conditions")}
    return told.get("Ready") == "True" and dig(mapping(pod, "metadata"), "deletionTimestamp") is None
