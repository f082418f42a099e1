"""Where the model is inside the pods, for each kind of ``model.uri``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm_operator.api.spec import Model

CACHE_DIR = "/var/cache/huggingface"
CLAIM_ROOT = "/mnt/models"


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
    """

    argument: str
    claim: str = ""
    mount_path: str = ""
    read_only: bool = False
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def volume(self) -> dict[str, Any]:
        """The volume of the pods."""
        if self.claim:
            return {"name": "model", "persistentVolumeClaim": {"claimName": self.claim, "readOnly": self.read_only}}
        return {"name": "model", "emptyDir": {}}


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
            )
        case "pvc":
            claim, _, path = rest.partition("/")
            root = f"{CLAIM_ROOT}/{claim}"
            return ModelLocation(argument=f"{root}/{path}".rstrip("/"), claim=claim, mount_path=root, read_only=True)
        case _:
            return ModelLocation(argument=rest)
