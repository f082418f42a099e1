"""What our objects are called, and the metadata that all of them carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.api import identity


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The CR that an object belongs to."""

    name: str
    namespace: str
    uid: str

    @property
    def reference(self) -> dict[str, Any]:
        """The controller ownerReference: it lets the garbage collector remove what we made, with or without us."""
        return {
            "apiVersion": identity.API_VERSION,
            "kind": identity.KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


_CLUSTER = "@vllm-operator/ray-cluster@"
_INDEX = "@vllm-operator/engine@"
_DOMAIN = "@vllm-operator/topology-domain@"


@dataclass(frozen=True, kw_only=True)
class EngineNames:
    """Names of one engine's objects; all begin with the RayCluster's.

    Attributes
    ----------
    index
        Position of the engine, as text: a revision's rendering has a placeholder here.
    domain
        Value of ``placement.topologyKey`` that the engine is bound to when it is made.
    stem
        On a shared RayCluster: what its names in Ray begin with, unique among the deployments of all times.
    """

    index: str
    ray_cluster: str
    domain: str = ""
    stem: str = ""

    @classmethod
    def of(cls, owner: Owner, index: int, pods_hash: str) -> EngineNames:
        """Name the engine of an index at a revision of its pods."""
        return cls(index=str(index), ray_cluster=f"{owner.name}-{index}-{pods_hash}")

    @classmethod
    def placeholder(cls) -> EngineNames:
        """Names to render a revision with, before it is known for which engine; see ``fill``."""
        return cls(index=_INDEX, ray_cluster=_CLUSTER, domain=_DOMAIN)

    def fill(self, rendering: Any) -> Any:
        """Put these names in the place of the placeholders of a rendering (JSON data)."""
        if isinstance(rendering, str):
            named = rendering.replace(_CLUSTER, self.ray_cluster).replace(_INDEX, self.index)
            return named.replace(_DOMAIN, self.domain)
        if isinstance(rendering, Mapping):
            return {key: self.fill(value) for key, value in rendering.items()}
        if isinstance(rendering, list | tuple):
            return [self.fill(value) for value in rendering]
        return rendering

    @property
    def engine(self) -> str:
        """Name in status and in the contract."""
        return engine_name(self.index)

    @property
    def secret(self) -> str:
        """Secret of the Ray token and the supervisor's control token."""
        return f"{self.ray_cluster}-token"

    @property
    def report(self) -> str:
        """ConfigMap that the engine reports into; also the Role and RoleBinding that allow it."""
        return f"{self.ray_cluster}-report"

    @property
    def code(self) -> str:
        """ConfigMap of the code that an engine without Ray runs."""
        return f"{self.ray_cluster}-code"

    @property
    def service_account(self) -> str:
        """ServiceAccount of head and lead pod."""
        return self.ray_cluster

    @property
    def placement_group(self) -> str:
        """Detached placement group in Ray."""
        return f"{self.stem or self.ray_cluster}-dp0"

    @property
    def supervisor(self) -> str:
        """Supervisor actor in Ray."""
        return f"{self.stem or self.ray_cluster}-supervisor"

    @property
    def endpoint_slice(self) -> str:
        """EndpointSlice of an engine on a shared RayCluster."""
        return self.ray_cluster


def engine_name(index: int | str) -> str:
    """Name of an engine in status and in the contract."""
    return f"engine-{index}"


def labels(owner: Owner, **more: str) -> dict[str, str]:
    """Labels that every object of a deployment carries."""
    return {
        "app.kubernetes.io/name": "vllm",
        "app.kubernetes.io/instance": owner.name,
        identity.LABEL_MANAGED_BY: identity.MANAGER,
        "app.kubernetes.io/part-of": identity.MANAGER,
        identity.LABEL_DEPLOYMENT: owner.name,
        **more,
    }


def engine_labels(owner: Owner, index: int | str) -> dict[str, str]:
    """Labels that every object of one engine carries."""
    return labels(owner, **{identity.LABEL_ENGINE: str(index)})


def metadata(owner: Owner, name: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """Metadata of an object that the CR owns."""
    return {
        "name": name,
        "namespace": owner.namespace,
        "labels": dict(tags),
        "ownerReferences": [owner.reference],
    }
