"""Objects that nobody vouches for: real ones with junk in them."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Give the way to each value inside."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in inner for found in paths(item, (*path, key)))]


def damaged(draw: st.DrawFn, value: Any) -> Any:
    """Put junk into the place of up to four values, or take them away."""
    whole = {"it": copy.deepcopy(value)}
    for _ in range(draw(st.integers(1, 4))):
        way = draw(st.sampled_from(paths(whole)[1:]))
        holder = whole
        for key in way[:-1]:
            holder = holder[key]
        if isinstance(holder, dict) and len(way) > 1 and draw(st.booleans()):
            del holder[way[-1]]
        else:
            holder[way[-1]] = draw(JUNK)
    return whole["it"]
