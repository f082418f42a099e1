"""Processes by identity: a process id and the time at which it was started.

A process id alone is recycled by the kernel; killing by name would hit another bed, or a user's own containerd.
Three handles find everything that a bed started, also after a crash: the identity that each daemon writes about itself
before it becomes the daemon, the marker in the environment that its children inherit (containerd's shims), and the
cgroup of the node (containers, see :mod:`.cgroups`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .errors import BedError
from .layout import MARKER, Layout
from .waiting import wait_for

# The shell starts a child and ends, so that the daemon is nobody's zombie.  The child writes its own /proc stat line
# (/proc/self is the subshell that opens it; $$ would be its parent) and then becomes the daemon under that identity.
_LAUNCH = 'f=$1; shift; { read -r s </proc/self/stat; echo "$s" >"$f"; exec "$@"; } &'


URGENT = -10

Command = Sequence[str | Path]
"""Words of a command; paths need not be made strings."""


@dataclass(frozen=True)
class ProcessId:
    """A process, not to be mistaken for a later one of the same number."""

    pid: int
    started: int


def parse_stat(text: str) -> tuple[ProcessId, str] | None:
    """Read identity and state letter from a line of ``/proc/<pid>/stat``.

    The command name stands in brackets and may itself hold blanks and brackets, so fields are counted from the last
    bracket.
    """
    head, bracket, tail = text.rpartition(")")
    fields = tail.split()
    if not bracket or len(fields) < 20:
        return None
    return ProcessId(pid=int(head.split(" ", 1)[0]), started=int(fields[19])), fields[0]


def identify(pid: int) -> ProcessId | None:
    """Give the identity of a process, or nothing when there is none, or only a zombie."""
    try:
        parsed = parse_stat(Path("/proc", str(pid), "stat").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    if parsed is None or parsed[1] in "ZX":
        return None
    return parsed[0]


def alive(process: ProcessId) -> bool:
    """Tell whether exactly this process still runs."""
    return identify(process.pid) == process


def send(process: ProcessId, number: signal.Signals) -> None:
    """Send a signal to exactly this process; do nothing when it is gone."""
    # The descriptor pins the process between the check and the signal.
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(process.pid)
        try:
            if alive(process):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def end(processes: Iterable[ProcessId], grace: float = 5.0) -> None:
    """End processes: ask, then kill what is left after the grace; return when all are gone."""
    left = [process for process in processes if alive(process)]
    if grace > 0:
        for process in left:
            send(process, signal.SIGTERM)
        left = _gone_after(left, grace)
    for process in left:
        send(process, signal.SIGKILL)
    left = _gone_after(left, 10.0)
    if left:
        raise BedError(f"processes outlive SIGKILL: {', '.join(str(process.pid) for process in left)}")


def _gone_after(processes: Sequence[ProcessId], seconds: float) -> list[ProcessId]:
    limit = time.monotonic() + seconds
    left = [process for process in processes if alive(process)]
    while left and time.monotonic() < limit:
        time.sleep(0.02)
        left = [process for process in left if alive(process)]
    return left


def marked(layout: Layout) -> Iterator[ProcessId]:
    """Find every process that carries the marker of this bed in its environment."""
    needle = f"{MARKER}={layout.state}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                found = identify(int(entry.name))
                if found is not None:
                    yield found


def command_line(process: ProcessId) -> str:
    """Give the command line, blanks between the words; empty when the process is gone."""
    try:
        raw = Path("/proc", str(process.pid), "cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()


def run(
    command: Command,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    timeout: float = 600.0,
) -> str:
    """Run a command to its end and give its standard output.

    Raises
    ------
    BedError
        When it fails; with its standard error.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, env=env, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=timeout, check=False
        )
    except FileNotFoundError as error:
        raise BedError(f"{words[0]}: not found") from error
    except subprocess.TimeoutExpired as error:
        raise BedError(f"{' '.join(words)}: no end after {timeout:.0f} s") from error
    if done.returncode != 0:
        raise BedError(f"{' '.join(words)}: exit {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def run_logged(command: Command, log: Path, *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
    """Run a long command with its output in a log, and name the log when it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    words = [str(word) for word in command]
    with log.open("a", encoding="utf-8") as output:
        output.write(f"$ {' '.join(words)}\n")
        output.flush()
        try:
            done = subprocess.run(
                words, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
            )
        except FileNotFoundError as error:
            raise BedError(f"{words[0]}: not found") from error
    if done.returncode != 0:
        raise BedError(f"{' '.join(words[:4])} ...: exit {done.returncode}", log)


def _hasten(process: ProcessId) -> None:
    """Let a process go before others; where the kernel groups them by session, its own niceness counts for nothing."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process.pid, URGENT)
        Path("/proc", str(process.pid), "autogroup").write_text(str(URGENT), encoding="ascii")


class Daemons:
    """The long-running processes of one bed, by name.

    Parameters
    ----------
    layout
        Where identities and logs are kept.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def names(self) -> list[str]:
        """Give the names of all daemons that were started and not stopped."""
        return sorted(path.name for path in self._layout.pids.glob("*"))

    def get(self, name: str) -> ProcessId | None:
        """Give the identity that a daemon wrote about itself."""
        try:
            parsed = parse_stat((self._layout.pids / name).read_text(encoding="utf-8"))
        except OSError:
            return None
        return None if parsed is None else parsed[0]

    def runs(self, name: str) -> bool:
        """Tell whether a daemon is alive."""
        process = self.get(name)
        return process is not None and alive(process)

    def start(self, name: str, command: Command, env: Mapping[str, str] | None = None, *, urgent: bool = False) -> None:
        """Start a daemon in a session of its own, output in its log.

        Parameters
        ----------
        urgent
            It goes before others where cores are short.
        """
        if self.runs(name):
            return
        record = self._layout.pids / name
        record.parent.mkdir(parents=True, exist_ok=True)
        record.unlink(missing_ok=True)
        self._layout.logs.mkdir(parents=True, exist_ok=True)
        with self._layout.log(name).open("ab") as log:
            subprocess.run(
                ["/bin/sh", "-c", _LAUNCH, "sh", str(record), *(str(word) for word in command)],
                env=self._environment(env or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                check=True,
            )
        process = wait_for(f"{name} to be started", lambda: self.get(name), 30.0, interval=0.01)
        if urgent and process:
            _hasten(process)

    def _environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        # Not the caller's whole environment: a proxy in it would be asked for the addresses of the bridge.
        inherited = {name: os.environ[name] for name in ("HOME", "LANG", "PATH") if name in os.environ}
        # Go collects garbage whenever the heap has doubled: a seventh of what the API server took (its /metrics:
        # go_cpu_classes_gc_total_cpu_seconds_total of process_cpu_seconds_total).
        return {"GOGC": "400", **inherited, **extra, MARKER: str(self._layout.state)}

    def stop(self, name: str, grace: float = 5.0) -> None:
        """Stop a daemon and forget it."""
        process = self.get(name)
        if process is not None:
            end([process], grace)
        (self._layout.pids / name).unlink(missing_ok=True)

    def await_ready(self, name: str, description: str, probe: Callable[[], object], deadline: float = 60.0) -> None:
        """Wait until a probe gives something true; fail at once, naming the log, when the daemon dies."""

        def ready() -> bool:
            return not self.runs(name) or bool(probe())

        try:
            wait_for(description, ready, deadline)
        except BedError as error:
            raise BedError(str(error), self._layout.log(name)) from error
        if not self.runs(name):
            raise BedError(f"{name} ended while it was to become ready", self._layout.log(name))
