"""``spec`` of a ``VLLMDeployment``: what a user asks for.

Defaults that never change stand in the schema; what the operator chooses (image, parallel sizes, pods) has
none, so that its absence stays visible.  A field that nothing serves yet is not here yet.
"""

from __future__ import annotations

import enum
import re
from itertools import islice
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from vllm_bootstrap.contract import RESERVED_ENVIRONMENT
from vllm_operator.api.fields import FreeForm, FreeFormList, Key, LongText, Name, Quantity, ShortText


def rule(expression: str, message: str, **more: str) -> dict[str, Any]:
    """Give one CEL rule of the CRD (``x-kubernetes-validations``)."""
    return {"rule": expression, "message": message, **more}


TOLD_FAULTS = 5


def _rules(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"x-kubernetes-validations": list(rules)}


class ApiModel(BaseModel):
    """Base of all models of the API: camelCase outside, unknown fields dropped as the API server does."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        """Drop what is null, as the API server does: ``env:`` with nothing behind it is a file that many write."""
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


class Executor(enum.StrEnum):
    """vLLM's ``distributed_executor_backend``."""

    AUTO = "auto"
    RAY = "ray"
    MP = "mp"
    UNI = "uni"


class Strategy(enum.StrEnum):
    """Placement group strategy, with Ray's meaning."""

    PACK = "PACK"
    STRICT_PACK = "STRICT_PACK"
    SPREAD = "SPREAD"
    STRICT_SPREAD = "STRICT_SPREAD"


class SecretKey(ApiModel):
    """A key of a Secret in the CR's namespace."""

    name: Name = Field(description="Name of the Secret.")
    key: Key = Field(description="Key in the Secret.")
    optional: bool = Field(default=False, description="Whether the Secret or its key may be absent.")


class ConfigMapKey(ApiModel):
    """A key of a ConfigMap in the CR's namespace."""

    name: Name = Field(description="Name of the ConfigMap.")
    key: Key = Field(description="Key in the ConfigMap.")
    optional: bool = Field(default=False, description="Whether the ConfigMap or its key may be absent.")


class ObjectReference(ApiModel):
    """A Secret or ConfigMap in the CR's namespace."""

    name: Name = Field(description="Name of the object.")
    optional: bool = Field(default=False, description="Whether the object may be absent.")


class TokenSecret(ApiModel):
    """The Secret that holds a Hugging Face token."""

    name: Name = Field(description="Name of the Secret.")
    key: Key = Field(default="token", description="Key in the Secret that holds the token.")


class ApiKeySecret(ApiModel):
    """The Secret that holds the key of the engines' API."""

    name: Name = Field(description="Name of the Secret.")
    key: Key = Field(description="Key in the Secret that holds the API key.")


class RayAuthSecret(ApiModel):
    """The Secret that holds the token of a Ray cluster."""

    name: Name = Field(description="Name of the Secret.")
    key: Key = Field(default="auth_token", description="Key in the Secret that holds Ray's token.")


class RayClusterRef(ApiModel):
    """A RayCluster that the user made, in the CR's namespace."""

    name: str = Field(
        min_length=1,
        max_length=63,
        pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
        description="Name of the RayCluster. Several VLLMDeployments may name the same one.",
    )
    auth_secret: RayAuthSecret | None = Field(
        default=None, description="Token of that Ray cluster; absent when it asks for none."
    )


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


class ModelCache(ApiModel):
    """Where downloaded models are kept."""

    persistent_volume_claim: Name = Field(
        description="PersistentVolumeClaim that keeps downloaded models; ReadWriteMany when an engine has several pods."
    )


_COUNT = r"^[0-9]+(\.[0-9]+)?[KMBT]?$"


class ModelFacts(ApiModel):
    """What the planner cannot read itself: the size of the model, or its whole config.json."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule("has(self.parameters) || has(self.config)", "facts needs parameters or config"),
        )
    )

    parameters: ShortText | None = Field(
        default=None, pattern=_COUNT, description="Number of weights: 36B, 0.6B or 134515008."
    )
    active_parameters: ShortText | None = Field(
        default=None, pattern=_COUNT, description="Weights that a token passes through, for a mixture of experts."
    )
    precision: ShortText | None = Field(
        default=None,
        pattern="^(bf16|fp16|fp32|fp8|int8|int4|nvfp4|mxfp4|mxfp8|awq|gptq)$",
        description="How the weights are stored; bf16 when absent.",
    )
    context_length: int | None = Field(default=None, ge=1, le=2**31 - 1, description="Longest sequence of the model.")
    checkpoint_bytes: int | None = Field(
        default=None, ge=1, le=2**53, description="Size of all weights: metadata.total_size of the safetensors index."
    )
    config: FreeForm | None = Field(
        default=None, description="Content of the model's config.json; exacter than a size."
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.parameters is None and self.config is None:
            raise ValueError("facts needs parameters or config")
        return self


class AcceleratorChoice(ApiModel):
    """A kind of GPU that will do."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule(
                "has(self.product) || has(self.class) || has(self.memoryGiB)",
                "an accelerator needs a product, a class or memoryGiB",
            ),
        )
    )

    product: ShortText | None = Field(
        default=None, description="Pattern (* and ?) for the product as its feature discovery labels it: *A100*."
    )
    accelerator_class: ShortText | None = Field(
        default=None, alias="class", description="A class of the operator's accelerator catalogue."
    )
    memory_gib: int | None = Field(
        default=None, alias="memoryGiB", ge=1, le=4096, description="Least memory of one GPU, in GiB."
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not (self.product or self.accelerator_class or self.memory_gib):
            raise ValueError("an accelerator needs a product, a class or memoryGiB")
        return self


_HUB_URI = r"hf://[A-Za-z0-9][-._A-Za-z0-9]*(/[A-Za-z0-9][-._A-Za-z0-9]*)?"


class Model(ApiModel):
    """The model that is served."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule(
                "!has(self.cache) || self.uri.startsWith('hf://')",
                "cache is for hf:// models: pvc:// and file:// models are already on a volume",
                fieldPath=".cache",
            ),
            rule(
                "!has(self.revision) || self.uri.startsWith('hf://')",
                "revision is for hf:// models: a pvc:// or file:// model has none",
                fieldPath=".revision",
            ),
        )
    )

    uri: str = Field(
        min_length=6,
        max_length=512,
        pattern=rf"^({_HUB_URI}|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[^/]+)*/?|file:///.+)$",
        description=(
            "Where the model is: hf://org/name on the Hugging Face hub, pvc://claim/path on a PersistentVolumeClaim, "
            "file:///path in the image or on a volume of pod.template."
        ),
    )
    revision: ShortText | None = Field(default=None, description="Branch, tag or commit of an hf:// model.")
    name: ShortText | None = Field(
        default=None, description="Name of the model in the OpenAI API; the name of the VLLMDeployment when absent."
    )
    hf_token_secret: TokenSecret | None = Field(
        default=None,
        description=(
            "Hugging Face token for private and gated models, and for adapters; it is sent to the installation's hub."
        ),
    )
    cache: ModelCache | None = Field(default=None, description="Where an hf:// model is kept after its download.")
    facts: ModelFacts | None = Field(
        default=None,
        description="What the planner is to know of the model; without it the hub is asked about an hf:// model.",
    )

    @model_validator(mode="after")
    def _hub_only(self) -> Self:
        if self.uri.startswith("hf://"):
            return self
        if self.cache:
            raise ValueError("cache is for hf:// models: pvc:// and file:// models are already on a volume")
        if self.revision is not None:
            raise ValueError("revision is for hf:// models: a pvc:// or file:// model has none")
        return self


MAX_GPUS = 4096
TOO_MANY_GPUS = f"tensor x pipeline x data is at most {MAX_GPUS}"


class Parallelism(ApiModel):
    """How the model is divided over GPUs; what is left out, the operator chooses."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule(
                "!has(self.data) || self.data == 1 || (has(self.tensor) ? self.tensor : 1) * "
                f"(has(self.pipeline) ? self.pipeline : 1) * self.data <= {MAX_GPUS}",
                TOO_MANY_GPUS,
            ),
        )
    )

    tensor: int | None = Field(default=None, ge=1, le=1024, description="Tensor parallel size.")
    pipeline: int | None = Field(default=None, ge=1, le=1024, description="Pipeline parallel size.")
    data: int = Field(
        default=1,
        ge=1,
        le=1024,
        description=(
            "Data parallel size: so many copies of a dense model, or of all but the experts of a mixture of experts, "
            "each of tensor x pipeline GPUs, behind one server; never chosen by the operator."
        ),
    )
    expert: bool = Field(
        default=False,
        description=(
            "Expert parallel: whole experts of a mixture of experts are divided among tensor x data ranks, instead of "
            "a slice of each."
        ),
    )

    @model_validator(mode="after")
    def _is_of_this_world(self) -> Self:
        if self.data > 1 and (self.tensor or 1) * (self.pipeline or 1) * self.data > MAX_GPUS:
            raise ValueError(TOO_MANY_GPUS)
        return self


class Placement(ApiModel):
    """How ranks are laid out over pods and nodes."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule(
                "self.strategy != 'STRICT_SPREAD' || !has(self.gpusPerPod) || self.gpusPerPod == 1",
                "STRICT_SPREAD puts every rank on a node of its own: gpusPerPod must be 1 or absent",
                fieldPath=".gpusPerPod",
            ),
        )
    )

    strategy: Strategy = Field(
        default=Strategy.PACK,
        description=(
            "Ray placement group strategy. PACK prefers few nodes, STRICT_PACK demands one, "
            "SPREAD prefers and STRICT_SPREAD demands different nodes."
        ),
    )
    topology_key: str | None = Field(
        default=None,
        min_length=1,
        max_length=317,
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$",
        description=(
            "Label of nodes (a zone, a rack, an NVLink domain): all GPU pods of an engine go to nodes with one and the "
            "same value of it; each engine has its own."
        ),
    )
    gpus_per_pod: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description=(
            "GPUs of one pod. When absent: all for STRICT_PACK, 1 for SPREAD and STRICT_SPREAD, "
            "and as many as the largest node has for PACK."
        ),
    )


OPERATOR_ARGUMENTS = (
    "api-key",
    "api-server-count",
    "config",
    "device-ids",
    "distributed-executor-backend",
    "dp",
    "dpa",
    "dpb",
    "dpe",
    "dph",
    "dpl",
    "dpm",
    "dpn",
    "dpp",
    "dpr",
    "grpc",
    "grpc-port",
    "h",
    "headless",
    "help",
    "host",
    "master-addr",
    "master-port",
    "model",
    "n",
    "nnodes",
    "node-rank",
    "pcp",
    "pipeline-parallel-size",
    "port",
    "pp",
    "prefill-context-parallel-size",
    "r",
    "served-model-name",
    "ssl-certfile",
    "ssl-keyfile",
    "tensor-parallel-size",
    "tp",
    "uds",
)
"""vLLM options that the operator sets or that would break what it sets; named in a refusal."""

_FAMILY = "data-parallel-"
"""All options that begin so are the operator's, too."""

_ARGUMENT_FIELDS = {
    "data-parallel-size": "parallelism.data",
    "distributed-executor-backend": "distributedExecutorBackend",
    "dp": "parallelism.data",
    "model": "model.uri",
    "pipeline-parallel-size": "parallelism.pipeline",
    "pp": "parallelism.pipeline",
    "served-model-name": "model.name",
    "tensor-parallel-size": "parallelism.tensor",
    "tp": "parallelism.tensor",
}


def _argument_pattern() -> str:
    names = "|".join([*OPERATOR_ARGUMENTS, f"{_FAMILY}.*"]).replace("-", "[-_]")
    return f"^(--?({names})([=.]|$)|-[nr][0-9])"


class VLLMConfig(ApiModel):
    """What vLLM is told; each field is the option of the same name."""

    max_model_len: int | None = Field(default=None, ge=1, le=2**31 - 1, description="--max-model-len, in tokens.")
    gpu_memory_utilization: float | None = Field(
        default=None, gt=0, le=1, description="--gpu-memory-utilization, a share of the GPU's memory."
    )
    dtype: ShortText | None = Field(default=None, description="--dtype: auto, bfloat16, float16 or float32.")
    quantization: ShortText | None = Field(default=None, description="--quantization.")
    kv_cache_dtype: ShortText | None = Field(default=None, description="--kv-cache-dtype.")
    max_num_seqs: int | None = Field(default=None, ge=1, le=2**31 - 1, description="--max-num-seqs.")
    extra_args: list[LongText] = Field(
        default_factory=list,
        max_length=128,
        description="Further arguments for vLLM's own parser; not those that the operator sets.",
        json_schema_extra={
            "x-kubernetes-list-type": "atomic",
            **_rules(
                rule(
                    f"self.all(a, !a.matches('{_argument_pattern()}'))",
                    "extraArgs must not hold what the operator sets (use model, parallelism and "
                    "distributedExecutorBackend): " + ", ".join((*OPERATOR_ARGUMENTS, f"{_FAMILY}*")),
                )
            ),
        },
    )


MAX_ADAPTERS = 64

_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes for its ``--max-lora-rank``."""

_LORA_ARGUMENT = "^--(no[-_])?(enable[-_]lora|lora[-_]mod|max[-_]lora|max[-_]cpu[-_]lora)"
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
        json_schema_extra=_rules(
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
        pattern=rf"^({_HUB_URI}|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[^/]+)*/?|file:///.+)$",
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
        json_schema_extra=_rules(
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


class EnvSource(ApiModel):
    """Where the value of a variable comes from."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule(
                "has(self.secretKeyRef) != has(self.configMapKeyRef)",
                "exactly one of secretKeyRef and configMapKeyRef must be given",
            )
        )
    )

    secret_key_ref: SecretKey | None = None
    config_map_key_ref: ConfigMapKey | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if bool(self.secret_key_ref) == bool(self.config_map_key_ref):
            raise ValueError("exactly one of secretKeyRef and configMapKeyRef must be given")
        return self


class EnvVar(ApiModel):
    """A variable that reaches every rank."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule("!(has(self.value) && has(self.valueFrom))", "value and valueFrom exclude each other"),
            rule(
                "!(self.name in [" + ", ".join(f"'{name}'" for name in sorted(RESERVED_ENVIRONMENT)) + "])",
                "the operator sets this variable itself, from the pod's address and the placement: "
                + ", ".join(sorted(RESERVED_ENVIRONMENT)),
                fieldPath=".name",
            ),
        )
    )

    name: str = Field(min_length=1, max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    value: str | None = Field(default=None, max_length=4096)
    value_from: EnvSource | None = None

    @model_validator(mode="after")
    def _settable(self) -> Self:
        if self.value is not None and self.value_from:
            raise ValueError("value and valueFrom exclude each other")
        if self.name in RESERVED_ENVIRONMENT:
            raise ValueError(f"the operator sets {self.name} itself, from the pod's address and the placement")
        return self


class EnvFromSource(ApiModel):
    """All keys of a Secret or ConfigMap as variables."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule(
                "has(self.secretRef) != has(self.configMapRef)",
                "exactly one of secretRef and configMapRef must be given",
            )
        )
    )

    prefix: ShortText = Field(default="", description="Put before each key.")
    secret_ref: ObjectReference | None = None
    config_map_ref: ObjectReference | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if bool(self.secret_ref) == bool(self.config_map_ref):
            raise ValueError("exactly one of secretRef and configMapRef must be given")
        return self


class LocalReference(ApiModel):
    """Name of an object in the CR's namespace."""

    name: Name


class Resources(ApiModel):
    """CPU, memory and ephemeral storage of a container; GPUs follow from the parallelism."""

    requests: dict[str, Quantity] = Field(default_factory=dict, max_length=32)
    limits: dict[str, Quantity] = Field(default_factory=dict, max_length=32)


Labels = Annotated[dict[str, ShortText], Field(max_length=64)]


class Pod(ApiModel):
    """The pods that hold the ranks."""

    resources: Resources | None = Field(default=None, description="Resources of the vLLM container.")
    shm_size: Quantity | None = Field(default=None, description="Size of /dev/shm; 16Gi when absent.")
    node_selector: Labels = Field(default_factory=dict)
    tolerations: FreeFormList = Field(default_factory=list)
    affinity: FreeForm | None = None
    service_account_name: Name | None = Field(
        default=None, description="ServiceAccount of head and lead pod; one of the operator's making when absent."
    )
    image_pull_secrets: list[LocalReference] = Field(
        default_factory=list, max_length=16, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    labels: Labels = Field(default_factory=dict, description="Further labels of head and GPU pods.")
    annotations: Annotated[dict[str, LongText], Field(max_length=64)] = Field(
        default_factory=dict, description="Further annotations of head and GPU pods."
    )
    template: FreeForm | None = Field(
        default=None,
        description=(
            "PodTemplateSpec laid over head and GPU pods: objects are merged, lists of named items by name; "
            "the main container is called vllm."
        ),
    )


class RayHead(ApiModel):
    """The CPU-only Ray head pod."""

    resources: Resources | None = Field(default=None, description="Resources of the head; 1 CPU and 4Gi when absent.")
    node_selector: Labels = Field(default_factory=dict)
    tolerations: FreeFormList = Field(default_factory=list)
    affinity: FreeForm | None = None


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
        json_schema_extra=_rules(
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
                f" || !self.vllmConfig.extraArgs.exists(a, a.matches('{_LORA_ARGUMENT}'))",
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
        if names := _reserved_in(self.pod.template):
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
                    + (f"; use {_ARGUMENT_FIELDS[name]}" if name in _ARGUMENT_FIELDS else "")
                )
        return self

    def _holds_whole_data_ranks(self) -> bool:
        return (self.placement.gpus_per_pod or self.world_size) % self.world_size == 0

    def _check_lora(self) -> None:
        lora = self.lora
        if lora is None:
            return
        if any(re.match(_LORA_ARGUMENT, argument) for argument in self.vllm_config.extra_args):
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


def _reserved_in(template: Any) -> list[str]:
    """Give the variables of the operator that a pod template sets; its shape is the API server's to judge."""
    found: set[str] = set()
    waiting = [template]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            variables = item.get("env")
            for entry in variables if isinstance(variables, list) else []:
                # A name may be a list here, which no set takes.
                if isinstance(entry, dict) and str(entry.get("name")) in RESERVED_ENVIRONMENT:
                    found.add(entry["name"])
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return sorted(found)


def refused_argument(argument: str) -> str | None:
    """Give the option of the operator that an extra argument would override, if any.

    vLLM's parser takes ``_`` for ``-``, ``-n2`` for ``-n 2``, ``--model.x`` for a part of ``--model`` and, as
    argparse does, any unambiguous beginning of an option: ``--ten`` is ``--tensor-parallel-size``.  So a beginning
    is refused, too: one that is ambiguous vLLM would refuse itself.
    """
    if not argument.startswith("-"):
        return None
    if argument[:2] in ("-n", "-r") and argument[2:3].isdigit():
        return argument[1]
    option = re.split("[=.]", argument.lstrip("-"), maxsplit=1)[0].replace("_", "-")
    if option in OPERATOR_ARGUMENTS or option.startswith(_FAMILY) or not option:
        return option or None
    if _FAMILY.startswith(option):
        return f"{_FAMILY}size"
    return next((name for name in OPERATOR_ARGUMENTS if name.startswith(option)), None)


def explain(error: ValidationError) -> str:
    """Say what is wrong with a spec, in one line: each field with its fault."""
    told = (
        f"spec.{'.'.join(map(str, item['loc']))}: {item['msg'].removeprefix('Value error, ')}"
        for item in error.errors()
    )
    return "; ".join(line.replace("spec.:", "spec:") for line in islice(told, TOLD_FAULTS))
