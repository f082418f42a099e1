"""Models that the hub describes: when it is asked, what becomes of its answer, and what of its silence."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.clients.hub_server import (
    COMMIT,
    TOKEN,
    Clock,
    HubServer,
    Repository,
    always,
    clean_environment,
    hub_at,
    hub_server,
)
from tests.unit.planning import models
from tests.unit.reconcile.world import World
from tests.unit.resources import samples

from vllm_operator.api.status import PlanStatus

__all__ = ["clean_environment"]
pytestmark = pytest.mark.usefixtures("clean_environment")

LISTING = "/api/models/org/name"
SMALL = {**samples.TYPICAL, "model": {"uri": "hf://org/name"}, "parallelism": {}, "placement": {}}
EXPLICIT = {**SMALL, "parallelism": {"tensor": 1, "pipeline": 2}}
GATED = {**SMALL, "model": {"uri": "hf://org/name", "hfTokenSecret": {"name": "hub"}}}


def labelled(world: World) -> World:
    """Give the nodes GPUs of a known size."""
    for node in world.nodes:
        node["metadata"]["labels"] = {"nvidia.com/gpu.product": "NVIDIA-GeForce-RTX-3090"}
    return world


def secret(data: str | None) -> dict[str, Any]:
    keys = {} if data is None else {"token": data}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub", "namespace": "models"}, "data": keys}


def encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


async def test_sizes_follow_from_what_the_hub_tells() -> None:
    async with hub_server() as server:
        content = json.dumps(models.LLAMA_70B).encode()
        server.repositories["org/name"] = Repository(files={"config.json": content}, sizes={})
        with hub_at(server.url) as hub:
            world = labelled(World(spec=SMALL, hub=hub))
            await world.round()
    plan = world.status["plan"]
    assert (plan["tensor"], plan["pipeline"]) == (4, 2)
    assert plan["facts"] == f"hub, commit {COMMIT}"
    assert plan["memory"]["weightsMiB"] > 0
    assert world.api.names("RayCluster")


async def test_the_token_of_the_secret_is_sent_and_stands_nowhere() -> None:
    async with hub_server() as server:
        server.repositories["org/name"].is_private = True
        with hub_at(server.url) as hub:
            world = labelled(World(spec=GATED, hub=hub))
            world.api.put(secret(encoded(f"{TOKEN}\n".encode())))
            await world.round()
            assert {item.authorization for item in server.asked} == {f"Bearer {TOKEN}"}
    world.api.drop("Secret", "hub")
    told = repr(world.api.objects) + repr(world.ray.plans)
    assert world.status["plan"]["facts"]
    assert TOKEN not in told
    assert encoded(TOKEN.encode()) not in told


@pytest.mark.parametrize(
    "spec",
    [
        {"model": {"uri": "hf://org/name", "facts": {"parameters": "8B"}}},
        {"model": {"uri": "hf://org/name", "facts": {"config": models.LLAMA_8B}}},
        {"model": {"uri": "file:///m"}},
        {"model": {"uri": "hf://org/name"}, "envFrom": [{"secretRef": {"name": "absent"}}]},
        {"model": {"uri": "hf://org/name", "hfTokenSecret": {"name": "absent"}}},
    ],
    ids=["parameters", "config", "file", "blocked", "no secret"],
)
async def test_who_need_not_ask_does_not(spec: dict[str, Any]) -> None:
    async with hub_server() as server:
        with hub_at(server.url) as hub:
            world = World(spec={**SMALL, **spec}, hub=hub)
            await world.round()
        assert server.asked == []
    assert world.status["conditions"]


async def test_a_revision_that_is_there_is_not_planned_again() -> None:
    clock = Clock()
    async with hub_server() as server:
        with hub_at(server.url, clock) as hub:
            world = labelled(World(spec=SMALL, hub=hub))
            await world.round()
            planned, requests = world.status["plan"], len(server.asked)
            clock.now += 10**6
            server.repositories.clear()
            await world.rounds(3)
            assert len(server.asked) == requests
            assert world.status["plan"] == planned
            assert world.condition("Planned")["status"] == "True"


async def test_a_plan_that_is_only_made_asks_too() -> None:
    async with hub_server() as server:
        with hub_at(server.url) as hub:
            world = labelled(World(spec={**SMALL, "planOnly": True}, hub=hub))
            await world.round()
    assert world.status["plan"]["facts"] == f"hub, commit {COMMIT}"
    assert world.api.names("RayCluster") == []


async def test_what_is_planned_anew_for_lack_of_gpus_still_follows_the_hub() -> None:
    async with hub_server() as server:
        content = json.dumps(models.LLAMA_70B).encode()
        server.repositories["org/name"] = Repository(files={"config.json": content}, sizes={})
        with hub_at(server.url) as hub:
            world = labelled(World(spec=SMALL, hub=hub))
            await world.round()
            assert world.status["plan"]["gpus"] == 8
            world.api.drop("RayCluster", world.api.names("RayCluster")[0])
            for node in world.nodes:
                node["metadata"]["labels"] = {"nvidia.com/gpu.product": "NVIDIA-H200"}
                node["status"]["allocatable"]["nvidia.com/gpu"] = "2"
            await world.rounds(2)
    plan = world.status["plan"]
    assert (plan["accelerator"], plan["gpus"]) == ("NVIDIA-H200", 2)
    assert plan["facts"] == f"hub, commit {COMMIT}"


def gone(server: HubServer) -> None:
    server.repositories.clear()


def gated(server: HubServer) -> None:
    server.repositories["org/name"].is_gated = True


def busy(server: HubServer) -> None:
    server.answers[LISTING] = always(503)


def unreadable(server: HubServer) -> None:
    server.repositories["org/name"] = Repository(files={"m.gguf": b""})


@pytest.mark.parametrize(
    ("change", "condition", "reason", "words"),
    [
        (gone, "Stalled", "ModelNotFound", "has no model org/name, or it is private"),
        (gated, "Stalled", "ModelNotReadable", "org/name is gated; accept its licence"),
        (busy, "Reconciling", "ModelFactsUnavailable", "cannot tell about org/name now: HTTP 503"),
    ],
)
async def test_sizes_that_were_left_out_wait_for_the_hub(
    change: Callable[[HubServer], None], condition: str, reason: str, words: str
) -> None:
    clock = Clock()
    async with hub_server() as server:
        change(server)
        with hub_at(server.url, clock) as hub:
            world = labelled(World(spec=SMALL, hub=hub))
            await world.round()
            told = world.condition(condition)
            assert (told["status"], told["reason"]) == ("True", reason)
            assert words in told["message"]
            assert told["message"].endswith("or set parallelism.tensor and parallelism.pipeline, or model.facts")
            assert world.condition("Ready")["reason"] == reason
            assert world.api.names("RayCluster") == []
            assert world.again == 15

            server.repositories["org/name"] = Repository()
            server.answers.clear()
            clock.now += 60
            await world.round()
            assert world.status["plan"]["facts"] == f"hub, commit {COMMIT}"
            assert world.api.names("RayCluster"), "it goes on by itself"


@pytest.mark.parametrize("change", [gone, gated, busy, unreadable])
async def test_explicit_sizes_are_planned_without_the_hub_and_say_so(change: Callable[[HubServer], None]) -> None:
    async with hub_server() as server:
        change(server)
        with hub_at(server.url) as hub:
            world = labelled(World(spec=EXPLICIT, hub=hub))
            await world.round()
    assert world.api.names("RayCluster")
    plan = world.status["plan"]
    assert plan["warning"].startswith("memory was not checked: ")
    assert "org/name" in plan["warning"]
    assert plan.keys() & {"memory", "facts"} == set()


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "has no config.json"), (b"{}", "no positive hidden_size"), (b"<html>", "config.json is no JSON")],
)
async def test_a_model_that_the_planner_does_not_understand_is_one_of_which_nothing_is_known(
    content: bytes | None, words: str
) -> None:
    async with hub_server() as server:
        server.repositories["org/name"].files = {} if content is None else {"config.json": content}
        with hub_at(server.url) as hub:
            world = labelled(World(spec=SMALL, hub=hub))
            await world.round()
    plan = world.status["plan"]
    assert (plan["tensor"], plan["pipeline"]) == (1, 1)
    assert "memory was not checked and sizes that are left out are 1: org/name" in plan["warning"]
    assert words in plan["warning"]


async def test_without_a_hub_sizes_that_are_left_out_are_one_and_the_warning_says_so() -> None:
    world = labelled(World(spec=SMALL))
    await world.round()
    plan = world.status["plan"]
    assert (plan["tensor"], plan["pipeline"]) == (1, 1)
    assert "sizes that are left out are 1: no hub was asked for the model" in plan["warning"]


@pytest.mark.parametrize(
    "data",
    [encoded(b""), encoded(b"two\nlines"), encoded(b"\xff\xfe"), encoded("ü".encode()), "%%%", encoded(b"x" * 5000)],
)
async def test_what_is_no_token_is_not_sent(data: str) -> None:
    async with hub_server() as server:
        with hub_at(server.url) as hub:
            world = labelled(World(spec=GATED, hub=hub))
            world.api.put(secret(data))
            await world.round()
            assert server.asked == []
    told = world.condition("Stalled")
    assert told["reason"] == "ModelNotReadable"
    assert "spec.model.hfTokenSecret: key token of Secret hub holds no token" in told["message"]
    assert "lines" not in told["message"]


async def test_a_mended_secret_counts_at_once() -> None:
    async with hub_server() as server:
        server.answers[LISTING] = always(401, X_Error_Message="Invalid credentials in Authorization header")
        with hub_at(server.url) as hub:
            world = labelled(World(spec=GATED, hub=hub))
            world.api.put(secret(encoded(b"hf_wrong")))
            await world.round()
            assert "refuses the token" in world.condition("Stalled")["message"]
            server.answers.clear()
            world.api.put(secret(encoded(TOKEN.encode())))
            await world.round()
            assert world.status["plan"]["facts"]


def test_what_status_says_of_the_source_has_room_in_the_schema() -> None:
    assert PlanStatus(facts=f"hub, commit {'f' * 64}")
