"""The work queue: each key once, one worker a key, failures come back later and later.  Time is looptime's."""

from __future__ import annotations

import asyncio
import random

import pytest

from vllm_operator.reconcile.queue import WorkQueue

pytestmark = pytest.mark.looptime


def queue(base: float = 1.0, limit: float = 60.0) -> WorkQueue[str]:
    return WorkQueue(random.Random(1), base=base, limit=limit)  # noqa: S311 - jitter


def now() -> float:
    return asyncio.get_running_loop().time()


async def taken(work: WorkQueue[str]) -> str:
    key = await work.get()
    work.done(key)
    return key


async def nothing(work: WorkQueue[str], within: float) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(work.get(), within)


async def test_a_key_waits_once_however_often_it_is_added() -> None:
    work = queue()
    for key in ("a", "b", "a", "a"):
        work.add(key)
    assert len(work) == 2
    assert [await taken(work), await taken(work)] == ["a", "b"]
    assert len(work) == 0
    await nothing(work, 1000)


async def test_a_key_is_worked_on_by_one_at_a_time_and_once_more_after_news() -> None:
    work = queue()
    work.add("a")
    assert await work.get() == "a"
    work.add("a")
    work.add("a")
    await nothing(work, 10)
    work.done("a")
    assert await taken(work) == "a"
    await nothing(work, 10)


async def test_other_keys_go_on_meanwhile() -> None:
    work = queue()
    work.add("a")
    await work.get()
    work.add("b")
    assert await taken(work) == "b"


async def test_many_workers_never_share_a_key() -> None:
    work = queue()
    busy: set[str] = set()
    rounds: list[str] = []

    async def worker() -> None:
        while True:
            key = await work.get()
            assert key not in busy
            busy.add(key)
            await asyncio.sleep(0.5)
            busy.discard(key)
            rounds.append(key)
            work.done(key)

    tasks = [asyncio.create_task(worker()) for _ in range(4)]
    for tick in range(40):
        work.add("abc"[tick % 3])
        await asyncio.sleep(0.1)
    await asyncio.sleep(5)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert set(rounds) == set("abc")
    assert len(rounds) <= 3 * (4.0 / 0.5 + 2)


@pytest.mark.parametrize("delays", [(5, 2), (2, 5), (2, 2)])
async def test_of_several_delays_the_earliest_counts(delays: tuple[float, float]) -> None:
    work = queue()
    for delay in delays:
        work.add_after("a", delay)
    assert await taken(work) == "a"
    assert now() == pytest.approx(2)
    await nothing(work, 1000)


async def test_news_do_not_wait_for_a_delay() -> None:
    work = queue()
    work.add_after("a", 100)
    work.add("a")
    assert await taken(work) == "a"
    assert now() == pytest.approx(0)
    assert await taken(work) == "a"
    assert now() == pytest.approx(100)


async def test_a_delay_that_ends_while_the_key_is_worked_on_makes_it_run_again() -> None:
    work = queue()
    work.add("a")
    await work.get()
    work.add_after("a", 1)
    await asyncio.sleep(5)
    work.done("a")
    assert await taken(work) == "a"


async def test_failures_come_back_later_and_later_within_bounds() -> None:
    work = queue(base=1, limit=60)
    delays = []
    for _ in range(10):
        work.add("a")
        await work.get()
        delays.append(work.failed("a"))
        work.done("a")
        start = now()
        assert await taken(work) == "a"
        assert now() - start == pytest.approx(delays[-1])
    for count, delay in enumerate(delays):
        middle = min(60, 2**count)
        assert 0.8 * middle <= delay <= 1.2 * middle
    assert len({round(delay / min(60, 2**count), 6) for count, delay in enumerate(delays)}) > 1, "jitter"


async def test_success_forgets_failures() -> None:
    work = queue()
    for _ in range(5):
        work.failed("a")
    work.succeeded("a")
    assert work.failed("a") <= 1.2


async def test_keys_fail_on_their_own() -> None:
    work = queue()
    for _ in range(5):
        work.failed("a")
    assert work.failed("b") <= 1.2


async def test_a_forgotten_key_does_not_come_back() -> None:
    work = queue()
    work.failed("a")
    work.add_after("a", 5)
    work.forget("a")
    await nothing(work, 1000)
    work.add("a")
    assert await taken(work) == "a", "until somebody asks again"
    work.forget("never seen")


async def test_a_worker_that_is_cancelled_while_it_waits_loses_nothing() -> None:
    work = queue()
    waiting = asyncio.create_task(work.get())
    await asyncio.sleep(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    work.add("a")
    assert await taken(work) == "a"
