"""What the command reads from a cluster, with the rights of the user's own kubeconfig."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from vllm_operator.api import identity
from vllm_operator.cli.documents import InputError
from vllm_operator.clients.kubernetes import ApiError, Kind, KubernetesClient
from vllm_operator.planning.inventory import GpuNode, read_node, used_gpus

NODE, POD = Kind(api_version="v1", kind="Node"), Kind(api_version="v1", kind="Pod")
DEPLOYMENT = Kind(api_version=identity.API_VERSION, kind=identity.KIND)


def live_nodes() -> tuple[GpuNode, ...]:
    """Read the nodes, and what all pods hold of them.

    Raises
    ------
    InputError
        The cluster cannot be read.
    """
    nodes, pods = asyncio.run(_lists())
    used = used_gpus(pods)
    return tuple(read_node(item, used) for item in nodes)


def deployment(namespace: str, name: str) -> Mapping[str, Any]:
    """Read a deployment.

    Raises
    ------
    InputError
        There is none, or the cluster cannot be read.
    """
    return asyncio.run(_deployment(namespace, name))


async def _lists() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    try:
        api = await KubernetesClient.connect()
        try:
            return await api.list(NODE), await api.list(POD)
        finally:
            await api.close()
    except ApiError as error:
        raise InputError(f"the cluster cannot be read: {error}; give an inventory with --nodes FILE") from error


async def _deployment(namespace: str, name: str) -> Mapping[str, Any]:
    try:
        api = await KubernetesClient.connect()
        try:
            return await api.get(DEPLOYMENT, namespace, name)
        finally:
            await api.close()
    except ApiError as error:
        raise InputError(f"{identity.KIND} {namespace}/{name}: {error}") from error
