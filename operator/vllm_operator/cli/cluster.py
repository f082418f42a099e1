"""What the command reads from a cluster, with the rights of the user's own kubeconfig."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

from vllm_operator.api import identity
from vllm_operator.cli.documents import InputError
from vllm_operator.cli.loose import text
from vllm_operator.cli.scene import DEPLOYMENT, NODE, POD, Scene, read_scene, reason
from vllm_operator.clients.kubernetes import ApiError, Kind, KubernetesClient, NotFoundError
from vllm_operator.planning.inventory import GpuNode, hold_rooms, read_nodes, used_gpus
from vllm_operator.planning.quota import NamespaceRules, read_rules
from vllm_operator.planning.requests import held_amounts

TOLD_NAMES = 10
QUOTA, LIMITS = Kind(api_version="v1", kind="ResourceQuota"), Kind(api_version="v1", kind="LimitRange")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Target:
    """Which cluster is meant, and which namespace; what is empty is as the kubeconfig has it."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""


@dataclass(frozen=True, kw_only=True)
class Belongings:
    """A deployment and its pods.

    Attributes
    ----------
    unread
        Why the pods could not be read, empty when they were.
    """

    deployment: Mapping[str, Any]
    pods: tuple[Mapping[str, Any], ...]
    unread: str = ""


def live_nodes(target: Target, *, but: Iterable[Mapping[str, Any]] = (), remedy: str = "") -> tuple[GpuNode, ...]:
    """Read the nodes, and what all pods hold of them.

    Parameters
    ----------
    but
        Pods that are not counted.
    remedy
        What else the user can do, for the message of a failure.

    Raises
    ------
    InputError
        The cluster cannot be read.
    """

    async def read(api: KubernetesClient, _: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        return await api.list(NODE), await api.list(POD)

    try:
        nodes, pods = _run(target, read)
    except ApiError as error:
        raise InputError(f"the cluster cannot be read: {error}{remedy}") from error
    left_out = frozenset(text(pod, "metadata", "uid") for pod in but)
    counted = [pod for pod in pods if text(pod, "metadata", "uid") not in left_out]
    return hold_rooms(read_nodes(nodes, used_gpus(counted)), held_amounts(counted))


def live_rules(target: Target, stated: str = "", ours: Iterable[Mapping[str, Any]] = ()) -> NamespaceRules | None:
    """Read the quotas and limits of a namespace; ``None`` when they may not be read.

    Parameters
    ----------
    stated
        The namespace; that of the target when empty.
    ours
        Pods that would make room.

    Raises
    ------
    InputError
        The cluster cannot be read.
    """

    async def read(api: KubernetesClient, usual: str) -> list[dict[str, Any]]:
        namespace = stated or usual
        # Items of a list carry no kind.
        return [{**body, "kind": kind.kind} for kind in (QUOTA, LIMITS) for body in await api.list(kind, namespace)]

    there = list(ours)
    try:
        return read_rules(_run(target, read), there, clusters=1 if there else 0)
    except ApiError as error:
        if error.code == HTTPStatus.FORBIDDEN:
            return None
        raise InputError(f"the quotas of namespace {stated or target.namespace} cannot be read: {error}") from error


def deployment(target: Target, name: str) -> Mapping[str, Any]:
    """Read a deployment.

    Raises
    ------
    InputError
        There is none, or the cluster cannot be read.
    """
    return _of_deployment(target, name, lambda api, namespace: api.get(DEPLOYMENT, namespace, name))


def belongings(target: Target, name: str) -> Belongings:
    """Read a deployment and its pods.

    Raises
    ------
    InputError
        There is none, or the cluster cannot be read.
    """

    async def read(api: KubernetesClient, namespace: str) -> Belongings:
        body = await api.get(DEPLOYMENT, namespace, name)
        try:
            pods = await api.list(POD, namespace, {identity.LABEL_DEPLOYMENT: name})
        except ApiError as error:
            return Belongings(deployment=body, pods=(), unread=reason(error))
        return Belongings(deployment=body, pods=tuple(pods))

    return _of_deployment(target, name, read)


def scene(target: Target, name: str) -> Scene:
    """Read a deployment and all that belongs to it.

    Raises
    ------
    InputError
        There is none, or the cluster cannot be read.
    """
    return _of_deployment(target, name, lambda api, namespace: read_scene(api, namespace, name))


def _of_deployment(target: Target, name: str, read: Callable[[KubernetesClient, str], Awaitable[T]]) -> T:
    async def told(api: KubernetesClient, namespace: str) -> T:
        try:
            return await read(api, namespace)
        except NotFoundError as error:
            raise InputError(await _absent(api, namespace, name)) from error
        except ApiError as error:
            raise InputError(f"{identity.KIND} {namespace}/{name}: {error}") from error

    try:
        return _run(target, told)
    except ApiError as error:
        raise InputError(f"{identity.KIND} {name}: {error}") from error


async def _absent(api: KubernetesClient, namespace: str, name: str) -> str:
    """Say that there is no such deployment, and which there are."""
    told = f"there is no {identity.KIND} {name} in namespace {namespace}"
    try:
        there = await _others(api, namespace)
    except NotFoundError:
        return f"the API server knows no {identity.KIND} ({identity.API_VERSION}): is the chart installed?"
    except ApiError:
        return told
    elsewhere = sorted(where for where, found in there if found == name)
    if elsewhere:
        return f"{told}; there is one in {', '.join(elsewhere[:TOLD_NAMES])}: -n {elsewhere[0]}"
    names = sorted(found for where, found in there if where == namespace)
    close = difflib.get_close_matches(name, names, n=TOLD_NAMES)
    shown = [*close, *(found for found in names if found not in close)]
    more = f" and {len(shown) - TOLD_NAMES} more" if len(shown) > TOLD_NAMES else ""
    return f"{told}; there {'are' if names else 'is none there'}{': ' if names else ''}" + (
        ", ".join(shown[:TOLD_NAMES]) + more
    )


async def _others(api: KubernetesClient, namespace: str) -> list[tuple[str, str]]:
    try:
        found = await api.list(DEPLOYMENT)
    except NotFoundError:
        raise
    except ApiError:
        # Most people may look into their own namespaces only.
        found = await api.list(DEPLOYMENT, namespace)
    return [(text(item, "metadata", "namespace"), text(item, "metadata", "name")) for item in found]


def _run(target: Target, read: Callable[[KubernetesClient, str], Awaitable[T]]) -> T:
    return asyncio.run(_connected(target, read))


async def _connected(target: Target, read: Callable[[KubernetesClient, str], Awaitable[T]]) -> T:
    api = await KubernetesClient.connect(kubeconfig=target.kubeconfig, context=target.context)
    try:
        return await read(api, target.namespace or api.namespace)
    finally:
        await api.close()
