"""One look at a model of the hub, by ``huggingface_hub``, in a thread of its own.

Left alone, the library would read answers of any size, wait without end, keep cookies of one token for the next, send
a token of its environment, and hand tokens on to other hosts that it takes for the hub's.  It lets its client be
replaced: here it is one that does none of that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx2
from huggingface_hub import HfApi, constants, errors, get_session, hf_hub_url, set_client_factory
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # made on demand
    build_hf_headers,
    hf_raise_for_status,
    validate_repo_id,
)

from vllm_operator.clients import hub_trouble
from vllm_operator.clients.hub_trouble import TooLargeError, Wanted
from vllm_operator.planning.facts import FactsError, read_config
from vllm_operator.planning.known import HubAnswer, HubFacts
from vllm_operator.planning.parameters import model_bytes

MIB = 2**20
LISTING_BYTES, CONFIG_BYTES, INDEX_BYTES = 8 * MIB, MIB, 32 * MIB
"""Larger answers are not read."""

LEAST_SHARE = 8
"""A checkpoint that is smaller than this part of what the config describes is none of it: the size is that of a pointer
to a file, or of an adapter.  No quantization that the config keeps to itself makes as much of a difference."""

STEP_SECONDS = 10.0
"""Longest wait for a connection or for the next bytes."""

_NAME = "vllm-operator"
CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d{5}-of-(\d{5})\.safetensors")
_TOTAL = re.compile(rb'"total_size"\s*:\s*(\d{1,16})\s*[,}]')
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MALFORMED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What the library and json raise on answers of a form that they do not expect."""


@dataclass(frozen=True)
class _Bounds:
    """What the request that is under way may do; the client reads it, for the library passes nothing on to it."""

    endpoint: str
    limit: int
    deadline: float
    clock: Callable[[], float]


_BOUNDS: ContextVar[_Bounds] = ContextVar("_BOUNDS")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a look ended.

    Attributes
    ----------
    is_down
        Nobody could be talked to: to ask for another model is of no use now.
    """

    answer: HubAnswer
    is_down: bool = False


def prepare() -> None:
    """Give the library our client, and forbid it to tell about this process."""
    constants.HF_HUB_DISABLE_TELEMETRY = True
    set_client_factory(_client)


def is_commit(revision: str) -> bool:
    """Say whether a revision is a commit: what is read at one never changes."""
    return bool(_COMMIT.fullmatch(revision))


def fetch(wanted: Wanted, *, seconds: float, deadline: float, clock: Callable[[], float]) -> Outcome:
    """Read what the hub has of a model; blocks.

    Parameters
    ----------
    seconds
        What ``deadline`` came from, for messages.
    deadline
        Instant of the clock, in seconds, after which nothing more is read.
    """
    try:
        answer: HubAnswer = _Look(wanted, deadline, clock).answer()
    except errors.HfHubHTTPError as error:
        answer = hub_trouble.refused(wanted, error)
    except (TooLargeError, FactsError) as error:
        answer = hub_trouble.unreadable(wanted, f"has a description that is not understood: {error}")
    except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
        return Outcome(
            answer=hub_trouble.unanswered(wanted, error, seconds),
            is_down=hub_trouble.is_down(error),
        )
    return Outcome(answer=answer)


class _Look:
    """The requests for one model."""

    def __init__(self, wanted: Wanted, deadline: float, clock: Callable[[], float]) -> None:
        self._wanted = wanted
        self._deadline = deadline
        self._clock = clock
        # False, not None: without a token of the CR's there is none, least of all one of the operator's environment.
        self._token: str | bool = wanted.token or False

    def answer(self) -> HubAnswer:
        try:
            validate_repo_id(self._wanted.repository)
        except errors.HFValidationError:
            return hub_trouble.unreadable(self._wanted, "is no possible name of a model")
        try:
            get_session()
        except (httpx2.InvalidURL, ValueError, ImportError):
            # Its message may hold the proxy's password.
            why = "HTTP_PROXY, HTTPS_PROXY or ALL_PROXY of the operator is no proxy that can be used"
            return hub_trouble.unavailable(self._wanted, why)
        return self._model()

    def _model(self) -> HubAnswer:
        api = HfApi(endpoint=self._wanted.endpoint, token=self._token, library_name=_NAME)
        try:
            with self._bounded(LISTING_BYTES) as timeout:
                info = api.model_info(
                    self._wanted.repository,
                    revision=self._wanted.revision or None,
                    files_metadata=True,
                    timeout=timeout,
                )
            sizes = None if info.siblings is None else {item.rfilename: item.size for item in info.siblings}
            commit = str(info.sha or "")
        except errors.HfHubHTTPError:
            raise  # which is a ValueError at times
        except _MALFORMED:
            return hub_trouble.unavailable(
                self._wanted, "it answers with something that describes no model; is it the address of a hub?"
            )
        if sizes is not None and CONFIG not in sizes:
            return hub_trouble.no_config(self._wanted)
        revision = commit or self._wanted.revision
        facts = read_config(self._config(revision))
        size = self._checkpoint(sizes or {}, revision)
        if size * LEAST_SHARE >= model_bytes(facts):
            facts = replace(facts, checkpoint_bytes=size)
        return HubFacts(facts=facts, commit=commit[:64])

    def _config(self, revision: str) -> Mapping[str, Any]:
        with self._bounded(CONFIG_BYTES) as timeout:
            text = b"".join(self._read(CONFIG, revision, timeout))
        try:
            config = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FactsError(f"config.json is no JSON: {self._wanted.safe(str(error), 80)}") from error
        if not isinstance(config, dict):
            raise FactsError("config.json is no JSON object")
        return config

    def _checkpoint(self, sizes: Mapping[str, int | None], revision: str) -> int:
        """Give the size of all weights in bytes, 0 when it cannot be told.

        The index of a large model has megabytes: the sizes of its files say the same.
        """
        if INDEX in sizes:
            return _shards(sizes) or self._total_size(revision)
        return sizes.get(SINGLE) or 0

    def _total_size(self, revision: str) -> int:
        """Read the index as far as its ``metadata.total_size``, which stands at its beginning."""
        seen = b""
        with self._bounded(INDEX_BYTES) as timeout, closing(self._read(INDEX, revision, timeout)) as chunks:
            for chunk in chunks:
                seen = seen[-64:] + chunk
                if found := _TOTAL.search(seen):
                    return int(found[1])
        return 0

    def _read(self, name: str, revision: str, timeout: float) -> Generator[bytes]:
        url = hf_hub_url(self._wanted.repository, name, revision=revision or None, endpoint=self._wanted.endpoint)
        headers = build_hf_headers(token=self._token, library_name=_NAME)
        with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
            hf_raise_for_status(response)
            yield from response.iter_bytes()

    @contextmanager
    def _bounded(self, limit: int) -> Iterator[float]:
        """Bound the requests made inside; gives the longest wait for each step."""
        left = self._deadline - self._clock()
        if left <= 0:
            raise httpx2.ReadTimeout("the time is up")
        bounds = _Bounds(endpoint=self._wanted.endpoint, limit=limit, deadline=self._deadline, clock=self._clock)
        token = _BOUNDS.set(bounds)
        try:
            yield min(left, STEP_SECONDS)
        finally:
            _BOUNDS.reset(token)


def _shards(sizes: Mapping[str, int | None]) -> int:
    """Give the size of a checkpoint in numbered files, 0 when one of them or its size is missing."""
    counts = {name: int(found[1]) for name in sizes if (found := _SHARD.fullmatch(name))}
    if set(counts.values()) != {len(counts)}:
        return 0
    known = [size for name in counts if (size := sizes[name])]
    return sum(known) if len(known) == len(counts) else 0


# ---- the client ------------------------------------------------------------------------------------------------------


def _client() -> httpx2.Client:
    return httpx2.Client(
        # What is compressed has no known size before it is read.
        headers={"Accept-Encoding": "identity"},
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        event_hooks={"request": [_guard], "response": [_bound]},
        follow_redirects=True,
        max_redirects=5,
        timeout=STEP_SECONDS,
    )


def _guard(request: httpx2.Request) -> None:
    """Keep what must not leave: everything when the environment says so, the token at the hub's own address."""
    if constants.is_offline_mode():
        raise errors.OfflineModeIsEnabled("offline mode is enabled")
    if request.url.origin != httpx2.URL(_BOUNDS.get().endpoint).origin:
        request.headers.pop("Authorization", None)


def _bound(response: httpx2.Response) -> None:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise httpx2.DecodingError("the answer is compressed although it was asked for as it is")
    if not isinstance(response.stream, httpx2.SyncByteStream):
        raise httpx2.StreamClosed
    response.stream = _BoundedStream(response.stream, _BOUNDS.get())


class _BoundedStream(httpx2.SyncByteStream):
    """A body that ends with an error when it is too large or too late."""

    def __init__(self, body: httpx2.SyncByteStream, bounds: _Bounds) -> None:
        self._body = body
        self._bounds = bounds

    def __iter__(self) -> Iterator[bytes]:
        read = 0
        for chunk in self._body:
            read += len(chunk)
            if read > self._bounds.limit:
                raise TooLargeError(f"an answer has more than {self._bounds.limit // MIB} MiB")
            if self._bounds.clock() > self._bounds.deadline:
                raise httpx2.ReadTimeout("the time is up")
            yield chunk

    def close(self) -> None:
        self._body.close()
