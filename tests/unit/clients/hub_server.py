"""A hub on loopback: the paths, headers and codes that the library knows of the real one, for a model's description."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import huggingface_hub
import pytest
from aiohttp import web
from tests.unit.planning import models

from vllm_operator.clients.hub import Hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_verysecrettoken"
WEIGHTS = 16_060_556_376
CONFIG = json.dumps(models.LLAMA_8B).encode()
INDEX_TEXT = json.dumps({"metadata": {"total_size": 16_060_522_496}, "weight_map": {"a": "b.safetensors"}}).encode()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Repository:
    """A model: what its files hold, and how large the others are."""

    files: dict[str, bytes] = field(default_factory=lambda: {"config.json": CONFIG})
    sizes: dict[str, int | None] = field(default_factory=lambda: {"model.safetensors": WEIGHTS})
    commit: str = COMMIT
    revisions: tuple[str, ...] = ("main", "v1", COMMIT)
    is_private: bool = False
    is_gated: bool = False


@dataclass
class Asked:
    """A request."""

    host: str
    path: str
    authorization: str


@dataclass
class HubServer:
    """The hub; ``answers`` overrules what it says at a path."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=lambda: {"org/name": Repository()})
    answers: dict[str, Handler] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        return [item.path for item in self.asked]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.asked.append(Asked(request.host, path, request.headers.get("Authorization", "")))
        if path in self.answers:
            return await self.answers[path](request)
        if path.startswith("/api/models/"):
            name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            return self._listing(request, name, revision or "main")
        name, _, rest = path.removeprefix("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        return self._file(request, name, revision, file)

    def _find(self, request: web.Request, name: str, revision: str) -> Repository | web.Response:
        has_token = bool(request.headers.get("Authorization"))
        found = self.repositories.get(name)
        if found is None or (found.is_private and not has_token):
            return error(404 if has_token else 401, "RepoNotFound", "Repository not found")
        return found if revision in found.revisions else error(404, "RevisionNotFound", f"Invalid rev id: {revision}")

    def _listing(self, request: web.Request, name: str, revision: str) -> web.Response:
        found = self._find(request, name, revision)
        if isinstance(found, web.Response):
            return found
        sizes = {**{file: len(data) for file, data in found.files.items()}, **found.sizes}
        siblings = [{"rfilename": file, "size": size, "blobId": "b"} for file, size in sizes.items()]
        return web.json_response({"id": name, "sha": found.commit, "siblings": siblings, "tags": [], "private": False})

    def _file(self, request: web.Request, name: str, revision: str, file: str) -> web.Response:
        found = self._find(request, name, revision)
        if isinstance(found, web.Response):
            return found
        if found.is_gated:
            status = 403 if request.headers.get("Authorization") else 401
            return error(status, "GatedRepo", f"Access to model {name} is restricted.")
        if file not in found.files:
            return error(404, "EntryNotFound", "Entry not found")
        return web.Response(body=found.files[file], headers={"X-Repo-Commit": found.commit, "ETag": '"e"'})


def error(status: int, code: str, message: str) -> web.Response:
    headers = {key: value for key, value in (("X-Error-Code", code), ("X-Error-Message", message)) if value}
    return web.json_response({"error": message}, status=status, headers=headers)


def always(status: int, text: str = "", **headers: str) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, text=text, headers=named)

    return answer


@asynccontextmanager
async def hub_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[HubServer]:
    server = HubServer()
    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", server.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
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
