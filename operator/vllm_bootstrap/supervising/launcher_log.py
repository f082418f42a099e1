"""The end of the launcher's output, and the one line in it that says why it failed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

TAIL_LINES = 50
SEARCH_LINES = 2000
"""How far back the cause of a failure is looked for: its consequences print traces of their own, after it."""

TAIL_BYTES = 1024 * 1024

# What stands before the text: Ray's "(RayWorkerProc pid=1, ip=2) ", vLLM's "(EngineCore pid=3) ERROR … [core.py:1] ".
PREFIX = re.compile(r"^(?:\x1b\[[0-9;]*m|\([^)]* ?pid=[^)]*\)\s*|(?:ERROR|INFO|WARNING) [\d:. -]+\[[^\]]*\]\s*)+")
EXCEPTION = re.compile(r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure)\b(?::\s?\S.*)?$")
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")

# They report that something else failed.
FOLLOW_UPS = (
    "Engine core initialization failed",
    "Executor failed",
    "RuntimeError: cancelled",
    "EngineDeadError",
    "EngineCore encountered",
    "RayTaskError",
    "ActorDiedError",
    "ActorHandleNotFoundError",
    "KeyboardInterrupt",
    "SystemExit",
    "CancelledError",
)


def read_tail(path: Path, count: int = TAIL_LINES) -> tuple[str, ...]:
    """Read the last lines of a log; nothing when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(ESCAPE.sub("", line).rstrip() for line in lines[-count:])


def root_cause(lines: Sequence[str]) -> str:
    """Find the exception that began it: the last one that is no mere consequence of another."""
    stripped = [PREFIX.sub("", line).strip() for line in lines]
    exceptions = [line for line in stripped if EXCEPTION.match(line)]
    causes = [line for line in exceptions if not any(follow_up in line for follow_up in FOLLOW_UPS)]
    return (causes or exceptions or [""])[-1]


def last_line(lines: Sequence[str]) -> str:
    """Give the last line with something on it."""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
