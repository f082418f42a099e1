"""What an engine is told: vLLM's arguments, the environment of its ranks, and the plan of one attempt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from vllm_bootstrap import contract
from vllm_operator.api.pods import EnvFromSource
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.api.vllm_config import VLLMConfig
from vllm_operator.planning.shapes import Shape
from vllm_operator.resources import lora
from vllm_operator.resources.access import CONTROL_TOKEN_KEY
from vllm_operator.resources.model import hub_part, locate
from vllm_operator.resources.names import EngineNames, Owner
from vllm_operator.resources.pod import environment_files
from vllm_operator.resources.tenancy import Tenancy, auth_of


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One launch of an engine on one Ray session."""

    number: int
    ray_session: str


def engine_part(
    *,
    spec: VLLMDeploymentSpec,
    shape: Shape,
    owner: Owner,
    checkpoint_bytes: int = 0,
    pod: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Render what vLLM is told; kept in the revision, equal for all engines of it.

    Parameters
    ----------
    checkpoint_bytes
        Size of the checkpoint that was planned for; 0 when nothing is known of the model.
    pod
        Rendered ``spec`` of its lead pod, where the model's volume may be bounded.
    """
    location = locate(spec.model)
    served = spec.model.name or owner.name
    return {
        "model": location.argument,
        "servedName": served,
        "tensor": shape.tensor,
        "pipeline": shape.pipeline,
        "executor": shape.executor.value,
        "strategy": shape.strategy.value,
        "checkpointBytes": checkpoint_bytes,
        "groups": [{"name": group.name, "pods": group.pods, "gpus": group.gpus} for group in shape.groups],
        "arguments": arguments(spec, shape),
        "environment": {variable.name: variable.value or "" for variable in spec.env if not variable.value_from},
        "environmentFiles": sorted(environment_files(spec)),
        "environmentPrefixes": [source.prefix for source in spec.env_from],
        **({"apiKey": True} if spec.api_key_secret else {}),
        **({"data": shape.data} if shape.data > 1 else {}),
        **({"expert": True} if shape.expert else {}),
        **({"hub": hub} if (hub := hub_part(spec.model, pod or {})) else {}),
        **({"hubToken": True} if spec.model.hf_token_secret else {}),
        **({"lora": True} if spec.lora is not None else {}),
        **(_shared_part(spec, shape) if spec.ray_cluster_ref else {}),
    }


def _shared_part(spec: VLLMDeploymentSpec, shape: Shape) -> dict[str, Any]:
    """Render what only an engine on a shared RayCluster is told: what it reads itself, as nothing is mounted for it."""
    reference = spec.ray_cluster_ref
    assert reference is not None  # noqa: S101 - the caller looked
    return {
        "rayCluster": {"name": reference.name, "authSecret": asdict(auth_of(reference))},
        "nodeSelector": dict(shape.node_selector),
        "references": asdict(references(spec)),
    }


def references(spec: VLLMDeploymentSpec) -> contract.References:
    """Give the Secrets and ConfigMaps that an engine on a shared RayCluster reads itself, the control token apart."""
    key = spec.api_key_secret
    environment: dict[str, contract.Reference] = {}
    for variable in spec.env:
        if source := variable.value_from:
            found = source.secret_key_ref or source.config_map_key_ref
            assert found is not None  # noqa: S101 - one of the two is there
            kind = "Secret" if source.secret_key_ref else "ConfigMap"
            environment[variable.name] = contract.Reference(
                kind=kind, name=found.name, key=found.key, optional=found.optional
            )
    return contract.References(
        api_key=contract.Reference(kind="Secret", name=key.name, key=key.key) if key else contract.Reference(),
        environment=environment,
        sources=tuple(_source(item) for item in spec.env_from),
    )


def _source(item: EnvFromSource) -> contract.Reference:
    found = item.secret_ref or item.config_map_ref
    assert found is not None  # noqa: S101 - one of the two is there
    kind = "Secret" if item.secret_ref else "ConfigMap"
    return contract.Reference(kind=kind, name=found.name, optional=found.optional, prefix=item.prefix)


def read_references(part: Mapping[str, Any]) -> contract.References:
    """Read the references of a revision's engine part."""
    return contract.loads(contract.References, json.dumps(part.get("references", {})))


def arguments(spec: VLLMDeploymentSpec, shape: Shape) -> list[str]:
    """Give the arguments for vLLM's own parser: the fields', then ``extraArgs``.

    What follows from the plan (model, parallel sizes, executor, address) the launcher puts in front.
    """
    fields = _field_arguments(spec.vllm_config, shape)
    return [*fields, *lora.arguments(spec.lora), *spec.vllm_config.extra_args]


def _field_arguments(config: VLLMConfig, shape: Shape) -> list[str]:
    fields = {
        "max-model-len": config.max_model_len,
        "gpu-memory-utilization": config.gpu_memory_utilization or shape.gpu_memory_utilization,
        "dtype": config.dtype,
        "quantization": config.quantization,
        "kv-cache-dtype": config.kv_cache_dtype,
        "max-num-seqs": config.max_num_seqs,
    }
    return [f"--{name}={value}" for name, value in fields.items() if value is not None]


def engine_plan(
    *,
    owner: Owner,
    names: EngineNames,
    revision: str,
    part: Mapping[str, Any],
    attempt: Attempt,
    deadlines: contract.Deadlines,
    hub: str,
    adapters: tuple[contract.Adapter, ...] = (),
) -> contract.EnginePlan:
    """Complete a revision's engine part to the plan of one attempt.

    Parameters
    ----------
    hub
        Address of the hub: the installation's, not the revision's.
    adapters
        LoRA adapters that are wanted now; they are no part of a revision.
    """
    return contract.EnginePlan(
        deployment=owner.name,
        namespace=owner.namespace,
        uid=owner.uid,
        engine=names.engine,
        revision=revision,
        attempt=attempt.number,
        ray_session=attempt.ray_session,
        model=part["model"],
        served_name=part["servedName"],
        tensor=part["tensor"],
        pipeline=part["pipeline"],
        strategy=part["strategy"],
        checkpoint_bytes=part.get("checkpointBytes", 0),
        api_key_file=contract.API_KEY_FILE if part.get("apiKey") else "",
        source=contract.HubSource(endpoint=hub, **part["hub"]) if "hub" in part else contract.HubSource(),
        hub_token_file=contract.HF_TOKEN_FILE if part.get("hubToken") else "",
        adapters=adapters if part.get("lora") else (),
        executor=part.get("executor", "ray"),
        data=part.get("data", 1),
        expert=part.get("expert", False),
        groups=tuple(contract.PodGroup(**group) for group in part["groups"]),
        placement_group=names.placement_group,
        supervisor=names.supervisor,
        instance_id=f"{owner.name}-{owner.uid[:8]}-{names.engine}-{attempt.number}",
        report=contract.ReportTarget(namespace=owner.namespace, config_map=names.report),
        arguments=tuple(part["arguments"]),
        environment=dict(part["environment"]),
        environment_files=tuple(part["environmentFiles"]),
        environment_sources=tuple(
            contract.EnvironmentSource(directory=f"{contract.ENV_FROM_DIR}/{index}", prefix=prefix)
            for index, prefix in enumerate(part["environmentPrefixes"])
        ),
        deadlines=deadlines,
    )


HEARTBEAT_SECONDS = 10.0
"""Of an engine that no probe of ours asks; each is a write of its report, and a round of the operator."""


def shared_plan(
    plan: contract.EnginePlan,
    tenancy: Tenancy,
    seats: Sequence[contract.Seat],
    *,
    names: EngineNames,
    part: Mapping[str, Any],
) -> contract.EnginePlan:
    """Complete the plan of an engine on a shared RayCluster: its seats and ports, and what it reads itself."""
    control = contract.Reference(kind="Secret", name=names.secret, key=CONTROL_TOKEN_KEY)
    return replace(
        plan,
        seats=tuple(seats),
        http_port=tenancy.http_port,
        supervisor_port=tenancy.supervisor_port,
        references=replace(read_references(part), control_token=control),
        api_key_file="",
        environment_files=(),
        environment_sources=(),
        heartbeat=HEARTBEAT_SECONDS,
    )
