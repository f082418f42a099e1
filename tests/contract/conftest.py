"""Fixtures of the tests against a real API server: the generated CRD, without the operator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.testbed.bed import Bed
from tests.testbed.errors import BedError

from vllm_operator.api.identity import CRD_NAME

CRD = Path(__file__).parents[2] / "crds" / f"{CRD_NAME}.yaml"


@pytest.fixture(scope="module")
def crd(bed: Bed) -> Iterator[None]:
    there = bool(bed.kubectl("get", "crd", CRD_NAME, "--ignore-not-found"))
    bed.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
    bed.kubectl("wait", "--for=condition=Established", f"crd/{CRD_NAME}", "--timeout=30s")

    def served() -> bool:
        # Established comes a moment before every request finds the new resource.
        try:
            bed.kubectl("get", "vllm", "-A")
        except BedError:
            return False
        return True

    bed.wait_for("the new resource to be served", served, 30)
    yield
    if not there:  # a chart that is installed later would not take it over
        bed.kubectl("delete", "crd", CRD_NAME, "--timeout=60s")
