"""Whether a live object is as it should be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def contains(live: Any, wanted: Any) -> bool:
    """Say whether a live object has every field that we set, with our value; what others added does not count."""
    if isinstance(wanted, Mapping):
        return isinstance(live, Mapping) and all(key in live and contains(live[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return (
            isinstance(live, list)
            and len(live) == len(wanted)
            and all(contains(item, ours) for item, ours in zip(live, wanted, strict=True))
        )
    return bool(live == wanted)
