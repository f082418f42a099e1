"""What the plan binds: an engine to one rack, and a plan that is only made to nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.product.deployment import Deployment, applying
from tests.product.manifests import dummy
from tests.testbed.bed import Bed

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("operator")]

NAMESPACE = "domains"
RACK = "example.com/rack"


@pytest.fixture(scope="module", autouse=True)
def racks(bed: Bed) -> Iterator[None]:
    """Put each GPU node into a rack of its own."""
    bed.kubectl("create", "namespace", NAMESPACE)
    for node, rack in (("gpu-a", "r1"), ("gpu-b", "r2")):
        bed.kubectl("label", "node", node, f"{RACK}={rack}")
    yield
    for node in ("gpu-a", "gpu-b"):
        bed.kubectl("label", "node", node, f"{RACK}-")
    bed.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture
def apply(bed: Bed) -> Iterator[Callable[[dict[str, Any]], Deployment]]:
    """Apply a deployment; delete it at the end of the test."""
    with applying(bed, NAMESPACE) as apply:
        yield apply


def _within_a_rack(name: str, **more: Any) -> dict[str, Any]:
    manifest = dummy(name, "dummy-tp", tensor=4, gpus_per_pod=2, **more)
    manifest["spec"]["placement"]["topologyKey"] = RACK
    return manifest


def _nodes(bed: Bed, name: str, pods: int) -> dict[str, list[str]]:
    """Give the nodes of the GPU pods of each engine, once every pod has one."""
    selector = f"vllm-operator.io/deployment={name},app.kubernetes.io/component!=head"

    def placed() -> dict[str, list[str]] | None:
        found: dict[str, list[str]] = {}
        for item in bed.api.json("get", "pods", "-n", NAMESPACE, "-l", selector)["items"]:
            engine = item["metadata"]["labels"]["vllm-operator.io/engine"]
            found.setdefault(engine, []).append(item["spec"].get("nodeName", ""))
        nodes = [node for members in found.values() for node in members]
        return found if len(nodes) == pods and all(nodes) else None

    return bed.wait_for(f"the pods of {name} to have nodes", placed) or {}


def test_each_engine_stays_in_one_rack(apply: Callable[[dict[str, Any]], Deployment], bed: Bed) -> None:
    deployment = apply(_within_a_rack("racked", replicas=3))
    nodes = _nodes(bed, "racked", 4)
    assert sorted(map(tuple, nodes.values())) == [("gpu-a", "gpu-a"), ("gpu-b", "gpu-b")]
    waiting = deployment.await_seen(
        "the third engine to wait",
        lambda body: next((e for e in body["status"]["engineReplicas"] if e["reason"] == "WaitingForGPUs"), None),
    )
    assert f"inside one {RACK}" in waiting["message"]


def test_no_rack_holds_it(apply: Callable[[dict[str, Any]], Deployment]) -> None:
    manifest = _within_a_rack("too-wide")
    manifest["spec"]["parallelism"] = {"tensor": 8, "pipeline": 1}
    stalled = apply(manifest).await_condition("Stalled", "True", reason="NoSuchGPUs")
    assert f"inside one {RACK}" in stalled["message"]


def test_a_plan_is_made_and_nothing_else(apply: Callable[[dict[str, Any]], Deployment], bed: Bed) -> None:
    deployment = apply(dummy("only-planned", "dummy-tp", tensor=2, planOnly=True))
    deployment.await_condition("Ready", "True", reason="Planned")
    plan = deployment.status["plan"]
    assert (plan["tensor"], plan["gpus"], plan["podShapes"]) == (2, 2, [{"name": "lead", "pods": 1, "gpus": 2}])
    for kind in ("rayclusters", "services", "configmaps", "controllerrevisions", "pods"):
        found = bed.api.json("get", kind, "-n", NAMESPACE, "-l", "vllm-operator.io/deployment=only-planned")
        assert found["items"] == [], kind
