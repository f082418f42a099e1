"""The Deployment of one engine without Ray: one pod, which is its own lead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_operator.api import identity
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.planning.shapes import Shape
from vllm_operator.resources.defaults import RuntimeDefaults
from vllm_operator.resources.names import EngineNames, Owner, engine_labels, metadata
from vllm_operator.resources.pod import CODE_FILE, Role, pod_template

API_VERSION = "apps/v1"
KIND = "Deployment"


def deployment_spec(
    *, spec: VLLMDeploymentSpec, shape: Shape, owner: Owner, names: EngineNames, defaults: RuntimeDefaults
) -> dict[str, Any]:
    """Render the Deployment's ``spec``; kept in the revision, so that an upgrade of ours changes no live engine."""
    (group,) = shape.groups
    return {
        "replicas": 1,
        "revisionHistoryLimit": 0,
        # A second pod beside the first would wait for GPUs that the first holds.
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": {identity.LABEL_WORKLOAD: names.ray_cluster}},
        "template": pod_template(
            spec=spec, shape=shape, owner=owner, names=names, defaults=defaults, role=Role.LEAD, group=group
        ),
    }


def deployment(*, owner: Owner, names: EngineNames, revision: str, rendering: dict[str, Any]) -> dict[str, Any]:
    """Build the Deployment object of an engine from its revision's rendering."""
    tags = {**engine_labels(owner, names.index), identity.LABEL_REVISION: revision}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata(owner, names.ray_cluster, tags),
        "spec": rendering,
    }


def code_config_map(owner: Owner, names: EngineNames) -> dict[str, Any]:
    """Build the ConfigMap of the code that the pod runs, still without the code: see :func:`with_code`."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(owner, names.code, engine_labels(owner, names.index)),
        "immutable": True,
    }


def with_code(body: Mapping[str, Any], code: str) -> dict[str, Any]:
    """Give the ConfigMap with the code: a zip archive, base64."""
    return {**body, "binaryData": {CODE_FILE: code}}
