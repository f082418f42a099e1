"""Every way to seat pods on nodes, tried one after the other: slow, and with nothing in common with the planner."""

from __future__ import annotations

from collections.abc import Sequence


def possible(sizes: Sequence[int], free: Sequence[int], *, apart: bool) -> bool:
    """Say whether pods of these sizes go on nodes with so many free GPUs, on one node each if ``apart``."""
    if not sizes:
        return True
    size, rest = sizes[0], sizes[1:]
    for index, gpus in enumerate(free):
        if gpus >= size:
            left = [*free[:index], *([] if apart else [gpus - size]), *free[index + 1 :]]
            if possible(rest, left, apart=apart):
                return True
    return False
