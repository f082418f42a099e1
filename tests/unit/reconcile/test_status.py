"""The status as it is written: what is empty is left out, failures are kept, few and once."""

from __future__ import annotations

from typing import Any

from tests.unit.lifecycle.views import NOW, at
from tests.unit.reconcile.world import World

from vllm_operator.api import identity
from vllm_operator.api.status import (
    EngineReplica,
    EngineState,
    Failure,
    VLLMDeploymentStatus,
)
from vllm_operator.lifecycle.conditions import Blocker
from vllm_operator.reconcile.decide import Decision
from vllm_operator.reconcile.observe import Observation
from vllm_operator.reconcile.status import dump, new_status


def decision(**changes: Any) -> Decision:
    base: dict[str, Any] = {
        "actions": (),
        "engines": (),
        "lasting": frozenset(),
        "joined": frozenset(),
        "failures": (),
        "plan": None,
        "blocker": None,
        "revision": "r",
        "versions": "",
        "requeue_after": None,
    }
    return Decision(**{**base, **changes})


async def observed(world: World, known: list[Failure] | None = None) -> Observation:
    body = await world.api.get(_kind(), "models", "demo")
    seen = await world.observer.look(body)
    status = VLLMDeploymentStatus(last_failures=known or [])
    return Observation(**{**seen.__dict__, "status": status})


def _kind() -> Any:
    return type("Kind", (), {"kind": identity.KIND})


def failure(engine: int = 0, attempt: int = 1, seconds: float = 0, reason: str = "RankDied") -> Failure:
    return Failure(engine=f"engine-{engine}", attempt=attempt, reason=reason, message="m", time=at(seconds))


async def test_what_is_empty_is_left_out_and_zero_and_false_are_not() -> None:
    status = VLLMDeploymentStatus(
        observed_generation=1,
        engine_replicas=[EngineReplica(name="engine-0", state=EngineState.PENDING)],
    )
    assert dump(status) == {
        "observedGeneration": 1,
        "replicas": 0,
        "readyReplicas": 0,
        "engineReplicas": [{"name": "engine-0", "state": "Pending", "attempt": 0, "restarts": 0, "timings": {}}],
        "conditions": [],
    }


async def test_a_condition_keeps_its_empty_message_as_its_schema_demands() -> None:
    world = World()
    await world.round()
    assert all("message" in item for item in world.status["conditions"])


async def test_status_survives_being_written_and_read() -> None:
    world = World()
    await world.serve()
    again = VLLMDeploymentStatus.model_validate(world.status)
    assert dump(again) == world.status


async def test_a_failure_is_kept_once() -> None:
    seen = await observed(World(), [failure()])
    told = new_status(seen, decision(failures=(failure(),)), None, NOW)
    assert told.last_failures == [failure()]


async def test_the_newest_ten_failures_stay_newest_first() -> None:
    known = [failure(attempt=number, seconds=number) for number in range(10, 0, -1)]
    seen = await observed(World(), known)
    told = new_status(seen, decision(failures=(failure(attempt=11, seconds=11),)), None, NOW)
    assert [item.attempt for item in told.last_failures] == list(range(11, 1, -1))


async def test_more_engines_down_than_there_is_room_for_settle() -> None:
    """Each engine tells its failure in every round: the list must come to rest, or the status never does."""
    world = World()
    down = tuple(failure(engine=number, seconds=number % 3) for number in range(25))
    known: list[Failure] = []
    lists = []
    for _ in range(4):
        seen = await observed(world, known)
        known = new_status(seen, decision(failures=down), None, NOW).last_failures
        lists.append(known)
    assert lists[0] == lists[1] == lists[2] == lists[3]
    assert len(known) == 10


async def test_what_the_api_server_refused_goes_before_what_was_planned() -> None:
    seen = await observed(World())
    blocker = Blocker(reason="Forbidden", message="exceeded quota", lasting=False)  # type: ignore[arg-type]
    told = new_status(seen, decision(), blocker, NOW)
    assert {item.type: item.reason for item in told.conditions}["Ready"] == "Forbidden"


async def test_the_last_plan_is_kept_while_there_is_no_new_one() -> None:
    world = World()
    await world.serve()
    plan = world.status["plan"]
    assert plan["reason"].startswith("ray: 2 ranks over 2 pods")
    assert plan["podShapes"] == [{"name": "lead", "pods": 1, "gpus": 1}, {"name": "gpu1", "pods": 1, "gpus": 1}]
    world.change(parallelism={"tensor": 999})
    await world.round()
    assert world.status["plan"] == plan


async def test_the_plan_of_several_data_parallel_ranks_and_of_one() -> None:
    world = World()
    world.change(parallelism={"tensor": 1, "data": 2, "expert": True})
    await world.rounds(2)
    plan = world.status["plan"]
    assert (plan["data"], plan["expert"], plan["gpus"]) == (2, True, 2)
    assert (plan["distributedExecutorBackend"], plan["dataParallelBackend"]) == ("ray", "ray")
    assert plan["reason"] == "ray: 2 data parallel ranks of 1 over 2 pods"
    world = World()
    await world.rounds(2)
    assert world.status["plan"]["data"] == 1
    assert "dataParallelBackend" not in world.status["plan"]
