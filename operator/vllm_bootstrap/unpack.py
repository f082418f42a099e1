"""From the archive in a ConfigMap to a folder: guard, launcher and what vLLM spawns are started from files."""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile


def main(archive: str, *arguments: str) -> None:
    """Unpack the code, and become the process that takes plans."""
    folder = tempfile.mkdtemp(prefix="vllm-bootstrap-")
    with zipfile.ZipFile(archive) as package:
        package.extractall(folder)
    os.chdir(folder)
    os.execv(sys.executable, [sys.executable, "-m", "vllm_bootstrap.standalone", *arguments])  # noqa: S606
