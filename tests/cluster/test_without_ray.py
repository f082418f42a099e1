"""Engines of one pod: no Ray, the same life and the same rank map."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.product.ask import complete, service_url
from tests.product.deployment import Deployment, applying
from tests.product.install import CPU_ENVIRONMENT
from tests.product.manifests import dummy
from tests.testbed.bed import Bed

pytestmark = [pytest.mark.cluster, pytest.mark.engine, pytest.mark.usefixtures("operator")]

NAMESPACE = "without-ray"
KILL = """
import os, pathlib, signal
for entry in pathlib.Path("/proc").glob("[0-9]*"):
    if (entry / "cmdline").read_bytes().startswith(b"VLLM::Worker_TP1"):
        os.kill(int(entry.name), signal.SIGKILL)
"""


@pytest.fixture(scope="module", autouse=True)
def namespace(bed: Bed) -> Iterator[None]:
    bed.kubectl("create", "namespace", NAMESPACE)
    yield
    bed.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def apply(bed: Bed) -> Iterator[Callable[[dict[str, Any]], Deployment]]:
    """Apply a deployment; delete it at the end."""
    with applying(bed, NAMESPACE) as apply:
        yield apply


@pytest.fixture(scope="module")
def engine(apply: Callable[[dict[str, Any]], Deployment]) -> Deployment:
    manifest = dummy("one-pod", "dummy-tp", tensor=2)
    del manifest["spec"]["rayHead"]
    deployment = apply(manifest)
    deployment.await_ready()
    return deployment


def test_no_object_of_ray_is_made(engine: Deployment, bed: Bed) -> None:
    assert bed.api.json("get", "rayclusters", "-n", NAMESPACE)["items"] == []
    plan = engine.status["plan"]
    assert plan["reason"] == "mp: one pod of 2 GPUs does it, Ray would only add a layer"
    [pod] = bed.api.json("get", "pods", "-n", NAMESPACE)["items"]
    variables = {item["name"] for item in pod["spec"]["containers"][0]["env"]}
    assert not {name for name in variables if name.startswith("RAY_")} - set(CPU_ENVIRONMENT)
    assert engine.condition("RayClustersReady")["reason"] == "NoRay"


def test_every_rank_has_its_gpu(engine: Deployment, bed: Bed) -> None:
    [pod] = bed.api.json("get", "pods", "-n", NAMESPACE)["items"]
    [told] = engine.engines
    assert [(rank["rank"], rank["tp"], rank["gpuIndex"], rank["state"]) for rank in told["ranks"]] == [
        (0, 0, 0, "ALIVE"),
        (1, 1, 1, "ALIVE"),
    ]
    assert {(rank["pod"], rank["node"]) for rank in told["ranks"]} == {
        (pod["metadata"]["name"], pod["spec"]["nodeName"])
    }


def test_it_answers_behind_its_service(engine: Deployment, bed: Bed) -> None:
    assert complete(service_url(bed, NAMESPACE, engine.name), engine.name, "Hello")


def test_a_rank_that_dies_is_named_and_the_engine_comes_again(engine: Deployment, bed: Bed) -> None:
    [told] = engine.engines
    bed.kubectl("exec", "-n", NAMESPACE, told["pod"], "-c", "vllm", "--", "python3", "-c", KILL)
    again = engine.await_engine("Serving", attempt=2)
    failure = engine.status["lastFailures"][0]
    assert (failure["reason"], failure["rank"], failure["pod"]) == ("RankDied", 1, told["pod"])
    assert again["pod"] == told["pod"], "the pod stays"
