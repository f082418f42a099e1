"""kopf's part: watch, and put keys into the queue.

``on.event`` handlers write nothing and decide nothing: kopf's own change detection would annotate every object, and
its per-object handlers are edge-triggered, so that a lost event would be a lost change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import kopf

from vllm_operator.api import identity
from vllm_operator.reconcile.reconciler import Key

_OURS = {identity.LABEL_MANAGED_BY: identity.MANAGER}
_CHILDREN = (
    ("ray.io", "v1", "rayclusters"),
    ("apps", "v1", "deployments"),
    ("", "v1", "services"),
    ("", "v1", "configmaps"),
)
_PODS = ("", "v1", "pods")


def register(
    registry: kopf.OperatorRegistry,
    *,
    enqueue: Callable[[Key], None],
    enqueue_all: Callable[[], None],
    enqueue_waiting: Callable[[], None],
) -> None:
    """Register the watches.

    Parameters
    ----------
    enqueue
        Asks for one deployment to be looked at.
    enqueue_all
        Asks for all, when something that every plan depends on changed.
    enqueue_waiting
        Asks for those that wait for GPUs, when some may have come free.
    """

    async def deployment(namespace: str | None, name: str | None, **_: Any) -> None:
        if namespace and name:
            enqueue(Key(namespace, name))

    async def child(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        name = labels.get(identity.LABEL_DEPLOYMENT)
        if namespace and name:
            enqueue(Key(namespace, name))

    async def pod(type: str | None, **event: Any) -> None:  # noqa: A002
        await child(**event)
        if type == "DELETED":
            enqueue_waiting()

    async def installed(name: str | None, **_: Any) -> None:
        if name == "rayclusters.ray.io":
            enqueue_all()

    seen: dict[str, tuple[Any, ...]] = {}

    async def node(name: str | None, body: Mapping[str, Any], type: str | None, **_: Any) -> None:  # noqa: A002
        # A kubelet writes its node every ten seconds; only what a plan depends on counts.
        gist = _gist(body) if type != "DELETED" else ()
        if name and seen.get(name) != gist:
            seen[name] = gist
            enqueue_all()

    kopf.on.event(identity.GROUP, identity.VERSION, identity.PLURAL, registry=registry, id="deployment")(deployment)
    for group, version, plural in _CHILDREN:
        kopf.on.event(group, version, plural, registry=registry, id=f"child-{plural}", labels=_OURS)(child)
    kopf.on.event(*_PODS, registry=registry, id="child-pods", labels=_OURS)(pod)
    kopf.on.event("", "v1", "nodes", registry=registry, id="node")(node)
    kopf.on.event("apiextensions.k8s.io", "v1", "customresourcedefinitions", registry=registry, id="installed")(
        installed
    )


def _gist(body: Mapping[str, Any]) -> tuple[Any, ...]:
    spec = body.get("spec") or {}
    return (
        spec.get("unschedulable", False),
        tuple(
            sorted((item["key"], item.get("value", ""), item.get("effect", "")) for item in spec.get("taints") or ())
        ),
        tuple(sorted((body.get("status", {}).get("allocatable") or {}).items())),
        tuple(sorted((body.get("metadata", {}).get("labels") or {}).items())),
    )


def operator_settings() -> kopf.OperatorSettings:
    """Give kopf's settings for a process that only watches."""
    settings = kopf.OperatorSettings()
    settings.watching.server_timeout = 600
    settings.watching.client_timeout = 660
    settings.watching.connect_timeout = 10
    settings.watching.reconnect_backoff = 1.0
    settings.watching.chunk_size = 500
    for group, _, plural in (*_CHILDREN, _PODS):
        # A tuple: the "group/plural" of kopf's docstring matches nothing, silently.
        settings.watching.label_selectors[group, plural] = f"{identity.LABEL_MANAGED_BY}={identity.MANAGER}"
    settings.networking.request_timeout = 60
    settings.posting.enabled = False
    settings.peering.standalone = True
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    return settings
