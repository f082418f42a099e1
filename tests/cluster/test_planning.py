"""Where a model goes, on a real API server with a real scheduler; no engine has to come up for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.product.deployment import Deployment, applying
from tests.product.manifests import dummy, pod
from tests.testbed.bed import Bed

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("operator")]

NAMESPACE = "planning"
PRODUCT, MEMORY = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"
UNLIKE = {"gpu-a": ("NVIDIA-A100-SXM4-80GB", "81920"), "gpu-b": ("NVIDIA-GeForce-RTX-3090", "24576")}


@pytest.fixture(scope="module", autouse=True)
def unlike_nodes(bed: Bed) -> Iterator[None]:
    """Give the nodes GPUs of two products, and their own labels back."""
    before = {node: _labels(bed, node) for node in UNLIKE}
    bed.kubectl("create", "namespace", NAMESPACE)
    for node, labels in UNLIKE.items():
        _label(bed, node, labels)
    yield
    for node, labels in before.items():
        _label(bed, node, labels)
    bed.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture
def apply(bed: Bed) -> Iterator[Callable[[dict[str, Any]], Deployment]]:
    """Apply a deployment; delete it at the end of the test."""
    with applying(bed, NAMESPACE) as apply:
        yield apply


def _labels(bed: Bed, node: str) -> tuple[str, str]:
    labels = bed.api.json("get", "node", node)["metadata"]["labels"]
    return labels[PRODUCT], labels[MEMORY]


def _label(bed: Bed, node: str, labels: tuple[str, str]) -> None:
    bed.kubectl("label", "node", node, f"{PRODUCT}={labels[0]}", f"{MEMORY}={labels[1]}", "--overwrite")


def _sized(name: str, parameters: str, **more: Any) -> dict[str, Any]:
    """Give a deployment whose sizes the operator chooses."""
    manifest = dummy(name, "dummy-tp", **more)
    del manifest["spec"]["parallelism"]
    manifest["spec"]["model"]["facts"] = {"parameters": parameters}
    manifest["spec"]["vllmConfig"]["dtype"] = "bfloat16"
    return manifest


def _nodes_of(bed: Bed, name: str) -> list[str]:
    """Give the nodes of a deployment's GPU pods, once each has one."""
    selector = f"vllm-operator.io/deployment={name},app.kubernetes.io/component!=head"

    def placed() -> list[str] | None:
        pods = bed.api.json("get", "pods", "-n", NAMESPACE, "-l", selector)["items"]
        nodes = [item["spec"].get("nodeName", "") for item in pods]
        return nodes if nodes and all(nodes) else None

    return sorted(bed.wait_for(f"the pods of {name} to have nodes", placed) or [])


@pytest.mark.parametrize(
    ("parameters", "node", "tensor"),
    [
        pytest.param("7B", "gpu-b", 1, id="a small model leaves the A100s alone"),
        pytest.param("70B", "gpu-a", 2, id="a large model takes two of them"),
    ],
)
def test_the_gpu_follows_from_the_model(
    apply: Callable[[dict[str, Any]], Deployment], bed: Bed, parameters: str, node: str, tensor: int
) -> None:
    name = f"of-{parameters.lower()}"
    deployment = apply(_sized(name, parameters))
    assert _nodes_of(bed, name) == [node]
    plan = deployment.await_seen("its plan", lambda body: body["status"].get("plan"))
    assert (plan["accelerator"], plan["tensor"], plan["pipeline"]) == (UNLIKE[node][0], tensor, 1)
    assert plan["candidates"][0]["fits"]


def test_a_model_that_nothing_holds_is_refused(apply: Callable[[dict[str, Any]], Deployment]) -> None:
    deployment = apply(_sized("of-20t", "20T"))
    stalled = deployment.await_condition("Stalled", "True", reason="NoSuchGPUs")
    assert "holds the model" in stalled["message"]


def test_gpus_that_others_hold_are_waited_for(apply: Callable[[dict[str, Any]], Deployment], bed: Bed) -> None:
    for node in UNLIKE:
        holder = pod(f"holder-{node}", "/usr/bin/sleep", "600", node=node, gpus=4)
        bed.api.apply(holder, namespace=NAMESPACE)
        bed.kubectl("wait", "--for=condition=Ready", f"pod/holder-{node}", "-n", NAMESPACE, "--timeout=120s")
    deployment = apply(_sized("later", "7B"))
    ready = deployment.await_condition("Ready", "False", reason="WaitingForGPUs")
    assert "held by other pods: gpu-b 4 of 4" in ready["message"]
    assert deployment.condition("Stalled")["status"] == "False"
    clusters = bed.api.json("get", "rayclusters", "-n", NAMESPACE, "-l", "vllm-operator.io/deployment=later")
    assert clusters["items"] == []
    bed.kubectl("delete", "pod", "holder-gpu-a", "holder-gpu-b", "-n", NAMESPACE)
    assert _nodes_of(bed, "later") == ["gpu-b"]
