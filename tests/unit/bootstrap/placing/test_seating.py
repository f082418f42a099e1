"""Nodes of the ranks of a data parallel engine: golden seats of the shapes that people run, and what always holds."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_bootstrap.placing.seating import number_on_nodes, seat_engines

STRATEGIES = ("PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD")


def seats(gpus: dict[str, int], data: int, tensor: int, pipeline: int, strategy: str = "PACK") -> list[str]:
    found = seat_engines(gpus, lead="l", data=data, tensor=tensor, pipeline=pipeline, strategy=strategy)
    return ["".join(ranks) for ranks in found]


@pytest.mark.parametrize(
    ("gpus", "sizes", "strategy", "expected"),
    [
        # what vLLM calls strict: as many on each node
        ({"a": 1, "l": 1}, (2, 1, 1), "PACK", ["l", "a"]),
        ({"a": 2, "l": 2}, (2, 2, 1), "PACK", ["ll", "aa"]),
        ({"l": 4, "a": 4}, (4, 2, 1), "STRICT_PACK", ["ll", "ll", "aa", "aa"]),
        # fill: as many as fit
        ({"l": 4, "a": 2}, (3, 2, 1), "PACK", ["ll", "ll", "aa"]),
        # span: one over several nodes, a tensor group on each
        ({"l": 2, "a": 2, "b": 2, "c": 2}, (2, 2, 2), "PACK", ["llaa", "bbcc"]),
        ({"l": 1, "a": 1, "b": 1, "c": 1}, (2, 2, 1), "PACK", ["la", "bc"]),
        # what is left on two nodes makes another
        ({"l": 3, "a": 3}, (3, 2, 1), "PACK", ["ll", "la", "aa"]),
        ({"a": 6, "l": 2}, (2, 2, 2), "PACK", ["llaa", "aaaa"]),
        ({"l": 2, "a": 2}, (2, 2, 1), "SPREAD", ["la", "la"]),
        ({"l": 2, "a": 2}, (2, 2, 1), "STRICT_SPREAD", ["la", "la"]),
        ({"l": 4}, (2, 2, 1), "SPREAD", ["ll", "ll"]),
        # more GPUs than are needed
        ({"a": 8, "l": 8}, (2, 2, 1), "PACK", ["ll", "ll"]),
        ({"a": 8, "l": 1}, (2, 2, 1), "PACK", ["la", "aa"]),
    ],
)
def test_seats(gpus: dict[str, int], sizes: tuple[int, int, int], strategy: str, expected: list[str]):
    assert seats(gpus, *sizes, strategy) == expected


@pytest.mark.parametrize(
    ("gpus", "sizes", "strategy", "fault"),
    [
        ({"a": 2}, (2, 1, 1), "PACK", "the lead node has no GPU"),
        ({"l": 2, "a": 1}, (2, 2, 1), "PACK", "2 x 2 ranks need 4 GPUs, the nodes have 3"),
        ({"l": 3, "a": 3}, (3, 2, 1), "STRICT_PACK", "the pods have room for 2 of them"),
        ({"l": 1, "a": 4}, (2, 2, 1), "STRICT_PACK", "the pods have room for 1 of them"),
        ({"l": 3, "a": 1}, (2, 2, 1), "STRICT_SPREAD", "for rank 1 only 1 pods have a GPU left"),
    ],
)
def test_refuses_what_cannot_be(gpus: dict[str, int], sizes: tuple[int, int, int], strategy: str, fault: str):
    with pytest.raises(ValueError, match=fault):
        seats(gpus, *sizes, strategy)


def test_data_parallel_ranks_count_on_each_node():
    assert number_on_nodes(["l", "l", "a", "a", "b"]) == (0, 1, 0, 1, 0)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[dict[str, int], int, int, int]:
    data, tensor, pipeline = draw(st.integers(2, 6)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=8))
    names = ["l", *(f"n{index}" for index in range(len(sizes) - 1))]
    gpus = dict(zip(names, sizes, strict=True))
    gpus["l"] += max(0, data * tensor * pipeline - sum(sizes))
    return gpus, data, tensor, pipeline


@given(worlds(), st.sampled_from(STRATEGIES))
def test_every_seating_can_start(world: tuple[dict[str, int], int, int, int], strategy: str):
    gpus, data, tensor, pipeline = world
    size = tensor * pipeline
    try:
        found = seat_engines(gpus, lead="l", data=data, tensor=tensor, pipeline=pipeline, strategy=strategy)
    except ValueError:
        assert strategy.startswith("STRICT"), "there are GPUs enough"
        assert not strict_is_possible(gpus, data, size, strategy)
        return
    assert [len(ranks) for ranks in found] == [size] * data
    used = Counter(node for ranks in found for node in ranks)
    assert all(used[node] <= gpus[node] for node in used)
    assert found[0][0] == "l", "vLLM's first rank is beside the server"
    heads = [ranks[0] for ranks in found]
    beside = heads.count("l")
    assert heads[:beside] == ["l"] * beside, "those beside the server come first"
    runs = [node for node, _ in groupby(heads)]
    assert len(runs) == len(set(runs))
    numbers = number_on_nodes(heads)
    assert len({*zip(heads, numbers, strict=True)}) == data, "unique on each node"
    assert all(0 <= number <= index for index, number in enumerate(numbers))
    for ranks in found:
        inside = [rank for rank, node in enumerate(ranks) if node == ranks[0]]
        assert inside == list(range(len(inside))), "the ranks on the engine core's node are exactly the first ones"
        assert strategy != "STRICT_PACK" or len(set(ranks)) == 1
        assert strategy != "STRICT_SPREAD" or len(set(ranks)) == size


def strict_is_possible(gpus: dict[str, int], data: int, size: int, strategy: str) -> bool:
    if strategy == "STRICT_PACK":
        return gpus["l"] >= size and sum(count // size for count in gpus.values()) >= data
    # Gale and Ryser: as many nodes as a data parallel rank has GPUs, for each of them.
    return size <= len(gpus) and sum(min(count, data) for count in gpus.values()) >= data * size


@given(st.integers(1, 4), st.integers(1, 3), st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_a_tensor_group_stays_on_one_node_where_pods_are_big_enough(tensor: int, pipeline: int, multiples: list[int]):
    gpus = {name: count * tensor for name, count in zip("labcdefg", multiples, strict=False)}
    data = sum(multiples) // pipeline
    if not data:
        return
    for ranks in seat_engines(gpus, lead="l", data=data, tensor=tensor, pipeline=pipeline, strategy="PACK"):
        for stage in range(pipeline):
            assert len(set(ranks[stage * tensor : (stage + 1) * tensor])) == 1
