"""LoRA adapters through the whole operator: engines that serve are told, none is made anew."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.reconcile.world import World
from tests.unit.resources import samples

from vllm_bootstrap.clock import Clock
from vllm_bootstrap.contract import ADAPTER_CACHE, Adapter, AdapterReport, AdapterState, Phase
from vllm_bootstrap.supervising.report import first_report

SQL, POEMS = Adapter(name="sql", path="/opt/sql"), Adapter(name="poems", path="/opt/poems")


def lora(*adapters: Adapter, **more: Any) -> dict[str, Any]:
    return {"adapters": [{"name": item.name, "uri": f"file://{item.path}"} for item in adapters], **more}


def told(*adapters: Adapter, message: str = "") -> tuple[AdapterReport, ...]:
    state = AdapterState.FAILED if message else AdapterState.LOADED
    return tuple(AdapterReport(name=item.name, path=item.path, state=state, message=message) for item in adapters)


async def serving(*adapters: Adapter, **spec: Any) -> World:
    world = World(spec={**samples.TYPICAL, "lora": lora(*adapters), **spec})
    await world.serve()
    for index in range(spec.get("replicas", 1)):
        world.report(Phase.SERVING, engine=index, adapters=told(*adapters))
    await world.round()
    return world


def states(world: World, engine: str = "engine-0") -> list[str]:
    return [f"{item['name']} {item['state']}" for item in world.engines[engine].get("adapters", [])]


async def test_an_engine_begins_with_the_adapters_that_are_wanted() -> None:
    world = await serving(SQL)
    assert world.ray.plans[0].adapters == (SQL,)
    assert "--enable-lora" in world.ray.plans[0].arguments
    assert states(world) == ["sql Loaded"]
    assert world.condition("Ready")["status"] == "True"
    assert await world.round() == []
    assert world.again == float("inf"), "nothing is looked for on a clock"


async def test_engines_that_serve_are_told_and_not_made_anew() -> None:
    world = await serving(SQL, replicas=2)
    before = world.supervisors.adapted[:]
    world.change(lora=lora(SQL, POEMS))
    log = await world.round()
    assert log == ["status VLLMDeployment demo"]
    assert world.supervisors.adapted[len(before) :] == [(SQL, POEMS), (SQL, POEMS)]
    assert states(world) == states(world, "engine-1") == ["sql Loaded", "poems Pending"]
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "LoadingAdapters")
    assert ready["message"] == "engine-0 loads or removes LoRA adapters: poems"
    assert world.condition("Available")["status"] == "True"
    assert world.condition("Reconciling")["status"] == "True"
    for index in range(2):
        world.report(Phase.SERVING, engine=index, adapters=told(SQL, POEMS))
    await world.round()
    assert world.condition("Ready")["status"] == "True"
    assert {engine["attempt"] for engine in world.engines.values()} == {1}


async def test_the_last_one_goes() -> None:
    world = await serving(SQL)
    world.change(lora=lora())
    await world.round()
    assert world.supervisors.adapted[-1] == ()
    assert states(world) == ["sql Leaving"]
    world.report(Phase.SERVING)
    await world.round()
    assert states(world) == []
    assert world.condition("Ready")["status"] == "True"


async def test_one_that_fails_is_named_tried_again_and_stops_nothing() -> None:
    world = await serving(SQL)
    world.change(lora=lora(SQL, POEMS))
    await world.round()
    world.report(Phase.SERVING, adapters=(*told(SQL), *told(POEMS, message="/opt/poems does not exist")))
    await world.round()
    assert states(world) == ["sql Loaded", "poems Failed"]
    ready, stalled = world.condition("Ready"), world.condition("Stalled")
    assert (ready["status"], ready["reason"], stalled["status"]) == ("False", "AdapterFailed", "True")
    assert ready["message"] == "engine-0 serves, but without the LoRA adapter poems: /opt/poems does not exist"
    assert world.condition("Available")["status"] == "True"
    assert world.engines["engine-0"]["state"] == "Serving"
    count = len(world.supervisors.adapted)
    assert await world.round(30) == [], "a try that changes nothing is not written"
    assert len(world.supervisors.adapted) == count + 1
    assert world.again == 30.0
    world.report(Phase.SERVING, adapters=told(SQL, POEMS))
    await world.round()
    assert world.condition("Ready")["status"] == "True"


async def test_an_engine_that_restarts_has_them_again() -> None:
    world = await serving(SQL)
    world.change(lora=lora(SQL, POEMS))
    await world.round()
    world.report(Phase.FAILED, reason="RankDied", message="rank 1 died")
    await world.round()
    await world.rounds(8)
    assert (world.ray.plans[-1].attempt, world.ray.plans[-1].adapters) == (2, (SQL, POEMS))


async def test_without_lora_no_engine_is_told_of_adapters_and_to_set_it_makes_them_anew() -> None:
    world = World()
    await world.serve()
    assert world.supervisors.adapted == []
    world.change(lora=lora(SQL))
    await world.round()
    assert world.engines["engine-0"]["state"] == "Draining"


@pytest.mark.parametrize("change", [{"planOnly": True}, {"env": [{"name": "A", "value": "1"}, {"name": "A"}]}])
async def test_while_the_spec_is_not_carried_out_they_stay_as_they_are(change: dict[str, Any]) -> None:
    world = await serving(SQL)
    count = len(world.supervisors.adapted)
    world.change(lora=lora(POEMS), **change)
    await world.round()
    assert len(world.supervisors.adapted) == count
    assert states(world) == ["sql Loaded"]
    world.report(Phase.FAILED, reason="RankDied", message="rank 1 died", adapters=told(SQL))
    await world.rounds(10)
    assert world.ray.plans[-1].adapters == (SQL,)


HUB = {"name": "hub", "uri": "hf://org/a", "revision": "v1"}
HUB_PATH = "hf://org/a@v1"


def of_hub(state: AdapterState, *, commit: str = "", message: str = "") -> tuple[AdapterReport, ...]:
    return (AdapterReport(name="hub", path=HUB_PATH, state=state, commit=commit, message=message),)


@pytest.mark.parametrize(
    ("model", "folder"),
    [
        ({"uri": "file:///m"}, ADAPTER_CACHE),
        ({"uri": "hf://org/base"}, "/var/cache/huggingface/hub"),
    ],
)
async def test_one_of_the_hub_goes_to_the_engine_with_all_that_its_pods_need(
    model: dict[str, Any], folder: str
) -> None:
    world = await serving(model=model)
    world.change(lora={"adapters": [HUB]})
    world.report(Phase.SERVING, hub_adapters=True)
    await world.round()
    [asked] = world.supervisors.adapted[-1]
    assert (asked.name, asked.path, asked.commit) == ("hub", HUB_PATH, "")
    source = asked.source
    assert (source.repository, source.revision, source.folder, source.shared) == ("org/a", "v1", folder, False)
    assert source.endpoint == "https://huggingface.co"
    assert source.named_by == "spec.lora.adapters[hub]"
    told = of_hub(AdapterState.PENDING, message="downloading hf://org/a: pod 50%")
    world.report(Phase.SERVING, adapters=told, hub_adapters=True)
    await world.round()
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "LoadingAdapters")
    assert ready["message"] == "engine-0 loads or removes LoRA adapters: hub (downloading hf://org/a: pod 50%)"
    assert world.condition("Available")["status"] == "True"
    world.report(Phase.SERVING, adapters=of_hub(AdapterState.LOADED, commit="c1"), hub_adapters=True)
    await world.round()
    assert world.condition("Ready")["status"] == "True"
    [entry] = world.engines["engine-0"]["adapters"]
    assert entry == {"name": "hub", "uri": "hf://org/a", "state": "Loaded", "commit": "c1"}
    assert world.engines["engine-0"]["attempt"] == 1


async def test_its_commit_stays_over_a_restart_and_is_what_other_engines_get() -> None:
    world = await serving(replicas=2)
    world.change(lora={"adapters": [HUB]})
    world.report(Phase.SERVING, adapters=of_hub(AdapterState.LOADED, commit="c1"), hub_adapters=True)
    world.report(Phase.SERVING, engine=1, hub_adapters=True)
    await world.round()
    assert [item.commit for item in world.supervisors.adapted[-1]] == ["c1"]
    told = of_hub(AdapterState.LOADED, commit="c1")
    world.report(Phase.FAILED, reason="RankDied", message="rank 1 died", adapters=told, hub_adapters=True)
    await world.round()
    await world.rounds(8)
    [again] = world.ray.plans[-1].adapters
    assert (world.ray.plans[-1].attempt, again.path, again.commit) == (2, HUB_PATH, "c1")
    assert first_report(world.ray.plans[-1], Clock()).adapters[0].commit == "c1", "also while it has not come so far"
    world.change(lora={"adapters": [{**HUB, "revision": "v2"}]})
    world.report(Phase.SERVING, adapters=told, hub_adapters=True)
    await world.round()
    assert {item.commit for asked in world.supervisors.adapted[-2:] for item in asked} == {""}


async def test_an_engine_from_before_an_upgrade_serves_on_and_says_what_it_cannot() -> None:
    world = await serving(SQL)
    count = len(world.supervisors.adapted)
    world.change(lora={"adapters": [*lora(SQL)["adapters"], HUB]})
    await world.round()
    assert states(world) == ["sql Loaded", "hub Failed"]
    assert {item.name for asked in world.supervisors.adapted[count:] for item in asked} <= {"sql"}
    assert "earlier version of the operator" in world.condition("Ready")["message"]
    assert world.engines["engine-0"]["state"] == "Serving"


async def test_a_supervisor_that_does_not_answer_is_told_again() -> None:
    world = await serving(SQL)
    world.supervisors.deaf = True
    world.change(lora=lora(POEMS))
    await world.round()
    assert world.again == 5.0
    world.supervisors.deaf = False
    await world.round(5)
    assert world.supervisors.adapted[-1] == (POEMS,)


async def test_of_too_many_only_those_that_lack_stand_in_the_status() -> None:
    many = [Adapter(name=f"a{index}", path=f"/opt/{index}") for index in range(40)]
    world = await serving(*many, replicas=2)
    assert states(world) == states(world, "engine-1") == []
    assert world.condition("Ready")["status"] == "True"
    world.report(Phase.SERVING, engine=1, adapters=(*told(*many[1:]), *told(many[0], message="no")))
    await world.round()
    assert states(world, "engine-1") == ["a0 Failed"]
    assert world.condition("Ready")["reason"] == "AdapterFailed"
