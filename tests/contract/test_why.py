"""``kubectl vllm why`` and ``explain`` against a real API server and its rights, without the operator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.testbed.bed import Bed
from tests.unit.api.cases import MODEL

from vllm_operator.api.identity import API_VERSION, KIND
from vllm_operator.cli.main import main

pytestmark = pytest.mark.contract

NEVER = "no node has a GPU"


@pytest.fixture(scope="module")
def blocked(bed: Bed, crd: None, namespace: str) -> str:
    """Give the name of a deployment whose status says that it is blocked."""
    bed.api.apply(
        {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "blocked"}, "spec": {"model": MODEL}},
        namespace=namespace,
    )
    body = bed.api.json("get", "vllm", "blocked", "-n", namespace)
    told = {"reason": "NoSuchGPUs", "message": NEVER, "lastTransitionTime": "2026-03-01T12:00:00Z"}
    conditions = [
        {"type": kind, "status": status, **told}
        for kind, status in (("Ready", "False"), ("Stalled", "True"), ("Planned", "False"))
    ]
    status = {"status": {"observedGeneration": body["metadata"]["generation"], "conditions": conditions}}
    bed.kubectl(
        *("patch", "vllm", "blocked", "-n", namespace, "--subresource=status", "--type=merge"),
        f"-p={json.dumps(status)}",
    )
    return "blocked"


@pytest.fixture(scope="module")
def poor(bed: Bed, namespace: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the kubeconfig of somebody who may read VLLMDeployments and pods of the namespace, and nothing else."""
    may = ("--verb=get,list", "--resource=vllmdeployments.vllm-operator.io,pods")
    bed.kubectl("create", "serviceaccount", "poor", "-n", namespace)
    bed.kubectl("create", "role", "poor", "-n", namespace, *may)
    bed.kubectl("create", "rolebinding", "poor", "-n", namespace, "--role=poor", f"--serviceaccount={namespace}:poor")
    config: dict[str, Any] = yaml.safe_load(bed.kubeconfig.read_text())
    token = bed.kubectl("create", "token", "poor", "-n", namespace).strip()
    config["users"] = [{"name": "poor", "user": {"token": token}}]
    config["contexts"][0]["context"] |= {"user": "poor", "namespace": namespace}
    config["current-context"] = config["contexts"][0]["name"]
    file: Path = tmp_path_factory.mktemp("poor") / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return str(file)


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def test_one_that_is_blocked(bed: Bed, namespace: str, blocked: str) -> None:
    own = ("-n", namespace, "--kubeconfig", str(bed.kubeconfig))
    told = run("why", blocked, *own)
    assert (told.exit_code, told.stderr) == (5, "")
    assert told.stdout.splitlines()[-2] == f"cause: {NEVER}"
    explained = run("explain", blocked, *own, "--live")
    assert (explained.exit_code, explained.stderr) == (4, "")
    assert f"why:         {NEVER}" in explained.stdout
    assert "a plan made now would be" in explained.stdout


def test_somebody_who_may_read_little_is_told_what_there_is(namespace: str, blocked: str, poor: str) -> None:
    told = run("why", blocked, "--kubeconfig", poor)
    assert (told.exit_code, told.stderr) == (5, "")
    assert told.stdout.startswith(f"{namespace}/{blocked}: Stalled")
    for kind in ("events", "reports", "RayClusters"):
        assert f"({kind}: forbidden for you)" in told.stdout
    absent = run("why", "blocke", "--kubeconfig", poor)
    assert absent.exit_code == 1
    assert f"no {KIND} blocke in namespace {namespace}; there are: {blocked}" in absent.stderr


def test_before_an_operator_has_looked(bed: Bed, crd: None, namespace: str) -> None:
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "new"}, "spec": {"model": MODEL}}
    bed.api.apply(body, namespace=namespace)
    told = run("why", "new", "-n", namespace, "--kubeconfig", str(bed.kubeconfig))
    assert told.exit_code == 2
    assert "cause: the operator has not looked at generation 1 yet" in told.stdout
