"""What the two sides of a download say to each other, and the process that does it.

It is a process of its own because the library reads the environment once, when it is imported, and because only a
process can be ended: a download that hangs in foreign code must not hold the pod's keeper.  The order comes in on
stdin, which stays open: its end is the end of whoever wanted the download, and of the download.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_bootstrap import contract
from vllm_bootstrap.clock import Clock
from vllm_bootstrap.contract import FailureReason, HubSource
from vllm_bootstrap.download.model_files import DEFAULT_FORMAT
from vllm_bootstrap.download.snapshot import Snapshot
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.launching.environment import SET_BY_RAY

if TYPE_CHECKING:
    from vllm_bootstrap.download.hub import Repository

LOOK_SECONDS = 1.0
PAUSE_SECONDS = 5.0
FOR_THE_LIBRARY = ("HF_HUB_", "HF_XET_", "SSL_CERT_")
"""Of ``spec.env``: what bears on how the hub is reached; its address is not among it."""

PROXIES = frozenset({"ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"})


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a pod is to download.

    Attributes
    ----------
    token_file
        File in the pod with the hub's token; empty where there is none.
    load_format
        vLLM's, which decides what files are needed.
    snapshot
        What to download; ``None``: what the revision is now.
    keep
        Take what was downloaded before for this source, if it is still there, whatever the revision is now.
    environment
        Of the engine.
    """

    source: HubSource
    token_file: str = ""
    load_format: str = DEFAULT_FORMAT
    snapshot: Snapshot | None = None
    keep: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    def dumps(self) -> str:
        """Write it on one line; the environment stays outside."""
        return json.dumps({**asdict(self), "environment": {}})

    @classmethod
    def loads(cls, text: str) -> Order:
        """Read it."""
        value = json.loads(text)
        source = contract.loads(HubSource, json.dumps(value["source"]))
        snapshot = Snapshot(**value["snapshot"]) if value["snapshot"] else None
        return cls(**{**value, "source": source, "snapshot": snapshot})


@dataclass(frozen=True, kw_only=True)
class Sight:
    """How far a download is.

    Attributes
    ----------
    done, total
        Bytes; 0 until it is known what is to be downloaded.
    snapshot
        What is downloaded, once that is known.
    path
        Folder of the model in the pod, once all is there.
    reason, message
        Why it failed; ``None`` while it has not.
    """

    done: int = 0
    total: int = 0
    snapshot: Snapshot | None = None
    path: str = ""
    reason: FailureReason | None = None
    message: str = ""

    def dumps(self) -> str:
        """Write it on one line."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Sight:
        """Read it."""
        value: dict[str, Any] = json.loads(text)
        snapshot = Snapshot(**value["snapshot"]) if value["snapshot"] else None
        reason = FailureReason(value["reason"]) if value["reason"] else None
        return cls(**{**value, "snapshot": snapshot, "reason": reason})


def child_environment(base: Mapping[str, str], order: Order, package: str) -> dict[str, str]:
    """Give the environment of the process that downloads.

    Parameters
    ----------
    base
        Of the process that starts it.
    package
        Folder that holds ``vllm_bootstrap``.
    """
    kept = {name: value for name, value in base.items() if name not in SET_BY_RAY}
    told = {
        name: value
        for name, value in order.environment.items()
        if name.startswith(FOR_THE_LIBRARY) or name.upper() in PROXIES
    }
    ours = {
        "HF_ENDPOINT": order.source.endpoint,
        "HF_HUB_CACHE": order.source.folder,
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        # Chunks kept beside the files would take the room that was reckoned for the files.
        "HF_XET_CHUNK_CACHE_SIZE_BYTES": "0",
        "PYTHONPATH": package,
        "PYTHONUNBUFFERED": "1",
    }
    if order.token_file:
        # One token, of the CR's; the pod's own must not be sent in its place.
        kept.pop("HF_TOKEN", None)
    return {**kept, **told, **ours}


def bring(repository: Repository, order: Order, say: Callable[[Sight], None], clock: Clock) -> Sight:
    """Download what is ordered; say how far it is.

    Raises
    ------
    EngineFailure
        It cannot be had.
    """
    snapshot = order.snapshot or repository.resolve(order.load_format, keep=order.keep)
    cached = repository.cached(snapshot)
    cached.sweep(clock.wall())
    say(Sight(done=cached.done(), total=snapshot.size, snapshot=snapshot))
    repository.check_room(cached)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(LOOK_SECONDS):
            say(Sight(done=cached.done(), total=snapshot.size, snapshot=snapshot))

    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    watcher.start()
    try:
        before = -1
        while True:
            try:
                repository.download(cached)
                break
            except EngineFailure as failure:
                # A long download sees more than one bad moment; only those in which nothing came end it.
                now = cached.done()
                if failure.reason is not FailureReason.HUB_UNAVAILABLE or now <= before:
                    raise
                before = now
                clock.sleep(PAUSE_SECONDS)
    finally:
        ended.set()
        watcher.join()
    repository.remember(order.load_format, snapshot)
    return Sight(done=snapshot.size, total=snapshot.size, snapshot=snapshot, path=str(cached.path))


def main() -> int:
    """Take an order from stdin, say on stdout how far it is."""
    order = Order.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_stdin, name="lifeline", daemon=True).start()
    lock = threading.Lock()

    def say(sight: Sight) -> None:
        with lock, contextlib.suppress(BrokenPipeError):
            print(sight.dumps(), flush=True)  # noqa: T201 - it is the protocol

    token = ""
    try:
        from vllm_bootstrap.download.hub import Repository  # noqa: PLC0415 - its library may be missing

        token = read_token(order)
        say(bring(Repository(order.source, token), order, say, Clock()))
    except EngineFailure as failure:
        say(Sight(reason=failure.reason, message=failure.message))
    except ImportError as error:
        message = f"huggingface_hub cannot be used: {error}; use a runtime image with vLLM"
        say(Sight(reason=FailureReason.RUNTIME_INCOMPATIBLE, message=message))
    except Exception as error:
        message = f"the download failed: {error!r}"
        say(
            Sight(
                reason=FailureReason.DOWNLOAD_FAILED,
                message=message.replace(token, "(the token)") if token else message,
            )
        )
    return 0


def read_token(order: Order) -> str:
    """Read the hub's token as it is now; empty where the order names none.

    Raises
    ------
    EngineFailure
        It is not there, or is no token that a header can carry.
    """
    if not order.token_file:
        return ""
    field_name = "spec.model.hfTokenSecret"
    try:
        token = Path(order.token_file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise EngineFailure(
            FailureReason.HUB_ACCESS_DENIED, f"{field_name}: the token cannot be read: {error}"
        ) from error
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise EngineFailure(
            FailureReason.HUB_ACCESS_DENIED,
            f"{field_name}: the Secret holds no token: it must be one line of ASCII characters, not empty",
        )
    return token


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # A thread of the library's may still wait for a server.
    os._exit(code)
