"""The gate before the engine's HTTP server, driven as a server drives it: who may ask, and how many do."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_bootstrap.launching.gate import ADAPTERS_PATH, FLIGHT_PATH, ORDER_LIMIT, Gate, Message, Receive, Scope, Send

TOKEN, KEY = "gate-token", "sk-demo"
HEADERS = [(b"content-type", b"text/event-stream"), (b"Connection", b"keep-alive")]


@dataclass
class Engine:
    """What stands behind the gate: each request goes on as far as its test lets it."""

    asked: list[str] = field(default_factory=list)
    held: list[asyncio.Future[None]] = field(default_factory=list)
    hold: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(scope.get("path", scope["type"]))
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        if self.hold:
            self.held.append(asyncio.get_running_loop().create_future())
            await self.held[-1]
        await send({"type": "http.response.body", "body": b"words"})


def scope(path: str, *, method: str = "POST", key: str | None = None, kind: str = "http", **headers: str) -> Scope:
    given = {**headers, **({"authorization": key} if key is not None else {})}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]
    return {"type": kind, "path": path, "headers": raw, **({"method": method} if kind == "http" else {})}


async def receive() -> Message:
    return {"type": "http.request"}


async def ask(gate: Gate, asked: Scope) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await gate(asked, receive, send)
    return sent


async def flight(gate: Gate, method: str = "GET") -> dict[str, Any]:
    start, body = await ask(gate, scope(FLIGHT_PATH, method=method, key=f"Bearer {TOKEN}"))
    assert start["status"] == 200
    found: dict[str, Any] = json.loads(body["body"])
    return found


SERVED = (
    "/v1/models",
    "/v1/completions",
    "/invocations",
    "/ping",
    "/version",
    "/load",
    "/tokenize",
    "/pooling",
    "/docs",
    "/openapi.json",
    "/",
    "/health/",
    "//health",
    "/health/../v1/models",
    "/metricsx",
    "/nowhere",
    FLIGHT_PATH,
    ADAPTERS_PATH,
)


@pytest.mark.parametrize("path", SERVED)
@pytest.mark.parametrize("key", [None, "", "Bearer", "Bearer ", "Bearer sk-dem", "Bearer sk-demo2", "Basic sk-demo"])
async def test_without_the_key_nothing_is_answered(path: str, key: str | None) -> None:
    engine = Engine()
    start, body = await ask(Gate(engine, token=TOKEN, key=KEY), scope(path, key=key))
    assert start["status"] == 401
    assert (b"www-authenticate", b"Bearer") in start["headers"]
    assert json.loads(body["body"])["error"]["code"] == "invalid_api_key"
    assert engine.asked == []


@pytest.mark.parametrize("path", SERVED)
@pytest.mark.parametrize("key", ["Bearer sk-demo", "bearer sk-demo", "Bearer  sk-demo "])
async def test_with_the_key_everything_is(path: str, key: str) -> None:
    engine = Engine()
    assert (await ask(Gate(engine, token=TOKEN, key=KEY), scope(path, key=key)))[0]["status"] == 200
    assert engine.asked == [path]


@pytest.mark.parametrize("path", ["/health", "/metrics", "/metrics/"])
async def test_health_and_metrics_ask_for_none(path: str) -> None:
    assert (await ask(Gate(Engine(), token=TOKEN, key=KEY), scope(path, method="GET")))[0]["status"] == 200


@pytest.mark.parametrize("path", SERVED)
async def test_where_there_is_no_key_none_is_asked_for(path: str) -> None:
    engine = Engine()
    assert (await ask(Gate(engine, token=TOKEN), scope(path)))[0]["status"] == 200
    assert engine.asked == [path]


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, False),
        ({"origin": "https://a"}, False),
        ({"access_control_request_method": "POST"}, False),
        ({"origin": "https://a", "access_control_request_method": "POST"}, True),
    ],
)
async def test_a_browser_may_ask_whether_it_may_ask(headers: dict[str, str], passes: bool) -> None:
    engine = Engine()
    await ask(Gate(engine, token=TOKEN, key=KEY), scope("/v1/models", method="OPTIONS", **headers))
    assert bool(engine.asked) is passes


async def test_a_websocket_without_the_key_is_closed_before_it_is_open() -> None:
    engine = Engine()
    gate = Gate(engine, token=TOKEN, key=KEY)
    [closed] = await ask(gate, scope("/v1/realtime", kind="websocket"))
    assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
    assert engine.asked == []
    await ask(gate, scope("/v1/realtime", kind="websocket", key=f"Bearer {KEY}"))
    assert engine.asked == ["/v1/realtime"]


async def test_the_servers_own_life_passes() -> None:
    engine = Engine()
    await ask(Gate(engine, token=TOKEN, key=KEY), {"type": "lifespan"})
    assert engine.asked == ["lifespan"]


async def test_nobody_else_begins_a_drain() -> None:
    engine = Engine()
    for gate in (Gate(engine, token=TOKEN), Gate(engine, token="")):
        for key in (None, "", "Bearer ", "Bearer wrong"):
            await ask(gate, scope(FLIGHT_PATH, key=key))
        [start, _] = await ask(gate, scope("/v1/models"))
        assert (b"connection", b"close") not in start["headers"]
    assert engine.asked.count(FLIGHT_PATH) == 8, "it is a path like any other"


async def test_who_is_answered_while_draining_is_told_to_go_and_still_served() -> None:
    gate = Gate(Engine(), token=TOKEN)
    start, _ = await ask(gate, scope("/v1/models"))
    assert start["headers"] == HEADERS
    assert (await flight(gate, "POST"))["draining"] is True
    start, body = await ask(gate, scope("/v1/models"))
    assert start["headers"] == [HEADERS[0], (b"connection", b"close")]
    assert body["body"] == b"words"
    assert (await flight(gate))["draining"] is True


async def receive_slowly(*parts: bytes) -> Receive:
    waiting = [*parts]

    async def receive() -> Message:
        return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

    return receive


async def order(gate: Gate, *parts: bytes, key: str | None = f"Bearer {TOKEN}") -> tuple[int, bytes]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await gate(scope(ADAPTERS_PATH, key=key), await receive_slowly(*parts), send)
    return sent[0]["status"], sent[1]["body"]


async def repeat(text: str) -> str:
    return json.dumps({"told": json.loads(text)})


async def test_the_supervisor_gives_orders_and_is_answered() -> None:
    gate = Gate(Engine(), token=TOKEN, key=KEY, orders={ADAPTERS_PATH: repeat})
    assert await order(gate, b"[1,", b" 2]") == (200, b'{"told": [1, 2]}')
    assert (await order(gate, b"[1,"))[0] == 400
    assert (await order(gate, b"\xff"))[0] == 400
    assert (await order(gate, b"1" * ORDER_LIMIT, b"1"))[0] == 400
    assert await flight(gate) == {"requests": 0, "quietSeconds": pytest.approx(0, abs=5), "draining": False}


@pytest.mark.parametrize("key", [None, "", "Bearer", "Bearer wrong", f"Bearer {KEY}"])
async def test_nobody_else_gives_orders(key: str | None) -> None:
    engine = Engine()
    gate = Gate(engine, token=TOKEN, orders={ADAPTERS_PATH: repeat})
    assert await order(gate, b"[]", key=key) == (200, b"words"), "it is a path like any other"
    assert engine.asked == [ADAPTERS_PATH]
    guarded = Gate(engine, token=TOKEN, key="sk-another", orders={ADAPTERS_PATH: repeat})
    assert (await order(guarded, b"[]", key=key))[0] == 401


@pytest.mark.parametrize("path", ["/health", "/metrics", "/ping", FLIGHT_PATH])
async def test_probes_are_not_counted(path: str) -> None:
    engine = Engine(hold=True)
    gate = Gate(engine, token=TOKEN)
    key = f"Bearer {TOKEN}" if path == FLIGHT_PATH else None
    task = asyncio.create_task(ask(gate, scope(path, key=key)))
    await asyncio.sleep(0)
    assert (await flight(gate))["requests"] == 0
    task.cancel()


async def test_quiet_is_since_the_last_request_ended() -> None:
    now = itertools.count(100.0, 10.0)
    instants = {"now": next(now)}
    engine = Engine(hold=True)
    gate = Gate(engine, token=TOKEN, now=lambda: instants["now"])
    instants["now"] = next(now)
    assert (await flight(gate))["quietSeconds"] == 10.0
    task = asyncio.create_task(ask(gate, scope("/v1/completions")))
    await asyncio.sleep(0)
    instants["now"] = next(now)
    assert await flight(gate) == {"requests": 1, "quietSeconds": 0.0, "draining": False}
    engine.held[0].set_result(None)
    await task
    instants["now"] = next(now)
    assert await flight(gate) == {"requests": 0, "quietSeconds": 10.0, "draining": False}


@given(st.lists(st.tuples(st.sampled_from(["come", "end", "fail", "leave"]), st.integers(0, 9)), max_size=40))
def test_however_requests_end_the_count_is_that_of_those_in_flight(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        engine = Engine(hold=True)
        gate = Gate(engine, token=TOKEN)
        tasks: list[tuple[asyncio.Task[list[Message]], asyncio.Future[None]]] = []
        for what, which in steps:
            if what == "come":
                task = asyncio.create_task(ask(gate, scope("/v1/chat/completions")))
                await asyncio.sleep(0)
                tasks.append((task, engine.held[-1]))
            elif tasks:
                task, held = tasks.pop(which % len(tasks))
                if what == "leave":
                    task.cancel()
                elif what == "fail":
                    held.set_exception(RuntimeError("the client has gone"))
                else:
                    held.set_result(None)
                await asyncio.gather(task, return_exceptions=True)
            assert (await flight(gate))["requests"] == len(tasks)
        for task, _ in tasks:
            task.cancel()
        await asyncio.gather(*(task for task, _ in tasks), return_exceptions=True)
        assert (await flight(gate))["requests"] == 0

    asyncio.run(run())
