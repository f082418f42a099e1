"""Parts of objects that people write freely: what has a wrong form is as if it were not there.

It is the API server's to refuse, when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def mapping(value: object) -> Mapping[str, Any]:
    """Give an object; an empty one for what is none."""
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> list[Any]:
    """Give a list; an empty one for what is none."""
    return value if isinstance(value, list) else []


def entries(value: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Give the objects in a list of an object."""
    return [item for item in items(value.get(key)) if isinstance(item, Mapping)]
