"""GPUs that somebody else takes from an engine: it gives its other ones back, says who has them, and comes again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.product.deployment import Deployment, applying
from tests.product.manifests import dummy, pod
from tests.testbed.bed import Bed

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("operator")]

NAMESPACE = "taken"
URGENT = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
    "value": 1000,
}


@pytest.fixture(scope="module", autouse=True)
def namespace(bed: Bed) -> Iterator[None]:
    bed.kubectl("create", "namespace", NAMESPACE)
    bed.api.apply(URGENT)
    yield
    # Whoever comes next finds all GPUs free.
    bed.kubectl("delete", "pod", "--all", "-n", NAMESPACE, "--timeout=120s")
    bed.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    bed.kubectl("delete", "priorityclass", "urgent")


@pytest.fixture
def apply(bed: Bed) -> Iterator[Callable[[dict[str, Any]], Deployment]]:
    """Apply a deployment; delete it at the end of the test."""
    with applying(bed, NAMESPACE) as apply:
        yield apply


def _hold(bed: Bed, name: str, node: str, gpus: int, **spec: Any) -> None:
    bed.api.apply(pod(name, "/usr/bin/sleep", "900", node=node, gpus=gpus, **spec), namespace=NAMESPACE)
    bed.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "-n", NAMESPACE, "--timeout=120s")


def _seated(bed: Bed) -> list[str] | None:
    """Give the nodes of the engine's GPU pods, once each has one."""
    selector = "vllm-operator.io/deployment=robbed,app.kubernetes.io/component!=head"
    pods = bed.api.json("get", "pods", "-n", NAMESPACE, "-l", selector)["items"]
    nodes = sorted(item["spec"].get("nodeName", "") for item in pods)
    return nodes if len(nodes) == 2 and all(nodes) else None


def test_an_engine_that_was_robbed_gives_its_gpus_back(apply: Callable[[dict[str, Any]], Deployment], bed: Bed) -> None:
    for node in ("gpu-a", "gpu-b"):
        _hold(bed, f"holder-{node}", node, 3)
    robbed = apply(dummy("robbed", "dummy-tp", pipeline=2, strategy="STRICT_SPREAD"))
    assert bed.wait_for("its pods to have nodes", lambda: _seated(bed)) == ["gpu-a", "gpu-b"]

    # The scheduler evicts the youngest pod of least priority: the engine's.
    _hold(bed, "urgent", "gpu-b", 1, priorityClassName="urgent")
    pending = robbed.await_condition("Ready", "False", reason="Unschedulable")
    assert f"{NAMESPACE}/urgent" in pending["message"], "it says who has the GPU"
    waiting = robbed.await_condition("Ready", "False", reason="WaitingForGPUs")
    assert f"{NAMESPACE}/urgent" in waiting["message"]
    failure = robbed.status["lastFailures"][-1]
    assert failure["reason"] == "GPUsGivenBack"
    assert bed.api.json("get", "rayclusters", "-n", NAMESPACE)["items"] == []

    bed.kubectl("delete", "pod", "urgent", "-n", NAMESPACE)
    assert bed.wait_for("its pods to have nodes again", lambda: _seated(bed)) == ["gpu-a", "gpu-b"]
