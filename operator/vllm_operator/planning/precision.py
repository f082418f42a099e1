"""How many bytes a weight takes: the checkpoint's type and its quantization.

Quantized are the matrices of attention, feed-forward parts and experts; embeddings, the output head, norms and what
the quantization leaves out stay in the checkpoint's own type.  A quantized weight is more than its bits: the scales of
its group come on top.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_BITS = 32
MAX_GROUP = 2**20

BYTES_OF_TYPE = {
    "float32": 4.0,
    "float": 4.0,
    "fp32": 4.0,
    "float16": 2.0,
    "half": 2.0,
    "fp16": 2.0,
    "bfloat16": 2.0,
    "bf16": 2.0,
    "float8_e4m3fn": 1.0,
    "float8_e5m2": 1.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "int8": 1.0,
}
"""Names of types in configurations and on vLLM's command line → bytes."""


class Scope(enum.StrEnum):
    """Which matrices are quantized."""

    ALL = "all"
    EXPERTS = "experts"


@dataclass(frozen=True, kw_only=True)
class Precision:
    """How weights are stored.

    Attributes
    ----------
    method
        Name of the quantization, empty for none.
    weight_bytes
        Bytes of a quantized weight, with its share of the scales.
    base_bytes
        Bytes of all other weights, and of the cache when nothing else is asked for.
    scope
        What is quantized.
    """

    method: str = ""
    weight_bytes: float = 2.0
    base_bytes: float = 2.0
    scope: Scope = Scope.ALL


def read_dtype(*configs: Mapping[str, Any]) -> float:
    """Give the bytes of the checkpoint's own type; vLLM halves float32 (``--dtype auto``)."""
    for config in configs:
        for name in ("torch_dtype", "dtype"):
            found = BYTES_OF_TYPE.get(str(config.get(name, "")).removeprefix("torch."))
            if found:
                return min(found, 2.0) if found > 1 else 2.0
    return 2.0


def read_precision(quantization: Mapping[str, Any] | None, base_bytes: float) -> Precision:
    """Read a ``quantization_config``.

    Parameters
    ----------
    quantization
        The block of ``config.json``, ``None`` when there is none.
    base_bytes
        Bytes of what is not quantized.
    """
    if not quantization:
        return Precision(weight_bytes=base_bytes, base_bytes=base_bytes)
    method = str(quantization.get("quant_method") or quantization.get("quant_algo") or "").lower()
    scope = Scope.EXPERTS if method == "mxfp4" else Scope.ALL
    return Precision(
        method=method or "unknown",
        weight_bytes=_stored(quantization, method).bytes,
        base_bytes=base_bytes,
        scope=scope,
    )


@dataclass(frozen=True)
class Stored:
    """A quantized weight: its bits, and the bits of scale (and zero point) that a group of weights shares."""

    bits: int
    group: int = 0
    scale: int = 0

    @property
    def bytes(self) -> float:
        """Bytes of one weight with its share of the scale."""
        return (self.bits + (self.scale / self.group if self.group else 0)) / 8


def named_precision(name: str) -> Precision:
    """Give the precision for a name as people write it, like ``bf16``, ``fp8``, ``int4``, ``nvfp4`` or ``mxfp4``.

    Raises
    ------
    ValueError
        No such name.
    """
    key = name.lower()
    if key in ("bf16", "fp16", "bfloat16", "float16", "half", "auto"):
        return Precision()
    if key in ("fp32", "float32"):
        return Precision(weight_bytes=4.0, base_bytes=4.0)
    for known, stored in _BY_NAME.items():
        if key.startswith(known):
            return Precision(method=known, weight_bytes=stored.bytes)
    raise ValueError(f"precision {name!r} is not known: use one of bf16, fp32, {', '.join(_BY_NAME)}")


_BY_NAME = {
    "nvfp4": Stored(4, 16, 8),
    "mxfp4": Stored(4, 32, 8),
    "mxfp8": Stored(8, 32, 8),
    "fp4": Stored(4, 16, 8),
    "fp8": Stored(8),
    "int8": Stored(8),
    "w8a8": Stored(8),
    "int4": Stored(4, 32, 16),
    "w4a16": Stored(4, 32, 16),
    "awq": Stored(4, 128, 20),
    "gptq": Stored(4, 128, 20),
}
_UNKNOWN = Stored(8)


def _stored(quantization: Mapping[str, Any], method: str) -> Stored:
    if groups := quantization.get("config_groups"):
        return _compressed(groups)
    algorithm = str(quantization.get("quant_algo") or "").lower()
    if quantization.get("load_in_4bit"):
        return Stored(4, 64, 16)
    group = _whole(quantization.get("group_size")) or _whole(quantization.get("q_group_size"))
    for name in ("bits", "w_bit", "weight_bits", "num_bits"):
        if bits := _whole(quantization.get(name), MAX_BITS):
            return _integers(bits, group)
    for known, found in _BY_NAME.items():
        if known in algorithm or known in method:
            return found
    return _UNKNOWN


def _compressed(groups: Any) -> Stored:
    """Read compressed-tensors' groups; of several the one with the most bits counts, to be on the safe side."""
    entries = groups.values() if isinstance(groups, Mapping) else groups if isinstance(groups, list) else ()
    weights = [entry.get("weights") for entry in entries if isinstance(entry, Mapping)]
    found = [_compressed_weights(item) for item in weights if isinstance(item, Mapping)]
    return max(found, key=lambda stored: stored.bytes, default=_UNKNOWN)


def _compressed_weights(weights: Mapping[str, Any]) -> Stored:
    bits, group = _whole(weights.get("num_bits"), MAX_BITS) or _UNKNOWN.bits, _whole(weights.get("group_size"))
    return Stored(bits, group, 8) if weights.get("type") == "float" else _integers(bits, group)


def _integers(bits: int, group: int) -> Stored:
    """Give integers of so many bits: each group has a scale of 16 bits and a zero point."""
    return Stored(bits, group, 16 + bits) if group else Stored(bits)


def _whole(value: object, limit: int = MAX_GROUP) -> int:
    """Give a number out of a file; 0 for what is none, or is no possible one (a group of -1 means a whole row)."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= limit else 0
