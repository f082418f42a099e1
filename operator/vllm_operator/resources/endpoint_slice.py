"""The EndpointSlice of one engine on a shared RayCluster: no probe of ours is in its pods, so its report drives this.

One for each engine: their ports differ, and a slice has one set of ports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm_operator.resources.names import EngineNames, Owner, engine_labels, metadata

API_VERSION = "discovery.k8s.io/v1"
KIND = "EndpointSlice"


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The pod of an engine's HTTP server."""

    pod: str
    uid: str
    ip: str
    node: str


def endpoint_slice(
    owner: Owner, names: EngineNames, *, backend: Backend | None, port: int, ready: bool
) -> dict[str, Any]:
    """Build the EndpointSlice.

    Parameters
    ----------
    backend
        Without one the slice is empty.
    """
    tags = {
        **engine_labels(owner, names.index),
        "kubernetes.io/service-name": owner.name,
        "endpointslice.kubernetes.io/managed-by": "vllm-operator.io",
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata(owner, names.endpoint_slice, tags),
        "addressType": "IPv6" if backend and ":" in backend.ip else "IPv4",
        "endpoints": [_endpoint(backend, owner.namespace, ready)] if backend else [],
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
    }


def _endpoint(backend: Backend, namespace: str, ready: bool) -> dict[str, Any]:
    return {
        "addresses": [backend.ip],
        "conditions": {"ready": ready, "serving": ready, "terminating": False},
        "nodeName": backend.node,
        "targetRef": {"kind": "Pod", "namespace": namespace, "name": backend.pod, "uid": backend.uid},
    }
