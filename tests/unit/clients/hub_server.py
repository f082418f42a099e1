"""A hub on loopback: the paths, headers and codes that the library knows of the real one, for a model's description."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import huggingface_hub
import pytest
from aiohttp import web
from tests.hub import server as hub
from tests.hub.server import COMMIT, Handler, HubServer, error
from tests.unit.planning import models

from vllm_operator.clients.hub import Hub

__all__ = ["COMMIT", "Handler", "HubServer", "error"]

TOKEN = "hf_verysecrettoken"
WEIGHTS = 16_060_556_376
CONFIG = json.dumps(models.LLAMA_8B).encode()
INDEX_TEXT = json.dumps({"metadata": {"total_size": 16_060_522_496}, "weight_map": {"a": "b.safetensors"}}).encode()


class Repository(hub.Repository):
    """A model that is only described: the weights are listed, not there."""

    def __init__(self, **changes: Any) -> None:
        described: dict[str, Any] = {"files": {"config.json": CONFIG}, "sizes": {"model.safetensors": WEIGHTS}}
        super().__init__(**(described | changes))


def always(status: int, text: str = "", **headers: str) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, text=text, headers=named)

    return answer


@asynccontextmanager
async def hub_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[HubServer]:
    server = HubServer(repositories={"org/name": Repository()})
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    server.url = f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


@dataclass
class Clock:
    """A clock that a test turns."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def hub_at(url: str, clock: Clock | None = None, **more: Any) -> Iterator[Hub]:
    hub = Hub(url, clock=clock or Clock(), **more)
    try:
        yield hub
    finally:
        hub.close()


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take away what a machine may set, and set a token that must never be sent."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HF_TOKEN", "hf_ambienttoken")
    huggingface_hub.close_session()
    yield
    huggingface_hub.close_session()


async def never(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError
