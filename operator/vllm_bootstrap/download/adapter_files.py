"""A LoRA adapter's files: those that vLLM reads of a repository, and a look at them before it is asked for it.

vLLM copies weights that are too narrow into its buffers without a word, and leaves out layers that the model has not:
an adapter of another base model then answers nonsense.  Only the header of the weights is read.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
OTHER_WEIGHTS = ("adapter_model.bin", "adapter_model.pt")
HEADER_LIMIT = 100_000_000
ADAPTER_FORMAT = "peft"
"""Of a repository that holds an adapter: stands where a model's has vLLM's ``--load-format``."""

TENSOR = re.compile(
    r"base_model\.model\.(?:model\.)?(?:language_model\.)?(?:model\.)?layers\.(?P<layer>\d+)\.(?:\w+\.)*?"
    r"(?P<module>\w+)\.lora_(?P<half>[AB])\.weight"
)
TAKES_HIDDEN = frozenset({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"})
GIVES_HIDDEN = frozenset({"o_proj", "down_proj"})


@dataclass(frozen=True, kw_only=True)
class BaseModel:
    """What must fit; 0 where it is not known.

    Attributes
    ----------
    hidden
        Width of its hidden state.
    layers
        Number of its decoder layers.
    """

    hidden: int = 0
    layers: int = 0


def needed_files(names: Collection[str]) -> tuple[str, ...]:
    """Choose what vLLM reads of an adapter's repository: its configuration, and the weights in one form."""
    weights = next((name for name in (WEIGHTS, *OTHER_WEIGHTS) if name in names), "")
    return tuple(name for name in (CONFIG, weights) if name in names)


def missing_file(names: Collection[str]) -> str:
    """Name what a repository lacks to be an adapter; empty when nothing."""
    if CONFIG not in names:
        return CONFIG
    return "" if len(needed_files(names)) > 1 else WEIGHTS


def adapter_fault(folder: Path, base: BaseModel) -> str:
    """Say why a folder holds no adapter of this base model, and what to do; empty when nothing is seen."""
    if not folder.is_dir():
        return f"{folder} does not exist, or is no folder, in the lead pod: mend its uri, or put the adapter there"
    config = _read_config(folder / CONFIG)
    if isinstance(config, str):
        return f"{config}: the folder must hold an adapter in PEFT's form"
    if not (folder / WEIGHTS).is_file():
        if any((folder / name).is_file() for name in OTHER_WEIGHTS):
            return ""
        return f"{folder} has a {CONFIG}, but no {WEIGHTS}: put the weights beside it"
    try:
        shapes = dict(_shapes(folder / WEIGHTS))
    except (OSError, ValueError, AttributeError, LookupError, TypeError, struct.error) as error:
        return f"{folder / WEIGHTS} cannot be read ({error}): it is no whole safetensors file; copy it again"
    told = config.get("base_model_name_or_path")
    trained = f" (it was trained for {told})" if isinstance(told, str) and told else ""
    misfit = next(filter(None, (_misfit(name, shape, base) for name, shape in shapes.items())), "")
    return f"{misfit}: it is of another base model{trained}" if misfit else ""


def _read_config(path: Path) -> dict[str, Any] | str:
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        return f"{path.parent} has no {CONFIG}"
    except (OSError, ValueError) as error:
        return f"{path} cannot be read ({error})"
    return config if isinstance(config, dict) else f"{path} holds no JSON object"


def _shapes(path: Path) -> Iterator[tuple[str, list[int]]]:
    """Read the names and shapes of a safetensors file: a length, and so many bytes of JSON."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > HEADER_LIMIT:
            raise ValueError("its header has no end")
        header: Mapping[str, Any] = json.loads(file.read(length))
        size = file.seek(0, 2) - 8 - length
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["data_offsets"][1] > size:
            raise ValueError("it ends too early")
        yield name, entry["shape"]


def _misfit(name: str, shape: list[int], base: BaseModel) -> str:
    found = TENSOR.fullmatch(name)
    if not found or len(shape) != 2:
        return ""
    layer, module, half = int(found["layer"]), found["module"], found["half"]
    if base.layers and layer >= base.layers:
        return f"it has weights for layer {layer}, and the model has {base.layers} layers"
    width = shape[1] if half == "A" else shape[0]
    counts = (module in TAKES_HIDDEN and half == "A") or (module in GIVES_HIDDEN and half == "B")
    if base.hidden and counts and width != base.hidden:
        return f"its {module} is {width} wide, and the model's hidden size is {base.hidden}"
    return ""
