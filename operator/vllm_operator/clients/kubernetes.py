"""The Kubernetes API, as little of it as the operator needs: plain dicts in and out, errors of our own.

The rule of writing is *create first, never seize*: an object is POSTed, and one that exists is changed only when its
controller ownerReference is ours.  A forced server-side apply would take over a user's Service of the same name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import yaml
from kubernetes.aio import client, config

_PLURALS = {
    "ClusterRole": "clusterroles",
    "ConfigMap": "configmaps",
    "ControllerRevision": "controllerrevisions",
    "CustomResourceDefinition": "customresourcedefinitions",
    "Deployment": "deployments",
    "EndpointSlice": "endpointslices",
    "Event": "events",
    "Lease": "leases",
    "LimitRange": "limitranges",
    "Node": "nodes",
    "PersistentVolume": "persistentvolumes",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Pod": "pods",
    "RayCluster": "rayclusters",
    "ResourceQuota": "resourcequotas",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Secret": "secrets",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
    "VLLMDeployment": "vllmdeployments",
}
_PAGE = 500
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_DEFAULT_NAMESPACE = "default"
_UNUSABLE = (config.ConfigException, yaml.YAMLError, OSError, ValueError, LookupError, TypeError, AttributeError)
"""What the library raises for a kubeconfig that is absent, no YAML, or of another form."""


class ApiError(Exception):
    """The API server refused or did not answer.

    Attributes
    ----------
    code
        HTTP status, 0 when there was no answer.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class NotFoundError(ApiError):
    """There is no such object, or no such kind."""


class ConflictError(ApiError):
    """An object of that name exists, or changed since it was read."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of object."""

    api_version: str
    kind: str

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Path of the object or, without a name, of the collection."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        parts = [root]
        if namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(_PLURALS[self.kind])
        parts += [quote(part, safe="") for part in (name, subresource) if part]
        return "/".join(parts)


def kind_of(body: Mapping[str, Any]) -> Kind:
    """Kind of an object."""
    return Kind(api_version=body["apiVersion"], kind=body["kind"])


class KubernetesClient:
    """Calls of the API server; made once, closed at the end.

    Attributes
    ----------
    namespace
        The one that is meant where none is named: the kubeconfig context's, or the pod's own.
    """

    def __init__(self, api: client.ApiClient, namespace: str = _DEFAULT_NAMESPACE) -> None:
        self._api = api
        self.namespace = namespace

    @classmethod
    async def connect(cls, *, kubeconfig: str = "", context: str = "") -> KubernetesClient:
        """Log in by the pod's ServiceAccount or, outside a cluster, by ``KUBECONFIG``.

        Parameters
        ----------
        kubeconfig, context
            A file, and a context in it: with either, the pod's ServiceAccount is not looked for.

        Raises
        ------
        ApiError
            There is neither, or it is unusable.
        """
        settings = client.Configuration()
        if not (kubeconfig or context):
            try:
                config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
                return cls(client.ApiClient(settings), _own_namespace())
            except config.ConfigException:
                pass
        try:
            loader = await config.load_kube_config(  # type: ignore[no-untyped-call]
                # The library reads the variable only once, when it is imported.
                config_file=kubeconfig or os.environ.get("KUBECONFIG") or None,
                context=context or None,
                client_configuration=settings,
            )
            namespace = loader.current_context["context"].get("namespace")
        except _UNUSABLE as error:
            missing = (
                f"kubeconfig {kubeconfig}" if kubeconfig else "neither a pod's ServiceAccount nor a usable KUBECONFIG"
            )
            raise ApiError(0, f"{missing}: {error}") from error
        return cls(client.ApiClient(settings), str(namespace or _DEFAULT_NAMESPACE))

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any]:
        """Read an object.

        Raises
        ------
        NotFoundError
            There is none.
        """
        return await self._call("GET", kind.path(namespace, name))

    async def find(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        """Read an object, ``None`` when there is none."""
        try:
            return await self.get(kind, namespace, name)
        except NotFoundError:
            return None

    async def list(
        self, kind: Kind, namespace: str = "", labels: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Read all objects of a kind, page by page.

        Raises
        ------
        NotFoundError
            The API server does not know the kind.
        """
        selector = ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items()))
        items: list[dict[str, Any]] = []
        token = ""
        while True:
            query = {"limit": str(_PAGE), "labelSelector": selector, "continue": token}
            page = await self._call("GET", kind.path(namespace), query={k: v for k, v in query.items() if v})
            items += page.get("items") or []
            token = page.get("metadata", {}).get("continue", "")
            if not token:
                return items

    async def create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object.

        Raises
        ------
        ConflictError
            One of that name exists.
        """
        return await self._call("POST", kind_of(body).path(body["metadata"]["namespace"]), body=body)

    async def patch(self, body: Mapping[str, Any], *, uid: str, resource_version: str) -> dict[str, Any]:
        """Merge-patch an object that was read as ours; uid and resourceVersion guard against a newcomer.

        Raises
        ------
        ConflictError
            It was replaced or changed since.
        """
        meta = body["metadata"]
        guarded = {**body, "metadata": {**meta, "uid": uid, "resourceVersion": resource_version}}
        path = kind_of(body).path(meta["namespace"], meta["name"])
        return await self._call("PATCH", path, body=guarded, content_type="application/merge-patch+json")

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str = "") -> None:
        """Remove an object with what it owns; one that is gone is fine."""
        options: dict[str, Any] = {"propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self._call("DELETE", kind.path(namespace, name), body=options)
        except NotFoundError:
            return

    async def replace_status(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Write the status of an object as a whole; its resourceVersion guards it.

        Raises
        ------
        ConflictError
            The object changed since it was read.
        """
        meta = body["metadata"]
        return await self._call("PUT", kind_of(body).path(meta["namespace"], meta["name"], "status"), body=body)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        try:
            request = await self._api.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=dict(body) if body else None,
                auth_settings=["BearerToken"],
            )
            response = await self._api.call_api(*request, _request_timeout=30)
            text = await response.read()  # type: ignore[no-untyped-call]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, f"the API server does not answer: {error or type(error).__name__}") from error
        data = _decode(text)
        if response.status >= 400:
            raise _error(response.status, data, f"{method} {path}")
        return data


def _own_namespace() -> str:
    try:
        return _OWN_NAMESPACE.read_text(encoding="utf-8").strip() or _DEFAULT_NAMESPACE
    except OSError:
        return _DEFAULT_NAMESPACE


def _decode(text: bytes | None) -> dict[str, Any]:
    try:
        data = json.loads(text or b"{}")
    except ValueError:
        return {"message": (text or b"").decode(errors="replace")[:500]}
    return data if isinstance(data, dict) else {"message": str(data)[:500]}


def _error(status: int, data: Mapping[str, Any], request: str) -> ApiError:
    message = str(data.get("message") or f"{request}: HTTP {status}")
    kinds = {404: NotFoundError, 409: ConflictError}
    return kinds.get(status, ApiError)(status, message)
