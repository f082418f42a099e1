"""What the tests of the Ray side share: a plan, and a clock that only moves when somebody sleeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vllm_bootstrap.clock import Clock
from vllm_bootstrap.contract import EnginePlan, PodGroup, ReportTarget


class Time:
    """A clock by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    @property
    def clock(self) -> Clock:
        return Clock(wall=lambda: self.now, monotonic=lambda: self.now, sleep=self.sleep)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def make_plan() -> Callable[..., EnginePlan]:
    def make(**changes: Any) -> EnginePlan:
        values: dict[str, Any] = {
            "deployment": "demo",
            "namespace": "default",
            "uid": "12345678-aaaa",
            "engine": "engine-0",
            "revision": "r1",
            "attempt": 1,
            "ray_session": "session_1",
            "model": "/models/demo",
            "served_name": "demo",
            "tensor": 1,
            "pipeline": 2,
            "strategy": "PACK",
            "groups": (PodGroup(name="lead", pods=1, gpus=1), PodGroup(name="worker-1", pods=1, gpus=1)),
            "placement_group": "demo-engine-0",
            "supervisor": "demo-engine-0-supervisor",
            "instance_id": "demo-12345678-engine-0-1",
            "report": ReportTarget(namespace="default", config_map="demo-engine-0"),
        }
        return EnginePlan(**(values | changes))

    return make
