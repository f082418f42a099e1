"""Quantities are read as Kubernetes reads them, to the last byte."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity as of_the_client

from vllm_operator.planning.quantity import LARGEST, QuantityError, add, amount, amounts, larger, parse_quantity, show


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("4", 4),
        (4, 4),
        (0.5, Fraction(1, 2)),
        ("100m", Fraction(1, 10)),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("+2", 2),
        ("-2", -2),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1e-3", Fraction(1, 1000)),
        ("12E", LARGEST),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("1Gi", 2**30),
        ("500M", 500 * 10**6),
        ("0.5Ki", 512),
        ("1.1Gi", Fraction(11 * 2**30, 10)),
        ("2k", 2000),
        ("3Ti", 3 * 2**40),
        ("7T", 7 * 10**12),
        ("1P", 10**15),
        ("1Pi", 2**50),
        ("1u", Fraction(1, 10**6)),
        ("1n", Fraction(1, 10**9)),
        ("0.1n", Fraction(1, 10**9)),  # what is asked for is never nothing
        ("1e999999999999", LARGEST),
        ("1e-999999999999", Fraction(1, 10**9)),
        ("9223372036854775807", LARGEST),
        ("9007199254740993", 9007199254740993),  # a float has no such number
    ],
)
def test_value(text: object, value: Any) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 ",
        "1\n",
        "Gi",
        "1K",
        "1gi",
        "1GB",
        "1e",
        "1e1.5",
        "1e+",
        "0x10",
        "1_000",
        "٣",
        None,
        True,
        [],
        "nan",
        "9" * 9999,
    ],
)
def test_what_is_no_quantity(text: object) -> None:
    with pytest.raises(QuantityError, match="no quantity like"):
        parse_quantity(text)
    assert amount("memory", text) == 0


numbers = st.from_regex(r"\A[0-9]{1,6}(\.[0-9]{1,3})?\Z")
suffixes = st.sampled_from(["", *"numkMGT", "Ki", "Mi", "Gi", "Ti"])


@given(numbers, suffixes)
def test_the_official_client_reads_the_same(number: str, suffix: str) -> None:
    exact = Fraction(of_the_client(number + suffix))
    assert exact <= parse_quantity(number + suffix) < exact + Fraction(1, 10**9)


@given(st.one_of(st.text(max_size=12), st.floats(), st.none(), st.lists(st.integers(), max_size=2)))
def test_nothing_makes_it_stumble(text: object) -> None:
    assert isinstance(amount("cpu", text), int)


@pytest.mark.parametrize(
    ("resource", "text", "counted"),
    [
        ("cpu", "1", 1000),
        ("cpu", "1.0001", 1001),
        ("requests.cpu", "250m", 250),
        ("limits.cpu", "2", 2000),
        ("memory", "1.5", 2),
        ("memory", "100m", 1),
        ("nvidia.com/gpu", "8", 8),
        ("example.com/cpu", "1", 1),
    ],
)
def test_amounts_are_the_schedulers(resource: str, text: str, counted: int) -> None:
    assert amount(resource, text) == counted


def test_sums_and_larger_ones() -> None:
    one, other = amounts({"cpu": "1", "memory": "1Gi"}), amounts({"cpu": "500m", "rdma/ib": 1})
    assert add(one, other) == {"cpu": 1500, "memory": 2**30, "rdma/ib": 1}
    assert larger(one, other) == {"cpu": 1000, "memory": 2**30, "rdma/ib": 1}
    assert amounts(None) == amounts("much") == {}


@pytest.mark.parametrize(
    ("resource", "value", "words"),
    [
        ("memory", 480 * 2**30, "480Gi of memory"),
        ("memory", 3 * 2**29, "1.5Gi of memory"),
        ("memory", 12, "12 of memory"),
        ("cpu", 1500, "1500m of cpu"),
        ("requests.cpu", 4000, "4 of requests.cpu"),
        ("requests.memory", 2**40, "1Ti of requests.memory"),
        ("requests.nvidia.com/gpu", 8, "8 of requests.nvidia.com/gpu"),
        ("pods", 0, "0 pod slots"),
    ],
)
def test_amounts_in_words(resource: str, value: int, words: str) -> None:
    assert show(resource, value) == words
