"""Kubernetes quantities, read exactly: ``100m``, ``1.5``, ``1e3``, ``12E``, ``500M``, ``0.5Ki``.

The planner compares what the scheduler compares: whole thousandths of a CPU and whole units of everything else, rounded
up as ``MilliValue`` and ``Value`` of apimachinery's ``resource.Quantity`` do.  A float would lose bytes of large nodes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction

CPU, MEMORY, STORAGE, PODS = "cpu", "memory", "ephemeral-storage", "pods"
LARGEST = 2**63 - 1
"""Kubernetes takes what is more for this."""

Amounts = Mapping[str, int]
"""Resources by name: CPUs in thousandths, bytes of memory and storage, whole units of what is counted."""

_FORM = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(?:([KMGTPE]i)|([numkMGTPE])|[eE]([+-]?\d+))?", re.ASCII)
_BINARY = {f"{letter}i": Fraction(2) ** (10 * power) for power, letter in enumerate("KMGTPE", 1)}
_DECIMAL = {
    letter: Fraction(10) ** power for letter, power in zip("numkMGTPE", (-9, -6, -3, *range(3, 19, 3)), strict=True)
}
_NANO = Fraction(1, 10**9)
_LONGEST_EXPONENT = 100
_SHOWN = (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))
_LONGEST_TEXT = 256


class QuantityError(ValueError):
    """A text is no quantity; the message says which."""


def parse_quantity(text: object) -> Fraction:
    """Read a quantity.

    Parameters
    ----------
    text
        A string, or a number as YAML gives one.

    Returns
    -------
    Its value, as Kubernetes keeps it: to the billionth, rounded away from zero, and at most ``LARGEST``.

    Raises
    ------
    QuantityError
        It is none.
    """
    written = "" if isinstance(text, bool) else str(text)
    match = _FORM.fullmatch(written) if len(written) <= _LONGEST_TEXT else None
    if not match:
        raise QuantityError(f"{written[:32]!r} is no quantity like 100m, 1.5 or 16Gi")
    sign, digits, binary, decimal, exponent = match.groups()
    # An exponent of many digits would take all memory; beyond these limits the value is cut off anyway.
    power = max(-_LONGEST_EXPONENT, min(_LONGEST_EXPONENT, int(exponent[:9]))) if exponent else 0
    unit = _BINARY[binary] if binary else _DECIMAL[decimal] if decimal else Fraction(10) ** power
    value = min(math.ceil(Fraction(digits) * unit / _NANO) * _NANO, Fraction(LARGEST))
    return -value if sign == "-" else value


def amount(resource: str, text: object) -> int:
    """Give so much of a resource as the scheduler counts it; 0 for what is no quantity: the API server refuses it."""
    try:
        value = parse_quantity(text)
    except QuantityError:
        return 0
    # ``requests.cpu`` and ``limits.cpu`` are the names of a quota.
    return math.ceil(value * 1000) if resource.rsplit(".", 1)[-1] == CPU else math.ceil(value)


def amounts(stated: object) -> dict[str, int]:
    """Give the amounts of a mapping of resources to quantities; empty when it is no mapping."""
    return {str(name): amount(str(name), text) for name, text in stated.items()} if isinstance(stated, Mapping) else {}


def add(one: Amounts, other: Amounts) -> dict[str, int]:
    """Give both together."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in (*one, *(key for key in other if key not in one))}


def larger(one: Amounts, other: Amounts) -> dict[str, int]:
    """Give of each resource the larger amount."""
    names = (*one, *(key for key in other if key not in one))
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in names}


def show(resource: str, value: int) -> str:
    """Give an amount with its resource, for people: ``480Gi of memory``, ``1500m of cpu``, ``3 pod slots``."""
    return f"{value} pod slots" if resource == PODS else f"{show_amount(resource, value)} of {resource}"


def show_amount(resource: str, value: int) -> str:
    """Give an amount without its resource: ``480Gi``, ``1500m``, ``8``."""
    kind = resource.split(".", 1)[-1]
    if kind == CPU:
        return f"{value // 1000}" if value % 1000 == 0 else f"{value}m"
    if kind in (MEMORY, STORAGE) or kind.startswith("hugepages-"):
        for suffix, unit in _SHOWN:
            if abs(value) >= unit:
                return f"{value / unit:.1f}".removesuffix(".0") + suffix
    return str(value)
