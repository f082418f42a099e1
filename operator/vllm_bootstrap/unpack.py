"""From the archive in a ConfigMap to a folder: guard, launcher and what vLLM spawns are started from files.

It stands outside the rooms because its name is in the pods' command, and so in the renderings that revisions keep: an
engine of an old revision gets today's code with the command of its day.
"""

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
    os.execv(sys.executable, [sys.executable, "-m", "vllm_bootstrap.entrypoints.standalone", *arguments])  # noqa: S606
