"""What lies where the model should be: whether it is whole, and how large.

A missing part costs minutes of loading before vLLM notices it, and the size that the planner was told nobody else
compares with what is there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_bootstrap.download.model_files import DEFAULT_FORMAT, INDEX, missing_weights

PATTERNS = ("model*.safetensors", "*.safetensors", "pytorch_model*.bin", "*.gguf")
"""The first that matches counts: some checkpoints lie there twice, in two forms."""

TOLERANCE = 0.1
"""What a planned size may be off: it may come from a rounded number of weights."""

GIB = 1024**3


@dataclass(frozen=True, kw_only=True)
class ModelSight:
    """What was seen at the path of the model in a pod.

    Attributes
    ----------
    found
        There is something; true as well where the model is no path but a name.
    config
        Its ``config.json``; empty when it has none that can be read.
    missing
        Files of weights that should be beside those that are there.
    size
        Bytes of its weights, 0 when they cannot be told.
    """

    found: bool = True
    config: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    size: int = 0


def is_local(model: str) -> bool:
    """Tell a path in the pod from the name of a model on the hub."""
    return model.startswith("/")


def look_at_model(model: str, *, form: str = DEFAULT_FORMAT) -> ModelSight:
    """Look at the model of this pod.

    Parameters
    ----------
    form
        vLLM's ``--load-format``.
    """
    if not is_local(model):
        return ModelSight()
    folder = Path(model)
    return ModelSight(
        found=folder.exists(),
        config=_config(folder),
        missing=tuple(_missing(folder, form)),
        size=checkpoint_bytes(folder),
    )


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return {}  # a GGUF file, or a form that only vLLM knows: it will say so itself
    return config if isinstance(config, dict) else {}


def _missing(folder: Path, form: str) -> list[str]:
    try:
        names = [name for name in os.listdir(folder) if (folder / name).is_file()]
    except OSError:
        return []
    try:
        indexed = set(json.loads((folder / INDEX).read_text())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        indexed = set()
    return missing_weights(names, form=form, indexed=indexed)


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
