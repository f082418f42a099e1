"""A model of the hub as it lies in a cache: one commit, its files, and how much of them is there.

Progress is read from the disk and not from the library: so it is right also for a pod that waits for another one's
download into the same cache, and whatever protocol the library speaks.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

STALE_SECONDS = 3600.0
"""A part of a file to which nobody has written for so long was left by a download that was killed."""

MEMORY = ".vllm-operator"
_PART = "*.incomplete"
_BLOCK = 512


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What is to be there.

    Attributes
    ----------
    commit
        That a revision was resolved to.
    files
        Name → size in bytes.
    """

    commit: str
    files: Mapping[str, int]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(self.files.values())


class Cached:
    """A snapshot in a cache of the library's layout.

    Parameters
    ----------
    repository
        Folder of the repository in the cache, which holds ``snapshots`` and ``blobs``.
    """

    def __init__(self, repository: Path, snapshot: Snapshot) -> None:
        self._blobs = repository / "blobs"
        self.path = repository / "snapshots" / snapshot.commit
        self.snapshot = snapshot

    @classmethod
    def found(cls, repository: Path, revision: str) -> Cached | None:
        """Give the snapshot of a revision as far as it is there; ``None`` when there is none.

        Parameters
        ----------
        revision
            Branch, tag or commit; empty: the default branch.
        """
        commit = revision
        with contextlib.suppress(OSError):
            commit = (repository / "refs" / (revision or "main")).read_text().strip()
        folder = repository / "snapshots" / commit
        if not commit or not folder.is_dir():
            return None
        files = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
        return cls(repository, Snapshot(commit=commit, files=files))

    def missing(self) -> list[str]:
        """Give the files that are not there in full."""
        return [name for name, size in self.snapshot.files.items() if _size(self.path / name) != size]

    def done(self) -> int:
        """Give the bytes that are there, those of files that are still being written included."""
        lacking = set(self.missing())
        whole = sum(size for name, size in self.snapshot.files.items() if name not in lacking)
        parts = sum(map(_written, self._parts()))
        return min(self.snapshot.size, whole + parts) if lacking else self.snapshot.size

    def sweep(self, now: float) -> None:
        """Delete what downloads that were killed have left: their names are never used again.

        Parameters
        ----------
        now
            Seconds since the epoch.
        """
        for part in self._parts():
            with contextlib.suppress(OSError):
                if now - part.stat().st_mtime > STALE_SECONDS:
                    part.unlink()

    def _parts(self) -> Iterator[Path]:
        return self._blobs.glob(_PART)


def free_bytes(folder: Path, room: int) -> int:
    """Give the bytes that can still be written into a cache.

    Parameters
    ----------
    room
        What the folder may hold at most, in bytes; 0 where only its file system bounds it.
    """
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(there).free
    return min(free, max(0, room - _used(folder))) if room else free


def remember(folder: Path, key: str, snapshot: Snapshot) -> None:
    """Note which commit was downloaded for a source, so that a restart needs no hub and changes no version."""
    path = _note(folder, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(asdict(snapshot)))
    draft.replace(path)


def recall(folder: Path, key: str) -> Snapshot | None:
    """Give what was noted for a source; ``None`` when nothing was, or it cannot be read."""
    try:
        return Snapshot(**json.loads(_note(folder, key).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _note(folder: Path, key: str) -> Path:
    return folder / MEMORY / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _written(path: Path) -> int:
    """Give how much of a file was written; one that is written in pieces has its full length from the beginning."""
    try:
        status = path.stat()
    except OSError:
        return 0  # it was finished or given up meanwhile
    blocks = status.st_blocks * _BLOCK
    return min(status.st_size, blocks) if blocks else status.st_size


def _used(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total
