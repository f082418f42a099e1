"""The outermost layer of the engine's HTTP server: who may ask, and how many requests are in flight.

vLLM checks its key under four prefixes only, and its gauges read 0 while requests hang in the engine.  So both are done
here, around all that vLLM and its plugins serve.  Plain ASGI: it imports neither vLLM nor a web framework.

The supervisor asks the gate on the engine's own port, with a token that only the two know.  That works while the engine
is busy: the HTTP server is a process of its own.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]
Order = Callable[[str], Awaitable[str]]
"""Takes the JSON of an order, and gives the JSON of its answer."""

FLIGHT_PATH = "/_vllm-operator/flight"
"""GET tells how many requests are in flight; POST does, too, and begins to drain."""

ADAPTERS_PATH = "/_vllm-operator/adapters"
"""POST takes the list of LoRA adapters that are wanted, and tells what became of each."""

ORDER_LIMIT = 1 << 20

OPEN_PATHS = frozenset({"/health", "/metrics", "/metrics/"})
UNCOUNTED_PATHS = OPEN_PATHS | {"/ping"}

UNAUTHORIZED = {
    "error": {
        "message": "The API key is missing or wrong: send it as Authorization: Bearer <key>",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_api_key",
    }
}


class Gate:
    """ASGI middleware; one for each HTTP server.

    Parameters
    ----------
    app
        What it stands before.
    token
        Opens ``FLIGHT_PATH`` and the paths of ``orders``.  With none those paths are like any other.
    key
        The API key; empty where none is asked for.
    orders
        What else the supervisor may ask for, by path.
    now
        A monotonic clock, in seconds.
    """

    def __init__(
        self,
        app: App,
        *,
        token: str,
        key: str = "",
        orders: Mapping[str, Order] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._orders = dict(orders or {})
        self._token = _digest(token.encode()) if token else b""
        self._key = _digest(key.encode()) if key else b""
        self._now = now
        self._requests = 0
        self._last = now()
        self._draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take a request or connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif scope["path"] == FLIGHT_PATH and self._is_supervisor(scope):
            self._draining = self._draining or scope.get("method") == "POST"
            await _answer(send, 200, self._flight())
        elif scope["path"] in self._orders and self._is_supervisor(scope):
            await self._obey(self._orders[scope["path"]], receive, send)
        elif not self._may_pass(scope):
            await _refuse(scope, send)
        elif scope["path"] in UNCOUNTED_PATHS:
            await self._app(scope, receive, send)
        else:
            await self._count(scope, receive, send)

    async def _count(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_on(message: Message) -> None:
            # Whoever asks again over this connection comes back here, past every Service: kube-proxy cuts none.
            if self._draining and message["type"] == "http.response.start":
                message = {**message, "headers": _closing(message.get("headers", ()))}
            await send(message)

        self._requests += 1
        self._last = self._now()
        try:
            await self._app(scope, receive, send_on)
        finally:
            self._requests -= 1
            self._last = self._now()

    async def _obey(self, order: Order, receive: Receive, send: Send) -> None:
        try:
            await _answer(send, 200, json.loads(await order(await _read(receive))))
        except ValueError as error:
            await _answer(send, 400, {"error": str(error)})

    def _is_supervisor(self, scope: Scope) -> bool:
        return bool(scope["type"] == "http" and _bears(scope["headers"], self._token))

    def _may_pass(self, scope: Scope) -> bool:
        return (
            not self._key or scope["path"] in OPEN_PATHS or _is_preflight(scope) or _bears(scope["headers"], self._key)
        )

    def _flight(self) -> dict[str, Any]:
        quiet = 0.0 if self._requests else self._now() - self._last
        return {"requests": self._requests, "quietSeconds": quiet, "draining": self._draining}


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def _bears(headers: Headers, digest: bytes) -> bool:
    """Say whether a request bears the secret of this digest; how long it takes says nothing of the secret."""
    given = next((value for name, value in headers if name == b"authorization"), b"")
    scheme, _, secret = given.partition(b" ")
    return bool(digest) and scheme.lower() == b"bearer" and hmac.compare_digest(_digest(secret.strip()), digest)


def _is_preflight(scope: Scope) -> bool:
    """Say whether a browser asks if it may ask: it sends no key with that, and vLLM answers without any route."""
    names = {name for name, _ in scope["headers"]}
    return scope.get("method") == "OPTIONS" and names >= {b"origin", b"access-control-request-method"}


def _closing(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [*((name, value) for name, value in headers if name.lower() != b"connection"), (b"connection", b"close")]


async def _read(receive: Receive) -> str:
    """Read a request's body whole.

    Raises
    ------
    ValueError
        It is too long, is no text, or the other side went away.
    """
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ValueError("the request was not sent to its end")
        body, more = body + message.get("body", b""), message.get("more_body", False)
        if len(body) > ORDER_LIMIT:
            raise ValueError(f"longer than {ORDER_LIMIT} bytes")
    return body.decode()


async def _refuse(scope: Scope, send: Send) -> None:
    if scope["type"] == "http":
        await _answer(send, 401, UNAUTHORIZED)
    else:  # the server makes HTTP 403 of it
        await send({"type": "websocket.close", "code": 1008, "reason": "the API key is missing or wrong"})


async def _answer(send: Send, status: int, value: Any) -> None:
    body = json.dumps(value).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
