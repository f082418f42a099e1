"""Engines that go: they finish what they answer, and are removed in any case."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.lifecycle import views
from tests.unit.reconcile.world import World
from tests.unit.resources import samples

from vllm_bootstrap.contract import Phase
from vllm_operator.clients.kubernetes import ApiError

IN_FLIGHT = "12 requests in flight, at most 40 s left"


async def serving(**spec: Any) -> World:
    world = World(spec={**samples.TYPICAL, **spec})
    await world.serve()
    return world


def deleted(log: list[str]) -> list[str]:
    return [line.split(" ")[2] for line in log if line.startswith("delete RayCluster")]


@pytest.mark.parametrize(
    ("before", "change", "leaves", "why"),
    [
        ({"replicas": 2}, {"replicas": 1}, "engine-1", "it is surplus"),
        ({}, {"replicas": 0}, "engine-0", "it is surplus"),
        ({}, {"suspend": True}, "engine-0", "it is surplus"),
        ({}, {"image": "other:1"}, "engine-0", "it is replaced"),
        ({}, {"vllmConfig": {"maxModelLen": 1024}}, "engine-0", "it is replaced"),
    ],
)
async def test_an_engine_that_goes_finishes_first(
    before: dict[str, Any], change: dict[str, Any], leaves: str, why: str
) -> None:
    world = await serving(**before)
    world.change(**change)
    assert deleted(await world.round()) == []
    assert [seconds for _, seconds in world.supervisors.drains] == [60.0]
    entry = world.engines[leaves]
    assert (entry["state"], entry["reason"]) == ("Draining", "Draining")
    assert entry["message"] == f"{why}; its supervisor is asked to drain it"
    assert entry["drainUntil"] == views.at(world.clock + 120).replace(".000", "")
    assert (world.condition("Ready")["status"], world.condition("Ready")["reason"]) == ("False", "Draining")

    world.report(Phase.DRAINING, engine=int(leaves[-1]), message=IN_FLIGHT)
    await world.round()
    assert world.engines[leaves]["message"] == f"{why}; {IN_FLIGHT}"
    assert IN_FLIGHT in world.condition("Ready")["message"]
    assert await world.round() == [], "it is waited for in silence"
    assert len(world.supervisors.drains) == 1

    world.report(Phase.STOPPED, engine=int(leaves[-1]), message="drained after 7 s")
    [gone] = deleted(await world.round())
    assert gone.startswith(f"demo-{leaves[-1]}-")


async def test_the_others_serve_on() -> None:
    world = await serving(replicas=3)
    world.change(replicas=1)
    await world.round()
    assert [entry["state"] for entry in world.engines.values()] == ["Serving", "Draining", "Draining"]
    assert (world.status["replicas"], world.status["readyReplicas"]) == (3, 1)
    assert len(world.supervisors.drains) == 2
    assert "drainUntil" not in world.engines["engine-0"]
    log = await world.depart()
    assert len(deleted(log)) == 2
    assert world.condition("Ready")["status"] == "True"


async def test_who_does_not_want_to_wait_does_not() -> None:
    world = await serving(drain={"timeoutSeconds": 0})
    world.change(replicas=0)
    assert len(deleted(await world.round())) == 1
    assert world.supervisors.drains == []


@pytest.mark.parametrize("phase", [Phase.PLACING, Phase.LOADING, Phase.FAILED, Phase.STOPPED])
async def test_an_engine_that_answers_nobody_is_not_waited_for(phase: Phase) -> None:
    world = await serving()
    world.report(phase)
    world.change(replicas=0)
    assert len(deleted(await world.round())) == 1
    assert world.supervisors.drains == []


async def test_nor_is_one_whose_pod_is_gone() -> None:
    world = await serving()
    world.api.drop("Pod", next(name for name in world.api.names("Pod") if "-lead-" in name))
    world.change(replicas=0)
    assert len(deleted(await world.round())) == 1


@pytest.mark.parametrize("phase", [Phase.SERVING, Phase.DRAINING])
@pytest.mark.parametrize("restarts", [False, True])
async def test_an_engine_that_never_ends_is_removed_all_the_same(phase: Phase, restarts: bool) -> None:
    world = await serving()
    world.change(replicas=0)
    await world.round()
    world.report(phase)
    for _ in range(11):
        assert deleted(await world.round(10)) == []
        if restarts:
            world.restart()
    assert len(deleted(await world.round(10))) == 1


async def test_a_supervisor_that_does_not_answer_is_asked_again_and_holds_nothing_up() -> None:
    world = await serving(replicas=2)
    world.supervisors.deaf = True
    world.change(replicas=1)
    await world.round()
    assert world.engines["engine-1"]["state"] == "Draining"
    assert world.again is not None
    assert world.again <= 2.0
    world.supervisors.deaf = False
    await world.round()
    assert len(world.supervisors.drains) == 1
    world.api.drop("Secret", next(name for name in world.api.names("Secret") if name.startswith("demo-1-")))
    await world.round()
    assert world.condition("Ready")["reason"] == "Draining", "a lost token is no other matter"
    assert len(deleted(await world.round(200))) == 1


async def test_an_engine_that_nobody_reaches_any_more_is_not_waited_for_long() -> None:
    world = await serving()
    world.supervisors.deaf = True
    world.change(replicas=0)
    await world.round()
    lead = next(name for name in world.api.names("Pod") if "-lead-" in name)
    world.api.body("Pod", lead)["status"] = views.running(ready=False, ready_since=world.clock, started=0)
    assert deleted(await world.round(5)) == []
    assert len(deleted(await world.round(10))) == 1


async def test_a_shorter_time_is_told_and_counts() -> None:
    world = await serving(drain={"timeoutSeconds": 3600})
    world.change(replicas=0)
    await world.round()
    world.report(Phase.DRAINING, message=IN_FLIGHT)
    await world.round()
    world.change(drain={"timeoutSeconds": 10})
    await world.round()
    assert [seconds for _, seconds in world.supervisors.drains] == [3600.0, 10.0]
    await world.round()
    assert len(world.supervisors.drains) == 2
    assert len(deleted(await world.round(70))) == 1


async def test_an_engine_that_was_drained_and_is_wanted_again_comes_back_where_it_is() -> None:
    world = await serving(replicas=2)
    world.change(replicas=1)
    await world.round()
    world.report(Phase.DRAINING, engine=1, message=IN_FLIGHT)
    world.change(replicas=2)
    await world.round()
    assert world.engines["engine-1"]["state"] == "Draining"
    assert "drainUntil" not in world.engines["engine-1"]
    world.report(Phase.STOPPED, engine=1)
    await world.rounds(2)
    assert (world.ray.plans[-1].engine, world.ray.plans[-1].attempt) == ("engine-1", 2)
    world.report(Phase.SERVING, engine=1)
    await world.rounds(2)
    assert world.condition("Ready")["status"] == "True"
    assert len(world.api.names("RayCluster")) == 2


async def test_suspended_and_resumed() -> None:
    world = await serving(replicas=2)
    world.change(suspend=True)
    await world.depart()
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("True", "Suspended")
    assert world.condition("Available")["status"] == "False"
    assert world.api.names("Service") == ["demo"]
    world.collect()
    assert await world.round() == ["patch VLLMDeployment demo"], "nothing is left that would have to drain"
    assert await world.round() == []
    assert world.again == float("inf")
    world.change(suspend=False)
    await world.round()
    assert len(world.api.names("RayCluster")) == 2


async def test_while_only_a_plan_is_asked_for_nothing_goes() -> None:
    world = await serving(replicas=2)
    world.change(replicas=1, planOnly=True)
    await world.round()
    assert world.supervisors.drains == []
    assert [entry["state"] for entry in world.engines.values()] == ["Serving", "Serving"]


async def test_a_round_that_is_cut_off_begins_the_wait_anew_and_no_more() -> None:
    world = await serving()
    world.change(replicas=0)
    world.api.refuse["status", "VLLMDeployment"] = ApiError(0, "no answer")
    with pytest.raises(ApiError):
        await world.round()
    world.api.refuse.clear()
    await world.round()
    assert len(deleted(await world.round(130))) == 1
