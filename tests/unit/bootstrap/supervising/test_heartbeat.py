"""The sign of life of an engine that no probe asks."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.bootstrap.conftest import Time

from vllm_bootstrap.contract import EngineReport, Phase
from vllm_bootstrap.supervising.heartbeat import Heartbeat

SERVING = EngineReport(
    uid="u",
    engine="e",
    revision="r",
    attempt=1,
    ray_session="s",
    sequence=7,
    phase=Phase.SERVING,
    time="2026-01-01T00:00:00Z",
)


def test_it_is_slow_while_nothing_changes_and_at_once_when_something_does() -> None:
    time, told = Time(), list[EngineReport]()
    seen = {"report": SERVING, "ready": True}
    heartbeat = Heartbeat(
        10,
        look=lambda: (seen["report"], seen["ready"], "" if seen["ready"] else "no answer"),  # type: ignore[return-value]
        publish=told.append,
        clock=time.clock,
    )

    def seconds(number: int) -> list[str]:
        told.clear()
        for _ in range(number):
            time.sleep(1)
            heartbeat.beat()
        return [report.unready or "alive" for report in told]

    assert seconds(25) == ["alive"] * 3
    assert told[-1].heartbeat > SERVING.time or told[-1].heartbeat.startswith("1970")
    seen["ready"] = False
    assert seconds(25) == ["no answer"]
    assert told[-1].heartbeat == ""
    seen["ready"] = True
    assert seconds(1) == ["alive"]
    seen["report"] = replace(SERVING, phase=Phase.DRAINING)
    assert seconds(25) == []
