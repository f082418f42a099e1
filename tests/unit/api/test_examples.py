"""Examples are read by users first: each is valid for the models and, field for field, for the CRD."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.unit.api.structural import violations

from vllm_operator.api.crd import custom_resource_definition
from vllm_operator.api.identity import API_VERSION, KIND
from vllm_operator.api.spec import VLLMDeploymentSpec

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


def test_there_are_some() -> None:
    assert {"smollm2-pipeline.yaml", "llama-8b-single-gpu.yaml"} <= {example.name for example in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_example(example: Path) -> None:
    text = example.read_text()
    assert text.startswith("# "), "an example says what it is for"
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for document in yaml.safe_load_all(text):
        assert (document["apiVersion"], document["kind"]) == (API_VERSION, KIND)
        assert list(violations(document, schema)) == []
        VLLMDeploymentSpec.model_validate(document["spec"])


def test_the_schema_check_sees_a_typo() -> None:
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    bad = {"spec": {"model": {"uri": "hf://a/b"}, "parallelism": {"tensor": 0}, "replica": 1}}
    assert set(violations(bad, schema)) == {".spec.replica: unknown field", ".spec.parallelism.tensor: minimum is 1"}


def test_the_demo_knows_nothing_of_the_test_bed() -> None:
    (demo,) = yaml.safe_load_all((EXAMPLES[0].parent / "smollm2-pipeline.yaml").read_text())
    assert "image" not in demo["spec"]
    assert "template" not in demo["spec"]["pod"]
