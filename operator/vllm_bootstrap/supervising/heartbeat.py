"""A slow sign of life in the report of an engine that no kubelet asks: in a shared cluster's pods is no probe of ours.

It says what the readiness probe would: a change at once, else the same again every few seconds.  When it stops, the
operator takes the engine's traffic away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from vllm_bootstrap.clock import Clock
from vllm_bootstrap.contract import EngineReport, Phase

LOOK_SECONDS = 1.0


class Heartbeat:
    """Repeats an engine's newest report while it serves, with the instant, or with why it should have no traffic.

    Parameters
    ----------
    seconds
        Between two signs.
    look
        Gives the newest report, and whether the engine answers, or why it does not.
    publish
        Takes a report.
    """

    def __init__(
        self,
        seconds: float,
        *,
        look: Callable[[], tuple[EngineReport | None, bool, str]],
        publish: Callable[[EngineReport], None],
        clock: Clock,
    ) -> None:
        self._seconds = seconds
        self._look = look
        self._publish = publish
        self._clock = clock
        self._ended = threading.Event()
        self._told: str | None = None
        self._last = float("-inf")

    def start(self) -> None:
        """Begin, in the background."""
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def stop(self) -> None:
        """Give no further sign."""
        self._ended.set()

    def beat(self) -> None:
        """Give a sign if one is due."""
        report, ready, why = self._look()
        if report is None or report.phase is not Phase.SERVING:
            return
        unready, now = "" if ready else why, self._clock.monotonic()
        if unready == self._told and (unready or now - self._last < self._seconds):
            return
        self._told, self._last = unready, now
        heartbeat = self._clock.timestamp() if ready else ""
        self._publish(replace(report, heartbeat=heartbeat, unready=unready))

    def _run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self.beat()
