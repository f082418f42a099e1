"""Scaled down, the engine goes on which the fewest answers hang; scaled up, the lowest free place is taken."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.reconcile.test_drain import deleted, serving
from tests.unit.reconcile.world import World

from vllm_bootstrap.contract import Phase


def busy(world: World, **requests: int) -> None:
    """Give each engine's lead an address of its own, and so many requests in flight."""
    for name, count in requests.items():
        index = name.removeprefix("engine")
        lead = next(pod for pod in world.api.names("Pod") if pod.startswith(f"demo-{index}-") and "-lead-" in pod)
        ip = f"10.0.1.{index}"
        world.api.body("Pod", lead)["status"]["podIP"] = ip
        world.supervisors.requests[ip] = count


def states(world: World) -> dict[str, str]:
    return {name: entry["state"] for name, entry in world.engines.items()}


async def test_the_engine_with_the_fewest_requests_goes() -> None:
    world = await serving(replicas=3)
    busy(world, engine0=4, engine1=0, engine2=7)
    world.change(replicas=2)
    await world.round()
    assert states(world) == {"engine-0": "Serving", "engine-1": "Draining", "engine-2": "Serving"}
    assert [ip for ip, _ in world.supervisors.drains] == ["10.0.1.1"]


async def test_the_choice_stands_whatever_the_others_do_then() -> None:
    world = await serving(replicas=3)
    busy(world, engine0=4, engine1=1, engine2=7)
    world.change(replicas=2)
    await world.round()
    world.supervisors.requests |= {"10.0.1.0": 0, "10.0.1.1": 9, "10.0.1.2": 0}
    world.restart()
    for _ in range(3):
        await world.round()
        assert states(world)["engine-1"] == "Draining"
        assert list(states(world).values()).count("Serving") == 2


async def test_scaled_down_twice_the_first_goes_on_going() -> None:
    world = await serving(replicas=3)
    busy(world, engine0=0, engine1=5, engine2=7)
    world.change(replicas=2)
    await world.round()
    world.change(replicas=1)
    await world.round()
    assert states(world) == {"engine-0": "Draining", "engine-1": "Draining", "engine-2": "Serving"}


async def test_the_lowest_free_place_is_taken_and_nobody_else_is_touched() -> None:
    world = await serving(replicas=3)
    busy(world, engine0=0, engine1=0, engine2=7)
    world.change(replicas=1)
    assert [name[:6] for name in deleted(await world.depart())] == ["demo-0", "demo-1"]
    world.collect()
    stays = world.api.body("RayCluster", next(iter(world.api.names("RayCluster"))))["metadata"]["uid"]
    world.change(replicas=2)
    log = await world.round()
    assert [line.split(" ")[2][:6] for line in log if line.startswith("create RayCluster")] == ["demo-0"]
    world.ray.jobs.clear()  # the new cluster's head knows none
    await world.bring_up()
    assert states(world) == {"engine-0": "Serving", "engine-2": "Serving"}
    assert stays in {world.api.body("RayCluster", name)["metadata"]["uid"] for name in world.api.names("RayCluster")}
    assert (world.status["replicas"], world.status["readyReplicas"]) == (2, 2)


async def test_an_engine_that_does_not_serve_goes_first_and_nobody_is_asked() -> None:
    world = await serving(replicas=2)
    busy(world, engine0=0, engine1=9)
    world.report(Phase.FAILED, engine=1, reason="RankDied", message="rank 0 died")
    await world.round()
    world.supervisors.tokens.clear()
    world.change(replicas=1)
    assert [name[:6] for name in deleted(await world.round())] == ["demo-1"]
    assert world.supervisors.tokens == set()
    assert states(world) == {"engine-0": "Serving"}


@pytest.mark.parametrize("change", [{"image": "other:1"}, {"vllmConfig": {"maxModelLen": 1024}}])
async def test_what_is_left_of_many_is_replaced_like_any(change: dict[str, Any]) -> None:
    world = await serving(replicas=2)
    busy(world, engine0=0, engine1=9)
    world.change(replicas=1)
    await world.depart()
    world.collect()
    await world.round()
    assert states(world) == {"engine-1": "Serving"}
    world.change(**change)
    await world.depart()
    assert world.engines["engine-1"]["reason"] == "Replacing"
    world.collect()
    await world.round()
    await world.bring_up()
    assert states(world) == {"engine-0": "Serving"}
    assert len(world.api.names("RayCluster")) == 1


async def test_while_the_spec_is_blocked_the_choice_is_made_all_the_same() -> None:
    world = await serving(replicas=2)
    busy(world, engine0=0, engine1=9)
    world.change(replicas=1, apiKeySecret={"name": "absent", "key": "key"})
    await world.round()
    assert states(world) == {"engine-1": "Serving", "engine-0": "Draining"}
