"""Between supervisor and launcher: a small process that lets no death leave orphans.

A supervisor that is killed leaves its child alive; a launcher that is killed leaves vLLM's engine process alive, and
with it every rank actor, holding the GPUs that the next attempt waits for.  So the launcher runs in a process group of
its own under this guard, which kills the whole group as soon as

- the supervisor's end of its pipe closes (the supervisor is dead, however it died), or
- the launcher ends.

The guard stays out of the supervisor's own process tree: Ray kills the children of a worker that it kills, and a guard
that dies with its supervisor guards nothing.  Should the guard itself be killed, the kernel kills the launcher
(``PR_SET_PDEATHSIG``), and the supervisor kills the group.

Commands come on standard input, one byte each: ``t`` asks the launcher to end (SIGTERM), ``k`` kills.  Events go to
standard output, one JSON object a line.  The launcher's output goes through the guard into a file that is kept short
and, in a pod, to the container's own output, so that ``kubectl logs`` shows it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

TERMINATE, KILL = b"t", b"k"
CONTAINER_OUTPUT = Path("/proc/1/fd/1")
LOG_LIMIT = 64 * 1024 * 1024
REAP_SECONDS = 10.0
CHUNK = 65536


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What the guard is to guard.

    Attributes
    ----------
    command
        Program and arguments of the launcher.
    log
        File for its output.
    echo
        Copy the output to the container's own as well.
    """

    command: tuple[str, ...]
    log: str
    echo: bool = False

    def to_argument(self) -> str:
        """Give the one argument of the guard's command line."""
        return json.dumps({"command": self.command, "log": self.log, "echo": self.echo})

    @classmethod
    def from_argument(cls, text: str) -> Orders:
        """Read the one argument of the guard's command line."""
        value = json.loads(text)
        return cls(command=tuple(value["command"]), log=value["log"], echo=value["echo"])


class Output:
    """The launcher's output: into a file of bounded size, and on to the container's."""

    def __init__(self, log: Path, *, echo: bool) -> None:
        self._path = log
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists():  # of an attempt that is run again: its errors are not this one's
            log.replace(_rotated(log))
        self._file = log.open("ab", buffering=0)
        self._echo = _open_container_output() if echo else -1

    def write(self, data: bytes) -> None:
        """Write; a full disk or a reader that does not read must not stop the engine."""
        with contextlib.suppress(OSError):
            self._file.write(data)
            if self._file.tell() > LOG_LIMIT:
                self._rotate()
        if self._echo >= 0:
            with contextlib.suppress(OSError):
                os.write(self._echo, data)

    def _rotate(self) -> None:
        self._file.close()
        self._path.replace(_rotated(self._path))
        self._file = self._path.open("ab", buffering=0)


class Guard:
    """One launcher, from its start to the end of the last process of its group."""

    def __init__(self, orders: Orders) -> None:
        self._output = Output(Path(orders.log), echo=orders.echo)
        self._selector = selectors.DefaultSelector()
        self._wake = _signal_pipe()
        self._child = _spawn(orders.command)
        self._pid = self._child.pid
        self._code: int | None = None

    def run(self) -> None:
        """Guard until the launcher has ended and nothing of its group is left."""
        _tell("started", pid=self._pid)
        stdout = self._child.stdout
        if stdout is None:  # not with a pipe, but the type says so
            raise RuntimeError("the launcher has no output pipe")
        os.set_blocking(stdout.fileno(), False)
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._obey)
        self._selector.register(self._wake, selectors.EVENT_READ, self._reap)
        self._selector.register(stdout.fileno(), selectors.EVENT_READ, self._copy)
        while self._code is None:
            for key, _ in self._selector.select():
                key.data(key.fd)
        self._kill_group()
        self._bury()
        while self._copy(stdout.fileno()):
            pass
        _tell("exited", code=self._code)

    def _obey(self, fd: int) -> None:
        commands = os.read(fd, CHUNK)
        if not commands:
            self._selector.unregister(fd)
        if not commands or KILL in commands:
            self._kill_group()
        elif TERMINATE in commands:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)

    def _reap(self, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(fd, CHUNK)
        for pid, status in _dead_children():
            if pid == self._pid:
                self._code = os.waitstatus_to_exitcode(status)

    def _copy(self, fd: int) -> bool:
        """Copy one piece, and say whether there was one: a launcher that floods must not keep commands waiting."""
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._output.write(data)
        elif fd in self._selector.get_map():
            self._selector.unregister(fd)
        return bool(data)

    def _kill_group(self) -> None:
        # The group's leader is our child and was not waited for, or was a moment ago: its number is not reused while
        # any process of the group lives.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)

    def _bury(self) -> None:
        """Kill what left the group: orphans come to us, because we are their subreaper."""
        deadline = time.monotonic() + REAP_SECONDS
        while (orphans := _children()) and time.monotonic() < deadline:
            for pid in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
            list(_dead_children())


def main(arguments: Sequence[str]) -> None:
    """Leave the supervisor's process tree, then guard."""
    if os.fork():
        os._exit(0)
    os.setsid()
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    try:
        Guard(Orders.from_argument(arguments[0])).run()
    except Exception as error:
        _tell("failed", message=repr(error))
        raise


def _rotated(log: Path) -> Path:
    return log.with_name(log.name + ".1")


def _spawn(command: Sequence[str]) -> subprocess.Popen[bytes]:
    parent = os.getpid()

    def bind_to_guard() -> None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        if os.getppid() != parent:  # the guard died before the line above
            os._exit(1)

    return subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=bind_to_guard,  # noqa: PLW1509 - this process has one thread
    )


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _signal_pipe() -> int:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler must be there, else the byte is not written
    return reader


def _dead_children() -> list[tuple[int, int]]:
    dead = []
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            dead.append(found)
    return dead


def _children() -> list[int]:
    """List our children by the fourth field of their ``stat``; not every kernel has ``/proc/<pid>/task/*/children``."""
    own, found = os.getpid(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(after_name[1]) == own and after_name[0] != "Z":
                    found.append(int(entry.name))
    return found


def _open_container_output() -> int:
    try:
        return os.open(CONTAINER_OUTPUT, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return -1


def _tell(event: str, **details: Any) -> None:
    with contextlib.suppress(OSError):  # the supervisor is gone; its end of the other pipe says so
        os.write(sys.stdout.fileno(), (json.dumps({"event": event, **details}) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1:])
