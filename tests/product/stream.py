"""Somebody outside who asks a served model all the time, and never a second time: each failed request counts."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.product.ask import ask


@dataclass
class Stream:
    """One request after the other, for a few tokens each.

    Attributes
    ----------
    host
        Address and port of the Service.
    key
        What its API asks for.
    keeps
        Keeps the connection as long as the server lets it, as most clients do.
    pause_seconds
        Between two requests.  Asked all the time, engines would leave none of two cores to one that is to come.
    answered
        Requests that were answered with success.
    failures
        What happened to the others.
    """

    host: str
    model: str
    key: str = ""
    keeps: bool = True
    pause_seconds: float = 0.5
    answered: int = 0
    failures: list[str] = field(default_factory=list)

    def run(self, end: threading.Event) -> None:
        """Ask until the end."""
        connection = http.client.HTTPConnection(self.host, timeout=60)
        while not end.is_set():
            self._ask(connection)
            if not self.keeps:
                connection.close()
            end.wait(self.pause_seconds)

    def _ask(self, connection: http.client.HTTPConnection) -> None:
        body = {"model": self.model, "prompt": "Hello", "max_tokens": 2, "temperature": 0}
        try:
            status, text = ask(connection, "POST", "/v1/completions", key=self.key, body=body)
        except (OSError, http.client.HTTPException) as error:
            self.failures.append(repr(error))
            connection.close()
            return
        if status == 200:
            self.answered += 1
        else:
            self.failures.append(f"{status} {text[:200]}")


@contextmanager
def streaming(streams: Sequence[Stream]) -> Iterator[None]:
    """Let them ask while the body of the ``with`` statement runs."""
    end = threading.Event()
    threads = [threading.Thread(target=stream.run, args=(end,)) for stream in streams]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()
