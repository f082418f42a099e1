"""LoRA adapters of an engine over two Ray pods, changed while it serves, from a claim and from a stand-in for the hub.

And its API key on every route that it has.

One engine, shared by all tests of this module; they run in the order in which they stand.
"""

from __future__ import annotations

import base64
import json
import shutil
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hub.server import COMMIT, ELSEWHERE, HubServer, Repository
from tests.product.ask import complete, service_url
from tests.product.deployment import RESOURCE, STARTED, Deployment, applying
from tests.product.install import REPOSITORY
from tests.product.knock import WEBSOCKET, concrete, knock, spellings
from tests.product.lora import write_adapter
from tests.product.manifests import dummy
from tests.testbed.bed import Bed

from vllm_bootstrap.launching.gate import ADAPTERS_PATH, FLIGHT_PATH, OPEN_PATHS

Wish = str | dict[str, str]

pytestmark = [pytest.mark.cluster, pytest.mark.engine, pytest.mark.usefixtures("operator")]

NAMESPACE = "lora"
NAME = "base"
KEY, TOKEN = "sk-of-all-adapters", "hf_ofalladapters"
SECRETS = [
    {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "data": {key: base64.b64encode(value.encode()).decode()},
    }
    for name, key, value in (("callers", "key", KEY), ("hub", "token", TOKEN))
]
HUB_SQL = "hf://adapters/sql"
NO_SUCH_REVISION = {"uri": HUB_SQL, "revision": "v9"}
HUB_WEIGHTS = f"{ELSEWHERE}adapters/sql//adapter_model.safetensors"
RAY_STATE = """
import logging, ray
from ray.util import state
ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
for table in (state.list_actors, state.list_workers, state.list_tasks, state.list_placement_groups):
    print(table(detail=True, limit=10000))
print(state.list_jobs(detail=True), state.list_runtime_envs(detail=True), state.list_nodes(detail=True))
"""
PROCESSES_AND_LOGS = (
    "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'; "
    "find -L /tmp/ray/session_latest/logs -type f | xargs cat"
)
KILL = """
import os, pathlib, signal
for entry in pathlib.Path("/proc").glob("[0-9]*"):
    if int(entry.name) != os.getpid() and b"RayWorkerProc" in (entry / "cmdline").read_bytes():
        os.kill(int(entry.name), signal.SIGKILL)
        print(entry.name)
"""


@pytest.fixture(scope="module")
def folder(bed: Bed) -> Iterator[Path]:
    """Give the folder on this machine that the claim of the adapters shows to every node."""
    folder = bed.layout.cache / "adapters-of-tests"
    shutil.rmtree(folder, ignore_errors=True)
    write_adapter(folder / "rhymes", seed=1)
    write_adapter(folder / "sql", seed=2)
    write_adapter(folder / "unknown-module", seed=3, module="self_attn.z_proj")
    write_adapter(folder / "narrow", seed=4, hidden=128)
    write_adapter(folder / "high-rank", seed=5, rank=64)
    (folder / "empty").mkdir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def namespace(bed: Bed, folder: Path) -> Iterator[None]:
    bed.kubectl("create", "namespace", NAMESPACE)
    bed.api.apply(*SECRETS, namespace=NAMESPACE)
    bed.api.apply(*_claim(folder), namespace=NAMESPACE)
    yield
    bed.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    bed.kubectl("delete", "persistentvolume", "adapters-of-tests", "--wait=false")


@pytest.fixture(scope="module")
def hub(hub_server: HubServer, folder: Path) -> HubServer:
    """Let the hub have one of the adapters, for who has the token."""
    superfluous = {"adapter_model.bin": b"x", "README.md": b"x"}
    hub_server.repositories["adapters/sql"] = Repository(folder=folder / "sql", files=superfluous, is_private=True)
    hub_server.tokens |= {TOKEN}
    return hub_server


@pytest.fixture(scope="module")
def apply(hub: HubServer, bed: Bed) -> Iterator[Callable[[dict[str, Any]], Deployment]]:
    """Apply a deployment; delete it at the end."""
    with applying(bed, NAMESPACE) as apply:
        yield apply


@pytest.fixture(scope="module")
def served(apply: Callable[[dict[str, Any]], Deployment]) -> Deployment:
    """Give an engine of two Ray pods that serves one adapter from its beginning on."""
    lora = {"maxLoras": 2, "persistentVolumeClaims": ["adapters"], "adapters": _adapters(rhymes="rhymes")}
    manifest = dummy(
        *(NAME, "dummy-tp"),
        tensor=2,
        gpus_per_pod=1,
        lora=lora,
        apiKeySecret={"name": "callers", "key": "key"},
    )
    deployment = apply(_with_hub(manifest))
    deployment.await_ready()
    return deployment


def test_an_adapter_is_served_from_the_beginning_on(served: Deployment, bed: Bed) -> None:
    assert _models(bed) == {NAME: None, "rhymes": NAME}
    assert len(_answers(bed, NAME, "rhymes")) == 2
    [engine] = served.engines
    assert engine["adapters"] == [{"name": "rhymes", "uri": "pvc://adapters/rhymes", "state": "Loaded"}]
    assert len({rank["pod"] for rank in engine["ranks"]}) == 2


def test_one_is_added_to_the_engine_as_it_serves_and_every_pod_downloads_it(
    served: Deployment, hub: HubServer, bed: Bed
) -> None:
    before = _life(served, bed)
    _wish(served, bed, rhymes="rhymes", sql=HUB_SQL)
    served.await_ready()
    assert _models(bed) == {NAME: None, "rhymes": NAME, "sql": NAME}
    assert len(_answers(bed, NAME, "rhymes", "sql")) == 3
    assert _life(served, bed) == before
    [engine] = served.engines
    assert engine["adapters"][1] == {"name": "sql", "uri": HUB_SQL, "state": "Loaded", "commit": COMMIT}
    pods = {rank["pod"] for rank in engine["ranks"]}
    seen = bed.api.json("get", "pods", "-n", NAMESPACE)["items"]
    addresses = {pod["status"]["podIP"] for pod in seen if pod["metadata"]["name"] in pods}
    fetched = Counter(item.remote for item in hub.asked if item.path == HUB_WEIGHTS and item.method == "GET")
    assert fetched == dict.fromkeys(addresses, 1)
    assert len(addresses) == 2
    asked = {item.path.rpartition("/")[2] for item in hub.asked if item.remote in addresses}
    assert not asked & {"adapter_model.bin", "README.md"}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("empty", "empty has no adapter_config.json"),
        ("nowhere", "/mnt/models/adapters/nowhere does not exist"),
        ("narrow", "its o_proj is 128 wide, and the model's hidden size is 256: it is of another base model"),
        ("high-rank", "raise lora.maxLoraRank"),
        ("unknown-module", "z_proj"),
        (NO_SUCH_REVISION, "spec.lora.adapters[broken].revision: hf://adapters/sql has no revision v9 on http://"),
    ],
)
def test_a_broken_one_is_named_and_the_others_are_served_on(
    served: Deployment, bed: Bed, path: Wish, words: str
) -> None:
    before = _life(served, bed)
    _wish(served, bed, rhymes="rhymes", sql=HUB_SQL, broken=path)
    ready = served.await_condition("Ready", "False", reason="AdapterFailed", text=words)
    assert "engine-0 serves, but without the LoRA adapter broken" in ready["message"]
    assert served.condition("Available")["status"] == "True"
    [engine] = served.engines
    states = {item["name"]: item["state"] for item in engine["adapters"]}
    assert states == {"rhymes": "Loaded", "sql": "Loaded", "broken": "Failed"}
    assert len(_answers(bed, NAME, "rhymes", "sql")) == 3
    assert _life(served, bed) == before


def test_other_weights_under_the_same_name_and_one_less(served: Deployment, bed: Bed) -> None:
    before = _life(served, bed)
    sql = _answer(bed, "sql")
    _wish(served, bed, rhymes=HUB_SQL)
    served.await_ready()
    assert _models(bed) == {NAME: None, "rhymes": NAME}
    assert _answer(bed, "rhymes") == sql
    with pytest.raises(urllib.error.HTTPError, match="404"):
        _answer(bed, "sql")
    assert _life(served, bed) == before


def test_after_a_restart_all_are_there_again_without_the_hub(served: Deployment, hub: HubServer, bed: Bed) -> None:
    sql, asked = _answer(bed, "rhymes"), len(hub.asked)
    worker = next(rank["pod"] for rank in served.engines[0]["ranks"] if rank["rank"] == 1)
    assert bed.kubectl("exec", "-n", NAMESPACE, worker, "-c", "vllm", "--", "python3", "-c", KILL)
    served.await_engine("Serving", attempt=2)
    served.await_ready()
    assert _models(bed) == {NAME: None, "rhymes": NAME}
    assert _answer(bed, "rhymes") == sql
    assert hub.paths[asked:] == []


@pytest.fixture(scope="module")
def routes(served: Deployment, bed: Bed) -> list[dict[str, Any]]:
    """Give all routes that the server can have, by its own word: also those for developers and for adapters."""
    source = (REPOSITORY / "tests" / "checker" / "http_routes.py").read_text()
    wide = ("env", "VLLM_SERVER_DEV_MODE=1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1")
    target = ("exec", "-n", NAMESPACE, served.engines[0]["pod"], "-c", "vllm", "--")
    printed = bed.kubectl(*target, *wide, "python", "-c", source)
    found: list[dict[str, Any]] = json.loads(printed.splitlines()[-1])
    return found


def test_every_route_asks_for_the_key_however_it_is_spelt(routes: list[dict[str, Any]], bed: Bed) -> None:
    host = service_url(bed, NAMESPACE, NAME).removeprefix("http://")
    paths = {concrete(route["path"]) for route in routes} | {FLIGHT_PATH, ADAPTERS_PATH, "/", "/nowhere"}
    assert {"/v1/load_lora_adapter", "/collective_rpc", "/invocations", "/v1/realtime", "/docs"} <= paths
    methods = {"GET", "HEAD", "POST", "OPTIONS", *(method for route in routes for method in route["methods"])}
    asked = [(method, path) for path in paths - OPEN_PATHS for method in sorted(methods)]
    asked += [("POST", odd) for path in paths - OPEN_PATHS for odd in spellings(path)]
    asked += [("GET", path) for path in ("/health/", "//health", "/metrics/x", "/metrics/../version", "/HEALTH")]
    let_in = [
        (method, path, key)
        for method, path in asked
        for key in ({}, {"Authorization": "Bearer sk-of-nobody"})
        if knock(host, method, path, key) != 401
    ]
    assert let_in == []
    sockets = [path for path in paths - OPEN_PATHS if knock(host, "GET", path, WEBSOCKET) not in (401, 403)]
    assert sockets == []


def test_health_and_metrics_are_open_and_with_the_key_all_is(bed: Bed) -> None:
    host = service_url(bed, NAMESPACE, NAME).removeprefix("http://")
    assert {path: knock(host, "GET", path) for path in ("/health", "/metrics")} == {"/health": 200, "/metrics": 200}
    bearer = {"Authorization": f"Bearer {KEY}"}
    assert knock(host, "GET", "/v1/models", bearer) == 200
    # vLLM's own endpoints for adapters are not there, and ours are for the supervisor alone.
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/collective_rpc", FLIGHT_PATH, ADAPTERS_PATH):
        assert knock(host, "POST", path, bearer) == 404


def test_key_and_token_are_in_no_table_of_ray_no_process_and_no_log(served: Deployment, bed: Bed) -> None:
    kinds = "pods,configmaps,rayclusters,controllerrevisions,vllmdeployments,events"
    _hides(bed.kubectl("get", kinds, "-n", NAMESPACE, "-o", "yaml"))
    pods = [item["metadata"]["name"] for item in bed.api.json("get", "pods", "-n", NAMESPACE)["items"]]
    [head] = [name for name in pods if "-head-" in name]
    tables = bed.kubectl("exec", "-n", NAMESPACE, head, "-c", "vllm", "--", "python", "-c", RAY_STATE)
    assert f"vllm_Worker_{NAME}" in tables
    _hides(tables)
    for pod in pods:
        told = bed.kubectl("exec", "-n", NAMESPACE, pod, "--", "sh", "-c", PROCESSES_AND_LOGS)
        assert "raylet" in told
        _hides(told)
        _hides(bed.kubectl("logs", "-n", NAMESPACE, pod, "--all-containers", "--tail=-1"))


@pytest.mark.extended
def test_in_one_pod_without_ray_it_is_the_same(apply: Callable[[dict[str, Any]], Deployment], bed: Bed) -> None:
    """A rank that refuses one adapter takes the next."""
    lora = {"persistentVolumeClaims": ["adapters"], "adapters": _adapters(broken="unknown-module")}
    manifest = dummy("one-pod", "dummy-tp", tensor=2, lora=lora)
    del manifest["spec"]["rayHead"]
    deployment = apply(_with_hub(manifest))
    deployment.await_condition("Ready", "False", reason="AdapterFailed", text="z_proj", deadline=STARTED)
    before = _life(deployment, bed)
    _wish(deployment, bed, rhymes="rhymes", sql=HUB_SQL)
    deployment.await_ready()
    url = service_url(bed, NAMESPACE, "one-pod")
    assert len({complete(url, model, "The capital of France is", 8) for model in ("one-pod", "rhymes", "sql")}) == 3
    assert _life(deployment, bed) == before


def _claim(folder: Path) -> list[dict[str, Any]]:
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "adapters-of-tests"},
        "spec": {**common, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder), "type": "Directory"}},
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "adapters"},
        "spec": {**common, "volumeName": "adapters-of-tests", "resources": {"requests": {"storage": "1Gi"}}},
    }
    return [volume, claim]


def _with_hub(manifest: dict[str, Any]) -> dict[str, Any]:
    """Let the pods ask the hub, which the test bed forbids them, with the token."""
    manifest["spec"]["model"]["hfTokenSecret"] = {"name": "hub"}
    online = [{"name": "HF_HUB_OFFLINE", "value": "0"}]
    template = manifest["spec"].setdefault("pod", {}).setdefault("template", {}).setdefault("spec", {})
    template["containers"] = [{"name": "vllm", "env": online}]
    return manifest


def _hides(text: str) -> None:
    assert [secret for secret in (KEY, TOKEN) if secret in text] == []


def _adapters(**wishes: Wish) -> list[dict[str, str]]:
    """Give the entries of the spec: a folder of the claim, an address on the hub, or more than that."""
    return [{"name": name, **(_place(wish) if isinstance(wish, str) else wish)} for name, wish in wishes.items()]


def _place(wish: str) -> dict[str, str]:
    return {"uri": wish if "://" in wish else f"pvc://adapters/{wish}"}


def _wish(served: Deployment, bed: Bed, **paths: Wish) -> None:
    patch = json.dumps({"spec": {"lora": {"adapters": _adapters(**paths)}}})
    bed.kubectl("patch", RESOURCE, served.name, "-n", NAMESPACE, "--type=merge", "-p", patch)


def _life(served: Deployment, bed: Bed) -> tuple[int, list[tuple[str, int]]]:
    """Give what changes when anything of the engine is started anew: attempt, and actor and process of each rank."""
    [engine] = served.engines
    report = json.loads(bed.api.json("get", "configmap", engine["report"], "-n", NAMESPACE)["data"]["report.json"])
    return engine["attempt"], [(rank["actor_id"], rank["pid"]) for rank in report["ranks"]]


def _ask(bed: Bed, path: str, body: dict[str, Any] | None = None) -> Any:
    request = urllib.request.Request(  # noqa: S310 - an address of the test bed
        service_url(bed, NAMESPACE, NAME) + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
        return json.load(answer)


def _models(bed: Bed) -> dict[str, str | None]:
    return {card["id"]: card["parent"] for card in _ask(bed, "/v1/models")["data"]}


def _answer(bed: Bed, model: str) -> str:
    body = {"model": model, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    return str(_ask(bed, "/v1/completions", body)["choices"][0]["text"])


def _answers(bed: Bed, *models: str) -> set[str]:
    """Give the different greedy answers of some models."""
    return {_answer(bed, model) for model in models}
