"""LoRA adapters that the tests write themselves: strong enough that greedy answers change, in PEFT's form."""

from __future__ import annotations

import json
import random
import struct
from array import array
from pathlib import Path
from typing import Any

HIDDEN, LAYERS = 256, 2
"""Of the dummy models of two layers and four heads."""

RANK = 8


def write_adapter(
    folder: Path,
    *,
    seed: int,
    rank: int = RANK,
    hidden: int = HIDDEN,
    layers: int = LAYERS,
    module: str = "self_attn.o_proj",
    strength: float = 30.0,
) -> Path:
    """Write an adapter of one module in each layer; the same for the same seed.

    Parameters
    ----------
    hidden
        Width of what the module takes and gives.
    module
        Under the layer, as the checkpoint names it.
    strength
        Largest weight.  A dummy model's own are a thousandth.
    """
    chance = random.Random(seed)  # noqa: S311 - weights, no secret
    tensors = {}
    for layer in range(layers):
        stem = f"base_model.model.model.layers.{layer}.{module}"
        tensors[f"{stem}.lora_A.weight"] = _tensor(chance, rank, hidden, strength)
        tensors[f"{stem}.lora_B.weight"] = _tensor(chance, hidden, rank, strength)
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(safetensors(tensors))
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": "tests/dummy",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": [module.rpartition(".")[2]],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def safetensors(tensors: dict[str, tuple[list[int], bytes]]) -> bytes:
    """Give a file of 32-bit tensors: a length, so many bytes of JSON, and the data."""
    header: dict[str, Any] = {}
    data = b""
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _tensor(chance: random.Random, rows: int, columns: int, strength: float) -> tuple[list[int], bytes]:
    values = array("f", (chance.uniform(-strength, strength) for _ in range(rows * columns)))
    return [rows, columns], values.tobytes()
