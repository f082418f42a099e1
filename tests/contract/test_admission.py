"""What a real API server says to good and bad input, with the generated CRD and nothing else.

The models are asked the same in ``tests/unit/api/test_rules.py``: a spec that only one of them takes would be lost
after it was accepted, or be refused with no reason in its status.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from tests.testbed.bed import Bed
from tests.testbed.errors import BedError
from tests.unit.api.cases import BAD_NAMES, CASES, GOOD_NAMES, MODEL, NAME_REFUSAL, Case
from tests.unit.api.random_specs import random_spec

from vllm_operator.api.identity import API_VERSION, KIND
from vllm_operator.api.spec import VLLMDeploymentSpec, explain

pytestmark = pytest.mark.contract

ROOT = Path(__file__).parents[2]

Create = Callable[..., str]


@pytest.fixture
def create(bed: Bed, crd: None, namespace: str) -> Create:
    def created(spec: Any, *, name: str = "demo", keep: bool = False) -> str:
        manifest = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}
        dry = [] if keep else ["--dry-run=server"]
        return bed.kubectl(
            "create", *dry, "--validate=strict", "-n", namespace, "-o", "json", "-f", "-", stdin=json.dumps(manifest)
        )

    return created


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdict(create: Create, case: Case) -> None:
    if not case.refused:
        create(case.whole_spec())
        return
    with pytest.raises(BedError) as refusal:
        create(case.whole_spec())
    assert case.refused in str(refusal.value)


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_good_name(create: Create, name: str) -> None:
    create({"model": MODEL}, name=name)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_name(create: Create, name: str) -> None:
    with pytest.raises(BedError) as refusal:
        create({"model": MODEL}, name=name)
    assert NAME_REFUSAL in str(refusal.value)
    assert "at most 40 characters" in str(refusal.value)


RANDOM_SPECS = 300
ONLY_MODELS = ("the operator sets it itself", "would override", "nested more than")
"""What a rule of the API server could not say: inside free forms, and beginnings of options (see ``only_models``)."""
ONLY_SERVER = ("must be of type", "must be an integer")
"""The models take "2" and true for numbers."""


def test_random_specs_have_one_verdict(bed: Bed, crd: None, namespace: str) -> None:
    specs = {f"r{seed}": random_spec(random.Random(seed)) for seed in range(RANDOM_SPECS)}  # noqa: S311
    bodies = [
        {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}
        for name, spec in specs.items()
    ]
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies})
    # Unknown fields are dropped, as by a client that does not ask: the models drop them, too.
    options = ("--dry-run=server", "--validate=false", "-o", "name", "-n", namespace)
    with pytest.raises(BedError) as refusals:
        bed.kubectl("create", *options, "-f", "-", stdin=manifest, timeout=300)
    refused = dict(re.findall(r'"(r\d+)" is invalid: ((?:(?!Error from server).)*)', str(refusals.value), re.DOTALL))
    assert len(refused) == str(refusals.value).count("Error from server"), str(refusals.value)[:2000]
    told: dict[str, str] = {}
    for name, spec in specs.items():
        try:
            VLLMDeploymentSpec.model_validate(spec)
        except ValidationError as error:
            told[name] = explain(error)
    assert {name: told[name] for name in told.keys() - refused.keys() if not _is_known(told[name], ONLY_MODELS)} == {}
    assert {
        name: refused[name] for name in refused.keys() - told.keys() if not _is_known(refused[name], ONLY_SERVER)
    } == {}
    assert RANDOM_SPECS * 0.5 < RANDOM_SPECS - len(refused) < RANDOM_SPECS * 0.9, "most are valid, many are not"


def _is_known(told: str, asymmetries: tuple[str, ...]) -> bool:
    return any(words in told for words in asymmetries)


def test_unknown_field(create: Create) -> None:
    with pytest.raises(BedError, match=r'unknown field "spec.replica"'):
        create({"model": MODEL, "replica": 2})


def test_spec_is_required(bed: Bed, crd: None, namespace: str) -> None:
    manifest = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "demo"}}
    with pytest.raises(BedError, match="spec: Required value"):
        bed.kubectl("create", "--dry-run=server", "-n", namespace, "-f", "-", stdin=json.dumps(manifest))


def test_defaults_are_filled_in(create: Create) -> None:
    made = json.loads(create({"model": MODEL}))
    assert made["spec"] == {
        "model": MODEL,
        "image": "",
        "replicas": 1,
        "distributedExecutorBackend": "auto",
        "placement": {"strategy": "PACK"},
        "drain": {"timeoutSeconds": 60},
        "suspend": False,
        "planOnly": False,
    }


def test_fresh_object_is_not_done_and_scales(bed: Bed, create: Create, namespace: str) -> None:
    create({"model": MODEL}, name="fresh", keep=True)
    assert bed.api.json("get", "vllm", "fresh", "-n", namespace)["status"] == {"observedGeneration": -1}
    bed.kubectl("scale", "vllm", "fresh", "-n", namespace, "--replicas=3")
    assert bed.api.json("get", "vllm", "fresh", "-n", namespace)["spec"]["replicas"] == 3
    # A write of the status reaches no spec and moves no generation.
    both = {"status": {"observedGeneration": 2, "replicas": 1, "selector": "a=b"}, "spec": {"replicas": 9}}
    patch = ["patch", "vllm", "fresh", "-n", namespace, "--subresource=status", "--type=merge"]
    bed.kubectl(*patch, "-p", json.dumps(both))
    after = bed.api.json("get", "vllm", "fresh", "-n", namespace)
    assert after["spec"]["replicas"] == 3
    assert after["metadata"]["generation"] == 2
    scale = bed.api.json("get", "vllm", "fresh", "-n", namespace, "--subresource=scale")
    assert scale["status"] == {"replicas": 1, "selector": "a=b"}
    line = bed.kubectl("get", "vllm", "-n", namespace)
    assert line.split("\n")[0].split() == ["NAME", "READY", "REASON", "MODEL", "SERVING", "DESIRED", "AGE"]


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_example(bed: Bed, crd: None, namespace: str, example: Path) -> None:
    bed.kubectl("create", "--dry-run=server", "--validate=strict", "-n", namespace, "-f", str(example))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"watchNamespaces": ["default"], "podDisruptionBudget": {"enabled": True}, "networkPolicy": {"enabled": True}},
        {"replicaCount": 2, "metrics": {"enabled": False}, "crds": {"keep": False}},
    ],
    ids=["defaults", "one namespace", "two replicas"],
)
def test_chart_is_admitted(bed: Bed, namespace: str, tmp_path: Path, values: dict[str, Any]) -> None:
    helm = os.environ.get("HELM") or shutil.which("helm") or bed.bin / "helm"
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    command = [str(helm), "template", "vllm-operator", str(ROOT / "helm" / "vllm-operator"), "-n", namespace]
    rendered = subprocess.run([*command, "-f", str(file)], capture_output=True, text=True, check=True).stdout  # noqa: S603
    bed.kubectl(
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        "-",
        stdin=rendered,
    )
