"""Tables as kubectl prints them: capitals above, three blanks between."""

from __future__ import annotations

import datetime
import textwrap
from collections.abc import Sequence

from vllm_operator.lifecycle.recovery import parse_time

GAP = "   "
LEAST = 40
"""Columns that a text has at least, however narrow the terminal is."""


def table(head: Sequence[str], rows: Sequence[Sequence[object]], *, width: int = 0) -> str:
    """Give a table; a cell that is empty is shown as kubectl does.

    Parameters
    ----------
    width
        Columns in all: the last cell of a row is folded under itself to keep to it; 0 is without end.
    """
    cells = [[name.upper() for name in head], *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    left = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
    lines: list[str] = []
    for row in cells:
        first, *more = fold(row[-1], width - left if width else 0)
        padded = [*(cell.ljust(size) for cell, size in zip(row[:-1], widths[:-1], strict=True)), first]
        lines += [GAP.join(padded).rstrip(), *(" " * left + line for line in more)]
    return "\n".join(lines)


def fold(value: str, width: int) -> list[str]:
    """Break a text into lines, between words; a width of 0 is without end, a path or a name stays whole."""
    if not width:
        return [value]
    return textwrap.wrap(value, max(width, LEAST), break_long_words=False, break_on_hyphens=False) or [""]


def age(since: str, now: datetime.datetime) -> str:
    """Say how long ago an RFC 3339 instant was, as kubectl does; empty for none."""
    moment = parse_time(since)
    if not moment:
        return ""
    seconds = max(0, int((now - moment).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def _text(cell: object) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "-"
    return "<none>" if cell in (None, "") else str(cell)
