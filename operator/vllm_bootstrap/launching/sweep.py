"""The last resort when a guard was lost: find an engine's processes by the mark in their environment, and kill them."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def sweep(marker: str, prefix: str, proc: Path = Path("/proc")) -> list[int]:
    """Kill processes whose environment says that they belong to an engine: the last resort when a guard was lost.

    Parameters
    ----------
    marker
        Name of the variable.
    prefix
        Its value begins so for every attempt of the engine.
    """
    wanted = f"{marker}={prefix}".encode()
    killed = []
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            variables = (entry / "environ").read_bytes().split(b"\0")
            if any(variable.startswith(wanted) for variable in variables):
                os.kill(int(entry.name), signal.SIGKILL)
                killed.append(int(entry.name))
    return killed
