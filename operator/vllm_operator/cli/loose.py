"""Reading of objects whose form nobody vouches for.

The command reads what a cluster holds on its worst day: objects of other versions, half-written or edited by hand.
What has not the expected form counts as absent, so that the rest is still told.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from vllm_operator.api.schema import ApiModel
from vllm_operator.lifecycle.recovery import parse_time

M = TypeVar("M", bound=ApiModel)


def dig(value: Any, *keys: str) -> Any:
    """Give what lies under a path of keys; ``None`` where it ends early."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def mapping(value: Any, *keys: str) -> Mapping[str, Any]:
    """Give the mapping under a path of keys; an empty one for anything else."""
    found = dig(value, *keys)
    return found if isinstance(found, Mapping) else {}


def items(value: Any, *keys: str) -> list[Mapping[str, Any]]:
    """Give the mappings in the list under a path of keys."""
    found = dig(value, *keys)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list | tuple) else []


def text(value: Any, *keys: str) -> str:
    """Give the text under a path of keys; empty for anything else."""
    found = dig(value, *keys)
    return found if isinstance(found, str) else ""


def number(value: Any, *keys: str) -> int:
    """Give the whole number under a path of keys; 0 for anything else."""
    found = dig(value, *keys)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def instant(value: Any, *keys: str) -> datetime.datetime | None:
    """Give the instant under a path of keys, UTC; ``None`` for anything else."""
    found = parse_time(text(value, *keys))
    try:
        return found.astimezone(datetime.UTC) if found else None
    except OverflowError:
        return None


def models(kind: type[M], found: Iterable[Mapping[str, Any]]) -> tuple[tuple[M, ...], int]:
    """Read each object that obeys a model of the API; give them, and the number of those that do not."""
    read: list[M] = []
    refused = 0
    for item in found:
        try:
            read.append(kind.model_validate(item))
        except ValidationError:
            refused += 1
    return tuple(read), refused


def words(value: str) -> str:
    """Give a text on one line."""
    return " ".join(value.split())


def harmless(value: str) -> str:
    """Give a text without what a terminal would obey: a container or an event may have brought it."""
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in value)
