"""Port 8001: who may have traffic, and who may command."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from vllm_bootstrap.contract import Adapter, AdapterList, EnginePlan, EngineReport, Phase, dumps, loads
from vllm_bootstrap.supervising.control import ControlServer, View, readiness
from vllm_bootstrap.supervising.engine_http import MISSES, STALE_SECONDS, Pulse
from vllm_bootstrap.supervising.events import AdaptersAsked, DrainAsked, Event, StopAsked

NOW = 1000.0
REPORT = EngineReport(
    uid="u", engine="e", revision="r", attempt=1, ray_session="s", sequence=1, phase=Phase.SERVING, time="t"
)
SERVING = View(report=REPORT, pulse=Pulse(NOW, 0))


@pytest.mark.parametrize(
    ("view", "ready", "why"),
    [
        (SERVING, True, "serving"),
        (replace(SERVING, pulse=Pulse(NOW, MISSES - 1)), True, "serving"),
        (replace(SERVING, pulse=Pulse(NOW, MISSES)), False, "the engine does not answer on /health"),
        (replace(SERVING, pulse=Pulse(NOW - STALE_SECONDS, 0)), False, "the engine does not answer on /health"),
        (replace(SERVING, pulse=None), False, "the engine does not answer on /health"),
        (replace(SERVING, broken=True), False, "a process of the engine has died"),
        (View(), False, "placing: no engine has been started yet"),
        (replace(SERVING, report=replace(REPORT, phase=Phase.LOADING)), False, "Loading"),
        (replace(SERVING, report=replace(REPORT, phase=Phase.DRAINING)), False, "Draining"),
        (
            replace(SERVING, report=replace(REPORT, phase=Phase.FAILED, reason="RankDied", message="rank 1")),
            False,
            "Failed: RankDied: rank 1",
        ),
    ],
)
def test_readiness(view: View, ready: bool, why: str):
    assert readiness(view, NOW) == (ready, why)


class Bench:
    """A running server, with what it shows and what it was told in reach."""

    def __init__(self, token_file: Path, start: Callable[[str], str] | None = None) -> None:
        self.view = SERVING
        self.commands: list[Event] = []
        self.accepts = True
        self.token_file = token_file
        self.server = ControlServer(
            0,
            view=lambda: self.view,
            command=self.take,
            start=start,
            token_file=token_file,
            now=lambda: NOW,
            requests=lambda: 3,
        )

    def take(self, event: Event) -> bool:
        self.commands.append(event)
        return self.accepts

    def ask(self, method: str, path: str, *, token: str | None = None, body: str = "") -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / "token").write_text("secret\n")
    bench = Bench(tmp_path / "token")
    yield bench
    bench.server.close()


def test_readyz_is_open_and_says_why_not_in_one_line(bench: Bench):
    assert bench.ask("GET", "/readyz") == (200, "serving\n")
    bench.view = View()
    assert bench.ask("GET", "/readyz") == (503, "placing: no engine has been started yet\n")


def test_status_tells_all_to_who_has_the_token(bench: Bench):
    status, text = bench.ask("GET", "/status", token="secret")
    assert status == 200
    assert json.loads(text)["report"]["phase"] == "Serving"
    assert json.loads(text)["ready"] is True


@pytest.mark.parametrize("token", [None, "", "wrong", "secret "[:3]])
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/status"), ("POST", "/drain"), ("POST", "/stop"), ("POST", "/adapters")]
)
def test_without_the_token_nothing_is_told_or_done(bench: Bench, method: str, path: str, token: str | None):
    assert bench.ask(method, path, token=token)[0] == 401
    assert bench.commands == []


def test_an_empty_or_missing_token_file_lets_nobody_in(bench: Bench):
    bench.token_file.write_text("")
    assert bench.ask("POST", "/stop", token="")[0] == 401
    bench.token_file.unlink()
    assert bench.ask("POST", "/stop", token="")[0] == 401


def test_a_renewed_token_counts_at_once(bench: Bench):
    bench.token_file.write_text("renewed")
    assert bench.ask("POST", "/drain", token="secret")[0] == 401
    assert bench.ask("POST", "/drain", token="renewed")[0] == 202


def test_adapters_are_taken_as_a_whole(bench: Bench):
    wanted = AdapterList(adapters=(Adapter(name="sql", path="/a/sql"), Adapter(name="poems", path="/a/p")))
    assert bench.ask("POST", "/adapters", token="secret", body=dumps(wanted)) == (202, "accepted\n")
    assert bench.ask("POST", "/adapters", token="secret", body="{}") == (202, "accepted\n")
    assert bench.commands == [AdaptersAsked(wanted.adapters), AdaptersAsked(())]


@pytest.mark.parametrize("body", ["", "[]", '{"adapters": [{"name": "a"}]}', '{"adapters": 1}', '{"version": '])
def test_what_is_no_list_of_adapters_changes_nothing(bench: Bench, body: str):
    status, text = bench.ask("POST", "/adapters", token="secret", body=body)
    assert status == 400
    assert "the list of adapters cannot be read" in text
    assert bench.commands == []


def test_commands(bench: Bench):
    assert bench.ask("POST", "/drain", token="secret", body='{"timeoutSeconds": 60}') == (202, "accepted\n")
    assert bench.ask("POST", "/stop", token="secret", body='{"timeoutSeconds": 5}') == (202, "accepted\n")
    assert bench.commands == [DrainAsked(60.0), StopAsked(5.0)]
    bench.accepts = False
    assert bench.ask("POST", "/stop", token="secret")[0] == 409


def test_nonsense_is_answered(bench: Bench):
    assert bench.ask("POST", "/stop", token="secret", body="[")[0] == 400
    assert bench.ask("GET", "/")[0] == 404
    assert bench.ask("POST", "/readyz", token="secret")[0] == 404
    assert bench.commands == []


def test_plans_come_as_jobs_where_there_is_ray(bench: Bench):
    assert bench.ask("POST", "/start", token="secret", body="{}") == (404, "plans come as Ray jobs here\n")


@pytest.fixture
def taker(tmp_path: Path) -> Iterator[Bench]:
    """A server that takes plans."""
    (tmp_path / "token").write_text("secret\n")
    bench = Bench(tmp_path / "token", start=lambda text: loads(EnginePlan, text).engine)
    yield bench
    bench.server.close()


def test_a_plan_is_taken_by_who_has_the_token(taker: Bench, make_plan: Callable[..., EnginePlan]):
    text = dumps(make_plan(environment={"LONG": "x" * 300_000}))
    assert taker.ask("POST", "/start", body=text)[0] == 401
    status, answer = taker.ask("POST", "/start", token="secret", body=text)
    assert (status, json.loads(answer)) == (202, {"job": make_plan().engine})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"engine": 1}'])
def test_what_is_no_plan_is_refused(taker: Bench, text: str):
    status, answer = taker.ask("POST", "/start", token="secret", body=text)
    assert status == 400
    assert "the plan cannot be read" in answer


def test_what_takes_plans_says_which_it_has(taker: Bench):
    taker.view = View(session="s1", job="job-1")
    told = json.loads(taker.ask("GET", "/status", token="secret")[1])
    assert (told["session"], told["job"], told["report"]) == ("s1", "job-1", None)
