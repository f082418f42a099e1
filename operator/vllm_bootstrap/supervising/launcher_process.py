"""The supervisor's hold on the launcher: the guard's pipes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from vllm_bootstrap.clock import Clock, poll
from vllm_bootstrap.contract import FailureReason
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.launching import guard
from vllm_bootstrap.launching.order import LISTEN_HOST, LaunchOrder
from vllm_bootstrap.supervising.events import Inbox, LauncherExited, LauncherStarted

LOG = logging.getLogger(__name__)


class GuardedLauncher:
    """The launcher under its guard.

    It is started in two steps: ``prepare`` starts the process, which imports vLLM and waits; ``start`` gives it the
    order that ``assign`` has brought.

    Parameters
    ----------
    orders
        For the guard.
    order_file
        Where the launcher waits for its order.
    environment
        Of guard and launcher.
    package
        Folder that holds ``vllm_bootstrap``.
    port
        Must be free before the launcher starts: an engine of an earlier attempt may hold it for another moment.
    """

    def __init__(
        self,
        orders: guard.Orders,
        *,
        order_file: Path,
        environment: Mapping[str, str],
        package: Path,
        port: int,
        cleanup_seconds: float,
        inbox: Inbox,
        clock: Clock,
    ) -> None:
        self._orders = orders
        self._order_file = order_file
        self._order: LaunchOrder | None = None
        self._environment = dict(environment)
        self._package = package
        self._port = port
        self._cleanup_seconds = cleanup_seconds
        self._inbox = inbox
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._group = 0

    @property
    def group(self) -> int:
        """Process group of the launcher; 0 before its start."""
        return self._group

    def assign(self, order: LaunchOrder) -> None:
        """Take the order for ``start``."""
        self._order = order

    def start(self) -> None:
        """Let the launcher go on."""
        if self._order is None:
            raise RuntimeError("the launcher has no order")
        self._order.write(self._order_file)

    def prepare(self) -> None:
        """Start guard and launcher."""
        if not poll(lambda: is_free(self._port) or None, seconds=self._cleanup_seconds, clock=self._clock):
            raise EngineFailure(
                FailureReason.ACTORS_LEFT_OVER,
                f"port {self._port} of the lead pod is still taken after {self._cleanup_seconds:g} s: "
                "a process of an earlier attempt holds it",
            )
        # No PR_SET_PDEATHSIG here: it follows the thread that starts the child, and this one may end before us.
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "vllm_bootstrap.launching.guard", self._orders.to_argument()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
            cwd=self._package,
        )
        threading.Thread(target=self._listen, args=(self._process,), name="guard-events", daemon=True).start()

    def terminate(self) -> None:
        """Ask the launcher to end in order."""
        self._command(guard.TERMINATE)

    def kill(self) -> None:
        """Kill the launcher's whole group."""
        self._command(guard.KILL)

    def _command(self, command: bytes) -> None:
        if self._process is None or self._process.stdin is None:
            return
        with contextlib.suppress(OSError):  # a guard that is gone has done it already
            self._process.stdin.write(command)
            self._process.stdin.flush()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        code: int | None = None
        for line in process.stdout or ():
            event = json.loads(line)
            if event["event"] == "started":
                self._group = event["pid"]
                self._inbox.put(LauncherStarted(self._group))
            elif event["event"] == "exited":
                code = event["code"]
            else:
                LOG.error("the guard failed: %s", event)
        if code is None and self._group:
            # The guard itself was killed; the kernel kills the launcher then, and we the rest of its group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._group, signal.SIGKILL)
        process.wait()
        self._inbox.put(LauncherExited(code))


def is_free(port: int) -> bool:
    """Say whether a server could listen on ``port``."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LISTEN_HOST, port))
        except OSError:
            return False
    return True
