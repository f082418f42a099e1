"""Pod templates of the RayCluster: the CPU-only head, the lead, and the further GPU pods.

Everything that KubeRay or Kubernetes would choose silently, differently by version, is set here: probes, ports,
``/dev/shm``, service links, the token of Ray's authentication.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_bootstrap import contract
from vllm_operator.api import identity
from vllm_operator.api.placement import Strategy
from vllm_operator.api.pods import EnvFromSource, EnvVar, Pod, RayHead, Resources
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.planning.devices import is_gpu
from vllm_operator.planning.eligibility import PodRules, read_rules
from vllm_operator.planning.shapes import PodShape, Shape
from vllm_operator.resources import lora
from vllm_operator.resources.defaults import RuntimeDefaults
from vllm_operator.resources.model import ModelLocation, locate
from vllm_operator.resources.names import EngineNames, Owner, engine_labels
from vllm_operator.resources.node_affinity import away_from
from vllm_operator.resources.overlay import merge

CONTAINER = "vllm"
SHM_VOLUME = "dshm"
LABEL_COMPONENT = "app.kubernetes.io/component"
AGENT_PORT = 52365
HEAD_PORTS = (("gcs-server", 6379), ("dashboard", 8265), ("client", 10001), ("metrics", 8080), ("serve", 8000))
DEFAULT_SHM = "16Gi"
HEAD_SHM = "512Mi"
GRACE_SECONDS = 10
STANDALONE_GRACE_SECONDS = 45
CODE_DIR = f"{contract.RUN_DIR}/code"
CODE_FILE = "bootstrap.zip"
API_KEY_DIR, _, API_KEY_NAME = contract.API_KEY_FILE.rpartition("/")
HF_TOKEN_DIR, _, HF_TOKEN_NAME = contract.HF_TOKEN_FILE.rpartition("/")
UNPACK = "import sys; sys.path.insert(0, sys.argv[1]); from vllm_bootstrap import unpack; unpack.main(*sys.argv[1:])"
"""Program of the pod of an engine without Ray; its argument is the archive."""


class Role(enum.StrEnum):
    """What a pod is for."""

    HEAD = "head"
    LEAD = "lead"
    WORKER = "worker"


def pod_template(
    *,
    spec: VLLMDeploymentSpec,
    shape: Shape,
    owner: Owner,
    names: EngineNames,
    defaults: RuntimeDefaults,
    role: Role,
    group: PodShape | None = None,
) -> dict[str, Any]:
    """Build the PodTemplateSpec of a head, lead or worker pod.

    Parameters
    ----------
    group
        Group of the pod; ``None`` for the head, which has no GPUs.
    """
    location = locate(spec.model)
    template = {
        "metadata": {"labels": dict(spec.pod.labels), "annotations": dict(spec.pod.annotations)},
        "spec": {
            **(_scheduling(spec.pod, shape, group, owner, names) if group else _head_scheduling(spec.ray_head)),
            "enableServiceLinks": False,
            "automountServiceAccountToken": role is not Role.WORKER,
            "serviceAccountName": _service_account(spec, names, role),
            # KubeRay's shell is process 1 and passes no SIGTERM on: more would be waited for in vain.
            "terminationGracePeriodSeconds": GRACE_SECONDS if shape.with_ray else _standalone_grace(spec),
            "imagePullSecrets": [{"name": item.name} for item in spec.pod.image_pull_secrets],
            "containers": [
                {
                    "name": CONTAINER,
                    "image": spec.image or defaults.image,
                    **({} if shape.with_ray else {"command": ["python3", "-c", UNPACK, f"{CODE_DIR}/{CODE_FILE}"]}),
                    "env": [
                        *_environment(names, location, shape),
                        *_token_environment(spec, role),
                        *_drain_environment(spec, shape),
                    ],
                    "ports": [{"name": name, "containerPort": port} for name, port in _ports(role, shape)],
                    "resources": _resources(spec, group),
                    "volumeMounts": _mounts(spec, location, role, shape),
                    # A container that dies says its last words in the pod's status: no log must be read for them.
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    **_probes(role, shape),
                }
            ],
            "volumes": _volumes(spec, names, location, role, shape),
        },
    }
    if not template["spec"]["serviceAccountName"]:
        del template["spec"]["serviceAccountName"]
    laid = _laid(template, spec, defaults)
    laid["spec"] = _as_planned(laid.get("spec"), spec, shape, group, names)
    meta = laid.get("metadata")
    meta = meta if isinstance(meta, Mapping) else {}
    labels = meta.get("labels")
    theirs = labels.items() if isinstance(labels, Mapping) else ()
    # Services and this operator itself find the pods by ours: a user adds labels, but changes none and fakes none.
    tags = {key: value for key, value in theirs if not key.startswith(f"{identity.GROUP}/")}
    return {**laid, "metadata": {**meta, "labels": {**tags, **_own_labels(owner, names, role, shape)}}}


def node_rules(spec: VLLMDeploymentSpec, defaults: RuntimeDefaults) -> PodRules:
    """Give what the GPU pods of a spec say of their nodes before they are planned: its fields and all templates."""
    return read_rules(_laid({"spec": _own_scheduling(spec.pod)}, spec, defaults).get("spec"))


def _laid(template: dict[str, Any], spec: VLLMDeploymentSpec, defaults: RuntimeDefaults) -> dict[str, Any]:
    """Lay the installation's template under all that a CR says, in its fields as in its template."""
    return dict(merge(merge(dict(defaults.pod_template), _given(template)), spec.pod.template or {}))


def _as_planned(pod: Any, spec: VLLMDeploymentSpec, shape: Shape, group: PodShape | None, names: EngineNames) -> Any:
    """Put what a plan depends on over the templates: the number of GPUs that Ray is told, and the chosen nodes."""
    if not isinstance(pod, Mapping):
        return pod
    gpus = {shape.resource: str(group.gpus)} if group else {}
    planned = dict(pod)
    if isinstance(pod.get("containers"), list):
        planned["containers"] = [_with_gpus(item, gpus) for item in pod["containers"]]
    selector = pod.get("nodeSelector") or {}
    if group and isinstance(selector, Mapping):
        key = spec.placement.topology_key
        # What the user selects was heeded by the plan, so that it never contradicts; it may be narrower.
        chosen = {**shape.node_selector, **({key: names.domain} if key else {}), **selector}
        planned |= {"nodeSelector": chosen} if chosen else {}
    if group and shape.without_label:
        planned["affinity"] = away_from(shape.without_label, pod.get("affinity"))
    return planned


def _with_gpus(container: Any, gpus: Mapping[str, str]) -> Any:
    """Give a container with the planned GPUs and no others, if it is ours."""
    if not isinstance(container, Mapping) or container.get("name") != CONTAINER:
        return container
    resources = container.get("resources")
    given = dict(resources) if isinstance(resources, Mapping) else {}
    for key in ("requests", "limits"):
        values = given.pop(key, None)
        others = (
            {name: value for name, value in values.items() if not is_gpu(name)} if isinstance(values, Mapping) else {}
        )
        given |= {key: {**others, **gpus}} if others or gpus else {}
    return {**container, "resources": given}


def _given(value: Any) -> Any:
    """Leave out what is empty: it would only take away what lies below."""
    if isinstance(value, dict):
        return {key: _given(item) for key, item in value.items() if item not in ({}, [])}
    return value


def _own_labels(owner: Owner, names: EngineNames, role: Role, shape: Shape) -> dict[str, str]:
    own = {**engine_labels(owner, names.index), LABEL_COMPONENT: role.value}
    if not shape.with_ray:
        own[identity.LABEL_WORKLOAD] = names.ray_cluster
    return {**own, identity.LABEL_LEAD: "true"} if role is Role.LEAD else own


def _service_account(spec: VLLMDeploymentSpec, names: EngineNames, role: Role) -> str:
    if spec.pod.service_account_name:
        return spec.pod.service_account_name
    return "" if role is Role.WORKER else names.service_account


def _head_scheduling(head: RayHead) -> dict[str, Any]:
    return {
        "nodeSelector": dict(head.node_selector),
        "tolerations": [dict(item) for item in head.tolerations],
        "affinity": dict(head.affinity or {}),
    }


def _own_scheduling(pod: Pod) -> dict[str, Any]:
    return {
        "nodeSelector": dict(pod.node_selector),
        "tolerations": [dict(item) for item in pod.tolerations],
        "affinity": dict(pod.affinity or {}),
    }


def _scheduling(pod: Pod, shape: Shape, group: PodShape, owner: Owner, names: EngineNames) -> dict[str, Any]:
    ours: dict[str, Any] = {}
    if shape.pods > 1:
        ours = _strategy_affinity(shape.strategy, owner, names)
    if group.nodes:
        ours |= _towards(group.nodes)
    own = _own_scheduling(pod)
    return {**own, "affinity": _both(ours, own["affinity"])}


def _towards(nodes: Sequence[str]) -> dict[str, Any]:
    """Prefer the planned nodes: only prefer, because a node that is gone must not keep the engine away."""
    terms = [
        # A match of fields takes one value only.
        {"weight": 100, "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}}
        for node in nodes
    ]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}


def _both(ours: Any, theirs: Any) -> Any:
    """Join two affinities, terms and all: a user's own term must not undo the strategy."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return {**ours, **{key: _both(ours[key], value) if key in ours else value for key, value in theirs.items()}}
    if isinstance(ours, list) and isinstance(theirs, list):
        return [*ours, *theirs]
    return theirs


def _strategy_affinity(strategy: Strategy, owner: Owner, names: EngineNames) -> dict[str, Any]:
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {
            "matchLabels": {
                identity.LABEL_DEPLOYMENT: owner.name,
                identity.LABEL_ENGINE: str(names.index),
            },
            "matchExpressions": [
                {"key": LABEL_COMPONENT, "operator": "In", "values": [Role.LEAD.value, Role.WORKER.value]}
            ],
        },
    }
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
    match strategy:
        case Strategy.STRICT_SPREAD:
            return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        case Strategy.SPREAD:
            return {"podAntiAffinity": preferred}
        case Strategy.PACK | Strategy.STRICT_PACK:
            return {"podAffinity": preferred}


def _environment(names: EngineNames, location: ModelLocation, shape: Shape) -> list[dict[str, Any]]:
    return [
        # Ray's and vLLM's idea of a pod's address must be one and the same: https://github.com/vllm-project/vllm/issues/13388
        {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": contract.POD_NAME_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": contract.NODE_NAME_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        *(_ray_environment(names) if shape.with_ray else ()),
        *({"name": name, "value": value} for name, value in location.environment),
    ]


def _token_environment(spec: VLLMDeploymentSpec, role: Role) -> list[dict[str, Any]]:
    """Name the file of the hub's token to Hugging Face's libraries: a variable would be read by whoever reads /proc."""
    if role is Role.HEAD or not spec.model.hf_token_secret:
        return []
    return [{"name": "HF_TOKEN_PATH", "value": contract.HF_TOKEN_FILE}]


def _drain_environment(spec: VLLMDeploymentSpec, shape: Shape) -> list[dict[str, Any]]:
    """Say how long to drain when the pod is asked to end; where there is Ray, nobody in the pod hears of that."""
    if shape.with_ray:
        return []
    return [{"name": contract.DRAIN_VARIABLE, "value": str(spec.drain.timeout_seconds)}]


def _standalone_grace(spec: VLLMDeploymentSpec) -> int:
    return spec.drain.timeout_seconds + STANDALONE_GRACE_SECONDS


def _ray_environment(names: EngineNames) -> list[dict[str, Any]]:
    token = {"secretKeyRef": {"name": names.secret, "key": "auth_token"}}
    return [
        # KubeRay's authOptions exist only from 1.5.1 on: the same by hand works with every version.
        {"name": "RAY_AUTH_MODE", "value": "token"},
        {"name": "RAY_AUTH_TOKEN", "valueFrom": token},
        # The pod's memory limit is the judge; Ray's own monitor counts /dev/shm twice.
        {"name": "RAY_memory_monitor_refresh_ms", "value": "0"},
        {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"},
        # Ray starts its workers with a niceness of 15, and the launcher and the ranks would inherit it.
        {"name": "RAY_worker_niceness", "value": "0"},
    ]


def _ports(role: Role, shape: Shape) -> tuple[tuple[str, int], ...]:
    if not shape.with_ray:
        return (("http", contract.HTTP_PORT), ("supervisor", contract.SUPERVISOR_PORT))
    match role:
        case Role.HEAD:
            return HEAD_PORTS
        case Role.LEAD:
            return (("http", contract.HTTP_PORT), ("supervisor", contract.SUPERVISOR_PORT), ("metrics", 8080))
        case Role.WORKER:
            return (("metrics", 8080),)


def _resources(spec: VLLMDeploymentSpec, group: PodShape | None) -> dict[str, Any]:
    if group is None:
        return _head_resources(spec.ray_head)
    return _plain(spec.pod.resources) if spec.pod.resources else {}


def _head_resources(head: RayHead) -> dict[str, Any]:
    if head.resources:
        return _plain(head.resources)
    return {"requests": {"cpu": "1", "memory": "4Gi"}, "limits": {"memory": "4Gi"}}


def _plain(resources: Resources) -> dict[str, dict[str, str]]:
    return {"requests": dict(resources.requests), "limits": dict(resources.limits)}


def _probes(role: Role, shape: Shape) -> dict[str, Any]:
    """Give the probes; without own ones KubeRay injects ``wget`` into images that have none (kuberay#2063)."""
    alive = AGENT_PORT if shape.with_ray else contract.SUPERVISOR_PORT
    match role:
        case Role.HEAD:
            return {
                "readinessProbe": _tcp(6379, period=2, failures=5),
                "livenessProbe": _tcp(6379, period=10, failures=12, delay=30),
            }
        case Role.LEAD:
            # The engine's own word, through the supervisor: the Service follows it with no operator involved.
            ready = {"httpGet": {"path": "/readyz", "port": contract.SUPERVISOR_PORT}, "periodSeconds": 1}
            return {
                "readinessProbe": {**ready, "timeoutSeconds": 1, "failureThreshold": 1, "successThreshold": 1},
                "livenessProbe": _tcp(alive, period=10, failures=60, delay=30),
            }
        case Role.WORKER:
            return {
                "readinessProbe": _tcp(AGENT_PORT, period=5, failures=10),
                "livenessProbe": _tcp(AGENT_PORT, period=10, failures=60, delay=30),
            }


def _tcp(port: int, *, period: int, failures: int, delay: int = 0) -> dict[str, Any]:
    return {
        "tcpSocket": {"port": port},
        "initialDelaySeconds": delay,
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _mounts(spec: VLLMDeploymentSpec, location: ModelLocation, role: Role, shape: Shape) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [{"name": SHM_VOLUME, "mountPath": "/dev/shm"}]  # noqa: S108
    if not shape.with_ray:
        mounts.append({"name": "code", "mountPath": CODE_DIR, "readOnly": True})
    if location.mount_path and role is not Role.HEAD:
        mounts.append({"name": "model", "mountPath": location.mount_path, "readOnly": location.read_only})
    if spec.model.hf_token_secret and role is not Role.HEAD:
        mounts.append({"name": "hf-token", "mountPath": HF_TOKEN_DIR, "readOnly": True})
    if role is not Role.HEAD:
        mounts += lora.mounts(spec)
    if role is Role.LEAD:
        mounts.append({"name": "control", "mountPath": f"{contract.RUN_DIR}/control", "readOnly": True})
        if environment_files(spec):
            mounts.append({"name": "env", "mountPath": contract.ENV_DIR, "readOnly": True})
        if spec.api_key_secret:
            mounts.append({"name": "api-key", "mountPath": API_KEY_DIR, "readOnly": True})
        mounts += [
            {"name": f"env-from-{index}", "mountPath": f"{contract.ENV_FROM_DIR}/{index}", "readOnly": True}
            for index in range(len(spec.env_from))
        ]
    return mounts


def _volumes(
    spec: VLLMDeploymentSpec, names: EngineNames, location: ModelLocation, role: Role, shape: Shape
) -> list[dict[str, Any]]:
    shm = HEAD_SHM if role is Role.HEAD else str(spec.pod.shm_size or DEFAULT_SHM)
    volumes: list[dict[str, Any]] = [{"name": SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": shm}}]
    if not shape.with_ray:
        volumes.append({"name": "code", "configMap": {"name": names.code}})
    if location.mount_path and role is not Role.HEAD:
        volumes.append(location.volume)
    if (token := spec.model.hf_token_secret) and role is not Role.HEAD:
        items = [{"key": token.key, "path": HF_TOKEN_NAME}]
        volumes.append({"name": "hf-token", "secret": {"secretName": token.name, "items": items}})
    if role is not Role.HEAD:
        volumes += lora.volumes(spec)
    if role is Role.LEAD:
        volumes.append(
            {
                "name": "control",
                "secret": {
                    "secretName": names.secret,
                    "items": [{"key": "control_token", "path": contract.CONTROL_TOKEN_FILE.rsplit("/", 1)[1]}],
                },
            }
        )
        if sources := environment_files(spec):
            volumes.append({"name": "env", "projected": {"sources": list(sources.values())}})
        if key := spec.api_key_secret:
            items = [{"key": key.key, "path": API_KEY_NAME}]
            volumes.append({"name": "api-key", "secret": {"secretName": key.name, "items": items}})
        volumes += [_env_from_volume(index, source) for index, source in enumerate(spec.env_from)]
    return volumes


def environment_files(spec: VLLMDeploymentSpec) -> dict[str, dict[str, Any]]:
    """Give, for each variable whose value is a Secret's or ConfigMap's, the projection that makes it a file."""
    return {variable.name: _projection(variable) for variable in spec.env if variable.value_from}


def _projection(variable: EnvVar) -> dict[str, Any]:
    assert variable.value_from is not None  # noqa: S101 - the caller filtered
    secret, config = variable.value_from.secret_key_ref, variable.value_from.config_map_key_ref
    kind, source = ("secret", secret) if secret else ("configMap", config)
    assert source is not None  # noqa: S101 - admission demands exactly one
    return {
        kind: {
            "name": source.name,
            "items": [{"key": source.key, "path": variable.name}],
            "optional": source.optional,
        }
    }


def _env_from_volume(index: int, source: EnvFromSource) -> dict[str, Any]:
    name = f"env-from-{index}"
    if source.secret_ref:
        return {"name": name, "secret": {"secretName": source.secret_ref.name, "optional": source.secret_ref.optional}}
    assert source.config_map_ref is not None  # noqa: S101 - admission demands exactly one
    return {"name": name, "configMap": {"name": source.config_map_ref.name, "optional": source.config_map_ref.optional}}
