"""What an image build depends on: the files that its Dockerfile copies, and nothing else of the checkout.

Building from a staged copy of just these files makes the cache's key honest, and keeps a virtual environment of 7 GB
out of the context without an ignore file to be kept right.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from .errors import BedError

_IGNORED = {"__pycache__", ".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache", "build", "dist"}
_EPOCH = 1_577_836_800
"""2020-01-01: one time for all files, so that equal contents make equal layers (zip files know no time before 1980)."""


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Give each instruction of a Dockerfile with its arguments; continued lines are one."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\[ \t]*\n", " ", "\n".join(lines)).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word:
            yield word.upper(), rest.strip()


def sources(text: str) -> list[str]:
    """Give what a Dockerfile copies from its context."""
    found: list[str] = []
    for word, rest in instructions(text):
        if word not in ("COPY", "ADD"):
            continue
        if "<<" in rest:
            raise BedError(f"{word} {rest}: here-documents are not supported by the test bed's image build")
        options = re.match(r"(?:--\S+\s+)*", rest)
        flags = options.group() if options else ""
        if "--from" in flags:
            continue
        body = rest[len(flags) :]
        words = json.loads(body) if body.startswith("[") else shlex.split(body)
        found += [source for source in words[:-1] if "://" not in source]
    return found


def context_files(context: Path, text: str) -> dict[str, Path]:
    """Give the files that a Dockerfile copies: path in the context to file."""
    files: dict[str, Path] = {}
    for source in sources(text):
        pattern = source.strip("/").removeprefix("./") or "."
        matches = [context] if pattern == "." else sorted(context.glob(pattern))
        if not matches:
            raise BedError(f"COPY {source}: no such file in {context}")
        for match in matches:
            files |= {str(path.relative_to(context)): path for path in _files(match)}
    return files


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for folder, names, files in os.walk(path):
        names[:] = sorted(name for name in names if name not in _IGNORED and not name.endswith(".egg-info"))
        yield from (Path(folder, name) for name in sorted(files))


def stage(files: Mapping[str, Path], target: Path) -> None:
    """Copy the files of a context into a folder."""
    for name, path in files.items():
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
        os.utime(copy, (_EPOCH, _EPOCH))
