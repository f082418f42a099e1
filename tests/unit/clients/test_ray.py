"""Requests as a Ray head gets them, and the package that goes there."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web
from tests.unit.clients.server import Answer, Asked, Server, said, serving
from tests.unit.resources.test_engine import plan

import vllm_bootstrap
from vllm_bootstrap import contract
from vllm_operator.clients import ray
from vllm_operator.clients.ray import (
    Job,
    PlacementGroup,
    RayClient,
    RayError,
    RayHead,
    RayNode,
    RayTokenError,
    bootstrap_package,
)

HEAD = RayHead(ip="127.0.0.1", token="secret")


@asynccontextmanager
async def connected(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[RayClient, Server]]:
    async with serving(answer) as server, aiohttp.ClientSession() as session:
        monkeypatch.setattr(ray, "DASHBOARD_PORT", urlsplit(server.url).port)
        yield RayClient(session), server


def nodes(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"result": True, "data": {"result": {"total": len(rows), "result": list(rows)}}}


def row(name: str, *, state: str = "ALIVE", **resources: float) -> dict[str, Any]:
    return {"node_id": name, "state": state, "resources_total": {"CPU": 4.0, **resources}}


@pytest.mark.parametrize(("ip", "url"), [("10.0.0.1", "http://10.0.0.1:8265"), ("fd00::1", "http://[fd00::1]:8265")])
def test_address(ip: str, url: str) -> None:
    assert RayHead(ip=ip, token="t").url == url


async def test_session_and_token(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"version": "4", "ray_version": "2.60.0", "session_name": "session_2026"}
    async with connected(lambda _: said(answer), monkeypatch) as (client, server):
        assert await client.session_name(HEAD) == "session_2026"
        [asked] = server.asked
        assert (asked.method, asked.path) == ("GET", "/api/version")
        assert asked.headers["Authorization"] == "Bearer secret"


async def test_gpu_nodes_are_the_alive_ones_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        row("b", GPU=2.0),
        row("a", GPU=1.0),
        row("head"),
        row("gone", state="DEAD", GPU=1.0),
        {"node_id": "new", "state": "ALIVE", "resources_total": None},
        {"node_id": "newer", "state": "ALIVE"},
    ]
    async with connected(lambda _: said(nodes(*rows)), monkeypatch) as (client, server):
        assert await client.gpu_nodes(HEAD) == (RayNode(id="a", gpus=1), RayNode(id="b", gpus=2))
        assert server.asked[0].path == "/api/v0/nodes"
        assert server.asked[0].query["detail"] == "1"
        assert int(server.asked[0].query["limit"]) >= 1000, "Ray's default is 100"


@pytest.mark.parametrize("answer", [{}, {"result": False, "data": None}, {"data": {"result": None}}])
async def test_no_nodes_in_an_odd_answer(answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(lambda _: said(answer), monkeypatch) as (client, _):
        assert await client.gpu_nodes(HEAD) == ()


async def test_job(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(lambda _: said({"status": "FAILED", "message": "why"}), monkeypatch) as (client, server):
        assert await client.job(HEAD, "engine-0-r-1") == Job(status="FAILED", message="why")
        assert server.asked[0].path == "/api/jobs/engine-0-r-1"
    async with connected(lambda _: said({"status": "RUNNING", "message": None}), monkeypatch) as (client, _):
        assert await client.job(HEAD, "j") == Job(status="RUNNING", message="")
    async with connected(lambda _: web.Response(status=404, text="Job j does not exist"), monkeypatch) as (client, _):
        assert await client.job(HEAD, "j") is None
        assert await client.job_logs(HEAD, "j") == ""


async def test_submit_uploads_the_package_and_then_submits_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan()
    async with connected(lambda _: said({"submission_id": "x"}), monkeypatch) as (client, server):
        assert await client.submit(HEAD, made) == contract.job_id(made)
        upload, submission = server.asked
        assert upload.method == "PUT"
        assert upload.data == bootstrap_package(made)
        name = upload.path.rsplit("/", 1)[1]
        assert upload.path == f"/api/packages/gcs/{name}"
        assert name.endswith(".zip")
        assert (submission.method, submission.path) == ("POST", "/api/jobs/")
        assert submission.body == {
            "entrypoint": "python -m vllm_bootstrap.entrypoints.job",
            "submission_id": contract.job_id(made),
            "runtime_env": {"working_dir": f"gcs://{name}"},
            "metadata": {"deployment": "models/demo", "engine": "engine-0"},
        }


async def test_a_release_is_a_job_of_its_own_with_what_is_to_be_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    freed = contract.ReleasePlan(tenancies=(contract.Tenancy(stem="demo-12345678-engine-0", groups=("g1",)),))
    async with connected(lambda _: said({}), monkeypatch) as (client, server):
        await client.release(HEAD, freed, "release-1")
        upload, submission = server.asked
        with zipfile.ZipFile(io.BytesIO(upload.data)) as archive:
            plan_text = archive.read(contract.PLAN_FILE).decode()
        assert contract.loads(contract.ReleasePlan, plan_text) == freed
        assert submission.body["entrypoint"] == "python -m vllm_bootstrap.entrypoints.release"
        assert submission.body["submission_id"] == "release-1"


async def test_placement_groups_that_are_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"placement_group_id": "g1", "name": "a", "state": "CREATED"},
        {"placement_group_id": "g2", "name": None, "state": "PENDING"},
        {"placement_group_id": "g3", "name": "c", "state": "REMOVED"},
    ]
    async with connected(lambda _: said(nodes(*rows)), monkeypatch) as (client, server):
        found = await client.placement_groups(RayHead(ip="127.0.0.1", token=""))
        assert found == (PlacementGroup(id="g1", name="a"), PlacementGroup(id="g2", name=""))
        assert "Authorization" not in server.asked[0].headers, "a cluster without a token is asked without one"


async def test_a_wrong_token_is_told_from_other_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(lambda _: web.Response(status=403), monkeypatch) as (client, _):
        with pytest.raises(RayTokenError):
            await client.gpu_nodes(HEAD)


async def test_a_job_that_exists_already_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(asked: Asked) -> web.Response:
        if asked.method == "POST":
            return web.Response(status=500, text="Job with submission_id x already exists")
        return said({"status": "RUNNING"})

    async with connected(answer, monkeypatch) as (client, _):
        assert await client.submit(HEAD, plan()) == contract.job_id(plan())


async def test_a_job_that_is_refused_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(asked: Asked) -> web.Response:
        if asked.method == "POST":
            return web.Response(status=400, text="bad runtime_env")
        return said({}) if asked.method == "PUT" else web.Response(status=404)

    async with connected(answer, monkeypatch) as (client, _):
        with pytest.raises(RayError, match="HTTP 400: bad runtime_env"):
            await client.submit(HEAD, plan())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda _: web.Response(status=401, text="Unauthorized: missing token"), "HTTP 401: Unauthorized"),
        (lambda _: web.Response(status=500, text="x" * 9999), "HTTP 500"),
        (lambda _: web.Response(text="<html>", content_type="application/json"), "no JSON"),
    ],
)
async def test_what_a_head_refuses(answer: Answer, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(answer, monkeypatch) as (client, _):
        for call in (client.session_name(HEAD), client.gpu_nodes(HEAD), client.job(HEAD, "j")):
            with pytest.raises(RayError) as error:
                await call
            assert words in str(error.value)
            assert len(str(error.value)) < 700
            assert "secret" not in str(error.value)


async def test_a_head_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "DASHBOARD_PORT", 1)
    async with aiohttp.ClientSession() as session:
        with pytest.raises(RayError, match=r"http://127\.0\.0\.1:1: "):
            await RayClient(session).session_name(HEAD)


# ---- the package ------------------------------------------------------------------------------------------------


def entries(package: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(package)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_package_holds_the_ray_side_and_the_plan() -> None:
    found = entries(bootstrap_package(plan()))
    folder = Path(vllm_bootstrap.__file__).parent
    sources = {
        f"vllm_bootstrap/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in folder.rglob("*.py")
    }
    assert found.pop("plan.json") == contract.dumps(plan()).encode()
    assert found == sources


def test_equal_plans_give_equal_packages() -> None:
    assert bootstrap_package(plan()) == bootstrap_package(plan())
    assert bootstrap_package(plan(1)) != bootstrap_package(plan(2))
