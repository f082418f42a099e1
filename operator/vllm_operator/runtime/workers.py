"""The workers: they take keys from the queue and run rounds, while this replica leads."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from vllm_operator.clients.kubernetes import ApiError, ConflictError
from vllm_operator.clients.ray import RayError
from vllm_operator.reconcile.queue import WorkQueue
from vllm_operator.reconcile.reconciler import Key
from vllm_operator.runtime.metrics import Metrics

log = logging.getLogger(__name__)


class Workers:
    """A number of workers over one queue.

    Parameters
    ----------
    resync_seconds
        Every deployment is looked at again after so long, give or take a tenth, even if nothing is heard: a watch
        that lost an event is caught up with.
    """

    def __init__(
        self,
        *,
        queue: WorkQueue[Key],
        reconcile: Callable[[Key], Awaitable[float | None]],
        count: int,
        resync_seconds: float,
        jitter: random.Random,
        metrics: Metrics,
    ) -> None:
        self._queue = queue
        self._reconcile = reconcile
        self._count = count
        self._resync = resync_seconds
        self._jitter = jitter
        self._metrics = metrics

    async def run(self) -> None:
        """Work until cancelled."""
        self._metrics.leader.set(1)
        async with asyncio.TaskGroup() as group:
            for _ in range(self._count):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            self._metrics.depth.set(len(self._queue))
            started = time.monotonic()
            try:
                await self._round(key)
            finally:
                self._metrics.seconds.observe(time.monotonic() - started)
                self._queue.done(key)

    async def _round(self, key: Key) -> None:
        try:
            again = await self._reconcile(key)
        except ConflictError as error:
            self._metrics.rounds.labels("conflict").inc()
            log.debug("%s/%s: %s", key.namespace, key.name, error)
            self._queue.failed(key)
        except (ApiError, RayError) as error:
            self._metrics.rounds.labels("error").inc()
            delay = self._queue.failed(key)
            log.warning("%s/%s: %s; again in %.1f s", key.namespace, key.name, error, delay)
        except Exception:
            # One deployment that makes us stumble must not stop the others.
            self._metrics.rounds.labels("bug").inc()
            delay = self._queue.failed(key)
            log.exception("%s/%s: unexpected; again in %.1f s", key.namespace, key.name, delay)
        else:
            self._metrics.rounds.labels("ok").inc()
            if again is None:
                self._queue.forget(key)
                return
            self._queue.succeeded(key)
            self._queue.add_after(key, min(again, self._resync * (0.9 + 0.2 * self._jitter.random())))
