"""Models of a hub on the test bed: a stand-in on the bridge, whose own log says who asked for what."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.hub.server import ELSEWHERE, HubServer, Repository
from tests.product.ask import complete, service_url
from tests.product.deployment import STARTED, Deployment, applying
from tests.product.install import dummy_models
from tests.product.manifests import dummy
from tests.testbed.bed import Bed

pytestmark = [pytest.mark.cluster, pytest.mark.engine, pytest.mark.usefixtures("operator")]

NAMESPACE = "model-sources"
TOKEN, WRONG = "hf_ofthetestbed", "hf_nolongervalid"
MODEL, TINY = "demo/smollm2", "demo/tiny"
WEIGHTS = f"{ELSEWHERE}{MODEL}//model.safetensors"
# The test bed's pods are told not to ask any hub.
ONLINE = {"containers": [{"name": "vllm", "env": [{"name": "HF_HUB_OFFLINE", "value": "0"}]}]}


@pytest.fixture(scope="module")
def hub(hub_server: HubServer, bed: Bed) -> HubServer:
    """Let the hub have the demo model, with what must not be downloaded beside it."""
    superfluous = {"original/consolidated.00.pth": b"x", "pytorch_model.bin": b"x", "README.md": b"x"}
    hub_server.repositories[MODEL] = Repository(folder=bed.runtime().model, files=superfluous, is_private=True)
    hub_server.repositories[TINY] = Repository(folder=dummy_models(bed) / "dummy-tp", is_private=True)
    hub_server.tokens |= {TOKEN}
    return hub_server


@pytest.fixture(scope="module")
def apply(hub: HubServer, bed: Bed) -> Iterator[Callable[[dict[str, Any]], Deployment]]:
    """Apply a deployment; delete it at the end."""
    bed.kubectl("create", "namespace", NAMESPACE)
    for name, token in (("hub", TOKEN), ("old", WRONG)):
        write_token(bed, name, token)
    with applying(bed, NAMESPACE) as apply:
        yield apply
    bed.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def write_token(bed: Bed, name: str, token: str) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"token": token}}
    bed.api.apply(secret, namespace=NAMESPACE)


def from_hub(manifest: dict[str, Any], repository: str, *, named: str = "hub", **model: Any) -> dict[str, Any]:
    """Give a manifest whose model comes from the hub."""
    made: dict[str, Any] = json.loads(json.dumps(manifest))
    made["spec"]["model"] = {"uri": f"hf://{repository}", "hfTokenSecret": {"name": named}, **model}
    template = made["spec"]["pod"].setdefault("template", {})
    template["spec"] = {**template.get("spec", {}), **ONLINE}
    return made


def without_ray(name: str) -> dict[str, Any]:
    manifest = dummy(name, "none")
    del manifest["spec"]["rayHead"]
    return manifest


def pipeline() -> dict[str, Any]:
    manifest = dummy("two-pods", "none", pipeline=2, gpus_per_pod=1)
    manifest["spec"]["placement"]["strategy"] = "STRICT_SPREAD"
    manifest["spec"]["vllmConfig"] = {
        "maxModelLen": 512,
        "dtype": "bfloat16",
        "extraArgs": ["-cc.mode=2", "-cc.backend=eager", "--kv-cache-memory-bytes=268435456"],
    }
    return manifest


def test_each_node_downloads_and_says_how_far_it_is(
    apply: Callable[[dict[str, Any]], Deployment], hub: HubServer, bed: Bed
) -> None:
    hub.held.set()
    deployment = apply(from_hub(pipeline(), MODEL))
    share = r"\S+ [45]\d% \(0\.1\d of 0\.2\d GiB\)"
    told = re.compile(rf"downloading hf://{MODEL}: {share}, {share}")

    def downloading(body: dict[str, Any]) -> dict[str, Any] | None:
        (engine,) = body["status"]["engineReplicas"]
        return dict(engine) if told.fullmatch(engine["message"]) else None

    try:
        engine = deployment.await_seen("both halves", downloading, deadline=STARTED)
    finally:
        hub.held.clear()
    assert (engine["state"], engine["reason"]) == ("Loading", "Downloading")
    deployment.await_ready()
    pods = {rank["pod"] for rank in deployment.engines[0]["ranks"]}
    addresses = {
        pod["status"]["podIP"]
        for pod in bed.api.json("get", "pods", "-n", NAMESPACE)["items"]
        if pod["metadata"]["name"] in pods
    }
    fetched = Counter(item.remote for item in hub.asked if item.path == WEIGHTS and item.method == "GET")
    assert fetched == dict.fromkeys(addresses, 1)
    assert len(addresses) == 2
    names = {item.path.partition("/resolve/")[2].partition("/")[2] for item in hub.asked if item.remote in addresses}
    assert not names & {"original/consolidated.00.pth", "pytorch_model.bin", "README.md"}
    asked = len(hub.asked)
    assert (
        complete(service_url(bed, NAMESPACE, deployment.name), deployment.name, "The capital of France is") == " Paris"
    )
    assert [item for item in hub.asked[asked:] if item.remote in addresses] == []
    seen = bed.kubectl("get", "vllm,rayclusters,configmaps,controllerrevisions,pods", "-n", NAMESPACE, "-o", "json")
    assert TOKEN not in seen
    deployment.delete(wait=False)


FAILURES = [
    pytest.param(
        "revision",
        {"revision": "no-such"},
        {},
        "ModelNotOnHub",
        rf"spec.model.revision: hf://{MODEL} has no revision no-such on http\S+: name one of its branches",
        id="a revision that is not there",
    ),
    pytest.param(
        "limit",
        {},
        {"volumes": [{"name": "model", "emptyDir": {"sizeLimit": "64Mi"}}]},
        "DiskFull",
        rf"hf://{MODEL} needs 0\.25 GiB more \(of 0\.25 GiB\) in \S+ \(its volume may hold 0\.06 GiB\), 0\.06 GiB are "
        "free: name a claim with more room by spec.model.cache, or enlarge the volume",
        id="a cache that is too small, by its limit",
    ),
    pytest.param(
        "disk",
        {},
        {"volumes": [{"name": "model", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}]},
        "DiskFull",
        rf"hf://{MODEL} needs 0\.25 GiB more",
        id="a disk that is too small",
    ),
]


@pytest.mark.parametrize(("name", "model", "pod", "reason", "text"), FAILURES)
def test_what_keeps_a_model_away_is_said_with_its_remedy(
    apply: Callable[[dict[str, Any]], Deployment],
    hub: HubServer,
    *,
    name: str,
    model: dict[str, Any],
    pod: dict[str, Any],
    reason: str,
    text: str,
) -> None:
    manifest = from_hub(without_ray(f"fails-{name}"), MODEL, **model)
    manifest["spec"]["vllmConfig"]["extraArgs"].remove("--load-format=dummy")
    manifest["spec"]["pod"]["template"]["spec"].update(pod)
    asked = len(hub.asked)
    deployment = apply(manifest)
    stalled = deployment.await_condition("Stalled", "True", reason=reason, deadline=STARTED)
    assert re.search(text, stalled["message"]), stalled["message"]
    assert re.search(r"\(pod fails-\S+\)$", stalled["message"])
    deployment.delete(wait=False)
    assert WEIGHTS not in [item.path for item in hub.asked[asked:]]


def test_a_token_that_is_mended_is_taken_by_the_next_attempt(
    apply: Callable[[dict[str, Any]], Deployment], bed: Bed, hub: HubServer
) -> None:
    deployment = apply(from_hub(without_ray("one-pod"), TINY, named="old"))
    stalled = deployment.await_condition("Stalled", "True", reason="HubAccessDenied", deadline=STARTED)
    assert f"spec.model.hfTokenSecret: {hub.url} refuses the token (401)" in stalled["message"]
    assert WRONG not in stalled["message"]
    assert deployment.engines[0]["retryAt"]
    write_token(bed, "old", TOKEN)
    body = deployment.await_seen("Ready", lambda seen: seen if is_ready(seen) else None, deadline=STARTED)
    (engine,) = body["status"]["engineReplicas"]
    assert engine["attempt"] > 1
    assert engine["deployment"]
    assert complete(service_url(bed, NAMESPACE, deployment.name), deployment.name, "Hello")


def is_ready(body: dict[str, Any]) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "True" for item in body["status"]["conditions"])
