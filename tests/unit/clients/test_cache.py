"""Answers that are remembered: for how long, and how many."""

from __future__ import annotations

from vllm_operator.clients.cache import TimedCache


def test_an_answer_ends_and_is_still_known() -> None:
    cache: TimedCache[str, int] = TimedCache(2)
    cache.put("a", 1, until=10)
    assert (cache.fresh("a", 9.9), cache.fresh("a", 10), cache.last("a")) == (1, None, 1)
    assert (cache.fresh("b", 0), cache.last("b")) == (None, None)
    cache.put("a", 2, until=20)
    assert cache.fresh("a", 10) == 2


def test_what_was_not_used_for_longest_goes_first() -> None:
    cache: TimedCache[str, int] = TimedCache(2)
    for number, key in enumerate("ab"):
        cache.put(key, number, until=10)
    cache.fresh("a", 0)
    cache.put("c", 2, until=10)
    assert (len(cache), cache.last("a"), cache.last("b"), cache.last("c")) == (2, 0, None, 2)


def test_many_answers_take_no_more_room_than_few() -> None:
    cache: TimedCache[int, int] = TimedCache(8)
    for number in range(1000):
        cache.put(number, number, until=1)
    assert len(cache) == 8
