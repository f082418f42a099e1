"""Workers: what becomes of a round that went well, failed, stumbled, or whose deployment is gone."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from vllm_operator.clients.kubernetes import ApiError, ConflictError
from vllm_operator.clients.ray import RayError
from vllm_operator.reconcile.queue import WorkQueue
from vllm_operator.reconcile.reconciler import Key
from vllm_operator.runtime.metrics import Metrics
from vllm_operator.runtime.workers import Workers

pytestmark = pytest.mark.looptime

KEY = Key("n", "a")


class Bench:
    """Workers over a reconciler that does what a test says."""

    def __init__(self, reconcile: Callable[[Key], Awaitable[float | None]], *, count: int = 1) -> None:
        self.rounds: list[tuple[float, Key]] = []
        self.metrics = Metrics()
        self.queue: WorkQueue[Key] = WorkQueue(random.Random(1), base=1, limit=60)  # noqa: S311 - jitter

        async def noted(key: Key) -> float | None:
            self.rounds.append((round(asyncio.get_running_loop().time(), 2), key))
            return await reconcile(key)

        self.workers = Workers(
            queue=self.queue,
            reconcile=noted,
            count=count,
            resync_seconds=300,
            jitter=random.Random(1),  # noqa: S311 - jitter
            metrics=self.metrics,
        )

    async def run(self, seconds: float) -> list[float]:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(self.workers.run(), seconds)
        return [instant for instant, _ in self.rounds]

    def outcomes(self, outcome: str) -> float:
        return self.metrics.registry.get_sample_value("vllm_operator_reconcile_total", {"outcome": outcome}) or 0.0


async def always(value: float | None) -> float | None:
    return value


async def test_a_quiet_deployment_is_looked_at_again_at_the_resync() -> None:
    bench = Bench(lambda _: always(math.inf))
    bench.queue.add(KEY)
    times = await bench.run(1000)
    assert len(times) in (4, 5)
    assert all(270 <= later - earlier <= 330 for earlier, later in itertools.pairwise(times))
    assert bench.outcomes("ok") == len(times)
    assert bench.metrics.registry.get_sample_value("vllm_operator_leader") == 1


async def test_what_a_round_asks_for_comes_sooner() -> None:
    bench = Bench(lambda _: always(10))
    bench.queue.add(KEY)
    assert await bench.run(35) == [0, 10, 20, 30]


async def test_a_deployment_that_is_gone_is_not_looked_at_again() -> None:
    bench = Bench(lambda _: always(None))
    bench.queue.add(KEY)
    assert await bench.run(10000) == [0]


async def test_a_deployment_that_failed_and_then_went_is_not_looked_at_again_either() -> None:
    async def fail_once(_: Key) -> float | None:
        if len(bench.rounds) == 1:
            bench.queue.add(KEY)  # the event of its removal
            raise ApiError(500, "etcd")
        return None

    bench = Bench(fail_once)
    bench.queue.add(KEY)
    assert await bench.run(10000) == [0, 0]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ApiError(500, "etcd"), "error"),
        (RayError("refused"), "error"),
        (ConflictError(409, "modified"), "conflict"),
        (KeyError("bug"), "bug"),
    ],
)
async def test_failures_come_back_later_and_later(error: Exception, outcome: str) -> None:
    async def fail(_: Key) -> float | None:
        raise error

    bench = Bench(fail)
    bench.queue.add(KEY)
    times = await bench.run(100)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(0.8 * 2**count <= gap <= 1.2 * 2**count for count, gap in enumerate(gaps[:5]))
    assert bench.outcomes(outcome) == len(times)


async def test_one_that_stumbles_stops_no_other() -> None:
    async def fail_one(key: Key) -> float | None:
        if key == KEY:
            raise RuntimeError("bug")
        return 10

    bench = Bench(fail_one)
    bench.queue.add(KEY)
    bench.queue.add(Key("n", "b"))
    await bench.run(55)
    assert [key.name for _, key in bench.rounds].count("b") == 6


async def test_a_slow_round_holds_up_no_other() -> None:
    async def slow(key: Key) -> float | None:
        await asyncio.sleep(100 if key == KEY else 0)
        return math.inf

    bench = Bench(slow, count=2)
    for name in "abc":
        bench.queue.add(Key("n", name))
    await bench.run(5)
    assert {key.name for _, key in bench.rounds} == {"a", "b", "c"}


async def test_cancelling_ends_all_workers() -> None:
    async def never(_: Key) -> Any:
        await asyncio.Event().wait()

    bench = Bench(never, count=3)
    bench.queue.add(KEY)
    await bench.run(5)
    assert len(asyncio.all_tasks()) == 1
