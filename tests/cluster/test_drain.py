"""Engines that ask for a key, and go without a failed request: two behind one Service, one, none."""

from __future__ import annotations

import base64
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.product.ask import service_url
from tests.product.deployment import RESOURCE, Deployment, applying
from tests.product.manifests import dummy
from tests.testbed.bed import Bed

pytestmark = [pytest.mark.cluster, pytest.mark.engine, pytest.mark.usefixtures("operator")]

NAMESPACE = "drain"
NAME = "two"
KEY = "sk-of-the-callers"
SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "callers"},
    "data": {"key": base64.b64encode(f"{KEY}\n".encode()).decode()},
}
BODY = {"model": NAME, "prompt": "Hello", "max_tokens": 2, "temperature": 0}


@dataclass
class Client:
    """Somebody outside who asks without a pause, and never a second time.

    Attributes
    ----------
    keeps
        Keeps the connection as long as the server lets it, as most clients do.
    """

    host: str
    keeps: bool
    answered: int = 0
    failures: list[str] = field(default_factory=list)

    def run(self, end: threading.Event) -> None:
        connection = http.client.HTTPConnection(self.host, timeout=60)
        while not end.is_set():
            try:
                status, text = ask(connection, "POST", "/v1/completions", key=KEY, body=BODY)
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                connection.close()
                continue
            self.answered += status == 200
            if status != 200:
                self.failures.append(f"{status} {text[:200]}")
            if not self.keeps:
                connection.close()


def ask(
    connection: http.client.HTTPConnection, method: str, path: str, *, key: str = "", body: Any = None
) -> tuple[int, str]:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(errors="replace")


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
    """Give two small engines of one pod each."""
    more = {"replicas": 2, "apiKeySecret": {"name": "callers", "key": "key"}, "drain": {"timeoutSeconds": 90}}
    manifest = dummy(NAME, "dummy-tp", **more)
    del manifest["spec"]["rayHead"]
    deployment = apply(manifest)
    deployment.await_ready(deadline=360)
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


def test_the_key_is_nowhere_but_in_its_secret(engines: Deployment, bed: Bed) -> None:
    kinds = "pods,configmaps,deployments,controllerrevisions,vllmdeployments"
    assert KEY not in bed.kubectl("get", kinds, "-n", NAMESPACE, "-o", "yaml")
    for engine in engines.engines:
        told = bed.kubectl(
            *("exec", "-n", NAMESPACE, engine["pod"], "-c", "vllm", "--", "sh", "-c"),
            "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | tr '\\0' '\\n'",
        )
        assert "vllm_bootstrap.launcher" in told
        assert KEY not in told
        assert KEY not in bed.kubectl("logs", "-n", NAMESPACE, engine["pod"], "-c", "vllm", "--tail=-1")


def test_scaled_down_under_a_stream_no_request_fails(engines: Deployment, host: str, bed: Bed) -> None:
    stays = engines.engines[0]["pod"]
    clients = [Client(host, keeps=True), Client(host, keeps=True), Client(host, keeps=False)]
    end = threading.Event()
    threads = [threading.Thread(target=client.run, args=(end,)) for client in clients]
    for thread in threads:
        thread.start()
    try:
        bed.kubectl("scale", RESOURCE, NAME, "-n", NAMESPACE, "--replicas=1")
        told = engines.await_seen("engine-1 drains", lambda body: _draining(body, "engine-1"), deadline=30)
        engines.await_ready(deadline=90)
    finally:
        end.set()
        for thread in threads:
            thread.join()
    assert [failure for client in clients for failure in client.failures] == []
    assert all(client.answered > 5 for client in clients)
    assert told["drainUntil"]
    assert [engine["pod"] for engine in engines.engines] == [stays]


def test_an_answer_that_was_begun_is_ended_before_its_engine_is_suspended(
    engines: Deployment, host: str, bed: Bed
) -> None:
    connection = http.client.HTTPConnection(host, timeout=60)
    body = {**BODY, "max_tokens": 100, "ignore_eos": True, "stream": True}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    connection.request("POST", "/v1/completions", body=json.dumps(body), headers=headers)
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: ")
    bed.kubectl("patch", RESOURCE, NAME, "-n", NAMESPACE, "--type=merge", "-p", '{"spec": {"suspend": true}}')
    assert answer.read().decode().rstrip().endswith("[DONE]")
    connection.close()
    engines.await_condition("Ready", "True", reason="Suspended", deadline=90)
    assert engines.engines == []
    assert bed.api.json("get", "service", NAME, "-n", NAMESPACE)["metadata"]["name"] == NAME


def _draining(body: dict[str, Any], name: str) -> dict[str, Any] | None:
    engines = body["status"].get("engineReplicas", [])
    return next((dict(item) for item in engines if (item["name"], item["state"]) == (name, "Draining")), None)
