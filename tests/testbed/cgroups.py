"""The cgroups of a node: they hold its containers, also those that their runtime has lost.

Works with cgroup v1 (and hybrid) and v2.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path

from .errors import BedError
from .process import identify, send
from .render import cgroup

_ROOT = Path("/sys/fs/cgroup")


def unified(root: Path = _ROOT) -> bool:
    """Tell whether the host has cgroup v2 only."""
    return (root / "cgroup.controllers").exists()


def roots(node: str, root: Path = _ROOT) -> list[Path]:
    """Give the node's cgroup in every hierarchy."""
    if unified(root):
        return [root / cgroup(node)]
    # Controllers that share a hierarchy are links to it; the loop counts the hierarchy once.
    return [path / cgroup(node) for path in sorted(root.iterdir()) if path.is_dir() and not path.is_symlink()]


def create(node: str) -> None:
    """Create the node's cgroup in every hierarchy."""
    if unified():
        _delegate(_ROOT)
    for path in roots(node):
        path.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            # In v1 a new cpuset is empty, and nothing can run in it.
            if (path.parent.name == "cpuset" or path.parent.name.startswith("cpuset,")) and (path / name).exists():
                (path / name).write_text((path.parent / name).read_text(encoding="ascii"), encoding="ascii")
        if unified():
            _delegate(path)


def _delegate(path: Path) -> None:
    for controller in (path / "cgroup.controllers").read_text(encoding="ascii").split():
        with suppress(OSError):
            (path / "cgroup.subtree_control").write_text(f"+{controller}", encoding="ascii")


def processes(node: str) -> set[int]:
    """Give the process ids in the node's cgroup, at any depth, in any hierarchy."""
    found: set[int] = set()
    for root in roots(node):
        for path in root.rglob("cgroup.procs"):
            with suppress(OSError):
                found |= {int(line) for line in path.read_text(encoding="ascii").split()}
    return {pid for pid in found if identify(pid) is not None}


def kill(node: str) -> None:
    """Kill every container of the node."""
    limit = time.monotonic() + 20.0
    while True:
        left = processes(node)
        if not left:
            return
        if time.monotonic() > limit:
            raise BedError(f"processes in the cgroup of node {node} outlive SIGKILL: {sorted(left)}")
        for pid in left:
            process = identify(pid)
            if process is not None:
                send(process, signal.SIGKILL)
        time.sleep(0.05)


def remove(node: str) -> None:
    """Remove the node's cgroups."""
    for root in roots(node):
        if not root.exists():
            continue
        folders = sorted((path for path in root.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
        for path in (*folders, root):
            _remove_one(path)


def _remove_one(path: Path) -> None:
    # A killed process leaves its cgroup a moment after it has left /proc.
    limit = time.monotonic() + 5.0
    while path.exists():
        try:
            path.rmdir()
        except OSError:
            if time.monotonic() > limit:
                return  # the check after down names it
            time.sleep(0.05)


def leftovers() -> list[str]:
    """Give every cgroup that a bed left behind."""
    pattern = cgroup("*")
    folders = [_ROOT] if unified() else [path for path in _ROOT.iterdir() if path.is_dir() and not path.is_symlink()]
    return [str(path) for folder in folders for path in folder.glob(pattern)]
