"""What the command reads from a cluster, with the rights of the user's own kubeconfig."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from vllm_operator.api import identity
from vllm_operator.cli.documents import InputError
from vllm_operator.clients.kubernetes import ApiError, Kind, KubernetesClient
from vllm_operator.planning.inventory import GpuNode, read_node, used_gpus

NODE, POD = Kind(api_version="v1", kind="Node"), Kind(api_version="v1", kind="Pod")
T = TypeVar("T")
DEPLOYMENT = Kind(api_version=identity.API_VERSION, kind=identity.KIND)


def live_nodes() -> tuple[GpuNode, ...]:
    """Read the nodes, and what all pods hold of them.

    Raises
    ------
    InputError
        The cluster cannot be read.
    """

    async def read(api: KubernetesClient) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        return await api.list(NODE), await api.list(POD)

    try:
        nodes, pods = asyncio.run(_connected(read))
    except ApiError as error:
        raise InputError(f"the cluster cannot be read: {error}; give an inventory with --nodes FILE") from error
    used = used_gpus(pods)
    return tuple(pool for item in nodes for pool in read_node(item, used))


def deployment(namespace: str, name: str) -> Mapping[str, Any]:
    """Read a deployment.

    Raises
    ------
    InputError
        There is none, or the cluster cannot be read.
    """
    try:
        return asyncio.run(_connected(lambda api: api.get(DEPLOYMENT, namespace, name)))
    except ApiError as error:
        raise InputError(f"{identity.KIND} {namespace}/{name}: {error}") from error


async def _connected(read: Callable[[KubernetesClient], Awaitable[T]]) -> T:
    api = await KubernetesClient.connect()
    try:
        return await read(api)
    finally:
        await api.close()
