"""``status`` of a ``VLLMDeployment``: what is, what is missing, and why.

Written by the operator alone.  Reasons are one enum, so that a reader of any tool finds each word explained
in one place.
"""

from __future__ import annotations

import enum
from typing import Annotated

from pydantic import Field

from vllm_operator.api.fields import Count, Generation, LongText, Message, ShortText
from vllm_operator.api.schema import ApiModel


class ConditionType(enum.StrEnum):
    """Types of our conditions; ``Reconciling`` and ``Stalled`` follow kstatus and are never both True."""

    READY = "Ready"
    AVAILABLE = "Available"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    PLANNED = "Planned"
    RAY_CLUSTERS_READY = "RayClustersReady"
    RUNTIME_COMPATIBLE = "RuntimeCompatible"


class Reason(enum.StrEnum):
    """Every reason that a condition or an engine can have."""

    # progress
    SERVING = "Serving"
    PARTLY_SERVING = "PartlyServing"
    NOT_SERVING = "NotServing"
    SCALED_TO_ZERO = "ScaledToZero"
    SUSPENDED = "Suspended"
    PROGRESSING = "Progressing"
    PLANNED = "Planned"
    CREATING_PODS = "CreatingPods"
    PODS_STARTING = "PodsStarting"
    WAITING_FOR_RAY_NODES = "WaitingForRayNodes"
    RAY_NODES_JOINED = "RayNodesJoined"
    PLACING = "Placing"
    DOWNLOADING = "Downloading"
    LOADING = "Loading"
    DRAINING = "Draining"
    LOADING_ADAPTERS = "LoadingAdapters"
    REPLACING = "Replacing"
    RELEASING = "Releasing"
    UNKNOWN = "Unknown"
    COMPATIBLE = "Compatible"
    NO_RAY = "NoRay"
    # what the user or the cluster must change
    INVALID_SPEC = "InvalidSpec"
    NAME_CONFLICT = "NameConflict"
    NO_SUCH_GPUS = "NoSuchGPUs"
    WAITING_FOR_GPUS = "WaitingForGPUs"
    QUOTA_EXCEEDED = "QuotaExceeded"
    RESOURCES_NOT_STATED = "ResourcesNotStated"
    MODEL_NOT_READABLE = "ModelNotReadable"
    MODEL_FACTS_UNAVAILABLE = "ModelFactsUnavailable"
    SECRET_NOT_FOUND = "SecretNotFound"  # noqa: S105
    CONFIG_MAP_NOT_FOUND = "ConfigMapNotFound"
    CLAIM_NOT_FOUND = "ClaimNotFound"
    IMAGE_MISSING = "ImageMissing"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    IMAGE_WITHOUT_RAY = "ImageWithoutRay"
    CONTAINER_CRASHED = "ContainerCrashed"
    UNSCHEDULABLE = "Unschedulable"
    GPUS_GIVEN_BACK = "GPUsGivenBack"
    KUBERAY_NOT_INSTALLED = "KubeRayNotInstalled"
    RAY_CLUSTER_NOT_FOUND = "RayClusterNotFound"
    RAY_CLUSTER_NOT_READY = "RayClusterNotReady"
    RAY_CLUSTER_UNFIT = "RayClusterUnfit"
    RAY_TOKEN_REFUSED = "RayTokenRefused"  # noqa: S105
    FORBIDDEN = "Forbidden"
    REFUSED_BY_API_SERVER = "RefusedByAPIServer"
    ADAPTER_FAILED = "AdapterFailed"
    RAY_UNREACHABLE = "RayUnreachable"
    SUPERVISOR_UNREACHABLE = "SupervisorUnreachable"
    BOOTSTRAP_FAILED = "BootstrapFailed"
    # what an engine reports of itself (the words of the contract)
    PLACEMENT_TIMEOUT = "PlacementTimeout"
    RAY_NODES_MISSING = "RayNodesMissing"
    PREFLIGHT_FAILED = "PreflightFailed"
    MODEL_NOT_FOUND = "ModelNotFound"
    MODEL_NOT_ON_HUB = "ModelNotOnHub"
    MODEL_INCOMPLETE = "ModelIncomplete"
    HUB_ACCESS_DENIED = "HubAccessDenied"
    HUB_UNAVAILABLE = "HubUnavailable"
    DOWNLOAD_STALLED = "DownloadStalled"
    DOWNLOAD_FAILED = "DownloadFailed"
    DISK_FULL = "DiskFull"
    INVALID_PARALLELISM = "InvalidParallelism"
    INVALID_ENVIRONMENT = "InvalidEnvironment"
    ARGUMENTS_REFUSED = "ArgumentsRefused"
    CONFIG_REFUSED = "ConfigRefused"
    RUNTIME_INCOMPATIBLE = "RuntimeIncompatible"
    LOAD_FAILED = "LoadFailed"
    LOAD_TIMEOUT = "LoadTimeout"
    WARMUP_FAILED = "WarmupFailed"
    LAUNCHER_EXITED = "LauncherExited"
    RANK_DIED = "RankDied"
    ACTORS_LEFT_OVER = "ActorsLeftOver"
    BOOTSTRAP_ERROR = "BootstrapError"
    SUPERVISOR_SILENT = "SupervisorSilent"
    RAY_SESSION_LOST = "RaySessionLost"
    POD_REPLACED = "PodReplaced"


class EngineState(enum.StrEnum):
    """Where an engine is."""

    PENDING = "Pending"
    PLACING = "Placing"
    LOADING = "Loading"
    SERVING = "Serving"
    DRAINING = "Draining"
    STOPPED = "Stopped"
    FAILED = "Failed"


class Condition(ApiModel):
    """A condition as Kubernetes has them."""

    type: ShortText
    status: Annotated[str, Field(pattern="^(True|False|Unknown)$", max_length=8)]
    reason: Annotated[str, Field(min_length=1, max_length=128)]
    message: Message = ""
    observed_generation: Generation = 0
    last_transition_time: str = Field(json_schema_extra={"format": "date-time"}, max_length=64)


class RankStatus(ApiModel):
    """One rank and its seat: bundle, pod, node and GPU."""

    rank: Count = Field(description="Global rank: (dp x pipeline + pp) x tensor + tp.")
    tp: Count = Field(description="Tensor parallel rank.")
    pp: Count = Field(description="Pipeline parallel rank.")
    dp: Count = Field(default=0, description="Data parallel rank.")
    bundle: Count = Field(description="Index of the bundle in the placement group of its data parallel rank.")
    ray_node: ShortText = Field(default="", description="Ray node id.")
    pod: ShortText = ""
    node: ShortText = ""
    gpu_index: Count = Field(default=-1, description="Index of the GPU inside the pod; -1 while unknown.")
    gpu_uuid: ShortText = Field(default="", alias="gpuUUID", description="UUID of the GPU as its driver gives it.")
    actor: ShortText = Field(default="", description="Name of the Ray actor.")
    state: ShortText = Field(default="", description="State of the actor as Ray has it.")
    driver: bool = Field(default=False, description="vLLM's is_driver_worker.")
    output: bool = Field(default=False, description="This rank gives the output of its data parallel rank.")


class EngineCoreStatus(ApiModel):
    """The actor that schedules the requests of one data parallel rank, where there are several of these."""

    dp: Count = Field(description="Data parallel rank.")
    kind: ShortText = Field(default="", description="Class of the actor: EngineCoreActor or DPMoEEngineCoreActor.")
    pod: ShortText = ""
    ray_node: ShortText = Field(default="", description="Ray node id.")
    actor_id: ShortText = Field(default="", description="Ray's id of the actor; it has no name.")
    state: ShortText = Field(default="", description="State of the actor as Ray has it.")


class PlacementGroupStatus(ApiModel):
    """A placement group of an engine."""

    name: ShortText
    id: ShortText = ""
    strategy: ShortText = ""
    state: ShortText = ""


class Timings(ApiModel):
    """Instants of the present attempt."""

    created: ShortText = Field(default="", description="The engine's RayCluster was made.")
    pods_scheduled: ShortText = Field(default="", description="Every pod has a node.")
    ray_nodes_joined: ShortText = Field(default="", description="Ray lists every GPU node.")
    placed: ShortText = Field(default="", description="The placement group is made.")
    loaded: ShortText = Field(default="", description="The engine answers its health check.")
    first_token: ShortText = Field(default="", description="The warm-up token came.")


class AdapterState(enum.StrEnum):
    """Whether an engine serves a LoRA adapter."""

    PENDING = "Pending"
    LOADED = "Loaded"
    FAILED = "Failed"
    LEAVING = "Leaving"


class AdapterStatus(ApiModel):
    """A LoRA adapter of an engine."""

    name: ShortText
    uri: LongText = Field(default="", description="As the spec has it; of one that is no more wanted its path.")
    state: AdapterState
    message: LongText = Field(
        default="", description="Why it is not served, and what to do; or how far its download is."
    )
    commit: ShortText = Field(default="", description="Commit that the engine downloaded, of an hf:// adapter.")


class EngineReplica(ApiModel):
    """One engine."""

    name: ShortText
    state: EngineState
    reason: ShortText = ""
    message: Message = ""
    revision: ShortText = ""
    attempt: Count = 0
    restarts: Count = 0
    retry_at: ShortText = Field(default="", description="When the next attempt starts.")
    drain_until: ShortText = Field(default="", description="When it is removed at the latest, while it drains.")
    ray_cluster: ShortText = Field(default="", description="Its RayCluster, where Ray runs it.")
    deployment: ShortText = Field(default="", description="Its Deployment, where one pod runs it without Ray.")
    report: ShortText = Field(
        default="", description="ConfigMap of all that the engine says of itself, its ranks included (key report.json)."
    )
    pod: ShortText = Field(default="", description="The lead pod.")
    ports: Annotated[dict[str, Count], Field(max_length=16)] = Field(default_factory=dict)
    placement_groups: Annotated[list[PlacementGroupStatus], Field(max_length=1024)] = Field(
        default_factory=list, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    timings: Timings = Field(default_factory=Timings)
    engine_cores: Annotated[list[EngineCoreStatus], Field(max_length=1024)] = Field(
        default_factory=list,
        description="Of data parallel engines; with more than 64 ranks in all engines they stand in the reports only.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    adapters: Annotated[list[AdapterStatus], Field(max_length=128)] = Field(
        default_factory=list,
        description=(
            "LoRA adapters; with more than 64 in all engines only those that are not loaded, and of these 64. The "
            "reports have all."
        ),
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    ranks: Annotated[list[RankStatus], Field(max_length=1024)] = Field(
        default_factory=list,
        description="The rank map; with more than 64 ranks in all engines it stands in the reports only.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class PodShape(ApiModel):
    """Pods of one shape."""

    name: ShortText
    pods: Count
    gpus: Count


class PlanMemory(ApiModel):
    """Predicted memory of one rank, in MiB, and what it is good for."""

    weights_mi_b: Count = Field(alias="weightsMiB")
    margin_mi_b: Count = Field(alias="marginMiB", description="Activations, CUDA graphs, buffers: an estimate.")
    cached_tokens: Count = Field(description="Tokens that the KV cache holds.")
    max_model_len: Count = Field(description="Tokens of one request that was planned for.")
    guessed: Message = Field(default="", description="What the model's facts did not say.")


class PlanHost(ApiModel):
    """What the largest pod is thought to use of its host: an estimate to size pod.resources by; nothing requests it."""

    host_memory_mi_b: Count = Field(
        alias="hostMemoryMiB", description="Memory in MiB while the model is loaded, /dev/shm included: an estimate."
    )
    shm_mi_b: Count = Field(
        alias="shmMiB", description="Shared memory (/dev/shm) in MiB, of NCCL, vLLM and Ray: an estimate."
    )
    cpus: Count = Field(description="Physical CPU cores: one for each rank, API server and engine core; an estimate.")


class PlanCandidate(ApiModel):
    """A way to place an engine."""

    accelerator: ShortText = ""
    tensor: Count
    pipeline: Count
    data: Count = Field(
        default=1, description="Data parallel size; more than 1 is taken only when the spec asks for it."
    )
    gpus: Count
    fits: bool
    reason: Message = ""


class PlanStatus(ApiModel):
    """What the operator chose, and why."""

    distributed_executor_backend: ShortText = ""
    reason: Message = ""
    image: LongText = ""
    strategy: ShortText = ""
    tensor: Count = 0
    pipeline: Count = 0
    data: Count = Field(default=1, description="Data parallel size.")
    expert: bool = Field(default=False, description="Experts are divided among ranks as wholes.")
    data_parallel_backend: ShortText = Field(
        default="", description="Of several data parallel ranks: ray, their engine cores are Ray actors."
    )
    accelerator: ShortText = Field(default="", description="Product of the GPUs, where a label tells it.")
    resource: ShortText = Field(default="", description="Name under which the pods ask for GPUs.")
    gpus: Count = Field(default=0, description="GPUs of one engine.")
    warning: Message = Field(default="", description="What may go wrong although it can be placed.")
    facts: ShortText = Field(
        default="", description="Who told what is known of the model: spec, or hub with the commit; empty: nobody."
    )
    memory: PlanMemory | None = Field(
        default=None, description="What the neediest rank needs, where the model is known."
    )
    host: PlanHost | None = Field(default=None, description="What the largest pod is thought to use of its host.")
    pod_shapes: Annotated[list[PodShape], Field(max_length=64)] = Field(
        default_factory=list, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    candidates: Annotated[list[PlanCandidate], Field(max_length=8)] = Field(
        default_factory=list,
        description="Ways to place an engine that were looked at, the best first.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class Failure(ApiModel):
    """A failure that the operator saw."""

    engine: ShortText
    reason: ShortText
    message: Message = ""
    rank: Count = -1
    pod: ShortText = ""
    node: ShortText = ""
    attempt: Count = 0
    time: ShortText = ""


class VLLMDeploymentStatus(ApiModel):
    """What is."""

    observed_generation: Generation = -1
    conditions: Annotated[list[Condition], Field(max_length=16)] = Field(
        default_factory=list,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    url: LongText = ""
    replicas: Count = 0
    ready_replicas: Count = 0
    selector: LongText = ""
    revision: ShortText = ""
    plan: PlanStatus | None = None
    engine_replicas: Annotated[list[EngineReplica], Field(max_length=100)] = Field(
        default_factory=list,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    last_failures: Annotated[list[Failure], Field(max_length=10)] = Field(
        default_factory=list, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
