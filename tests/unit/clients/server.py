"""An HTTP server on loopback that says what a test tells it to, and remembers what it was asked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    data: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.data) if self.data else None


Answer = Callable[[Asked], web.Response]


@dataclass
class Server:
    """What was asked, and what is answered next."""

    answer: Answer
    url: str = ""
    asked: list[Asked] = field(default_factory=list)


def said(body: Any, status: int = 200) -> web.Response:
    return web.json_response(body, status=status)


def refused(status: int, message: str) -> web.Response:
    return said({"kind": "Status", "status": "Failure", "code": status, "message": message}, status)


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Server]:
    server = Server(answer=answer)

    async def handle(request: web.Request) -> web.Response:
        asked = Asked(
            method=request.method,
            path=request.raw_path.partition("?")[0],
            query=dict(request.query),
            headers=dict(request.headers),
            data=await request.read(),
        )
        server.asked.append(asked)
        return server.answer(asked)

    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", handle)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.url = f"http://{host}:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()
