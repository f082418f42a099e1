"""kubectl, bound to the bed's own kubeconfig: no verb here can reach another cluster."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from .errors import BedError
from .layout import Layout
from .process import run

TIMEOUT = 180.0
"""Seconds for one call of kubectl: longer than it waits itself where it is told to."""


@dataclass(frozen=True)
class Kubectl:
    """Calls kubectl with the administrator's rights.

    Parameters
    ----------
    layout
        The bed.
    """

    layout: Layout

    def __call__(self, *args: str, stdin: str | None = None, timeout: float = TIMEOUT) -> str:
        """Run kubectl and give its output; raise :class:`.errors.BedError` with its standard error."""
        return run([*self._program, *args], env=self._environment, stdin=stdin, timeout=timeout)

    @property
    def _program(self) -> list[str]:
        return [str(self.layout.bin / "kubectl"), f"--kubeconfig={self.layout.kubeconfig}"]

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.layout.kubeconfig)}

    def json(self, *args: str) -> Any:
        """Run kubectl with ``-o json`` and read its output."""
        return json.loads(self(*args, "-o", "json"))

    def apply(self, *manifests: object, namespace: str | None = None) -> str:
        """Apply manifests given as objects."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        scope = [f"--namespace={namespace}"] if namespace else []
        return self("apply", *scope, "-f", "-", stdin=json.dumps(items))

    def follow(self, resource: str, *selection: str, deadline: float) -> Iterator[Any]:
        """Give each object as it is, and again after each change; end at the deadline.

        One process that sleeps, where a loop of ``get`` would take a core from an engine that is starting.

        Parameters
        ----------
        selection
            Options of ``kubectl get``; a selector rather than a name, which must be there already.
        deadline
            Seconds from now.

        Raises
        ------
        BedError
            kubectl gave up.
        """
        end = time.monotonic() + deadline
        # In chunks kubectl would give lists, and watch from the first of them.
        whole = ("--chunk-size=0", "--watch", "-o", "json")
        while time.monotonic() < end:
            told = 0
            with self._reading("get", resource, *selection, *whole) as documents:
                for document in _until(documents, end):
                    told += 1
                    yield document
            # The API server closes watches that lag, as they do beside engines that start: kubectl ends then.
            if not told and time.monotonic() < end:
                raise BedError(f"kubectl get {resource} --watch has ended: is the API server gone?")

    @contextmanager
    def _reading(self, *args: str) -> Iterator[queue.Queue[Any]]:
        documents: queue.Queue[Any] = queue.Queue()
        with subprocess.Popen(
            [*self._program, *args], env=self._environment, stdout=subprocess.PIPE, text=True
        ) as process:
            reader = threading.Thread(target=_split, args=(process.stdout, documents), daemon=True)
            reader.start()
            try:
                yield documents
            finally:
                process.kill()
                reader.join()  # it would go on reading the pipe that is closed next


def _until(documents: queue.Queue[Any], end: float) -> Iterator[Any]:
    """Give documents until there are no more, or the time has come."""
    while (left := end - time.monotonic()) > 0:
        try:
            document = documents.get(timeout=left)
        except queue.Empty:
            return
        if document is None:
            return
        yield document


def _split(stream: IO[str], documents: queue.Queue[Any]) -> None:
    """Take the JSON objects apart that kubectl writes one after the other, each over several lines."""
    lines: list[str] = []
    for line in stream:
        lines.append(line)
        if line.startswith("}"):
            documents.put(json.loads("".join(lines)))
            lines.clear()
    documents.put(None)
