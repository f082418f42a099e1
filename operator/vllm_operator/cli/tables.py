"""Tables as kubectl prints them: capitals above, three blanks between."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Give a table; a cell that is empty is shown as kubectl does."""
    cells = [[name.upper() for name in head], *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)
    return "\n".join(lines)


def _text(cell: object) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "-"
    return "<none>" if cell in (None, "") else str(cell)
