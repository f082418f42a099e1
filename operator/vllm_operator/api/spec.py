"""``spec`` of a ``VLLMDeployment``: what a user asks for.

Defaults that never change stand in the schema; what the operator chooses (image, parallel sizes, pods) has
none, so that its absence stays visible.  A field that nothing serves yet is not here yet.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from vllm_operator.api.fields import LongText
from vllm_operator.api.lora import ADAPTER_CLAIM, ADAPTER_NAME, LORA_ARGUMENT, LORA_ARGUMENTS, Lora
from vllm_operator.api.model import Model
from vllm_operator.api.placement import AcceleratorChoice, Executor, Parallelism, Placement, Strategy
from vllm_operator.api.pods import EnvFromSource, EnvVar, Pod, RayHead, reserved_in
from vllm_operator.api.references import ApiKeySecret, RayClusterRef
from vllm_operator.api.schema import ApiModel, rule, rules
from vllm_operator.api.vllm_config import ARGUMENT_FIELDS, VLLMConfig, refused_argument

TOLD_FAULTS = 5


class Drain(ApiModel):
    """How an engine that serves is removed."""

    timeout_seconds: int = Field(
        default=60,
        ge=0,
        le=86400,
        description=(
            "How long an engine that is to go may finish what it answers, out of the Service; what is not finished "
            "then is cut off. 0: it is not waited for."
        ),
    )


SHARED_PODS = (
    "rayClusterRef uses pods that are there: pod, image, rayHead, placement.gpusPerPod and placement.topologyKey must "
    "be absent; say it in the RayCluster"
)
SHARED_EXECUTOR = "rayClusterRef is a Ray cluster: distributedExecutorBackend must be auto or ray"
SHARED_VOLUME = (
    "rayClusterRef mounts and downloads nothing: model.uri must be file://, a path in the RayCluster's pods, "
    "no adapter may be hf://, and lora.persistentVolumeClaims must be absent"
)
VLLM_KEY_VARIABLE = "VLLM_API_KEY"
DATA_NEEDS_RAY = (
    "mp and uni run one data parallel rank: distributedExecutorBackend must be ray or auto; or use replicas instead of "
    "parallelism.data"
)
WHOLE_DATA_RANKS = (
    "STRICT_PACK puts each data parallel rank in one pod: gpusPerPod must be a multiple of tensor x pipeline, or absent"
)
TWO_KEYS = f"apiKeySecret and {VLLM_KEY_VARIABLE} in env exclude each other: a request can bear one key only"


class VLLMDeploymentSpec(ApiModel):
    """What the user asks for."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.placement) || self.placement.strategy != 'STRICT_PACK' || !has(self.placement.gpusPerPod)"
                " || !has(self.parallelism) || self.placement.gpusPerPod >= "
                "(has(self.parallelism.tensor) ? self.parallelism.tensor : 1) * "
                "(has(self.parallelism.pipeline) ? self.parallelism.pipeline : 1)",
                "STRICT_PACK puts every rank in one pod: gpusPerPod must be at least tensor x pipeline, or absent",
            ),
            rule(
                f"!has(self.apiKeySecret) || !has(self.env) || !self.env.exists(e, e.name == '{VLLM_KEY_VARIABLE}')",
                TWO_KEYS,
            ),
            rule(
                "!has(self.distributedExecutorBackend) || !(self.distributedExecutorBackend in ['mp', 'uni'])"
                " || !has(self.placement) || !has(self.placement.strategy)"
                " || self.placement.strategy in ['PACK', 'STRICT_PACK']",
                "mp and uni run in one pod: placement.strategy must be PACK or STRICT_PACK",
            ),
            rule(
                "!has(self.distributedExecutorBackend) || !(self.distributedExecutorBackend in ['mp', 'uni'])"
                " || !has(self.placement) || !has(self.placement.gpusPerPod)"
                " || !has(self.parallelism) || self.placement.gpusPerPod >= "
                "(has(self.parallelism.tensor) ? self.parallelism.tensor : 1) * "
                "(has(self.parallelism.pipeline) ? self.parallelism.pipeline : 1)",
                "mp and uni run in one pod: gpusPerPod must be at least tensor x pipeline, or absent",
            ),
            rule(
                "!has(self.distributedExecutorBackend) || !(self.distributedExecutorBackend in ['mp', 'uni'])"
                " || !has(self.parallelism) || !has(self.parallelism.data) || self.parallelism.data == 1",
                DATA_NEEDS_RAY,
            ),
            rule(
                "!has(self.placement) || self.placement.strategy != 'STRICT_PACK' || !has(self.placement.gpusPerPod)"
                " || !has(self.parallelism) || !has(self.parallelism.data) || self.parallelism.data == 1"
                " || self.placement.gpusPerPod % ((has(self.parallelism.tensor) ? self.parallelism.tensor : 1) * "
                "(has(self.parallelism.pipeline) ? self.parallelism.pipeline : 1)) == 0",
                WHOLE_DATA_RANKS,
            ),
            rule(
                "!has(self.distributedExecutorBackend) || self.distributedExecutorBackend != 'uni'"
                " || !has(self.parallelism)"
                " || (has(self.parallelism.tensor) ? self.parallelism.tensor : 1) * "
                "(has(self.parallelism.pipeline) ? self.parallelism.pipeline : 1) == 1",
                "uni has one rank: tensor and pipeline must be 1, or absent; use mp for more",
            ),
            rule(
                "!has(self.lora) || !has(self.vllmConfig) || !has(self.vllmConfig.extraArgs)"
                f" || !self.vllmConfig.extraArgs.exists(a, a.matches('{LORA_ARGUMENT}'))",
                LORA_ARGUMENTS,
            ),
            rule(
                "!has(self.lora) || !has(self.lora.adapters) || !has(self.model.name)"
                " || !self.lora.adapters.exists(a, a.name == self.model.name)",
                ADAPTER_NAME,
            ),
            rule(
                "!has(self.lora) || !has(self.lora.adapters) || self.lora.adapters.all(a, !a.uri.startsWith('pvc://')"
                " || a.uri.split('/')[2] == self.model.uri.split('/')[2] && self.model.uri.startsWith('pvc://')"
                " || has(self.model.cache) && self.model.cache.persistentVolumeClaim == a.uri.split('/')[2]"
                " || has(self.lora.persistentVolumeClaims)"
                " && self.lora.persistentVolumeClaims.exists(c, c == a.uri.split('/')[2]))",
                ADAPTER_CLAIM,
            ),
            rule(
                "!has(self.rayClusterRef) || !(has(self.pod) || has(self.image) && size(self.image) > 0"
                " || has(self.rayHead) || has(self.placement) && (has(self.placement.gpusPerPod)"
                " || has(self.placement.topologyKey)))",
                SHARED_PODS,
            ),
            rule(
                "!has(self.rayClusterRef) || !has(self.distributedExecutorBackend)"
                " || self.distributedExecutorBackend in ['auto', 'ray']",
                SHARED_EXECUTOR,
            ),
            rule(
                "!has(self.rayClusterRef) || self.model.uri.startsWith('file://')"
                " && !(has(self.lora) && (has(self.lora.persistentVolumeClaims)"
                " || has(self.lora.adapters) && self.lora.adapters.exists(a, a.uri.startsWith('hf://'))))",
                SHARED_VOLUME,
            ),
        )
    )

    model: Model = Field(description="The model that is served.")
    image: LongText = Field(
        default="", description="Runtime image with Ray and vLLM; the chart's default when empty, shown in status."
    )
    replicas: int = Field(default=1, ge=0, le=100, description="Independent engines behind one Service.")
    parallelism: Parallelism | None = Field(default=None, description="How the model is divided over GPUs.")
    distributed_executor_backend: Executor = Field(
        default=Executor.AUTO,
        description=(
            "vLLM's executor. ray spans pods; mp (several GPUs) and uni (one) run in one pod without Ray; auto takes "
            "them where one pod does it, and says why."
        ),
    )
    placement: Placement = Field(default_factory=Placement, description="How ranks are laid out over pods and nodes.")
    accelerators: list[AcceleratorChoice] = Field(
        default_factory=list,
        max_length=8,
        description="Kinds of GPUs that will do, the preferred first; any when empty. An engine has GPUs of one kind.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    ray_cluster_ref: RayClusterRef | None = Field(
        default=None,
        description=(
            "Run the engines on a RayCluster that is there, beside those of other VLLMDeployments; without it each "
            "engine has a RayCluster of its own."
        ),
    )
    vllm_config: VLLMConfig = Field(default_factory=VLLMConfig, description="What vLLM is told.", alias="vllmConfig")
    lora: Lora | None = Field(
        default=None,
        description=(
            "LoRA adapters. With it, also when it is empty, the engines can take adapters; to set or remove it, or to "
            "change what is no adapter in it, starts them anew."
        ),
    )
    env: list[EnvVar] = Field(
        default_factory=list,
        max_length=64,
        description="Variables that reach every rank; values through the launcher, Secret references as files.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    env_from: list[EnvFromSource] = Field(
        default_factory=list, max_length=16, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    api_key_secret: ApiKeySecret | None = Field(
        default=None,
        description=(
            "Key that the engines' API asks for (Authorization: Bearer), on every path but /health and /metrics; read "
            "at each start of an engine. Without it nobody is asked."
        ),
    )
    drain: Drain = Field(default_factory=Drain, description="How an engine that serves is removed.")
    pod: Pod = Field(default_factory=Pod, description="The pods that hold the ranks.")
    ray_head: RayHead = Field(default_factory=RayHead, description="The CPU-only Ray head pod.")
    suspend: bool = Field(
        default=False, description="Drain and remove all engines; the Service and the number of replicas stay."
    )
    plan_only: bool = Field(
        default=False,
        description="Write status.plan, and make, change or remove nothing; engines that are there serve on.",
    )

    @property
    def tensor(self) -> int:
        """Tensor parallel size; 1 when the user left it out."""
        return (self.parallelism and self.parallelism.tensor) or 1

    @property
    def pipeline(self) -> int:
        """Pipeline parallel size; 1 when the user left it out."""
        return (self.parallelism and self.parallelism.pipeline) or 1

    @property
    def data(self) -> int:
        """Data parallel size."""
        return self.parallelism.data if self.parallelism else 1

    @property
    def expert(self) -> bool:
        """Whether experts are divided among ranks as wholes."""
        return bool(self.parallelism and self.parallelism.expert)

    @property
    def wanted(self) -> int:
        """Engines that should be there."""
        return 0 if self.suspend else self.replicas

    @property
    def world_size(self) -> int:
        """GPUs of one data parallel rank."""
        return self.tensor * self.pipeline

    @model_validator(mode="after")
    def _cross_field_rules(self) -> Self:
        """Check what CEL checks too, for those who read a CR without an API server."""
        placement = self.placement
        self._check_executor()
        self._check_lora()
        self._check_shared()
        if names := reserved_in(self.pod.template):
            raise ValueError(
                f"pod.template sets {', '.join(names)}: the operator sets it itself, from the pod's address and the "
                "placement"
            )
        if len({variable.name for variable in self.env}) != len(self.env):
            raise ValueError("env: every name may stand once")
        if self.api_key_secret and any(variable.name == VLLM_KEY_VARIABLE for variable in self.env):
            raise ValueError(TWO_KEYS)
        if placement.strategy is Strategy.STRICT_PACK and (placement.gpus_per_pod or self.world_size) < self.world_size:
            raise ValueError(
                f"STRICT_PACK puts all {self.world_size} ranks in one pod, gpusPerPod is {placement.gpus_per_pod}"
            )
        if placement.strategy is Strategy.STRICT_PACK and self.data > 1 and not self._holds_whole_data_ranks():
            raise ValueError(WHOLE_DATA_RANKS)
        if placement.strategy is Strategy.STRICT_SPREAD and (placement.gpus_per_pod or 1) != 1:
            raise ValueError("STRICT_SPREAD puts every rank on a node of its own: gpusPerPod must be 1 or absent")
        for argument in self.vllm_config.extra_args:
            if name := refused_argument(argument):
                raise ValueError(
                    f"vllmConfig.extraArgs: {argument!r} would override --{name}, which the operator sets"
                    + (f"; use {ARGUMENT_FIELDS[name]}" if name in ARGUMENT_FIELDS else "")
                )
        return self

    def _holds_whole_data_ranks(self) -> bool:
        return (self.placement.gpus_per_pod or self.world_size) % self.world_size == 0

    def _check_lora(self) -> None:
        lora = self.lora
        if lora is None:
            return
        if any(re.match(LORA_ARGUMENT, argument) for argument in self.vllm_config.extra_args):
            raise ValueError(LORA_ARGUMENTS)
        if any(adapter.name == self.model.name for adapter in lora.adapters):
            raise ValueError(ADAPTER_NAME)
        cache = self.model.cache
        mounted = {*lora.persistent_volume_claims, *([cache.persistent_volume_claim] if cache else [])}
        if self.model.uri.startswith("pvc://"):
            mounted.add(self.model.uri.removeprefix("pvc://").partition("/")[0])
        if any(adapter.claim and adapter.claim not in mounted for adapter in lora.adapters):
            raise ValueError(ADAPTER_CLAIM)

    def _check_shared(self) -> None:
        if not self.ray_cluster_ref:
            return
        placement = self.placement
        if not {"pod", "ray_head"}.isdisjoint(self.model_fields_set) or self.image:
            raise ValueError(SHARED_PODS)
        if placement.gpus_per_pod or placement.topology_key:
            raise ValueError(SHARED_PODS)
        if self.distributed_executor_backend in (Executor.MP, Executor.UNI):
            raise ValueError(SHARED_EXECUTOR)
        claims = self.lora is not None and "persistent_volume_claims" in self.lora.model_fields_set
        hub = self.lora is not None and any(adapter.uri.startswith("hf://") for adapter in self.lora.adapters)
        if claims or hub or not self.model.uri.startswith("file://"):
            raise ValueError(SHARED_VOLUME)

    def _check_executor(self) -> None:
        placement, executor = self.placement, self.distributed_executor_backend
        if executor not in (Executor.MP, Executor.UNI):
            return
        if self.data > 1:
            raise ValueError(DATA_NEEDS_RAY)
        if placement.strategy not in (Strategy.PACK, Strategy.STRICT_PACK):
            raise ValueError("mp and uni run in one pod: placement.strategy must be PACK or STRICT_PACK")
        if (placement.gpus_per_pod or self.world_size) < self.world_size:
            raise ValueError("mp and uni run in one pod: gpusPerPod must be at least tensor x pipeline, or absent")
        if executor is Executor.UNI and self.world_size > 1:
            raise ValueError("uni has one rank: tensor and pipeline must be 1, or absent; use mp for more")


def explain(error: ValidationError) -> str:
    """Say what is wrong with a spec, in one line: each field with its fault."""
    told = (
        f"spec.{'.'.join(map(str, item['loc']))}: {item['msg'].removeprefix('Value error, ')}"
        for item in error.errors()
    )
    return "; ".join(line.replace("spec.:", "spec:") for line in islice(told, TOLD_FAULTS))
