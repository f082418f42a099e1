"""The supervisor's report, asked for over its control port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web
from tests.unit.clients.server import Answer, Server, said, serving
from tests.unit.lifecycle import views
from tests.unit.resources.test_engine import plan

from vllm_bootstrap import contract
from vllm_operator.clients.supervisor import SupervisorClient, SupervisorError


@asynccontextmanager
async def connected(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[SupervisorClient, Server]]:
    async with serving(answer) as server, aiohttp.ClientSession() as session:
        monkeypatch.setattr(contract, "SUPERVISOR_PORT", urlsplit(server.url).port)
        yield SupervisorClient(session), server


async def test_the_report_is_read_with_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"ready": True, "why": "serving", "report": asdict(views.report())}
    async with connected(lambda _: said(told), monkeypatch) as (client, server):
        assert (await client.look("127.0.0.1", "control")).report == views.report()
        [asked] = server.asked
        assert (asked.method, asked.path) == ("GET", "/status")
        assert asked.headers["Authorization"] == "Bearer control"


async def test_there_may_be_none_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(lambda _: said({"ready": False, "report": None}), monkeypatch) as (client, _):
        assert (await client.look("127.0.0.1", "t")).report is None


async def test_a_plan_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan()
    async with connected(lambda _: said({"job": "job-1"}), monkeypatch) as (client, server):
        assert await client.start("127.0.0.1", "control", made) == "job-1"
        [asked] = server.asked
        assert (asked.method, asked.path) == ("POST", "/start")
        assert asked.headers["Authorization"] == "Bearer control"
        assert contract.loads(contract.EnginePlan, asked.data.decode()) == made


async def test_a_drain_is_asked_for_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(lambda _: web.Response(status=202, text="accepted\n"), monkeypatch) as (client, server):
        await client.drain("127.0.0.1", "control", 60)
        [asked] = server.asked
        assert (asked.method, asked.path, asked.data) == ("POST", "/drain", b'{"timeoutSeconds": 60}')
        assert asked.headers["Authorization"] == "Bearer control"


async def test_an_engine_that_is_not_there_cannot_be_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = web.Response(status=409, text="no engine has been started yet\n")
    async with connected(lambda _: refusal, monkeypatch) as (client, _):
        with pytest.raises(SupervisorError, match="HTTP 409 no engine has been started yet"):
            await client.drain("127.0.0.1", "t", 60)


async def test_what_takes_plans_says_which_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"session": "s1", "job": "job-1", "report": None}
    async with connected(lambda _: said(told), monkeypatch) as (client, _):
        seen = await client.look("127.0.0.1", "t")
        assert (seen.session, seen.job, seen.report) == ("s1", "job-1", None)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda _: web.Response(status=401, text="the control token is needed"), "HTTP 401"),
        (lambda _: web.Response(text="no JSON", content_type="application/json"), "/status"),
        (lambda _: said({"report": {"phase": "Serving"}}), "is missing"),
    ],
)
async def test_what_cannot_be_read_is_said(answer: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(answer, monkeypatch) as (client, _):
        with pytest.raises(SupervisorError, match=words):
            await client.look("127.0.0.1", "t")


async def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "SUPERVISOR_PORT", 1)
    async with aiohttp.ClientSession() as session:
        with pytest.raises(SupervisorError, match=r"http://127\.0\.0\.1:1/status"):
            await SupervisorClient(session).look("127.0.0.1", "t")
