"""The stand-in's answers: a model's description, and its files with all that the library needs to download them."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = ".safetensors"
"""Files that the real hub keeps elsewhere, and redirects to."""

ELSEWHERE = "/elsewhere/"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Repository:
    """A model: what its files hold, how large those are that it only lists, and the folder of those on disk."""

    files: dict[str, bytes] = field(default_factory=dict)
    sizes: dict[str, int | None] = field(default_factory=dict)
    folder: Path | None = None
    commit: str = COMMIT
    revisions: tuple[str, ...] = ("main", "v1", COMMIT)
    is_private: bool = False
    is_gated: bool = False

    def commit_of(self, revision: str) -> str:
        """Give what a revision is: a commit is itself."""
        return revision if len(revision) == len(COMMIT) else self.commit

    @property
    def listed(self) -> dict[str, int | None]:
        """Every file with its size."""
        on_disk = {path.name: path.stat().st_size for path in self.folder.iterdir()} if self.folder else {}
        return {**on_disk, **{name: len(data) for name, data in self.files.items()}, **self.sizes}

    def answer(self, name: str) -> web.StreamResponse:
        """Give a file."""
        return web.Response(body=self.files[name]) if name in self.files else web.FileResponse(self._path(name))

    def read(self, name: str) -> bytes:
        """Give what a file holds."""
        return self.files[name] if name in self.files else self._path(name).read_bytes()

    def has(self, name: str) -> bool:
        """Whether there is more of a file than its size."""
        return name in self.files or (self.folder is not None and self._path(name).is_file())

    def _path(self, name: str) -> Path:
        assert self.folder
        return self.folder / name


@dataclass(frozen=True)
class Asked:
    """A request."""

    host: str
    path: str
    authorization: str
    remote: str = ""
    method: str = "GET"
    sent_range: str = ""


@dataclass
class HubServer:
    """The hub and the storage that it redirects to.

    Attributes
    ----------
    answers
        Overrules what it says at a path.
    tokens
        Those that are valid; empty: all.
    held
        While it is set, the storage gives the first half of a file and keeps the rest.
    """

    url: str = ""
    storage: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    answers: dict[str, Handler] = field(default_factory=dict)
    tokens: frozenset[str] = frozenset()
    held: threading.Event = field(default_factory=threading.Event)
    asked: list[Asked] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        """What was asked for."""
        return [item.path for item in self.asked]

    def application(self) -> web.Application:
        """Give what serves it."""
        application = web.Application()
        application.router.add_route("*", "/{tail:.*}", self.handle)
        return application

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        path, headers = request.path, request.headers
        self.asked.append(
            Asked(
                request.host,
                path,
                headers.get("Authorization", ""),
                request.remote or "",
                request.method,
                headers.get("Range", ""),
            )
        )
        if path in self.answers:
            return await self.answers[path](request)
        token = headers.get("Authorization", "").removeprefix("Bearer ")
        if token and self.tokens and token not in self.tokens:
            return error(401, "", "Invalid credentials in Authorization header")
        if path.startswith(ELSEWHERE):
            name, _, file = path.removeprefix(ELSEWHERE).partition("//")
            found = self.repositories[name]
            return await self._half(request, found, file) if self.held.is_set() else found.answer(file)
        if path.startswith("/api/models/"):
            name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            return self._listing(request, name, revision or "main")
        name, _, rest = path.removeprefix("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        return self._file(request, name, revision, file)

    async def _half(self, request: web.Request, found: Repository, name: str) -> web.StreamResponse:
        """Give half of a file at once and the rest when it is no longer held."""
        data = found.read(name)
        answer = web.StreamResponse(headers={"Content-Length": str(len(data))})
        await answer.prepare(request)
        await answer.write(data[: len(data) // 2])
        while self.held.is_set():  # noqa: ASYNC110 - an event of threads, not of this loop
            await asyncio.sleep(0.1)
        await answer.write(data[len(data) // 2 :])
        await answer.write_eof()
        return answer

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
        siblings = [{"rfilename": file, "size": size, "blobId": "b"} for file, size in found.listed.items()]
        return web.json_response(
            {"id": name, "sha": found.commit_of(revision), "siblings": siblings, "tags": [], "private": False}
        )

    def _file(self, request: web.Request, name: str, revision: str, file: str) -> web.StreamResponse:
        found = self._find(request, name, revision)
        if isinstance(found, web.Response):
            return found
        if found.is_gated:
            status = 403 if request.headers.get("Authorization") else 401
            return error(status, "GatedRepo", f"Access to model {name} is restricted.")
        if not found.has(file):
            return error(404, "EntryNotFound", "Entry not found")
        told = {"X-Repo-Commit": found.commit_of(revision), "ETag": f'"{_tag(name, file)}"'}
        if file.endswith(LARGE):
            linked = {"X-Linked-ETag": f'"{_tag(name, file)}"', "X-Linked-Size": str(found.listed[file])}
            # Another origin, else the library takes it for a repository that was renamed.
            location = f"{self.storage}{ELSEWHERE}{name}//{file}"
            return web.Response(status=302, headers={**told, **linked, "Location": location})
        answer = found.answer(file)
        answer.headers.update(told)
        return answer


def error(status: int, code: str, message: str) -> web.Response:
    """Give an error as the hub words it."""
    headers = {key: value for key, value in (("X-Error-Code", code), ("X-Error-Message", message)) if value}
    return web.json_response({"error": message}, status=status, headers=headers)


@contextmanager
def serving_hub(host: str = "127.0.0.1") -> Iterator[HubServer]:
    """Serve in a thread, for what does not run in an event loop of ours: other processes, and pods."""
    server = HubServer()
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=0.1)

    async def start() -> None:
        await runner.setup()
        for _ in ("hub", "storage"):
            await web.TCPSite(runner, host, 0).start()
        server.url, server.storage = (f"http://{host}:{address[1]}" for address in runner.addresses)

    loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever, name="hub", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(timeout=10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=10)
        loop.close()


def _tag(name: str, file: str) -> str:
    return hashlib.sha256(f"{name}/{file}".encode()).hexdigest()
