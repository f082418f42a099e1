"""Lay one pod template over another: what ``pod.template`` and the chart's ``runtime.podTemplate`` mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def merge(base: Any, over: Any) -> Any:
    """Lay ``over`` over ``base``, as a strategic merge does for pods.

    Objects are merged key by key.  Lists whose items all have a ``name`` (containers, env, volumes, ports) are merged
    by name, lists of ``mountPath`` by path; any other list is replaced.  ``None`` removes a key.
    """
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        merged = dict(base)
        for key, value in over.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = merge(merged[key], value) if key in merged else value
        return merged
    if _is_list(base) and _is_list(over):
        key = _merge_key([*base, *over])
        return _merge_lists(base, over, key) if key else list(over)
    return over


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _merge_key(items: Sequence[Any]) -> str | None:
    # mountPath first: a volume may be mounted twice, under one name.
    for key in ("mountPath", "name"):
        if items and all(isinstance(item, Mapping) and key in item for item in items):
            return key
    return None


def _merge_lists(base: Sequence[Any], over: Sequence[Any], key: str) -> list[Any]:
    merged = list(base)
    position = {item[key]: index for index, item in enumerate(merged)}
    for item in over:
        if item[key] in position:
            merged[position[item[key]]] = merge(merged[position[item[key]]], item)
        else:
            position[item[key]] = len(merged)
            merged.append(item)
    return merged
