"""What counts as a difference between a live object and what we want."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_operator.reconcile.decide import contains

WANTED = {"spec": {"selector": {"a": "1"}, "ports": [{"port": 8000, "name": "http"}]}}


def live(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"uid": "x"},
        "spec": {
            "selector": {"a": "1"},
            "ports": [{"port": 8000, "name": "http", "protocol": "TCP", "nodePort": 30000}],
            "clusterIP": "10.0.0.1",
            **spec,
        },
        "status": {},
    }


@pytest.mark.parametrize(
    ("found", "same"),
    [
        (live(), True),
        (live(selector={"a": "1", "b": "2"}), True),
        (live(selector={"a": "2"}), False),
        (live(selector={}), False),
        (live(selector=None), False),
        (live(ports=[]), False),
        (live(ports=[{"port": 8000, "name": "http"}, {"port": 1}]), False),
        (live(ports=[{"port": 8001, "name": "http"}]), False),
        (live(ports={"port": 8000}), False),
        ({}, False),
        (None, False),
    ],
)
def test_contains(found: Any, same: bool) -> None:
    assert contains(found, WANTED) is same
