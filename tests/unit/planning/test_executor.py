"""Which executor: Ray only where one pod does not do it, or where it is asked for; and why."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.planning.catalogue import BUILT_IN
from vllm_operator.planning.inventory import GpuNode
from vllm_operator.planning.plan import NoSuchGPUsError, plan

NODES = [GpuNode(name="a", gpus=4), GpuNode(name="b", gpus=4)]


def spec(**parts: Any) -> VLLMDeploymentSpec:
    return VLLMDeploymentSpec.model_validate({"model": {"uri": "file:///m"}, **parts})


@pytest.mark.parametrize(
    ("parts", "executor", "why"),
    [
        ({}, "uni", "one GPU does it"),
        ({"parallelism": {"tensor": 2}}, "mp", "one pod of 2 GPUs does it"),
        ({"parallelism": {"tensor": 2, "pipeline": 2}}, "mp", "one pod of 4 GPUs does it"),
        ({"parallelism": {"tensor": 2}, "placement": {"strategy": "STRICT_PACK"}}, "mp", "would only add a layer"),
        ({"parallelism": {"tensor": 8}}, "ray", "8 ranks over 2 pods"),
        ({"parallelism": {"tensor": 2}, "placement": {"gpusPerPod": 1}}, "ray", "2 ranks over 2 pods"),
        ({"parallelism": {"data": 2}}, "ray", "2 data parallel ranks of 1 over 1 pod"),
        ({"parallelism": {"tensor": 2, "data": 4}}, "ray", "4 data parallel ranks of 2 over 2 pods"),
        ({"placement": {"strategy": "SPREAD"}}, "ray", "SPREAD asks for a placement group"),
        ({"rayHead": {"nodeSelector": {"pool": "cpu"}}}, "ray", "rayHead asks for a Ray cluster"),
        ({"distributedExecutorBackend": "ray"}, "ray", "as the spec says"),
        ({"distributedExecutorBackend": "mp"}, "mp", "as the spec says"),
        ({"distributedExecutorBackend": "uni"}, "uni", "as the spec says"),
    ],
)
def test_the_executor_and_why(parts: dict[str, Any], executor: str, why: str) -> None:
    planned = plan(spec(**parts), NODES, BUILT_IN)
    assert planned.shape.executor == executor
    assert why in planned.survey.executor_reason
    assert planned.shape.with_ray is (executor == "ray")
    assert planned.shape.with_ray or planned.shape.pods == 1


def test_mp_is_never_spread_over_nodes() -> None:
    with pytest.raises(NoSuchGPUsError, match="STRICT_PACK of 8 GPUs cannot fit"):
        plan(spec(distributedExecutorBackend="mp", parallelism={"tensor": 8}), NODES, BUILT_IN)


def test_uni_leaves_no_size_to_choose() -> None:
    facts = {"uri": "file:///m", "facts": {"parameters": "30B"}}
    nodes = [GpuNode(name="a", gpus=8, product="NVIDIA-L40S")]
    with pytest.raises(NoSuchGPUsError):
        plan(spec(model=facts, distributedExecutorBackend="uni"), nodes, BUILT_IN)
    assert plan(spec(model=facts), nodes, BUILT_IN).shape.executor == "mp"
