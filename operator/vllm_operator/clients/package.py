"""The Ray side's code as an archive: it travels with each job, or in a ConfigMap, so that no image has to hold it."""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable

from vllm_bootstrap import contract

_FIXED_TIME = (1980, 1, 1, 0, 0, 0)


def bootstrap_package(plan: contract.EnginePlan | contract.ReleasePlan | None = None) -> bytes:
    """Zip the Ray side, with a plan if there is one; equal plans give equal bytes, so Ray's cache of packages works."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in sorted(_sources(resources.files("vllm_bootstrap"), "vllm_bootstrap")):
            _add(archive, path, data)
        if plan:
            _add(archive, contract.PLAN_FILE, contract.dumps(plan).encode())
    return buffer.getvalue()


def encoded_package() -> str:
    """Give the archive without a plan, as ``binaryData`` of a ConfigMap holds it."""
    return base64.b64encode(bootstrap_package()).decode()


def _sources(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _sources(entry, f"{path}/{entry.name}")
        elif entry.name.endswith(".py"):
            yield f"{path}/{entry.name}", entry.read_bytes()


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, date_time=_FIXED_TIME)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    archive.writestr(info, data)
