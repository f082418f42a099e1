"""A quota that would refuse half an engine keeps the whole one from being made, and the condition names it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.reconcile.world import World

from vllm_operator.clients.kubernetes import ApiError


def quota(hard: dict[str, str], used: dict[str, str] | None = None, namespace: str = "models") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "team", "namespace": namespace},
        "spec": {"hard": hard},
        "status": {"hard": hard, "used": used or dict.fromkeys(hard, "0")},
    }


GPUS = {"requests.nvidia.com/gpu": "2"}
ONE_USED = {"requests.nvidia.com/gpu": "1"}


async def test_a_full_quota_is_waited_for() -> None:
    world = World()
    world.api.put(quota(GPUS, ONE_USED))
    await world.round()
    ready = world.condition("Ready")
    assert ready["reason"] == "QuotaExceeded"
    assert ready["message"] == (
        "ResourceQuota team allows 2 of requests.nvidia.com/gpu, others use 1, the engine asks for 2"
    )
    assert world.condition("Reconciling")["status"] == "True"
    assert world.condition("Stalled")["status"] == "False"
    assert world.api.names("RayCluster") == world.api.names("ControllerRevision") == []
    assert world.again == 15
    assert world.reconciler.waiting
    world.api.put(quota(GPUS))
    await world.round()
    assert len(world.api.names("RayCluster")) == 1
    assert not world.reconciler.waiting


@pytest.mark.parametrize(
    "there", [[], [quota(GPUS)], [quota({"pods": "0"}, namespace="elsewhere")], [quota({"requests.cpu": "1"})]]
)
async def test_what_is_no_obstacle(there: list[dict[str, Any]]) -> None:
    world = World()
    for body in there:
        world.api.put(body)
    await world.round()
    assert len(world.api.names("RayCluster")) == 1


async def test_the_engine_that_is_replaced_makes_room() -> None:
    world = World()
    await world.serve()
    world.api.put(quota(GPUS | {"count/rayclusters.ray.io": "1"}, GPUS | {"count/rayclusters.ray.io": "1"}))
    world.change(image="registry.example/runtime:2")
    await world.round()
    assert world.condition("Ready")["reason"] != "QuotaExceeded"
    assert len(world.api.names("ControllerRevision")) == 2


async def test_what_a_quota_wants_stated_stalls() -> None:
    world = World()
    world.api.put(quota({"limits.cpu": "64"}))
    await world.round()
    stalled = world.condition("Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "ResourcesNotStated")
    assert "ResourceQuota team limits limits.cpu" in stalled["message"]
    assert "state it in rayHead.resources" in stalled["message"]
    assert world.api.names("RayCluster") == []
    given = {"type": "Container", "default": {"cpu": "8"}, "defaultRequest": {"cpu": "1"}}
    meta = {"name": "given", "namespace": "models"}
    world.api.put({"apiVersion": "v1", "kind": "LimitRange", "metadata": meta, "spec": {"limits": [given]}})
    await world.round()
    assert len(world.api.names("RayCluster")) == 1


async def test_a_quota_that_cannot_be_judged_is_a_warning() -> None:
    world = World()
    body = quota({"pods": "0"})
    body["spec"]["scopes"] = ["VolumeAttributesClass"]
    world.api.put(body)
    await world.serve()
    assert "ResourceQuota team is not looked at" in world.status["plan"]["warning"]


async def test_quotas_are_read_only_while_a_spec_is_planned() -> None:
    world = World()
    await world.serve()
    world.api.refuse["list", "ResourceQuota"] = ApiError(500, "not asked for")
    await world.round()
    assert world.condition("Ready")["status"] == "True"


async def test_a_list_of_quotas_that_fails_is_unknown_not_empty() -> None:
    world = World()
    world.api.refuse["list", "ResourceQuota"] = ApiError(500, "etcd is away")
    with pytest.raises(ApiError, match="etcd is away"):
        await world.round()
    assert world.api.names("RayCluster") == []


async def test_a_second_engine_waits_for_its_own_quota() -> None:
    world = World()
    world.change(replicas=2)
    world.api.put(quota({"requests.nvidia.com/gpu": "3"}))
    await world.round()
    assert len(world.api.names("RayCluster")) == 1
    assert world.engines["engine-1"]["reason"] == "QuotaExceeded"
    assert "2 engines ask for 4" in world.engines["engine-1"]["message"]
    assert world.reconciler.waiting
    world.api.put(quota({"requests.nvidia.com/gpu": "4"}, {"requests.nvidia.com/gpu": "2"}))
    await world.round()
    assert len(world.api.names("RayCluster")) == 2
