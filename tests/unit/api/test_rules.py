"""The models' verdict on good and bad specs; ``tests/contract`` asks the API server for its own on the same."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from tests.unit.api.cases import ACCEPTED, REFUSED, Case

from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.api.vllm_config import OPERATOR_ARGUMENTS, refused_argument


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.name)
def test_accepts(case: Case) -> None:
    VLLMDeploymentSpec.model_validate(case.whole_spec())


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_refuses(case: Case) -> None:
    with pytest.raises(ValidationError) as refusal:
        VLLMDeploymentSpec.model_validate(case.whole_spec())
    assert (case.model_refuses or case.refused) in str(refusal.value)


def test_a_number_is_a_quantity() -> None:
    spec = VLLMDeploymentSpec.model_validate(
        {"model": {"uri": "hf://a/b"}, "rayHead": {"resources": {"limits": {"cpu": 2, "memory": "2Gi"}}}}
    )
    assert spec.ray_head.resources is not None
    assert spec.ray_head.resources.limits == {"cpu": "2", "memory": "2Gi"}


@pytest.mark.parametrize("name", OPERATOR_ARGUMENTS)
def test_every_spelling_of_an_operator_argument_is_refused(name: str) -> None:
    dashes = "--" if len(name) > 3 else "-"
    for argument in (f"{dashes}{name}", f"{dashes}{name}=1", f"--{name.replace('-', '_')}"):
        assert refused_argument(argument) == name


@pytest.mark.parametrize("argument", ["2048", "--", "-q", "--enforce-eager", "-cc.mode=2", "--seed=1", "-ep", "host"])
def test_other_arguments_are_not(argument: str) -> None:
    assert refused_argument(argument) is None
