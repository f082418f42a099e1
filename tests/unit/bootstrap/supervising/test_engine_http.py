"""Health polls and the warm-up request, against a server that plays the engine."""

from __future__ import annotations

import http.server
import json
import queue
import threading
from collections.abc import Iterator

import pytest

from vllm_bootstrap.clock import Clock
from vllm_bootstrap.contract import Adapter, AdapterList, AdapterReport, AdapterReports, AdapterState, dumps
from vllm_bootstrap.launching.gate import ADAPTERS_PATH, FLIGHT_PATH
from vllm_bootstrap.supervising import engine_http
from vllm_bootstrap.supervising.engine_http import HttpEngine, first_token
from vllm_bootstrap.supervising.events import AdaptersSeen, Answered, FlightSeen, Inbox, WarmedUp
from vllm_bootstrap.supervising.launcher_process import is_free


class FakeEngine:
    def __init__(self) -> None:
        self.health = 503
        self.words = "words"
        self.answers: dict[str, int] = {}
        self.requests: list[tuple[str, str | None, dict[str, object]]] = []
        self.flight: object = {"requests": 0, "quietSeconds": 2.5, "draining": False}
        self.flights: list[tuple[str, str | None]] = []
        self.data_ranks: list[str | None] = []
        self.hung_rank = ""
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == FLIGHT_PATH:
                    self.tell_flight()
                    return
                self.send_response(fake.health)
                self.end_headers()

            def tell_flight(self) -> None:
                fake.flights.append((self.command, self.headers.get("Authorization")))
                self.send_response(404 if fake.flight is None else 200)
                self.end_headers()
                self.wfile.write(json.dumps(fake.flight).encode())

            def do_POST(self) -> None:
                if self.path == FLIGHT_PATH:
                    self.tell_flight()
                    return
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.requests.append((self.path, self.headers.get("Authorization"), body))
                fake.data_ranks.append(data_rank := self.headers.get("X-data-parallel-rank"))
                self.send_response(500 if data_rank == fake.hung_rank else fake.answers.get(self.path, 200))
                self.end_headers()
                self.wfile.write(fake.words.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def fake() -> Iterator[FakeEngine]:
    fake = FakeEngine()
    yield fake
    fake.server.shutdown()
    fake.server.server_close()


@pytest.fixture
def engine(fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[HttpEngine, Inbox]]:
    monkeypatch.setattr(engine_http, "POLL_SECONDS", 0.01)
    inbox = Inbox()
    engine = HttpEngine(port=fake.server.server_port, model="demo", key="k", gate_token="t", inbox=inbox, clock=Clock())
    yield engine, inbox
    engine.close()


def test_the_first_answer_is_told_once(fake: FakeEngine, engine: tuple[HttpEngine, Inbox]):
    subject, inbox = engine
    subject.watch()
    with pytest.raises(queue.Empty):
        inbox.events.get(timeout=0.1)
    assert not subject.pulse.is_alive(Clock().monotonic())
    fake.health = 200
    assert inbox.events.get(timeout=60) == Answered()
    assert subject.pulse.is_alive(Clock().monotonic())
    fake.health = 503
    deadline = threading.Event()
    while subject.pulse.misses < engine_http.MISSES:
        assert not deadline.wait(0.01)
    assert not subject.pulse.is_alive(Clock().monotonic())
    assert inbox.events.empty()


def test_warm_up(fake: FakeEngine, engine: tuple[HttpEngine, Inbox]):
    subject, inbox = engine
    subject.warm_up(5.0)
    assert inbox.events.get(timeout=60) == WarmedUp("")
    path, key, body = fake.requests[0]
    assert path == "/v1/completions"
    assert key == "Bearer k"
    assert body["model"] == "demo"
    assert body["max_tokens"] == 1
    assert fake.flights == [("GET", "Bearer t")]


@pytest.mark.parametrize(("data", "asked"), [(1, [None]), (3, ["0", "1", "2"])])
def test_each_data_parallel_rank_gives_a_token(fake: FakeEngine, data: int, asked: list[str | None]) -> None:
    inbox = Inbox()
    port = fake.server.server_port
    HttpEngine(port=port, model="demo", key="", gate_token="t", data=data, inbox=inbox, clock=Clock()).warm_up(5.0)
    assert inbox.events.get(timeout=60) == WarmedUp("")
    assert fake.data_ranks == asked


def test_the_data_parallel_rank_that_gives_none_is_named(fake: FakeEngine) -> None:
    inbox = Inbox()
    fake.hung_rank = "1"
    port = fake.server.server_port
    HttpEngine(port=port, model="demo", key="", gate_token="t", data=3, inbox=inbox, clock=Clock()).warm_up(5.0)
    assert inbox.events.get(timeout=60) == WarmedUp("data parallel rank 1: POST /v1/completions: 500 words")


@pytest.mark.parametrize("flight", [None, [], {}, {"requests": "many"}])
def test_an_engine_without_our_gate_does_not_serve(
    fake: FakeEngine, engine: tuple[HttpEngine, Inbox], flight: object
) -> None:
    subject, inbox = engine
    fake.flight = flight
    subject.warm_up(5.0)
    warmed = inbox.events.get(timeout=60)
    assert isinstance(warmed, WarmedUp)
    assert "the operator's gate is not before this vLLM" in warmed.fault


def test_the_engine_is_asked_for_adapters_through_its_gate(fake: FakeEngine, engine: tuple[HttpEngine, Inbox]) -> None:
    subject, inbox = engine
    told = AdapterReport(name="sql", path="/a", state=AdapterState.LOADED)
    fake.words = dumps(AdapterReports(adapters=(told,)))
    subject.adapt((Adapter(name="sql", path="/a"),))
    assert inbox.events.get(timeout=60) == AdaptersSeen((told,))
    wanted = json.loads(dumps(AdapterList(adapters=(Adapter(name="sql", path="/a"),))))
    assert fake.requests == [(ADAPTERS_PATH, "Bearer t", wanted)]


@pytest.mark.parametrize(("status", "words"), [(500, "boom"), (404, "no such path"), (200, "no list")])
def test_an_engine_that_cannot_say_what_became_of_adapters_has_a_fault(
    fake: FakeEngine, engine: tuple[HttpEngine, Inbox], status: int, words: str
) -> None:
    subject, inbox = engine
    fake.words, fake.answers[ADAPTERS_PATH] = words, status
    subject.adapt(())
    seen = inbox.events.get(timeout=60)
    assert isinstance(seen, AdaptersSeen)
    assert "the engine did not answer when it was asked for it" in seen.fault


def test_a_drain_is_told_again_and_again(fake: FakeEngine, engine: tuple[HttpEngine, Inbox]) -> None:
    subject, inbox = engine
    fake.flight = {"requests": 3, "quietSeconds": 0.0, "draining": True}
    subject.drain()
    assert inbox.events.get(timeout=60) == FlightSeen(requests=3, quiet=0.0)
    fake.flight = {"requests": 0, "quietSeconds": 0.5, "draining": True}
    while inbox.events.get(timeout=60) != FlightSeen(requests=0, quiet=0.5):
        pass
    assert set(fake.flights) == {("POST", "Bearer t")}


@pytest.mark.parametrize(
    ("answers", "asked", "fault"),
    [
        ({}, 1, ""),
        ({"/v1/completions": 404}, 2, ""),
        ({"/v1/completions": 400}, 2, ""),
        ({"/v1/completions": 404, "/v1/chat/completions": 404}, 3, ""),
        ({"/v1/completions": 500}, 1, "POST /v1/completions: 500 words"),
        ({"/v1/completions": 401}, 1, "POST /v1/completions: 401 words"),
        (dict.fromkeys(("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/pooling"), 404), 4, ""),
        (
            {"/v1/completions": 400, "/v1/chat/completions": 404, "/v1/embeddings": 404, "/pooling": 404},
            4,
            "POST /v1/completions: 400 words",
        ),
    ],
)
def test_the_first_way_that_the_model_serves_is_taken(answers: dict[str, int], asked: int, fault: str):
    seen = []

    def send(path: str, _: dict[str, object]) -> tuple[int, str]:
        seen.append(path)
        return answers.get(path, 200), "words"

    assert first_token("demo", send) == fault
    assert len(seen) == asked


def test_an_engine_that_does_not_answer_is_a_fault():
    def send(*_: object) -> tuple[int, str]:
        raise TimeoutError("timed out")

    assert first_token("demo", send) == "POST /v1/completions: timed out"


def test_a_taken_port_is_seen(fake: FakeEngine):
    assert not is_free(fake.server.server_port)
