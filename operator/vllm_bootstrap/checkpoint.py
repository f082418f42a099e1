"""How large the model on the volume is: the planner may have been told another size, and nobody else compares them."""

from __future__ import annotations

import json
from pathlib import Path

INDEX = "model.safetensors.index.json"
PATTERNS = ("model*.safetensors", "*.safetensors", "pytorch_model*.bin", "*.gguf")
"""The first that matches counts: some checkpoints lie there twice, in two forms."""

TOLERANCE = 0.1
"""What a planned size may be off: it may come from a rounded number of weights."""

GIB = 1024**3


def checkpoint_bytes(folder: Path) -> int:
    """Give the bytes of a model's weights on disk; 0 when there are none that can be read."""
    try:
        total = json.loads((folder / INDEX).read_text())["metadata"]["total_size"]
        return int(total)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # one file, or another form: the files themselves say it
    try:
        found = next((files for pattern in PATTERNS if (files := list(folder.glob(pattern)))), [])
        return sum(file.stat().st_size for file in found)
    except OSError:
        return 0


def size_warning(model: str, found: int, planned: int) -> str:
    """Say that a checkpoint is not of the size that was planned for; empty when it is, or one is not known."""
    if not found or not planned or abs(found - planned) <= TOLERANCE * planned:
        return ""
    return (
        f"the checkpoint in {model} has {found / GIB:.2f} GiB, planned were {planned / GIB:.2f} GiB: "
        "correct spec.model.facts"
    )
