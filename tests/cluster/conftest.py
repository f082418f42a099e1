"""Fixtures of the tests on the test bed: the operator as a pod, installed by its chart, under the chart's roles."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.product.install import Installation, install
from tests.testbed.bed import Bed


@pytest.fixture(scope="session")
def operator(bed: Bed) -> Iterator[Installation]:
    """Give the installed operator."""
    return install(bed)
