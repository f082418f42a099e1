"""Engines that ask for a key, come and go without a failed request: one behind its Service, three, one, none.

Beside them, in the same namespace, one on Ray: what it answers when its deployment is deleted is answered to the end.
"""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.product.ask import ask, metrics, service_url
from tests.product.deployment import RESOURCE, STARTED, Deployment, applying
from tests.product.manifests import dummy
from tests.product.stream import Stream, streaming
from tests.testbed.bed import Bed
from tests.testbed.waiting import wait_for

from vllm_operator.api.identity import API_VERSION, KIND

pytestmark = [pytest.mark.cluster, pytest.mark.engine, pytest.mark.usefixtures("operator")]

NAMESPACE = "drain"
NAME = "many"
ON_RAY = "on-ray"
KEY = "sk-of-the-callers"
SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "callers"},
    "data": {"key": base64.b64encode(f"{KEY}\n".encode()).decode()},
}
COMMON: dict[str, Any] = {
    "apiKeySecret": {"name": "callers", "key": "key"},
    "drain": {"timeoutSeconds": 300},
}
BODY = {"model": NAME, "prompt": "Hello", "max_tokens": 2, "temperature": 0}


AUTOSCALER = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": NAME},
    "spec": {
        "scaleTargetRef": {"apiVersion": API_VERSION, "kind": KIND, "name": NAME},
        "minReplicas": 3,
        "maxReplicas": 3,
    },
}


def begin(host: str, model: str) -> http.client.HTTPResponse:
    """Begin a long answer, and give it when its first word has come."""
    connection = http.client.HTTPConnection(host, timeout=90)
    body = {**BODY, "model": model, "max_tokens": 200, "ignore_eos": True, "stream": True}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    connection.request("POST", "/v1/completions", body=json.dumps(body), headers=headers)
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: ")
    return answer


@pytest.fixture(scope="module", autouse=True)
def namespace(bed: Bed) -> Iterator[None]:
    bed.kubectl("create", "namespace", NAMESPACE)
    bed.api.apply(SECRET, namespace=NAMESPACE)
    yield
    bed.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def apply(bed: Bed) -> Iterator[Callable[[dict[str, Any]], Deployment]]:
    """Apply a deployment; delete it at the end."""
    with applying(bed, NAMESPACE) as apply:
        yield apply


@pytest.fixture(scope="module")
def engines(apply: Callable[[dict[str, Any]], Deployment]) -> Deployment:
    """Give a small engine of one pod, to be scaled."""
    manifest = dummy(NAME, "dummy-tp", **COMMON)
    del manifest["spec"]["rayHead"]
    deployment = apply(manifest)
    deployment.await_ready()
    return deployment


@pytest.fixture(scope="module")
def on_ray(engines: Deployment, apply: Callable[[dict[str, Any]], Deployment]) -> Deployment:
    """Give an engine of two pods on Ray beside the one without."""
    deployment = apply(dummy(ON_RAY, "dummy-tp", tensor=2, gpus_per_pod=1, **COMMON))
    deployment.await_ready()
    assert engines.condition("Ready")["status"] == "True"
    return deployment


@pytest.fixture(scope="module")
def host(engines: Deployment, bed: Bed) -> str:
    return service_url(bed, NAMESPACE, engines.name).removeprefix("http://")


@pytest.mark.parametrize(
    "path", ["/v1/models", "/ping", "/version", "/load", "/openapi.json", "/docs", "/tokenize", "/invocations", "/none"]
)
def test_every_path_asks_for_the_key(host: str, path: str) -> None:
    connection = http.client.HTTPConnection(host, timeout=30)
    for wrong in ("", "sk-of-nobody"):
        status, text = ask(connection, "GET", path, key=wrong)
        assert status == 401, text
        assert json.loads(text)["error"]["code"] == "invalid_api_key"
    assert ask(connection, "GET", path, key=KEY)[0] != 401
    connection.close()


def test_health_and_metrics_are_open_and_the_model_answers(host: str) -> None:
    connection = http.client.HTTPConnection(host, timeout=60)
    assert ask(connection, "GET", "/health")[0] == 200
    assert ask(connection, "GET", "/metrics")[0] == 200
    assert ask(connection, "POST", "/v1/completions", key=KEY, body=BODY)[0] == 200
    connection.close()


def test_the_key_is_nowhere_but_in_its_secret(engines: Deployment, on_ray: Deployment, bed: Bed) -> None:
    kinds = "pods,configmaps,deployments,rayclusters,controllerrevisions,vllmdeployments"
    assert KEY not in bed.kubectl("get", kinds, "-n", NAMESPACE, "-o", "yaml")
    for engine in (*engines.engines, *on_ray.engines):
        told = bed.kubectl(
            *("exec", "-n", NAMESPACE, engine["pod"], "-c", "vllm", "--", "sh", "-c"),
            "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | tr '\\0' '\\n'",
        )
        assert "vllm_bootstrap.entrypoints.launcher" in told
        assert KEY not in told
        assert KEY not in bed.kubectl("logs", "-n", NAMESPACE, engine["pod"], "-c", "vllm", "--tail=-1")


def test_with_and_without_ray_stand_side_by_side(engines: Deployment, on_ray: Deployment, bed: Bed) -> None:
    [cluster] = bed.api.json("get", "rayclusters", "-n", NAMESPACE)["items"]
    assert cluster["metadata"]["ownerReferences"][0]["name"] == ON_RAY
    assert [engine["rayCluster"] for engine in on_ray.engines] == [cluster["metadata"]["name"]]
    assert [engine.get("rayCluster", "") for engine in engines.engines] == [""]
    for deployment in (engines, on_ray):
        url = service_url(bed, NAMESPACE, deployment.name).removeprefix("http://")
        connection = http.client.HTTPConnection(url, timeout=60)
        asked = {**BODY, "model": deployment.name}
        assert ask(connection, "POST", "/v1/completions", body=asked)[0] == 401
        assert ask(connection, "POST", "/v1/completions", key=KEY, body=asked)[0] == 200
        connection.close()


def test_deleted_while_it_answers_it_answers_to_the_end(on_ray: Deployment, bed: Bed) -> None:
    assert on_ray.read()["metadata"]["finalizers"] == ["vllm-operator.io/drain"]
    answer = begin(service_url(bed, NAMESPACE, ON_RAY).removeprefix("http://"), ON_RAY)
    bed.kubectl("delete", RESOURCE, ON_RAY, "-n", NAMESPACE, "--wait=false")
    told = on_ray.await_seen("it drains", lambda body: _draining(body, "engine-0"))
    assert "its deployment is deleted" in told["message"]
    assert answer.read().decode().rstrip().endswith("[DONE]")
    on_ray.delete()
    assert bed.api.json("get", "rayclusters", "-n", NAMESPACE)["items"] == []


def test_scaled_from_one_to_three_to_one_under_a_stream_no_request_fails(
    engines: Deployment, host: str, bed: Bed
) -> None:
    """Up by a HorizontalPodAutoscaler, down by hand; the engine with the most to do stays."""
    clients = [Stream(host, NAME, key=KEY, keeps=keeps, pause_seconds=0.1) for keeps in (True, True, False)]
    with streaming(clients):
        first = engines.engines[0]["pod"]
        bed.api.apply(AUTOSCALER, namespace=NAMESPACE)
        engines.await_seen(
            "three serve", lambda body: body["status"].get("readyReplicas", 0) >= 3 or None, deadline=STARTED
        )
        bed.kubectl("delete", "hpa", NAME, "-n", NAMESPACE)
        pods = {engine["name"]: engine["pod"] for engine in engines.engines}
        assert pods["engine-0"] == first, "nobody else is touched"
        for pod in pods.values():  # a client that keeps its connection keeps its engine, too
            wait_for(f"an answer of {pod}", lambda pod=pod: _answered(bed, pod) > 0, interval=1.0)  # type: ignore[misc]
        long = [begin(f"{_ip(bed, pods['engine-2'])}:8000", NAME) for _ in range(4)]
        bed.kubectl("scale", RESOURCE, NAME, "-n", NAMESPACE, "--replicas=1")
        told = engines.await_seen("engine-0 drains", lambda body: _draining(body, "engine-0"))
        assert [answer.read().decode().rstrip().endswith("[DONE]") for answer in long] == [True] * 4
        engines.await_ready()
    assert [failure for client in clients for failure in client.failures] == []
    assert all(client.answered > 5 for client in clients)
    assert told["drainUntil"]
    assert [(engine["name"], engine["pod"]) for engine in engines.engines] == [("engine-2", pods["engine-2"])]


def test_an_answer_that_was_begun_is_ended_before_its_engine_is_suspended(
    engines: Deployment, host: str, bed: Bed
) -> None:
    answer = begin(host, NAME)
    bed.kubectl("patch", RESOURCE, NAME, "-n", NAMESPACE, "--type=merge", "-p", '{"spec": {"suspend": true}}')
    assert answer.read().decode().rstrip().endswith("[DONE]")
    engines.await_condition("Ready", "True", reason="Suspended")
    assert engines.engines == []
    assert bed.api.json("get", "service", NAME, "-n", NAMESPACE)["metadata"]["name"] == NAME


def _draining(body: dict[str, Any], name: str) -> dict[str, Any] | None:
    engines = body["status"].get("engineReplicas", [])
    return next((dict(item) for item in engines if (item["name"], item["state"]) == (name, "Draining")), None)


def _ip(bed: Bed, pod: str) -> str:
    return str(bed.api.json("get", "pod", pod, "-n", NAMESPACE)["status"]["podIP"])


def _answered(bed: Bed, pod: str) -> float:
    """Give how many requests an engine has answered, the operator's warm-up apart."""
    told = metrics(f"http://{_ip(bed, pod)}:8000")
    lines = [line for line in told.splitlines() if line.startswith("vllm:request_success_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines) - 1
