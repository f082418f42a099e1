"""Three CRs of different sizes go to three types of GPUs: eight A100, four L40S, two RTX 3090.

The two smaller nodes are the bed's own, so that the smallest engine comes up for real; the A100s are a node of kwok.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.product.deployment import Deployment, applying
from tests.product.manifests import dummy
from tests.testbed import kwok as fake
from tests.testbed.bed import Bed

pytestmark = [pytest.mark.cluster, pytest.mark.engine, pytest.mark.usefixtures("operator", "types")]

GPU = "nvidia.com/gpu"
PRODUCT, MEMORY = f"{GPU}.product", f"{GPU}.memory"
TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}
A100, L40S, RTX3090 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-L40S", "NVIDIA-GeForce-RTX-3090"
OWN = {"gpu-a": (L40S, 46068, 4), "gpu-b": (RTX3090, 24576, 2)}


@pytest.fixture(scope="module")
def types(bed: Bed, kwok: None) -> Iterator[None]:
    """Give three nodes of three types, and the bed's nodes their own GPUs back."""
    before = {node: _type_of(bed, node) for node in OWN}
    # What needs no GPU stays away from it, as from most GPU nodes: a head that kwok plays would serve nobody.
    labels = {PRODUCT: A100, MEMORY: "81920"}
    bed.api.apply(fake.node("gpu-c", gpus=8, labels=labels, taints=[TAINT]))
    for node, kind in OWN.items():
        _make(bed, node, kind)
    bed.kubectl("wait", "--for=condition=Ready", "node/gpu-c", "--timeout=120s")
    yield
    bed.kubectl("delete", "node", "gpu-c")
    for node, kind in before.items():
        _make(bed, node, kind)


def _type_of(bed: Bed, node: str) -> tuple[str, int, int]:
    body = bed.api.json("get", "node", node)
    labels = body["metadata"]["labels"]
    return labels[PRODUCT], int(labels[MEMORY]), int(body["status"]["allocatable"][GPU])


def _make(bed: Bed, node: str, kind: tuple[str, int, int]) -> None:
    product, memory, gpus = kind
    bed.kubectl("label", "node", node, f"{PRODUCT}={product}", f"{MEMORY}={memory}", "--overwrite")
    status = {"status": {part: {GPU: str(gpus)} for part in ("capacity", "allocatable")}}
    bed.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps(status))


def _sized(name: str, parameters: str, tensor: int | None) -> dict[str, Any]:
    manifest = dummy(name, "dummy-tp", tensor=tensor or 1)
    spec = manifest["spec"]
    if tensor is None:
        del spec["parallelism"]
    spec["model"]["facts"] = {"parameters": parameters}
    spec["vllmConfig"]["dtype"] = "bfloat16"
    spec["pod"]["tolerations"] = [{"key": GPU, "operator": "Exists"}]
    return manifest


@dataclass(frozen=True)
class Size:
    """A model, the tensor parallel that is asked for, and where it must go."""

    parameters: str
    tensor: int | None
    node: str
    product: str
    gpus: int


LARGE = Size("140B", 8, "gpu-c", A100, 8)
MEDIUM = Size("70B", 4, "gpu-a", L40S, 4)
SMALL = Size("13B", None, "gpu-b", RTX3090, 2)


@pytest.mark.parametrize(
    "size", [LARGE, MEDIUM, pytest.param(SMALL, marks=pytest.mark.extended)], ids=lambda size: size.product
)
def test_each_size_has_its_type(bed: Bed, namespace: str, size: Size) -> None:
    name = f"of-{size.parameters.lower()}"
    with applying(bed, namespace) as apply:
        deployment = apply(_sized(name, size.parameters, size.tensor))
        assert _seats(bed, namespace, name) == [(size.node, str(size.gpus))]
        plan = deployment.await_seen("its plan", lambda body: body["status"].get("plan"))
        assert (plan["accelerator"], plan["tensor"], plan["pipeline"]) == (size.product, size.gpus, 1)
        if size is SMALL:
            _serves(deployment, size.node)


def _seats(bed: Bed, namespace: str, name: str) -> list[tuple[str, str]]:
    """Give node and GPUs of each GPU pod, once all have a node."""
    selector = f"vllm-operator.io/deployment={name},app.kubernetes.io/component!=head"

    def placed() -> list[tuple[str, str]]:
        pods = bed.api.json("get", "pods", "-n", namespace, "-l", selector)["items"]
        seats = [
            (pod["spec"].get("nodeName", ""), pod["spec"]["containers"][0]["resources"]["limits"][GPU]) for pod in pods
        ]
        return seats if all(node for node, _ in seats) else []

    return bed.wait_for(f"the pods of {name} to have nodes", placed)


def _serves(deployment: Deployment, node: str) -> None:
    deployment.await_ready()
    (engine,) = deployment.engines
    assert {rank["node"] for rank in engine["ranks"]} == {node}
