"""Where the model is inside the pods, for each kind of ``model.uri``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.api.model import Model
from vllm_operator.planning.free_form import items, mapping
from vllm_operator.planning.quantity import MEMORY, amount

CACHE_DIR = "/var/cache/huggingface"
HUB_CACHE = f"{CACHE_DIR}/hub"
CLAIM_ROOT = "/mnt/models"
VOLUME = "model"


@dataclass(frozen=True, kw_only=True)
class ModelLocation:
    """How the pods find the model.

    Attributes
    ----------
    argument
        What vLLM is given as ``--model``.
    claim
        PersistentVolumeClaim to mount, empty when there is none.
    mount_path
        Where it is mounted.
    read_only
        Whether the claim is only read.
    environment
        Variables that go with it.
    repository
        Of the hub, which each node downloads before vLLM starts; empty where the model is on a volume already.
    """

    argument: str
    claim: str = ""
    mount_path: str = ""
    read_only: bool = False
    environment: tuple[tuple[str, str], ...] = ()
    repository: str = ""

    @property
    def volume(self) -> dict[str, Any]:
        """The volume of the pods."""
        if self.claim:
            return {"name": VOLUME, "persistentVolumeClaim": {"claimName": self.claim, "readOnly": self.read_only}}
        return {"name": VOLUME, "emptyDir": {}}


def locate(model: Model) -> ModelLocation:
    """Resolve ``model.uri``."""
    scheme, _, rest = model.uri.partition("://")
    match scheme:
        case "hf":
            return ModelLocation(
                argument=rest,
                claim=model.cache.persistent_volume_claim if model.cache else "",
                mount_path=CACHE_DIR,
                environment=(("HF_HOME", CACHE_DIR),),
                repository=rest,
            )
        case "pvc":
            claim, _, path = rest.partition("/")
            root = f"{CLAIM_ROOT}/{claim}"
            return ModelLocation(argument=f"{root}/{path}".rstrip("/"), claim=claim, mount_path=root, read_only=True)
        case _:
            return ModelLocation(argument=rest)


def hub_part(model: Model, pod: Mapping[str, Any]) -> dict[str, Any]:
    """Render what each node of an engine downloads; empty where nothing is.

    Parameters
    ----------
    pod
        Rendered ``spec`` of the pods that hold ranks: its volume may be bounded, or another than ours.
    """
    location = locate(model)
    if not location.repository:
        return {}
    volume = next((mapping(item) for item in items(pod.get("volumes")) if mapping(item).get("name") == VOLUME), {})
    room = amount(MEMORY, mapping(volume.get("emptyDir")).get("sizeLimit", 0))
    return {
        "repository": location.repository,
        "revision": model.revision or "",
        "folder": HUB_CACHE,
        "shared": "emptyDir" not in volume and "ephemeral" not in volume,
        "room": room,
    }
