"""``spec.lora``: LoRA adapters beside the base model."""

from __future__ import annotations

from typing import Self

from pydantic import ConfigDict, Field, model_validator

from vllm_operator.api.fields import Name, ShortText
from vllm_operator.api.model import URI
from vllm_operator.api.schema import ApiModel, rule, rules

MAX_ADAPTERS = 64
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes for its ``--max-lora-rank``."""
LORA_ARGUMENT = "^--(no[-_])?(enable[-_]lora|lora[-_]mod|max[-_]lora|max[-_]cpu[-_]lora)"
LORA_ARGUMENTS = (
    "extraArgs must not hold --enable-lora, --lora-modules, --max-loras, --max-lora-rank or --max-cpu-loras beside "
    "lora: use lora.adapters, lora.maxLoras, lora.maxLoraRank and lora.maxCpuLoras"
)
ADAPTER_CLAIM = (
    "a pvc:// adapter needs its claim in the pods: it is the claim of the model, or stands in "
    "lora.persistentVolumeClaims (which makes the pods anew)"
)
ADAPTER_NAME = "lora.adapters: no adapter may have the name under which the model is served"
ADAPTER_REVISION = "revision is for hf:// adapters: a pvc:// or file:// adapter has none"


class Adapter(ApiModel):
    """A LoRA adapter."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("!has(self.revision) || self.uri.startsWith('hf://')", ADAPTER_REVISION, fieldPath=".revision")
        )
    )

    name: str = Field(
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z0-9]([-._:/A-Za-z0-9]*[A-Za-z0-9])?$",
        description="Name of the adapter in the OpenAI API, where requests name it as their model.",
    )
    uri: str = Field(
        min_length=8,
        max_length=512,
        pattern=URI,
        description=(
            "Where the adapter is, in PEFT's form: hf://org/name on the hub, which every GPU pod downloads with the "
            "token of model.hfTokenSecret; or a folder that is the same in every GPU pod: pvc://claim/path, or "
            "file:///path in the image or on a volume of pod.template. New weights in a folder need a new path."
        ),
    )
    revision: ShortText | None = Field(
        default=None,
        description=(
            "Branch, tag or commit of an hf:// adapter; the default branch when absent. Which commit that was stays "
            "until the entry changes."
        ),
    )

    @model_validator(mode="after")
    def _hub_only(self) -> Self:
        if self.revision is not None and not self.uri.startswith("hf://"):
            raise ValueError(ADAPTER_REVISION)
        return self

    @property
    def claim(self) -> str:
        """PersistentVolumeClaim of a ``pvc://`` adapter; empty for another."""
        return self.uri.removeprefix("pvc://").partition("/")[0] if self.uri.startswith("pvc://") else ""


class Lora(ApiModel):
    """LoRA adapters, served beside the base model; each field but the adapters is vLLM's option of the same name."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.maxCpuLoras) || self.maxCpuLoras >= (has(self.maxLoras) ? self.maxLoras : 1)",
                "maxCpuLoras must be at least maxLoras",
                fieldPath=".maxCpuLoras",
            ),
            rule(
                "!has(self.maxCpuLoras) || !has(self.adapters) || size(self.adapters) <= self.maxCpuLoras",
                "there are more adapters than maxCpuLoras: raise it, which starts the engines anew",
                fieldPath=".adapters",
            ),
        )
    )

    adapters: list[Adapter] = Field(
        default_factory=list,
        max_length=MAX_ADAPTERS,
        description="Adapters that every engine serves; a change reaches engines that serve, none is restarted.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    max_lora_rank: int | None = Field(
        default=None,
        ge=1,
        le=512,
        description="--max-lora-rank: the highest rank that an adapter may have; vLLM's default when absent.",
        json_schema_extra={"enum": list(_LORA_RANKS)},
    )
    max_loras: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="--max-loras: adapters in one batch, for which GPU memory is kept; vLLM's default (1) when absent.",
    )
    max_cpu_loras: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description=f"--max-cpu-loras: adapters that are kept in host memory; {MAX_ADAPTERS} when absent.",
    )
    persistent_volume_claims: list[Name] = Field(
        default_factory=list,
        max_length=8,
        description="PersistentVolumeClaims of adapters, mounted in all GPU pods; ReadWriteMany or ReadOnlyMany.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.max_lora_rank is not None and self.max_lora_rank not in _LORA_RANKS:
            raise ValueError(f"maxLoraRank must be one of {', '.join(map(str, _LORA_RANKS))}")
        if self.max_cpu_loras is not None and self.max_cpu_loras < (self.max_loras or 1):
            raise ValueError("maxCpuLoras must be at least maxLoras")
        if self.max_cpu_loras is not None and self.max_cpu_loras < len(self.adapters):
            raise ValueError("there are more adapters than maxCpuLoras: raise it, which starts the engines anew")
        if len({adapter.name for adapter in self.adapters}) != len(self.adapters):
            raise ValueError("adapters: every name may stand once")
        if len(set(self.persistent_volume_claims)) != len(self.persistent_volume_claims):
            raise ValueError("persistentVolumeClaims: every claim may stand once")
        return self
