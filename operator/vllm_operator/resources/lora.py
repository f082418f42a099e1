"""LoRA adapters as engines are told them: where each is inside the pods, and what vLLM needs to take them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vllm_bootstrap import contract
from vllm_operator.api.lora import MAX_ADAPTERS, Adapter, Lora
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.resources.model import CLAIM_ROOT, ModelLocation, locate

HUB = "hf://"


def adapters(spec: VLLMDeploymentSpec) -> dict[contract.Adapter, str]:
    """Give the adapters that every engine is to serve, with their paths inside its pods; and the ``uri`` of each."""
    location = locate(spec.model)
    return {
        contract.Adapter(name=item.name, path=_path(item, location)): item.uri
        for item in (spec.lora or Lora()).adapters
    }


def to_download(adapter: contract.Adapter, part: Mapping[str, Any], *, hub: str, commit: str) -> contract.Adapter:
    """Complete an adapter of the hub by what its engine downloads; another one stays as it is.

    Parameters
    ----------
    part
        Engine part of the engine's revision: a model of the hub has a cache in the pods, which its adapters share.
    hub
        Address of the hub.
    commit
        That it had before; empty when none is known.
    """
    if not adapter.path.startswith(HUB):
        return adapter
    repository, _, revision = adapter.path.removeprefix(HUB).partition("@")
    cache = {"folder": contract.ADAPTER_CACHE, **part.get("hub", {})}
    source = contract.HubSource(
        repository=repository,
        revision=revision,
        endpoint=hub,
        named_by=f"spec.lora.adapters[{adapter.name}]",
        **{key: value for key, value in cache.items() if key in ("folder", "shared", "room")},
    )
    return replace(adapter, source=source, commit=commit)


def arguments(lora: Lora | None) -> list[str]:
    """Give the arguments for vLLM's own parser."""
    if lora is None:
        return []
    fields = {
        "max-lora-rank": lora.max_lora_rank,
        "max-loras": lora.max_loras,
        # One that is wanted must never be put out for another: read again, it may be gone, and the engine with it.
        "max-cpu-loras": lora.max_cpu_loras or max(MAX_ADAPTERS, lora.max_loras or 1),
    }
    return ["--enable-lora", *(f"--{name}={value}" for name, value in fields.items() if value is not None)]


def claims(spec: VLLMDeploymentSpec) -> list[str]:
    """Give the claims that are mounted for adapters beside the model's own."""
    own = locate(spec.model).claim
    return [name for name in (spec.lora.persistent_volume_claims if spec.lora else ()) if name != own]


def mounts(spec: VLLMDeploymentSpec) -> list[dict[str, Any]]:
    """Give the mounts of these claims."""
    return [
        {"name": f"adapters-{index}", "mountPath": f"{CLAIM_ROOT}/{name}", "readOnly": True}
        for index, name in enumerate(claims(spec))
    ]


def volumes(spec: VLLMDeploymentSpec) -> list[dict[str, Any]]:
    """Give the volumes of these claims."""
    return [
        {"name": f"adapters-{index}", "persistentVolumeClaim": {"claimName": name, "readOnly": True}}
        for index, name in enumerate(claims(spec))
    ]


def _path(adapter: Adapter, location: ModelLocation) -> str:
    scheme, _, rest = adapter.uri.partition("://")
    if scheme == "hf":
        return f"{adapter.uri}@{adapter.revision}" if adapter.revision else adapter.uri
    if scheme == "file":
        return rest
    claim, _, path = rest.partition("/")
    root = location.mount_path if claim == location.claim else f"{CLAIM_ROOT}/{claim}"
    return f"{root}/{path}".rstrip("/")
