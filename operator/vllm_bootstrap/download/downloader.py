"""A pod's hold on its download: the process, what it says, and the deadline for its next byte."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import vllm_bootstrap
from vllm_bootstrap.clock import Clock
from vllm_bootstrap.contract import FailureReason
from vllm_bootstrap.download.process import Order, Sight, child_environment

LOG = logging.getLogger(__name__)
PACKAGE = Path(vllm_bootstrap.__file__).parent.parent


class Downloader:
    """Downloads one repository into this pod.

    Parameters
    ----------
    pod
        Its name, for messages.
    stall
        Seconds after which a download of which no byte came is given up.
    environment
        Of this process.
    """

    def __init__(self, pod: str, *, stall: float, clock: Clock, environment: Mapping[str, str] | None = None) -> None:
        self.pod = pod
        self._stall = stall
        self._clock = clock
        self._environment = dict(os.environ if environment is None else environment)
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._sight = Sight()
        self._moved = clock.monotonic()

    def start(self, order: Order) -> None:
        """Begin; how far it is tells ``look``."""
        self._moved = self._clock.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "vllm_bootstrap.download.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(self._environment, order, str(PACKAGE)),
        )
        self._process = process
        assert process.stdin is not None  # noqa: S101 - a pipe was asked for
        process.stdin.write(order.dumps() + "\n")
        process.stdin.flush()
        threading.Thread(target=self._listen, args=(process,), name="download", daemon=True).start()

    def look(self) -> Sight:
        """Say how far it is; give up what has stalled."""
        with self._lock:
            quiet = self._clock.monotonic() - self._moved
            running = not (self._sight.path or self._sight.reason)
            if self._process and running and quiet > self._stall:
                self._process.kill()
                self._end(
                    FailureReason.DOWNLOAD_STALLED,
                    f"no byte of the download came for {self._stall:g} s; it is tried again",
                )
            return self._sight

    def close(self) -> None:
        """End the download, if it still runs."""
        if self._process and self._process.poll() is None:
            self._process.kill()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            sight = Sight.loads(line)
            with self._lock:
                if self._sight.reason:
                    continue
                if (sight.done, sight.total, sight.path, sight.reason) != (
                    self._sight.done,
                    self._sight.total,
                    self._sight.path,
                    self._sight.reason,
                ):
                    self._moved = self._clock.monotonic()
                self._sight = sight
        code = process.wait()
        with self._lock:
            if not (self._sight.path or self._sight.reason):
                how = f"was ended by signal {-code}: was the pod short of memory?" if code < 0 else f"ended with {code}"
                self._end(FailureReason.DOWNLOAD_FAILED, f"the process that downloads {how}")

    def _end(self, reason: FailureReason, message: str) -> None:
        self._sight = Sight(
            done=self._sight.done,
            total=self._sight.total,
            snapshot=self._sight.snapshot,
            reason=reason,
            message=message,
        )
