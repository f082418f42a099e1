"""Revisions: two hashes of what the user asked for, and the ControllerRevision that keeps what came of it.

``engine8`` covers what vLLM is told, ``pods8`` what makes the pods.  Only fields that differ from their defaults are
hashed, so that a field added by a later version, with a default, changes nobody's hash.  An engine keeps its
revision's rendering: an operator that renders differently after an upgrade restarts nothing (kuberay#2315).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_operator.api import identity
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.resources.model import locate
from vllm_operator.resources.names import Owner, labels, metadata

_POD_FIELDS = ("image", "placement", "pod", "rayHead", "accelerators", "apiKeySecret", "rayClusterRef")
_BOTH_FIELDS = ("parallelism", "distributedExecutorBackend")
_ENGINE_FIELDS = ("vllmConfig",)


@dataclass(frozen=True, kw_only=True)
class Revision:
    """What one accepted spec came to.

    Attributes
    ----------
    engine8, pods8
        The two hashes.
    image
        Runtime image, resolved.
    cluster_spec
        ``spec`` of the RayCluster, or without Ray of the Deployment, rendered with ``EngineNames.placeholder()``.
    engine
        What vLLM is told (``resources.engine.engine_part``).
    plan
        What was chosen and why, as ``status.plan`` tells it; empty in revisions of earlier versions.
    """

    engine8: str
    pods8: str
    image: str
    cluster_spec: Mapping[str, Any]
    engine: Mapping[str, Any]
    plan: Mapping[str, Any] = field(default_factory=dict)

    @property
    def with_ray(self) -> bool:
        """Whether its engines run on Ray; else they are Deployments of one pod."""
        return bool(self.engine.get("executor", "ray") == "ray")

    @property
    def shared_cluster(self) -> str:
        """Name of the RayCluster that its engines share with others; empty where each has its own."""
        return str(self.engine.get("rayCluster", {}).get("name", ""))

    @property
    def name(self) -> str:
        """Identity of the revision, in labels, plans and reports."""
        return revision_name(self.engine8, self.pods8)


def revision_name(engine8: str, pods8: str) -> str:
    """Identity of a revision from its two hashes."""
    return f"{engine8}-{pods8}"


def hashes(spec: VLLMDeploymentSpec) -> tuple[str, str]:
    """Give ``(engine8, pods8)`` of a spec; ``replicas``, ``drain`` and LoRA adapters are in neither."""
    given = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    model = given.get("model", {})
    environment = given.get("env", [])
    files = {
        # Which Secrets are mounted where makes the pods; the values go to vLLM at each attempt.
        "env": [variable for variable in environment if "valueFrom" in variable],
        "envFrom": given.get("envFrom", []),
        "model": {key: model[key] for key in ("hfTokenSecret", "cache") if key in model},
        # What is mounted: the claim without the path in it; a hub's cache; nothing for a path in the image.
        "mount": [spec.model.uri.partition("://")[0], locate(spec.model).claim],
    }
    lora = {key: value for key, value in given["lora"].items() if key != "adapters"} if "lora" in given else None
    claims = lora.pop("persistentVolumeClaims", []) if lora else []
    if claims:
        files["adapters"] = claims
    shared = {key: given[key] for key in _BOTH_FIELDS if key in given}
    # From the model's facts follow the sizes, and from them the pods.
    shared |= {"facts": model["facts"]} if "facts" in model else {}
    pods = {**shared, **{key: given[key] for key in _POD_FIELDS if key in given}, "files": files}
    engine = {
        **shared,
        **{key: given[key] for key in _ENGINE_FIELDS if key in given},
        "model": model,
        "env": environment,
        "envFrom": given.get("envFrom", []),
        "strategy": given.get("placement", {}).get("strategy", ""),
        # Also when it is empty: it lets the engine take adapters.
        **({"lora": lora} if lora is not None else {}),
    }
    return _hash8(engine), _hash8(pods)


def controller_revision(owner: Owner, revision: Revision, *, number: int) -> dict[str, Any]:
    """Build the ControllerRevision that keeps a revision."""
    tags = labels(owner, **{identity.LABEL_REVISION: revision.name})
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": metadata(owner, f"{owner.name}-{revision.name}", tags),
        "revision": number,
        "data": {
            "image": revision.image,
            "rayCluster" if revision.with_ray else "deployment": dict(revision.cluster_spec),
            "engine": dict(revision.engine),
            "plan": dict(revision.plan),
        },
    }


def read_controller_revision(body: Mapping[str, Any]) -> Revision:
    """Read what ``controller_revision`` wrote."""
    engine8, _, pods8 = body["metadata"]["labels"][identity.LABEL_REVISION].partition("-")
    data = body["data"]
    return Revision(
        engine8=engine8,
        pods8=pods8,
        image=data["image"],
        cluster_spec=data["rayCluster"] if "rayCluster" in data else data["deployment"],
        engine=data["engine"],
        plan=data.get("plan") or {},
    )


def _hash8(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
