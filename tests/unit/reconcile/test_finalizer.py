"""A deployment that is deleted drains its engines on Ray first, and goes in any case."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.lifecycle import views
from tests.unit.reconcile.test_drain import deleted, serving
from tests.unit.reconcile.world import World

from vllm_bootstrap.contract import Phase
from vllm_operator.api import identity
from vllm_operator.clients.kubernetes import ApiError

OTHER = "example.org/theirs"


def finalizers(world: World) -> list[str]:
    found: list[str] = world.api.body(identity.KIND, "demo")["metadata"].get("finalizers") or []
    return found


def delete(world: World, *more: str) -> None:
    """Delete the deployment as kubectl does: it stays until it bears no finalizer."""
    body = world.api.body(identity.KIND, "demo")
    body["metadata"]["deletionTimestamp"] = views.at(world.clock)
    body["metadata"]["finalizers"] = [*finalizers(world), *more]
    world.api.put(body)


async def test_it_bears_a_finalizer_while_engines_on_ray_may_have_to_drain() -> None:
    world = World()
    await world.round()
    await world.round()
    assert finalizers(world) == [identity.FINALIZER]
    assert await world.round() == []
    world.change(replicas=0)
    await world.round()
    world.collect()
    await world.round()
    assert finalizers(world) == []


@pytest.mark.parametrize(
    "spec",
    [{"drain": {"timeoutSeconds": 0}}, {"planOnly": True}, {"replicas": 0}, {"suspend": True}],
    ids=lambda spec: next(iter(spec)),
)
async def test_it_bears_none_where_nothing_would_drain(spec: dict[str, Any]) -> None:
    world = World(spec={**World().spec, **spec})
    for _ in range(3):
        await world.round()
    assert finalizers(world) == []


async def test_who_gives_up_draining_gets_rid_of_the_finalizer() -> None:
    world = await serving()
    assert finalizers(world) == [identity.FINALIZER]
    world.change(drain={"timeoutSeconds": 0})
    await world.round()
    assert finalizers(world) == []


async def test_deleted_its_engines_drain_and_then_it_goes() -> None:
    world = await serving(replicas=2)
    delete(world, OTHER)
    assert deleted(await world.round()) == []
    assert [entry["state"] for entry in world.engines.values()] == ["Draining", "Draining"]
    assert "its deployment is deleted" in world.condition("Ready")["message"]
    assert len(world.supervisors.drains) == 2
    world.report(Phase.STOPPED, engine=0)
    assert [name[:6] for name in deleted(await world.round())] == ["demo-0"]
    assert finalizers(world) == [identity.FINALIZER, OTHER]
    world.report(Phase.STOPPED, engine=1)
    assert [name[:6] for name in deleted(await world.round())] == ["demo-1"]
    assert finalizers(world) == [OTHER], "those of others stay"
    assert await world.round() == []


async def test_nothing_is_made_or_planned_for_what_is_deleted() -> None:
    world = await serving()
    delete(world)
    world.change(replicas=3, image="other:1")
    await world.round()
    world.report(Phase.DRAINING, message="2 requests in flight, at most 9 s left")
    log = await world.round()
    assert [line for line in log if line.startswith("create")] == []
    assert [entry["state"] for entry in world.engines.values()] == ["Draining"]


@pytest.mark.parametrize("phase", [Phase.SERVING, Phase.DRAINING])
async def test_an_engine_that_never_ends_holds_it_only_so_long(phase: Phase) -> None:
    world = await serving()
    delete(world)
    await world.round()
    world.report(phase)
    for _ in range(11):
        await world.round(10)
        assert finalizers(world) == [identity.FINALIZER]
    await world.round(10)
    assert finalizers(world) == []


@pytest.mark.parametrize("kind", ["Pod", "RayCluster", "ConfigMap"])
async def test_it_goes_also_when_nothing_can_be_seen_of_it(kind: str) -> None:
    world = await serving()
    delete(world)
    world.api.refuse["list", kind] = ApiError(403, "forbidden")
    for _ in range(3):
        with pytest.raises(ApiError):
            await world.round(60)
        assert finalizers(world) == [identity.FINALIZER]
    assert await world.round(1) == ["patch VLLMDeployment demo"]
    assert finalizers(world) == []


async def test_it_goes_also_when_its_spec_can_no_longer_be_read() -> None:
    world = await serving()
    delete(world)
    world.change(model={"uri": 7})
    await world.round()
    assert finalizers(world) == []


async def test_what_is_orphaned_is_left_alone() -> None:
    """``kubectl delete --cascade=orphan``: the garbage collector cuts the engines loose, and they serve on."""
    world = await serving()
    delete(world, "orphan")
    assert await world.round() == ["patch VLLMDeployment demo"]
    assert finalizers(world) == ["orphan"]
    assert world.supervisors.drains == []
    assert await world.round() == []


async def test_where_kuberay_is_gone_there_is_nothing_to_wait_for() -> None:
    world = await serving()
    world.api.unknown.add("RayCluster")
    delete(world)
    await world.round()
    assert finalizers(world) == []
