"""The commands against an HTTP server that holds a night's objects: requests, rights, namespaces, exit statuses."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from click.testing import CliRunner, Result
from tests.unit.cli import nights
from tests.unit.cli.nights import Night, world_of
from tests.unit.clients.server import Asked, Server, refused, said, serving
from tests.unit.reconcile.world import World, deployment
from tests.unit.resources import samples

from vllm_operator.api import identity
from vllm_operator.cli.main import main

KINDS = {
    "vllmdeployments": "VLLMDeployment",
    "rayclusters": "RayCluster",
    "pods": "Pod",
    "nodes": "Node",
    "events": "Event",
    "configmaps": "ConfigMap",
    "resourcequotas": "ResourceQuota",
    "limitranges": "LimitRange",
}


class Cluster:
    """An API server with the objects of a world.

    Parameters
    ----------
    forbidden
        Plurals that this user may not read; ``everywhere`` of one is its list over all namespaces.
    """

    def __init__(self, world: World, forbidden: frozenset[str]) -> None:
        self.world = world
        self.forbidden = forbidden

    def __call__(self, asked: Asked) -> web.Response:
        parts = asked.path.strip("/").split("/")[2 if asked.path.startswith("/api/") else 3 :]
        namespace = parts[1] if parts[0] == "namespaces" else ""
        plural, *name = parts[2:] if namespace else parts
        if plural in self.forbidden or (f"{plural} everywhere" in self.forbidden and not namespace):
            return refused(403, f"{plural} is forbidden: User cannot list resource")
        if KINDS[plural] in self.world.api.unknown:
            return refused(404, "the server could not find the requested resource")
        found = [
            body
            for (kind, where, called), body in sorted(self.world.api.objects.items())
            if kind == KINDS[plural] and namespace in ("", where) and (not name or called == name[0])
        ]
        if name:
            return said(found[0]) if found else refused(404, f'{plural} "{name[0]}" not found')
        wanted = dict(part.split("=") for part in asked.query.get("labelSelector", "").split(",") if part)
        return said({"items": [body for body in found if wanted.items() <= labels(body).items()]})


def labels(body: dict[str, Any]) -> dict[str, str]:
    return body["metadata"].get("labels") or {}


@contextmanager
def running(world: World, forbidden: frozenset[str]) -> Iterator[Server]:
    """Serve in a thread: the command has an event loop of its own."""
    loop, ready, done = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    found: list[Server] = []

    async def serve() -> None:
        async with serving(Cluster(world, forbidden)) as server:
            found.append(server)
            ready.set()
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30)
        yield found[0]
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()


class User:
    """Somebody with a kubeconfig whose current context is of the namespace ``models``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[Asked] = []

    def run(self, world: World, *arguments: str, forbidden: frozenset[str] = frozenset()) -> Result:
        with running(world, forbidden) as server:
            contexts = [
                {"name": name, "context": {"cluster": "k", "namespace": name}} for name in ("models", "elsewhere")
            ]
            clusters = [{"name": "k", "cluster": {"server": server.url}}]
            config = {"current-context": "models", "contexts": contexts, "clusters": clusters, "users": []}
            (self.folder / "config").write_text(yaml.safe_dump(config))
            result = CliRunner().invoke(main, [*arguments, "--kubeconfig", str(self.folder / "config")])
            self.asked = server.asked
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


@pytest.mark.parametrize(
    ("night", "status", "reason"),
    [
        (nights.serving, 0, "Serving"),
        (nights.unschedulable, 2, "Unschedulable"),
        (nights.crash_loop, 5, "Error"),
        (nights.no_kuberay, 5, "KubeRayNotInstalled"),
    ],
)
def test_why_over_http(user: User, night: Night, status: int, reason: str) -> None:
    result = user.run(world_of(night), "why", "demo", "-o", "json")
    assert (result.exit_code, result.stderr) == (status, "")
    assert json.loads(result.stdout)["cause"]["reason"] == reason
    assert {asked.method for asked in user.asked} == {"GET"}
    assert len(user.asked) <= 7


def test_why_is_a_handful_of_requests_however_many_engines_there_are(user: User) -> None:
    async def many(world: World) -> None:
        world.change(replicas=20)
        for body in world.nodes:
            body["status"]["allocatable"] = {"nvidia.com/gpu": "20"}
        await world.serve()

    result = user.run(world_of(many), "why", "demo")
    assert result.exit_code == 0
    assert len([asked for asked in user.asked if "/nodes/" not in asked.path]) == 5


@pytest.mark.parametrize("output", ["table", "wide", "json", "yaml"])
@pytest.mark.parametrize("command", ["why", "explain", "ranks"])
def test_every_output(user: User, command: str, output: str) -> None:
    result = user.run(world_of(nights.serving), command, "demo", "-o", output)
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    if output in ("json", "yaml"):
        assert yaml.safe_load(result.stdout)


def test_the_engine_cores_of_data_parallel_ranks_are_told_beside_the_ranks(user: User) -> None:
    world = world_of(nights.serving)
    body = world.api.body(identity.KIND, "demo")
    (engine,) = body["status"]["engineReplicas"]
    core = {"kind": "EngineCoreActor", "actorId": "ab", "state": "ALIVE"}
    engine["ranks"] = [{"rank": rank, "dp": rank, "tp": 0, "pp": 0, "bundle": 0} for rank in range(2)]
    engine["engineCores"] = [{"dp": rank, "pod": f"pod-{rank}", **core} for rank in range(2)]
    world.api.put(body)

    result = user.run(world, "ranks", "demo")
    assert result.exit_code == 0
    ranks, cores = result.stdout.split("\n\n")
    assert len(ranks.splitlines()) == 3
    assert [line.split() for line in cores.splitlines()] == [
        ["ENGINE", "DP", "ENGINE", "CORE", "POD", "STATE", "ACTOR", "ID"],
        ["engine-0", "0", "EngineCoreActor", "pod-0", "ALIVE", "ab"],
        ["engine-0", "1", "EngineCoreActor", "pod-1", "ALIVE", "ab"],
    ]


@pytest.mark.parametrize("command", ["why", "explain"])
def test_what_is_forbidden_does_not_end_a_command(user: User, command: str) -> None:
    forbidden = frozenset({"pods", "events", "nodes", "configmaps", "rayclusters"})
    result = user.run(world_of(nights.unschedulable), command, "demo", forbidden=forbidden)
    assert (result.exit_code, result.stderr) == (2 if command == "why" else 0, "")
    assert "(pods: forbidden for you)" in result.stdout
    if command == "why":
        assert "(events: forbidden for you)" in result.stdout
        assert "has no node" in result.stdout or "0/3 nodes" in result.stdout


@pytest.mark.parametrize(
    ("name", "options", "forbidden", "words"),
    [
        ("dem", [], [], "VLLMDeployment dem in namespace models; there are: demo, other"),
        ("ohter", [], [], "VLLMDeployment ohter in namespace models; there are: other, demo"),
        ("demo", ["-n", "empty"], [], "demo in namespace empty; there is one in models: -n models"),
        ("zzz", ["-n", "empty"], [], "zzz in namespace empty; there is none there"),
        ("zzz", ["--context", "elsewhere"], [], "zzz in namespace elsewhere; there is none there"),
        ("dem", [], ["vllmdeployments everywhere"], "dem in namespace models; there are: demo, other"),
        ("demo", [], ["vllmdeployments"], "VLLMDeployment models/demo: vllmdeployments is forbidden"),
    ],
)
@pytest.mark.parametrize("command", ["why", "explain", "ranks"])
def test_one_that_is_not_there(
    *, user: User, command: str, name: str, options: list[str], forbidden: list[str], words: str
) -> None:
    world = world_of(nights.as_it_is)
    world.api.put(deployment(samples.TYPICAL, name="other"))
    result = user.run(world, command, name, *options, forbidden=frozenset(forbidden))
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr


def test_a_cluster_without_our_kind(user: User) -> None:
    world = world_of(nights.as_it_is)
    world.api.unknown.add("VLLMDeployment")
    result = user.run(world, "why", "demo")
    assert result.exit_code == 1
    assert (
        "the API server knows no VLLMDeployment (vllm-operator.io/v1alpha1): is the chart installed?" in result.stderr
    )


def test_a_context_that_is_not_there(user: User) -> None:
    result = user.run(world_of(nights.as_it_is), "why", "demo", "--context", "nowhere")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nowhere" in result.stderr


@pytest.mark.parametrize("arguments", [["why"], ["why", "a", "--bogus"], ["why", "a", "-o", "xml"], ["whyy"]])
def test_wrong_use_is_no_exit_status_of_a_diagnosis(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "Usage:" in result.stderr


def test_a_plan_made_now(user: User) -> None:
    same = user.run(world_of(nights.serving), "explain", "demo", "--live")
    assert same.exit_code == 0
    assert "a plan made now would be the same" in same.stdout
    blind = user.run(world_of(nights.serving), "explain", "demo", "--live", forbidden=frozenset({"nodes"}))
    assert blind.exit_code == 0
    assert "(live: the cluster cannot be read: nodes is forbidden" in blind.stdout


def test_its_own_pods_are_in_nobodys_way(user: User) -> None:
    async def full(world: World) -> None:
        await world.serve()
        for body in world.nodes:
            body["status"]["allocatable"] = {"nvidia.com/gpu": "1"}
        pods = [body for body in world.api.objects.values() if body["kind"] == "Pod"]
        held = [body for body in pods if "-head-" not in body["metadata"]["name"]]
        for body, where in zip(held, ("gpu-a", "gpu-b"), strict=True):
            body["spec"]["nodeName"] = where

    result = user.run(world_of(full), "explain", "demo", "--live", "-o", "json")
    assert json.loads(result.stdout)["live"]["verdict"] == "Fits"


async def quota_for_one(world: World) -> None:
    hard = {"requests.nvidia.com/gpu": "1"}
    await world.serve()
    meta = {"name": "team", "namespace": "models"}
    world.api.put({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {}, "status": {"hard": hard}})


Live = Callable[[str, str], Result]


@pytest.fixture
def live(user: User, tmp_path: Path) -> Live:
    """Plan two GPUs in a namespace of a cluster with a quota, where something may not be read."""

    def planned(forbidden: str, namespace: str) -> Result:
        file = tmp_path / "cr.yaml"
        spec = {"model": {"uri": "file:///m"}, "parallelism": {"tensor": 2}}
        file.write_text(yaml.safe_dump({"kind": "VLLMDeployment", "metadata": {"namespace": namespace}, "spec": spec}))
        return user.run(world_of(quota_for_one), "plan", "-f", str(file), forbidden=frozenset({forbidden}))

    return planned


@pytest.mark.parametrize(
    ("forbidden", "namespace", "status", "words"),
    [
        ("", "models", 3, "NotNow: ResourceQuota team allows 1 of requests.nvidia.com/gpu, others use 0"),
        ("", "elsewhere", 0, "Fits"),
        (
            "resourcequotas",
            "models",
            0,
            "warning: the quotas of namespace models may not be read and are not looked at",
        ),
        ("nodes", "models", 1, "the cluster cannot be read"),
    ],
)
def test_live_quotas(live: Live, forbidden: str, namespace: str, status: int, words: str) -> None:
    result = live(forbidden, namespace)
    assert result.exit_code == status
    assert words in result.stdout + result.stderr


def test_a_plan_made_now_heeds_quotas(user: User) -> None:
    result = user.run(world_of(quota_for_one), "explain", "demo", "--live", "-o", "json")
    live = json.loads(result.stdout)["live"]
    assert (live["verdict"], live["reason"].partition(" allows")[0]) == ("NotNow", "ResourceQuota team")
