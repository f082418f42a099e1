"""One line for each part of the work, with the time since the start: builds take minutes and must not look hung."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_BEGIN = time.monotonic()


def say(text: str) -> None:
    """Print one line of progress to stderr; stdout is for what a shell or a pipe reads."""
    print(f"[{time.monotonic() - _BEGIN:6.1f}s] {text}", file=sys.stderr, flush=True)


@contextmanager
def part(text: str) -> Iterator[None]:
    """Announce a part of the work and say how long it took."""
    say(f"{text} ...")
    begin = time.monotonic()
    yield
    say(f"{text}: {time.monotonic() - begin:.1f} s")
