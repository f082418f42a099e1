"""``kubectl vllm plan``: verdicts as exit codes, reasons in words, and bad input without a traceback."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.unit.clients.hub_server import COMMIT, TOKEN, HubServer, clean_environment, hub_server

from vllm_operator.cli.documents import read_deployments
from vllm_operator.cli.main import main
from vllm_operator.cli.plans import answer
from vllm_operator.planning.catalogue import BUILT_IN
from vllm_operator.planning.inventory import GpuNode

__all__ = ["clean_environment"]

INVENTORIES = Path(__file__).parents[1] / "planning" / "data" / "inventories"
EXAMPLES = Path(__file__).parents[3] / "examples"


def manifest(tmp_path: Path, *specs: dict[str, Any]) -> str:
    documents = [
        {
            "apiVersion": "vllm-operator.io/v1alpha1",
            "kind": "VLLMDeployment",
            "metadata": {"name": f"m{index}"},
            "spec": {"model": {"uri": "file:///m"}} | spec,
        }
        for index, spec in enumerate(specs)
    ]
    file = tmp_path / "cr.yaml"
    file.write_text(yaml.safe_dump_all([{"kind": "Namespace"}, *documents]))
    return str(file)


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def facts(parameters: str) -> dict[str, Any]:
    return {"model": {"uri": "file:///m", "facts": {"parameters": parameters}}}


@pytest.mark.parametrize(
    ("spec", "inventory", "status", "words"),
    [
        (
            {"parallelism": {"pipeline": 6}},
            "four-plus-four",
            0,
            "m0: Fits: 2 pods (1 x 4 GPUs + 1 x 2 GPUs) on 2 nodes",
        ),
        (
            {"parallelism": {"pipeline": 6}, "placement": {"strategy": "STRICT_PACK"}},
            "four-plus-four",
            4,
            "m0: Never: STRICT_PACK of 6 GPUs cannot fit: the largest node, gpu-a, has 4, a pod needs 6; PACK",
        ),
        ({"parallelism": {"pipeline": 2}, "placement": {"strategy": "STRICT_SPREAD"}}, "four-plus-four", 0, "Fits"),
        (
            {"parallelism": {"pipeline": 3}, "placement": {"strategy": "STRICT_SPREAD"}},
            "four-plus-four",
            4,
            "SPREAD would fit",
        ),
        (facts("7B"), "mixed", 0, "NVIDIA-GeForce-RTX-3090   1        1"),
        (facts("21B"), "mixed", 0, "NVIDIA-L40S"),
        (facts("70B"), "mixed", 0, "NVIDIA-A100-SXM4-80GB"),
        (
            {"parallelism": {"tensor": 8, "pipeline": 13}},
            "h100-pods",
            3,
            "m0: NotNow: PACK of 104 GPUs does not fit now",
        ),
        ({"parallelism": {"tensor": 4}}, "one-machine", 0, "1 pod (1 x 4 GPUs) on 1 node"),
        (
            {"pod": {"template": {"spec": {"nodeName": "gpu-b"}}}, "parallelism": {"tensor": 8}},
            "four-plus-four",
            4,
            "1 node left out: nodeName gpu-b does not match",
        ),
    ],
)
def test_every_inventory(tmp_path: Path, spec: dict[str, Any], inventory: str, status: int, words: str) -> None:
    result = run("plan", "-f", manifest(tmp_path, spec), "--nodes", str(INVENTORIES / f"{inventory}.yaml"))
    assert (result.exit_code, result.stderr) == (status, "")
    assert words in result.stdout


def test_the_worst_of_several_is_the_exit_status(tmp_path: Path) -> None:
    file = manifest(tmp_path, facts("7B"), facts("2T"), facts("70B"))
    result = run("plan", "-f", file, "--nodes", str(INVENTORIES / "mixed.yaml"), "-o", "json")
    assert result.exit_code == 4
    assert [item["verdict"] for item in json.loads(result.stdout)] == ["Fits", "Never", "Fits"]


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_data_for_programs(tmp_path: Path, output: str) -> None:
    file = manifest(tmp_path, facts("70B"))
    result = run("plan", "-f", file, "--nodes", str(INVENTORIES / "mixed.yaml"), "-o", output)
    (told,) = yaml.safe_load(result.stdout)
    best = told["candidates"][0]
    assert (best["accelerator"], best["tensor"], best["nodes"]) == ("NVIDIA-A100-SXM4-80GB", 2, ["a100"])
    assert best["weightsBytesPerRank"] == pytest.approx(70e9, rel=0.01)
    assert told["maxModelLen"] == 8192


def test_wide_gives_every_reason(tmp_path: Path) -> None:
    file = manifest(tmp_path, facts("70B"))
    result = run("plan", "-f", file, "--nodes", str(INVENTORIES / "mixed.yaml"), "-o", "wide")
    assert "REASON" in result.stdout
    assert result.stdout.count("on 1 node") >= 4


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_have_a_plan(example: Path) -> None:
    result = run("plan", "-f", str(example), "--nodes", str(INVENTORIES / "h100-pods.yaml"))
    assert result.exit_code == 0, result.stdout


@pytest.mark.parametrize(
    ("file", "nodes", "words"),
    [
        (None, "nodes: []", "there is no VLLMDeployment in it"),
        ("a: [", "nodes: []", "no YAML"),
        ("\x00", "nodes: []", "no YAML"),
        ("kind: VLLMDeployment", "nodes: []", "unnamed: spec.model: Field required"),
        ("{kind: VLLMDeployment, metadata: {name: a}, spec: {model: {uri: x}}}", "nodes: []", "a: spec.model.uri"),
        ("{kind: VLLMDeployment, metadata: 3, spec: 4}", "nodes: []", "unnamed: "),
        ("GOOD", "a: 1", "neither a list nodes nor a list items"),
        ("GOOD", "nodes: [{name: a, gpus: many}]", "nodes[0]: gpus is no number"),
        ("FACTS", "nodes: []", "spec.model.facts: config.json has no positive hidden_size"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, file: str | None, nodes: str, words: str) -> None:
    good = manifest(tmp_path, {})
    if file == "FACTS":
        good = manifest(tmp_path, {"model": {"uri": "file:///m", "facts": {"config": {"a": 1}}}})
    elif file != "GOOD":
        Path(good).write_text(file or "kind: Namespace")
    inventory = tmp_path / "nodes.yaml"
    inventory.write_text(nodes)
    result = run("plan", "-f", good, "--nodes", str(inventory))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert words in result.stderr


@pytest.mark.parametrize("missing", ["cr", "nodes"])
def test_a_file_that_is_not_there(tmp_path: Path, missing: str) -> None:
    good = manifest(tmp_path, {})
    nowhere = str(tmp_path / "nowhere.yaml")
    pair = (nowhere, str(INVENTORIES / "mixed.yaml")) if missing == "cr" else (good, nowhere)
    result = run("plan", "-f", pair[0], "--nodes", pair[1])
    assert (result.exit_code, "nowhere.yaml" in result.stderr) == (1, True)


LLAMA = {"model": {"uri": "hf://org/name"}, "vllmConfig": {"maxModelLen": 8192}}
NODES = str(INVENTORIES / "mixed.yaml")


async def asked_of_a_hub(tmp_path: Path, server: HubServer, *specs: dict[str, Any], output: str = "table") -> Result:
    arguments = ("plan", "-f", manifest(tmp_path, *specs), "--nodes", NODES, "-o", output)
    return await asyncio.to_thread(run, *arguments, "--hub", "--hub-endpoint", server.url)


@pytest.mark.usefixtures("clean_environment")
async def test_the_hub_tells_about_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    async with hub_server() as server:
        result = await asked_of_a_hub(tmp_path, server, LLAMA, facts("7B"))
        assert result.exit_code == 0, result.stderr
        assert f"facts: hub, commit {COMMIT}" in result.stdout
        assert {item.authorization for item in server.asked} == {f"Bearer {TOKEN}"}
        told = json.loads((await asked_of_a_hub(tmp_path, server, LLAMA, facts("7B"), output="json")).stdout)
    assert [item["facts"] for item in told] == [f"hub, commit {COMMIT}", "spec"]


@pytest.mark.usefixtures("clean_environment")
async def test_a_hub_that_does_not_tell_is_bad_input_where_sizes_depend_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    async with hub_server() as server:
        server.repositories["org/name"].is_gated = True
        result = await asked_of_a_hub(tmp_path, server, LLAMA)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "org/name is gated" in result.stderr
        assert "of that account by HF_TOKEN" in result.stderr
        result = await asked_of_a_hub(tmp_path, server, LLAMA | {"parallelism": {"tensor": 2, "pipeline": 1}})
        assert result.exit_code == 0
        assert "warning: memory was not checked: spec.model.uri: org/name is gated" in result.stdout


def test_without_being_told_to_no_hub_is_asked(tmp_path: Path) -> None:
    result = run("plan", "-f", manifest(tmp_path, LLAMA), "--nodes", NODES, "--hub-endpoint", "http://127.0.0.1:1")
    assert result.exit_code == 0
    assert "sizes that are left out are 1: no hub was asked for the model" in result.stdout


def test_a_hub_needs_an_address(tmp_path: Path) -> None:
    result = run("plan", "-f", manifest(tmp_path, LLAMA), "--nodes", NODES, "--hub", "--hub-endpoint", "mirror")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "--hub-endpoint must be an address that begins with http:// or https://" in result.stderr


def test_no_cluster_and_no_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    result = run("plan", "-f", manifest(tmp_path, {}))
    assert result.exit_code == 1
    assert "give an inventory with --nodes FILE" in result.stderr
    result = run("ranks", "m0")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "VLLMDeployment m0: neither a pod's ServiceAccount nor a usable KUBECONFIG" in result.stderr


def listed(tmp_path: Path, *more: dict[str, Any], **allocatable: str) -> str:
    node = {"kind": "Node", "metadata": {"name": "a"}, "status": {"allocatable": {"nvidia.com/gpu": "8"} | allocatable}}
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump({"kind": "List", "items": [node, *more]}))
    return str(file)


def quota(hard: dict[str, str], namespace: str = "default", **spec: Any) -> dict[str, Any]:
    meta = {"name": "team", "namespace": namespace}
    return {"kind": "ResourceQuota", "metadata": meta, "spec": spec, "status": {"hard": hard, "used": {}}}


@pytest.mark.parametrize(
    ("objects", "status", "words"),
    [
        ([], 0, "m0: Fits"),
        ([quota({"requests.nvidia.com/gpu": "4"})], 0, "m0: Fits"),
        (
            [quota({"requests.nvidia.com/gpu": "3"})],
            3,
            "m0: NotNow: ResourceQuota team allows 3 of requests.nvidia.com/gpu, others use 0, the engine asks for 4",
        ),
        ([quota({"requests.nvidia.com/gpu": "3"}, "elsewhere")], 0, "m0: Fits"),
        (
            [quota({"requests.cpu": "64"})],
            4,
            "m0: Never: ResourceQuota team limits requests.cpu: the API server refuses",
        ),
        ([quota({"pods": "0"}, scopes=["Strange"])], 0, "warning: ResourceQuota team is not looked at"),
    ],
)
def test_quotas_of_an_inventory(tmp_path: Path, objects: list[dict[str, Any]], status: int, words: str) -> None:
    file = manifest(tmp_path, {"parallelism": {"tensor": 4}})
    result = run("plan", "-f", file, "--nodes", listed(tmp_path, *objects))
    assert (result.exit_code, result.stderr) == (status, "")
    assert words in result.stdout
    [told] = json.loads(run("plan", "-f", file, "--nodes", listed(tmp_path, *objects), "-o", "json").stdout)
    assert told["reason"] in result.stdout


def test_quotas_that_may_not_be_read_are_said(tmp_path: Path) -> None:
    [document] = read_deployments(Path(manifest(tmp_path, {})))
    told = answer(document, [GpuNode(name="a", gpus=1)], BUILT_IN, rules=None)
    assert told.verdict == "Fits"
    assert "warning: the quotas of its namespace may not be read and are not looked at" in told.text(wide=False)


def test_memory_of_nodes_counts(tmp_path: Path) -> None:
    asked = {"pod": {"resources": {"requests": {"memory": "480Gi"}}}, "distributedExecutorBackend": "ray"}
    file = manifest(tmp_path, asked)
    result = run("plan", "-f", file, "--nodes", listed(tmp_path, memory="300Gi"))
    assert result.exit_code == 4
    assert "no node with 1 GPU has 480Gi of memory, which pod.resources asks for; a has 300Gi" in result.stdout
    short = tmp_path / "short.yaml"
    short.write_text("nodes: [{name: a, gpus: 8, hostMemoryGiB: 512, hostCpu: 0.1}]")
    result = run("plan", "-f", file, "--nodes", str(short))
    assert result.exit_code == 4
    assert "has 200m of cpu, which KubeRay's init container asks for; a has 100m" in result.stdout
