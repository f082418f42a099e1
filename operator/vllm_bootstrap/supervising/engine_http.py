"""The engine's own HTTP interface, asked from inside its pod: is it alive, does it give a token, who is in flight."""

from __future__ import annotations

import http.client
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm_bootstrap.clock import Clock
from vllm_bootstrap.contract import Adapter, AdapterList, AdapterReports, ContractError, dumps, loads
from vllm_bootstrap.launching.gate import ADAPTERS_PATH, FLIGHT_PATH
from vllm_bootstrap.supervising.events import AdaptersSeen, Answered, FlightSeen, Inbox, WarmedUp
from vllm_bootstrap.vllm_adapter.facts import DATA_RANK_HEADER, HEALTH_PATH

LOG = logging.getLogger(__name__)

FIRST_SECONDS = 0.1
"""Between two polls until the first answer: it is waited for."""

POLL_SECONDS = 0.5
POLL_TIMEOUT = 2.0
MISSES = 3
"""So many polls in a row without an answer, and the engine counts as not answering."""

STALE_SECONDS = MISSES * (POLL_SECONDS + POLL_TIMEOUT)

ADAPTERS_SECONDS = 600.0
"""For a whole list of LoRA adapters: they may come over the network."""

PROMPT = "Hello"

# A path that a model does not serve answers one of these; then the next is tried.
NOT_SERVED = (400, 404, 405, 422, 501)
NO_SUCH_PATH = (404, 405)


@dataclass(frozen=True)
class Pulse:
    """How the last health polls went."""

    at: float
    misses: int = MISSES

    def is_alive(self, now: float) -> bool:
        """Say whether the engine answers; a poll that has not come back for long is no answer."""
        return self.misses < MISSES and now - self.at < STALE_SECONDS


def request(
    port: int,
    method: str,
    path: str,
    *,
    body: Any = None,
    key: str = "",
    data_rank: int | None = None,
    seconds: float,
) -> tuple[int, str]:
    """Send one request to the engine and read the answer whole.

    Parameters
    ----------
    data_rank
        The data parallel rank that is to answer; ``None`` leaves it to vLLM.

    Raises
    ------
    OSError
        No answer.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if data_rank is not None:
        headers[DATA_RANK_HEADER] = str(data_rank)
    if body is not None:
        headers["Content-Type"] = "application/json"
    try:
        connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    except http.client.HTTPException as error:
        raise OSError(repr(error)) from error
    finally:
        connection.close()


class HttpEngine:
    """Polls the health endpoint, sends the warm-up request, loads adapters and drains, each in a thread of its own.

    Parameters
    ----------
    key
        That the engine's API asks for; empty where it asks for none.
    gate_token
        With it the gate before the engine tells how many requests are in flight.
    data
        Number of data parallel ranks; each of several has to give a token.
    """

    def __init__(
        self, *, port: int, model: str, key: str, gate_token: str, data: int = 1, inbox: Inbox, clock: Clock
    ) -> None:
        self._port = port
        self._model = model
        self._key = key
        self._gate_token = gate_token
        self._data_ranks: tuple[int | None, ...] = tuple(range(data)) if data > 1 else (None,)
        self._inbox = inbox
        self._clock = clock
        self._closed = threading.Event()
        self._pulse = Pulse(clock.monotonic())

    @property
    def pulse(self) -> Pulse:
        """The newest result of the polls."""
        return self._pulse

    def watch(self) -> None:
        """Begin to poll."""
        threading.Thread(target=self._poll, name="health-poll", daemon=True).start()

    def close(self) -> None:
        """Poll no more."""
        self._closed.set()

    def warm_up(self, seconds: float) -> None:
        """Send one request that makes the engine generate a token, to each data parallel rank."""
        threading.Thread(target=self._warm_up, args=(seconds,), name="warm-up", daemon=True).start()

    def drain(self) -> None:
        """Let the engine ask its clients to go, and begin to look how many requests are in flight."""
        threading.Thread(target=self._drain, name="drain", daemon=True).start()

    def requests(self) -> int | None:
        """Say how many requests are in flight; ``None`` when the engine does not tell."""
        seen = self._flight("GET")
        return seen.requests if seen else None

    def adapt(self, adapters: tuple[Adapter, ...]) -> None:
        """Let the engine serve these LoRA adapters, and no others."""
        threading.Thread(target=self._adapt, args=(adapters,), name="adapters", daemon=True).start()

    def _adapt(self, adapters: tuple[Adapter, ...]) -> None:
        body = json.loads(dumps(AdapterList(adapters=adapters)))
        try:
            status, text = request(
                self._port, "POST", ADAPTERS_PATH, body=body, key=self._gate_token, seconds=ADAPTERS_SECONDS
            )
            told = loads(AdapterReports, text).adapters if status == 200 else ()
            fault = "" if status == 200 else f"{status} {' '.join(text.split())[:300]}"
        except (OSError, ContractError) as error:
            told, fault = (), str(error)
        words = f"the engine did not answer when it was asked for it: {fault}" if fault else ""
        self._inbox.put(AdaptersSeen(told, fault=words))

    def _drain(self) -> None:
        while True:
            seen = self._flight("POST")
            if seen is not None:
                self._inbox.put(seen)
            if self._closed.wait(POLL_SECONDS):
                return

    def _flight(self, method: str) -> FlightSeen | None:
        """Ask the gate; ``None`` when it does not answer, or is not there."""
        try:
            status, text = request(self._port, method, FLIGHT_PATH, key=self._gate_token, seconds=POLL_TIMEOUT)
            told = json.loads(text) if status == 200 else {}
            return FlightSeen(requests=int(told["requests"]), quiet=float(told["quietSeconds"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _poll(self) -> None:
        announced = False
        while not self._closed.wait(POLL_SECONDS if announced else FIRST_SECONDS):
            alive = self._is_healthy()
            self._pulse = Pulse(self._clock.monotonic(), 0 if alive else self._pulse.misses + 1)
            if alive and not announced:
                announced = True
                self._inbox.put(Answered())

    def _is_healthy(self) -> bool:
        try:
            return request(self._port, "GET", HEALTH_PATH, seconds=POLL_TIMEOUT)[0] == 200
        except OSError:
            return False

    def _warm_up(self, seconds: float) -> None:
        deadline = self._clock.monotonic() + seconds
        fault = next((told for rank in self._data_ranks if (told := self._first_token(rank, deadline))), "")
        if not fault and self._flight("GET") is None:
            # Without it the API would ask nobody for a key, and requests would be cut off when the engine is removed.
            fault = f"GET {FLIGHT_PATH}: the operator's gate is not before this vLLM, or does not answer"
        self._inbox.put(WarmedUp(fault))

    def _first_token(self, data_rank: int | None, deadline: float) -> str:
        def send(path: str, body: dict[str, Any]) -> tuple[int, str]:
            left = max(1.0, deadline - self._clock.monotonic())
            return request(self._port, "POST", path, body=body, key=self._key, data_rank=data_rank, seconds=left)

        fault = first_token(self._model, send)
        return f"data parallel rank {data_rank}: {fault}" if fault and data_rank is not None else fault


def first_token(model: str, send: Callable[[str, dict[str, Any]], tuple[int, str]]) -> str:
    """Ask for one token in the first way that the model serves; give what went wrong, empty when nothing did.

    A model that serves none of these (speech, for one) is taken as it is: its health endpoint answers.
    """
    attempts = (
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 1, "temperature": 0}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 1}),
        ("/v1/embeddings", {"input": PROMPT}),
        ("/pooling", {"input": PROMPT}),
    )
    refusals = []
    for path, body in attempts:
        try:
            status, text = send(path, {"model": model, **body})
        except OSError as error:
            return f"POST {path}: {error}"
        if status == 200:
            return ""
        if status not in NOT_SERVED:
            return f"POST {path}: {status} {' '.join(text.split())[:500]}"
        if status not in NO_SUCH_PATH:
            refusals.append(f"POST {path}: {status} {' '.join(text.split())[:500]}")
    return refusals[0] if refusals else ""
