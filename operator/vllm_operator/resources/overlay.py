"""Lay one pod template over another: what ``pod.template`` and the chart's ``runtime.podTemplate`` mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_UNIONS = frozenset({"env", "volumes"})
"""Lists whose items hold exactly one of several keys (``value`` or ``valueFrom``, ``emptyDir`` or ``hostPath``, …)."""

_PROBES = frozenset({"livenessProbe", "readinessProbe", "startupProbe"})
_HANDLERS = frozenset({"exec", "grpc", "httpGet", "tcpSocket"})


def merge(base: Any, over: Any, field: str = "") -> Any:
    """Lay ``over`` over ``base``, as a strategic merge does for pods.

    Objects are merged key by key.  Lists whose items all have a ``name`` (containers, env, volumes, ports) are merged
    by name, lists of ``mountPath`` by path, ports without names by number; any other list is replaced.  ``None``
    removes a key.  Of a variable or volume only the keys that ``over`` has stay, as with Kubernetes' ``retainKeys``,
    and of a probe only its way of asking: a value beside its source, two sources of a volume or two ways of a probe
    make a pod that the API server refuses.

    Parameters
    ----------
    field
        Name of the field that holds both.
    """
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        merged = dict(base)
        if field in _PROBES and _HANDLERS & over.keys():
            merged = {key: value for key, value in base.items() if key not in _HANDLERS or key in over}
        for key, value in over.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = merge(merged[key], value, key) if key in merged else value
        return merged
    if _is_list(base) and _is_list(over):
        key = _merge_key([*base, *over])
        return _merge_lists(base, over, key, retain=field in _UNIONS) if key else list(over)
    return over


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _merge_key(items: Sequence[Any]) -> str | None:
    # mountPath first: a volume may be mounted twice, under one name.
    for key in ("mountPath", "name", "containerPort"):
        if items and all(isinstance(item, Mapping) and isinstance(item.get(key), str | int) for item in items):
            return key
    return None


def _merge_lists(base: Sequence[Any], over: Sequence[Any], key: str, *, retain: bool) -> list[Any]:
    merged = list(base)
    position = {item[key]: index for index, item in enumerate(merged)}
    for item in over:
        if item[key] in position:
            under = merged[position[item[key]]]
            kept = {name: value for name, value in under.items() if name in item} if retain else under
            merged[position[item[key]]] = merge(kept, item)
        else:
            position[item[key]] = len(merged)
            merged.append(item)
    return merged
