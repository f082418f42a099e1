"""Waiting for a condition with a deadline: the only way in which anything here waits."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from typing import TypeVar

from .errors import BedError

SOON = 120.0
"""Seconds for what needs no engine to start.  Only what is broken waits so long."""

T = TypeVar("T")


def wait_for(description: str, probe: Callable[[], T], deadline: float = SOON, *, interval: float = 0.2) -> T:
    """Poll until a probe gives something true.

    Parameters
    ----------
    description
        What is waited for, as it will stand in the error.
    probe
        Called again and again; a :class:`BedError` counts as "not yet".
    deadline
        Seconds from now.
    interval
        Seconds between two calls.

    Returns
    -------
    T
        The first true result.

    Raises
    ------
    BedError
        After the deadline; with the last result or error of the probe.
    """
    end = time.monotonic() + deadline
    while True:
        try:
            result = probe()
        except BedError as error:
            last = str(error)
        else:
            if result:
                return result
            last = repr(result)
        if time.monotonic() >= end:
            raise BedError(f"after {deadline:.0f} s still waiting for {description}; last seen: {last}")
        time.sleep(interval)


def answers(url: str) -> bool:
    """Tell whether a URL on this machine answers with success."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy could not reach these addresses
    try:
        with opener.open(url, timeout=2.0) as response:
            return bool(response.status == 200)
    except OSError:
        return False
