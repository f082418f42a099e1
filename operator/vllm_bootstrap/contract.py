"""What the operator and the Ray side say to each other: versioned dataclasses, stdlib only.

Two processes of different ages speak through this module: an operator that was upgraded yesterday and a
supervisor that was started last month.  So a reader ignores keys that it does not know, a missing key
takes the field's default, and a change that neither of the two rules covers raises ``VERSION``.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

VERSION = 1
"""Raised only by a change that a reader of the older form would misread."""

RAY_NAMESPACE = "vllm-operator"
"""Ray namespace of everything that we name: placement groups and supervisor actors."""

LEAD_RESOURCE = "vllm-lead"
"""Ray resource that only the lead pod offers; it tells the lead's Ray node from the others."""

HTTP_PORT = 8000
SUPERVISOR_PORT = 8001

RUN_DIR = "/var/run/vllm-operator"
ENV_DIR = f"{RUN_DIR}/env"
"""On the lead pod: one file a variable of ``spec.env`` that came from a Secret or ConfigMap, named like it."""

ENV_FROM_DIR = f"{RUN_DIR}/env-from"
"""On the lead pod: one folder an item of ``spec.envFrom``, named by its position; one file a key."""

API_KEY_FILE = f"{RUN_DIR}/api-key/key"
"""On the lead pod: the key that the engine's API asks for, of ``spec.apiKeySecret``."""

HF_TOKEN_FILE = f"{RUN_DIR}/hf-token/token"
"""On every pod that holds ranks: the token of ``spec.model.hfTokenSecret``."""

ADAPTER_CACHE = "/tmp/vllm-operator/hub"  # noqa: S108 - of the pod, whose every process is the engine's
"""On every pod that holds ranks and has no cache of models: where LoRA adapters of the hub are kept."""

CONTROL_TOKEN_FILE = f"{RUN_DIR}/control/control_token"
"""On the lead pod: the token of the supervisor's ``/status``, ``/drain``, ``/stop`` and ``/adapters``."""

POD_NAME_VARIABLE = "VLLM_OPERATOR_POD_NAME"
NODE_NAME_VARIABLE = "VLLM_OPERATOR_NODE_NAME"
DRAIN_VARIABLE = "VLLM_OPERATOR_DRAIN_SECONDS"
"""In a pod without Ray: how long its engine drains when the pod is asked to end."""

REPORT_KEY = "report.json"
"""Key of the engine's report in its ConfigMap."""

PLAN_FILE = "plan.json"
"""Name of the engine plan inside the package that goes to Ray (beside the folder ``vllm_bootstrap``)."""

JOB_ENTRYPOINT = "python -m vllm_bootstrap.entrypoints.job"
RELEASE_ENTRYPOINT = "python -m vllm_bootstrap.entrypoints.release"

RESERVED_ENVIRONMENT = frozenset(
    {
        "VLLM_HOST_IP",
        "VLLM_PORT",
        "VLLM_RAY_BUNDLE_INDICES",
        "VLLM_RAY_PER_WORKER_GPUS",
        "VLLM_WORKER_MULTIPROC_METHOD",
        "VLLM_USE_RAY_V2_EXECUTOR_BACKEND",
        "RAY_ADDRESS",
        "RAY_AUTH_MODE",
        "RAY_AUTH_TOKEN",
        "RAY_NAMESPACE",
        "RAY_JOB_ID",
    }
)
"""Variables that the operator or the launcher sets; a user's value would break the launch."""


class Phase(enum.StrEnum):
    """Where an engine is, as its own cluster sees it."""

    PLACING = "Placing"
    LOADING = "Loading"
    SERVING = "Serving"
    DRAINING = "Draining"
    STOPPED = "Stopped"
    FAILED = "Failed"


class FailureReason(enum.StrEnum):
    """Why an engine failed; the members of ``FATAL`` do not get better by another attempt."""

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


FATAL = frozenset(
    {
        FailureReason.MODEL_NOT_FOUND,
        FailureReason.INVALID_PARALLELISM,
        FailureReason.INVALID_ENVIRONMENT,
        FailureReason.ARGUMENTS_REFUSED,
        FailureReason.CONFIG_REFUSED,
        FailureReason.RUNTIME_INCOMPATIBLE,
    }
)
"""Failures that only a changed spec, image or volume mends: the operator does not try them again by itself."""

MENDED_ELSEWHERE = frozenset(
    {
        FailureReason.MODEL_NOT_ON_HUB,
        FailureReason.MODEL_INCOMPLETE,
        FailureReason.HUB_ACCESS_DENIED,
        FailureReason.DISK_FULL,
    }
)
"""Failures that somebody must mend, but not in the CR (a Secret, the hub, a volume): nobody would tell the operator, so
it calls them lasting and tries again all the same."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentSource:
    """One item of ``spec.envFrom``: all keys of a Secret or ConfigMap, mounted on the lead pod.

    Attributes
    ----------
    directory
        Folder on the lead pod with one file a key.
    prefix
        Put before each key to give the variable's name.
    """

    directory: str
    prefix: str = ""


@dataclass(frozen=True, kw_only=True)
class HubSource:
    """A repository of the hub that every node of an engine gets before vLLM starts.

    Attributes
    ----------
    repository
        ``org/name``; empty where nothing is downloaded.
    revision
        Branch, tag or commit; empty: the default branch.
    endpoint
        Address of the hub: the installation's, never a CR's, because tokens go there.
    folder
        Cache in the pods, of the layout that Hugging Face's libraries share.
    shared
        The cache is one and the same for all pods.
    room
        Bytes that the cache may hold, where its volume has a limit that its file system does not know; else 0.
    named_by
        Field of the CR that names it, for messages.
    """

    repository: str = ""
    revision: str = ""
    endpoint: str = ""
    folder: str = ""
    shared: bool = False
    room: int = 0
    named_by: str = "spec.model"


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """A LoRA adapter that an engine is to serve beside its base model.

    Attributes
    ----------
    name
        Its name in the OpenAI API.
    path
        Its folder, the same in every GPU pod of the engine; of one that is downloaded its address on the hub
        (``hf://org/name[@revision]``).  Other weights need another path.
    source
        What each of these pods downloads; empty where ``path`` is a folder.
    commit
        That was downloaded for this ``path`` before, and is to stay; empty: what the revision is now.
    """

    name: str
    path: str
    source: HubSource = field(default_factory=HubSource)
    commit: str = ""


@dataclass(frozen=True, kw_only=True)
class AdapterList:
    """All adapters that an engine is to serve; those that it serves beside these are removed."""

    adapters: tuple[Adapter, ...] = ()


class AdapterState(enum.StrEnum):
    """Whether an adapter is served."""

    PENDING = "Pending"
    LOADED = "Loaded"
    FAILED = "Failed"


@dataclass(frozen=True, kw_only=True)
class AdapterReport:
    """What became of an adapter that was asked for.

    Attributes
    ----------
    message
        Why it is not served, and what to do; or how far its download is.
    commit
        That was downloaded; empty where nothing was.
    """

    name: str
    path: str
    state: AdapterState
    message: str = ""
    commit: str = ""


@dataclass(frozen=True, kw_only=True)
class AdapterReports:
    """What became of a list of adapters."""

    adapters: tuple[AdapterReport, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PodGroup:
    """A worker group of the RayCluster, as the bootstrap expects to see it in the GCS.

    Attributes
    ----------
    name
        KubeRay group name; ``lead`` for the group that holds rank 0.
    pods
        Number of pods (Ray nodes).
    gpus
        GPUs of each pod.
    """

    name: str
    pods: int
    gpus: int


@dataclass(frozen=True, kw_only=True)
class Seat:
    """A pod of a RayCluster that is not ours, and what the engine has of it; the first seat is the lead.

    Attributes
    ----------
    address
        Of the pod; it tells its Ray node from the others.
    gpus
        GPUs that the engine has there.
    node
        Kubernetes node of the pod.
    """

    pod: str
    address: str
    gpus: int
    node: str = ""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A key of a Secret or ConfigMap of the engine's namespace, or all of its keys; empty when there is none.

    Attributes
    ----------
    optional
        It may be absent.
    prefix
        Of all keys: put before each to give the variable's name.
    """

    kind: str = ""
    name: str = ""
    key: str = ""
    optional: bool = False
    prefix: str = ""


@dataclass(frozen=True, kw_only=True)
class References:
    """What an engine reads from the API server itself, because its pods have nothing mounted for it.

    Attributes
    ----------
    control_token
        The token of the supervisor's ``/status``, ``/drain`` and ``/stop``.
    api_key
        The key that the engine's API asks for.
    environment
        Variables of ``spec.env`` by name.
    sources
        ``spec.envFrom``.
    """

    control_token: Reference = field(default_factory=Reference)
    api_key: Reference = field(default_factory=Reference)
    environment: Mapping[str, Reference] = field(default_factory=dict)
    sources: tuple[Reference, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReportTarget:
    """The one ConfigMap that the engine may patch."""

    namespace: str
    config_map: str


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Seconds until a step that has not ended is a failure.

    Attributes
    ----------
    ray_nodes
        For Ray's GCS to list exactly the expected GPU nodes.
    placement
        For the placement group to be created.
    load
        From the launcher's start to the warm-up token.
    cleanup
        For the actors of an earlier attempt to be dead.
    stall
        For another byte of a download to come; a download that goes on has no other deadline.
    """

    ray_nodes: float = 120.0
    placement: float = 120.0
    load: float = 1800.0
    cleanup: float = 60.0
    stall: float = 300.0


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """All that the bootstrap needs to bring up one engine; written by the operator, never changed by the Ray side.

    Attributes
    ----------
    deployment, namespace, uid
        Name, namespace and uid of the ``VLLMDeployment``.
    engine
        ``engine-<i>``.
    revision
        Revision of the spec that this engine runs.
    attempt
        1 for the first launch; the operator counts up.
    ray_session
        Ray's ``session_name`` when the plan was written: another one means that Ray's state is gone.
    model
        What vLLM is given as ``--model``: a path inside the pods or a Hugging Face id.
    served_name
        Name of the model in the OpenAI API.
    tensor, pipeline
        Parallel sizes; ``world_size`` is their product.
    data
        Number of data parallel ranks, each of ``world_size`` ranks; vLLM's engine cores are Ray actors when it is
        more than 1.
    expert
        Expert parallel: the experts of a model are divided among all ranks as wholes.
    strategy
        Placement group strategy: PACK, STRICT_PACK, SPREAD or STRICT_SPREAD; it holds for each data parallel rank.
    groups
        Pod shapes; the GPUs of all groups together are ``total_ranks``.
    bundle
        Resources of one bundle.
    placement_group
        Name of the first detached placement group in ``RAY_NAMESPACE``.
    supervisor
        Name of the supervisor actor in ``RAY_NAMESPACE``.
    instance_id
        vLLM's ``instance_id``; the actors are called ``vllm_Worker_<instance_id>[_dp<k>][_TPi][_PPj]``.
    arguments
        Arguments for vLLM's own parser beside those that follow from this plan.
    environment
        Plain variables that reach every rank.
    environment_files
        Names of the variables whose value is a file under ``ENV_DIR``.
    environment_sources
        ``spec.envFrom``.
    executor
        ``distributed_executor_backend``: ray, mp or uni; without Ray there is one pod and no placement group.
    checkpoint_bytes
        Size of the checkpoint that the engine was planned for; 0 when nothing was known of the model.
    api_key_file
        File on the lead pod with the key that the engine's API asks for; empty where it asks for none of ours.
    source
        What each node downloads before the launch; vLLM is given the folder instead of ``model`` then.
    hub_token_file
        File on every pod with the hub's token; empty where there is none.
    adapters
        LoRA adapters that it serves from its beginning on; later ones come over the supervisor's port.
    seats
        Pods of a RayCluster that is not ours; empty where the cluster is the engine's own.
    references
        What stands in no file of the lead pod.
    heartbeat
        Seconds between two signs of life in the report while the engine answers; 0 for none: the kubelet's probe is it.
    """

    deployment: str
    namespace: str
    uid: str
    engine: str
    revision: str
    attempt: int
    ray_session: str
    model: str
    served_name: str
    tensor: int
    pipeline: int
    strategy: str
    groups: tuple[PodGroup, ...]
    placement_group: str
    supervisor: str
    instance_id: str
    report: ReportTarget
    bundle: Mapping[str, float] = field(default_factory=lambda: {"GPU": 1.0})
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    environment_files: tuple[str, ...] = ()
    environment_sources: tuple[EnvironmentSource, ...] = ()
    executor: str = "ray"
    data: int = 1
    expert: bool = False
    checkpoint_bytes: int = 0
    api_key_file: str = ""
    source: HubSource = field(default_factory=HubSource)
    hub_token_file: str = ""
    adapters: tuple[Adapter, ...] = ()
    http_port: int = HTTP_PORT
    supervisor_port: int = SUPERVISOR_PORT
    seats: tuple[Seat, ...] = ()
    references: References = field(default_factory=References)
    heartbeat: float = 0.0
    deadlines: Deadlines = field(default_factory=Deadlines)
    version: int = VERSION

    @property
    def world_size(self) -> int:
        """Ranks of one data parallel rank, one GPU each."""
        return self.tensor * self.pipeline

    @property
    def total_ranks(self) -> int:
        """Ranks of the engine, one GPU each."""
        return self.world_size * self.data

    @property
    def placement_groups(self) -> tuple[str, ...]:
        """Names of the placement groups, one for each data parallel rank."""
        stem = self.placement_group.removesuffix("-dp0")
        return (self.placement_group, *(f"{stem}-dp{rank}" for rank in range(1, self.data)))


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """One rank: its place in the model, and the bundle, pod, node and GPU that it has.

    Attributes
    ----------
    rank
        Global rank, ``(dp * pipeline + pp) * tensor + tp``.
    bundle
        Index of the bundle in the placement group of its data parallel rank.
    ray_node
        Ray node id (hex).
    gpu_index
        Index of the GPU inside the pod, as vLLM uses it: ``sorted(ids of the engine on that node)[local_rank]``.
    gpu_uuid
        UUID by the driver; empty where there is none (CPU runtime).
    actor
        Name of the Ray actor.
    actor_id, pid
        Ray actor id and process id in its pod; empty and 0 until the actor is alive.
    state
        Ray's state of the actor (``ALIVE``, ``DEAD``, …) or ``PENDING`` before it exists.
    driver
        vLLM's ``is_driver_worker``: the first tensor rank of its pipeline stage.
    output
        This rank gives the output of its data parallel rank: ``world_size - tensor`` within that.
    """

    rank: int
    tp: int
    pp: int
    bundle: int
    dp: int = 0
    ray_node: str = ""
    pod: str = ""
    node: str = ""
    gpu_index: int = -1
    gpu_uuid: str = ""
    actor: str = ""
    actor_id: str = ""
    pid: int = 0
    state: str = "PENDING"
    driver: bool = False
    output: bool = False


@dataclass(frozen=True, kw_only=True)
class EngineCoreReport:
    """The actor that schedules the requests of one data parallel rank; there is none where there is one of these.

    Attributes
    ----------
    dp
        Data parallel rank.
    kind
        Class of the actor: ``EngineCoreActor``, or ``DPMoEEngineCoreActor`` for a mixture of experts.
    pod
        Where it is: beside the first rank of its own.
    """

    dp: int
    kind: str = ""
    pod: str = ""
    ray_node: str = ""
    actor_id: str = ""
    pid: int = 0
    state: str = "PENDING"


@dataclass(frozen=True, kw_only=True)
class PlacementGroupReport:
    """A placement group as Ray's table has it."""

    name: str
    id: str = ""
    strategy: str = ""
    state: str = ""


@dataclass(frozen=True, kw_only=True)
class TimingsReport:
    """Instants of this attempt, RFC 3339 with milliseconds, UTC; empty until they happen."""

    ray_nodes_joined: str = ""
    placed: str = ""
    loaded: str = ""
    first_token: str = ""


@dataclass(frozen=True, kw_only=True)
class DownloadReport:
    """How far a pod's download is, in bytes."""

    pod: str
    done: int
    total: int


@dataclass(frozen=True, kw_only=True)
class EngineReport:
    """What the Ray side knows of an engine; written whole at each change, never on a clock.

    The operator ignores a report whose ``uid``, ``revision``, ``attempt`` or ``ray_session`` are not those of its plan.

    Attributes
    ----------
    sequence
        Counts up within an attempt.
    failed_rank
        Rank whose process died first, -1 when no single rank is to blame.
    log_tail
        Last lines of the launcher's output, only with a failure.
    versions
        ``vllm``, ``ray``, ``torch``, ``python`` as found in the pods.
    warnings
        What may go wrong, as the preflight saw it.
    downloads
        Of the model, by pod, while it is downloaded; empty before and afterwards.
    adapters
        LoRA adapters that it was asked for, by name.
    hub_adapters
        It can download them; a supervisor from before an upgrade may not.
    heartbeat
        When the engine last answered; empty where it gives no such sign.
    unready
        Why it should have no traffic although it serves.
    """

    uid: str
    engine: str
    revision: str
    attempt: int
    ray_session: str
    sequence: int
    phase: Phase
    time: str
    reason: str = ""
    message: str = ""
    failed_rank: int = -1
    log_tail: tuple[str, ...] = ()
    ranks: tuple[RankReport, ...] = ()
    engine_cores: tuple[EngineCoreReport, ...] = ()
    placement_groups: tuple[PlacementGroupReport, ...] = ()
    timings: TimingsReport = field(default_factory=TimingsReport)
    versions: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    downloads: tuple[DownloadReport, ...] = ()
    adapters: tuple[AdapterReport, ...] = ()
    hub_adapters: bool = False
    heartbeat: str = ""
    unready: str = ""
    version: int = VERSION


@dataclass(frozen=True, kw_only=True)
class Tenancy:
    """What one engine holds of a Ray cluster.

    Attributes
    ----------
    stem
        Its placement groups are called ``<stem>-dp<k>``, its supervisor ``<stem>-supervisor``.
    groups
        Ids of the placement groups that were seen: with others under these names, nothing is released.  Empty: any.
    """

    stem: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReleasePlan:
    """What a release job is to free; the cluster and the other engines on it stay."""

    tenancies: tuple[Tenancy, ...]
    version: int = VERSION


class ContractError(ValueError):
    """The text is no JSON of the expected kind, or of a later version."""


T = TypeVar("T")


def dumps(value: Any) -> str:
    """Give the JSON text of a dataclass of this module; equal values give equal texts."""
    return json.dumps(dataclasses.asdict(value), sort_keys=True, separators=(",", ":"))


def loads(kind: type[T], text: str) -> T:
    """Read a dataclass of this module from JSON.

    Parameters
    ----------
    kind
        The dataclass.
    text
        JSON; unknown keys are ignored, so that an older reader understands a newer writer.

    Raises
    ------
    ContractError
        No JSON object, a key without a default is missing, a value has a wrong type, or ``version`` is later than ours.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ContractError(f"no JSON: {error}") from error
    if not isinstance(data, dict):
        raise ContractError(f"a JSON object was expected, not {type(data).__name__}")
    version = data.get("version", VERSION)
    if not isinstance(version, int) or version > VERSION:
        raise ContractError(f"contract version {version!r} is later than {VERSION}: upgrade this side first")
    return typing.cast(T, _decode(kind, data, kind.__name__))


def job_id(plan: EnginePlan) -> str:
    """Ray job submission id of a plan: the same plan on the same Ray session is submitted once."""
    seed = "/".join((plan.uid, plan.engine, plan.revision, str(plan.attempt), plan.ray_session))
    return f"{plan.engine}-{plan.revision}-{plan.attempt}-{hashlib.sha256(seed.encode()).hexdigest()[:12]}"


def engine_stem(deployment: str, uid: str, engine: str) -> str:
    """Give what the names of an engine's actors and placement groups begin with on a shared cluster."""
    return f"{deployment}-{uid[:8]}-{engine}"


GROUP_NAME = re.compile(r"(?P<stem>[a-z](?:[-a-z0-9]*[a-z0-9])?-[0-9a-f]{8}-engine-\d+)-dp\d+")
"""Names of the placement groups of engines on a shared cluster."""


def _decode(kind: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        raise TypeError(f"{where}: the contract has no unions")
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, where)
    if origin is tuple:
        _expect(value, list, where)
        item = typing.get_args(kind)[0]
        return tuple(_decode(item, entry, f"{where}[{i}]") for i, entry in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        _expect(value, dict, where)
        item = typing.get_args(kind)[1]
        return {key: _decode(item, entry, f"{where}.{key}") for key, entry in value.items()}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(value)
        except ValueError as error:
            raise ContractError(f"{where}: {error}") from error
    if kind is float:
        _expect(value, (int, float), where)
        return float(value)
    if kind is int and isinstance(value, bool):
        raise ContractError(f"{where}: a number was expected, not {value!r}")
    _expect(value, kind, where)
    return value


def _decode_dataclass(kind: Any, value: Any, where: str) -> Any:
    _expect(value, dict, where)
    hints = typing.get_type_hints(kind)
    known: dict[str, Any] = {}
    for entry in dataclasses.fields(kind):
        if entry.name in value:
            known[entry.name] = _decode(hints[entry.name], value[entry.name], f"{where}.{entry.name}")
        elif entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING:
            raise ContractError(f"{where}.{entry.name} is missing")
    return kind(**known)


def _expect(value: Any, kind: Any, where: str) -> None:
    if not isinstance(value, kind):
        raise ContractError(f"{where}: {kind} was expected, not {value!r}")
