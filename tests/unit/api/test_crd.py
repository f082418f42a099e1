"""The generated CRD: up to date, structural, bounded, and what it promises to tools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import BaseModel, Field

from vllm_operator.api import crd, identity
from vllm_operator.api.crd import UnsupportedSchemaError, structural_schema

ROOT = Path(__file__).parents[3]
COMMITTED = ROOT / "crds" / f"{identity.CRD_NAME}.yaml"
CHART_COPY = ROOT / "helm" / "vllm-operator" / "templates" / "crds" / f"{identity.CRD_NAME}.yaml"

Schema = dict[str, Any]


@pytest.fixture(scope="module")
def version() -> Schema:
    only: Schema
    (only,) = crd.custom_resource_definition()["spec"]["versions"]
    return only


@pytest.fixture(scope="module")
def schema(version: Schema) -> Schema:
    root: Schema = version["schema"]["openAPIV3Schema"]
    return root


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


def test_committed_files_are_up_to_date(tmp_path: Path) -> None:
    assert crd.main(["--check", str(COMMITTED), str(CHART_COPY)]) == 0, "run: make generate"


def test_check_writes_nothing_and_generate_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "crds" / "crd.yaml"
    assert crd.main(["--check", str(file)]) == 1
    assert str(file) in capsys.readouterr().err
    assert not file.exists()
    assert crd.main([str(file)]) == 0
    assert crd.main(["--check", str(file)]) == 0


def test_is_generated_and_small() -> None:
    text = COMMITTED.read_text()
    assert text.startswith("# generated")
    assert len(text) < 100_000, "kubectl apply keeps it in an annotation of at most 262144 bytes"
    assert yaml.safe_load(text) == crd.custom_resource_definition()


def test_every_node_is_structural(schema: Schema) -> None:
    for path, node in nodes(schema):
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert not node.keys() & {"$ref", "$defs", "title", "oneOf", "allOf", "const", "nullable"}, path
        assert "anyOf" not in node or node.get("x-kubernetes-int-or-string"), path
        assert node.get("additionalProperties") is not False, path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert isinstance(node.get("exclusiveMinimum", True), bool), path


def test_every_node_is_bounded(schema: Schema) -> None:
    for path, node in nodes(schema):
        if path in ("", ".apiVersion", ".kind", ".metadata"):
            continue
        match node.get("type"):
            case "string":
                assert "enum" in node or "maxLength" in node, path
            case "array":
                assert "maxItems" in node, path
            case "integer":
                assert {"minimum", "maximum", "format"} <= node.keys(), path
            case "object":
                assert "additionalProperties" not in node or "maxProperties" in node, path


def test_lists_say_how_they_merge(schema: Schema) -> None:
    for path, node in nodes(schema):
        if node.get("type") != "array":
            continue
        assert node.get("x-kubernetes-list-type") in ("atomic", "map", "set"), path
        for key in node.get("x-kubernetes-list-map-keys", ()):
            assert key in node["items"]["required"] or "default" in node["items"]["properties"][key], path


def test_rules_have_a_message(schema: Schema) -> None:
    rules = [rule for _, node in nodes(schema) for rule in node.get("x-kubernetes-validations", ())]
    assert len(rules) >= 10
    assert all(rule["message"] for rule in rules)


def test_defaults(schema: Schema) -> None:
    spec, status = schema["properties"]["spec"], schema["properties"]["status"]
    defaults = {path: node["default"] for path, node in nodes(spec) if "default" in node}
    assert defaults == {
        ".model.hfTokenSecret.key": "token",
        ".rayClusterRef.authSecret.key": "auth_token",
        ".image": "",
        ".replicas": 1,
        ".distributedExecutorBackend": "auto",
        ".parallelism.data": 1,
        ".parallelism.expert": False,
        ".suspend": False,
        ".planOnly": False,
        ".placement": {},  # else the next one would not be filled in
        ".placement.strategy": "PACK",
        ".drain": {},
        ".drain.timeoutSeconds": 60,
        ".env[].valueFrom.secretKeyRef.optional": False,
        ".env[].valueFrom.configMapKeyRef.optional": False,
        ".envFrom[].prefix": "",
        ".envFrom[].secretRef.optional": False,
        ".envFrom[].configMapRef.optional": False,
    }
    assert [(path, node["default"]) for path, node in nodes(status) if "default" in node] == [
        ("", {"observedGeneration": -1})
    ]


def test_what_tools_rely_on(version: Schema, schema: Schema) -> None:
    assert schema["required"] == ["spec"]
    assert version["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }
    for path in version["subresources"]["scale"].values():
        node = schema
        for name in path.strip(".").split("."):
            node = node["properties"][name]
    columns = {column["name"]: column for column in version["additionalPrinterColumns"]}
    assert list(columns) == ["Ready", "Reason", "Model", "Serving", "Desired", "URL", "Age"]
    assert columns["URL"]["priority"] == 1
    names = crd.custom_resource_definition()["spec"]["names"]
    assert names["shortNames"] == ["vllm"]


def test_chart_copy_is_the_same_crd() -> None:
    text = "".join(line for line in CHART_COPY.read_text().splitlines(keepends=True) if "{{" not in line)
    copy = yaml.safe_load(text)
    assert copy["spec"] == crd.custom_resource_definition()["spec"]
    assert copy["metadata"]["name"] == identity.CRD_NAME


class Union(BaseModel):
    value: int | str


class Tagged(BaseModel):
    value: Literal["a"] | None = None


class Unbounded(BaseModel):
    value: int


class Free(BaseModel):
    value: dict[str, object]


class Odd(BaseModel):
    value: float = Field(multiple_of=0.5)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Union, "a union of 2 types"),
        (Unbounded, "needs a lower and an upper bound"),
        (Free, "x-kubernetes-preserve-unknown-fields"),
        (Odd, "no place in a structural schema for multipleOf"),
    ],
)
def test_refuses_what_a_crd_cannot_say(model: type[BaseModel], words: str) -> None:
    with pytest.raises(UnsupportedSchemaError, match=words):
        structural_schema(model)


def test_one_value_is_an_enum() -> None:
    assert structural_schema(Tagged)["properties"]["value"] == {"type": "string", "enum": ["a"]}
