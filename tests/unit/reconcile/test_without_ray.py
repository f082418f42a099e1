"""Engines of one pod: a Deployment, no Ray object anywhere, and the same life."""

from __future__ import annotations

import base64
import io
import zipfile
from typing import Any

import pytest
from tests.unit.lifecycle import views
from tests.unit.reconcile.world import World
from tests.unit.resources import samples

from vllm_bootstrap.contract import Phase

MP: dict[str, Any] = {**samples.TYPICAL, "parallelism": {"tensor": 2}, "placement": {}}
del MP["rayHead"]


def kinds(log: list[str]) -> list[str]:
    return [" ".join(line.split(" ")[:2]) for line in log]


async def loading(**more: Any) -> World:
    """Give a world whose engine has got its plan."""
    world = World(spec={**MP, **more})
    await world.round()
    world.start_deployments()
    await world.rounds(2)
    return world


async def serving(**more: Any) -> World:
    world = await loading(**more)
    world.report_pod(Phase.SERVING)
    await world.rounds(2)
    return world


async def test_first_sight_makes_a_deployment_and_nothing_of_ray() -> None:
    world = World(spec=MP)
    world.api.unknown.add("RayCluster")
    assert kinds(await world.round()) == [
        "create ControllerRevision",
        "create Service",
        "create Secret",
        "create ConfigMap",
        "create Role",
        "create RoleBinding",
        "create ServiceAccount",
        "create ConfigMap",
        "create Deployment",
        "status VLLMDeployment",
    ]
    assert "rayCluster" not in world.engines["engine-0"]
    [name] = world.api.names("Deployment")
    assert world.engines["engine-0"]["deployment"] == name
    assert world.engines["engine-0"]["message"] == f"Deployment {name} is being made"
    assert world.status["plan"]["distributedExecutorBackend"] == "mp"
    assert world.status["plan"]["reason"] == "mp: one pod of 2 GPUs does it, Ray would only add a layer"


async def test_the_code_is_in_a_config_map() -> None:
    world = World(spec=MP)
    await world.round()
    [name] = world.api.names("Deployment")
    data = base64.b64decode(world.api.body("ConfigMap", f"{name}-code")["binaryData"]["bootstrap.zip"])
    assert "vllm_bootstrap/entrypoints/standalone.py" in zipfile.ZipFile(io.BytesIO(data)).namelist()
    told = repr(world.api.body("Deployment", name)["spec"])
    assert "@" not in told
    assert "RAY_" not in told


async def test_from_apply_to_serving() -> None:
    world = World(spec=MP)
    await world.round()
    world.start_deployments()
    world.supervisors.session = ""
    await world.round()
    assert world.engines["engine-0"]["reason"] == "SupervisorUnreachable"
    assert "the supervisor of" in world.engines["engine-0"]["message"]
    world.supervisors.session = "pod-session-1"
    await world.round()
    [plan] = world.supervisors.plans
    assert (plan.executor, plan.tensor, plan.ray_session) == ("mp", 2, "pod-session-1")
    assert not world.ray.plans
    world.report_pod(Phase.LOADING)
    await world.round()
    assert world.engines["engine-0"]["state"] == "Loading"
    world.report_pod(Phase.SERVING)
    await world.rounds(2)
    assert world.condition("Ready")["status"] == "True"
    assert world.condition("RayClustersReady")["status"] == "True"
    assert await world.round() == []
    assert len(world.supervisors.plans) == 1


async def test_a_failed_engine_gets_a_new_plan_in_the_same_pod() -> None:
    world = await serving()
    world.report_pod(Phase.FAILED, reason="RankDied", message="rank 1 died")
    await world.round()
    assert world.engines["engine-0"]["state"] == "Failed"
    await world.round(10)
    await world.round()
    assert [plan.attempt for plan in world.supervisors.plans] == [1, 2]
    assert len(world.api.names("Deployment")) == 1


async def test_a_container_that_was_restarted_is_noticed() -> None:
    world = await serving()
    world.supervisors.session, world.supervisors.job = "pod-session-2", ""
    [name] = world.api.names("Pod")
    world.api.body("Pod", name)["status"] = views.running(ready=False, ready_since=world.clock, started=world.clock)
    await world.round()
    assert world.engines["engine-0"]["reason"] == "PodReplaced"
    assert "was restarted" in world.engines["engine-0"]["message"]
    await world.round(10)
    await world.round()
    assert [(plan.attempt, plan.ray_session) for plan in world.supervisors.plans] == [
        (1, "pod-session-1"),
        (2, "pod-session-2"),
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"parallelism": {"tensor": 2, "pipeline": 2}, "placement": {"gpusPerPod": 2}},
        {"distributedExecutorBackend": "ray"},
    ],
)
async def test_a_change_to_ray_replaces_the_deployment(change: dict[str, Any]) -> None:
    world = await serving()
    world.change(**change)
    log = await world.depart()
    assert kinds(log).count("delete Deployment") == 1
    assert world.api.names("RayCluster") == []
    world.collect()
    await world.round()
    assert len(world.api.names("RayCluster")) == 1
    assert [name for name in world.api.names("ConfigMap") if name.endswith("-code")] == []


async def test_scaled_down_the_surplus_deployment_goes() -> None:
    world = World(spec={**MP, "replicas": 2})
    await world.round()
    world.change(replicas=1)
    log = await world.round()
    assert kinds(log).count("delete Deployment") == 1
    assert {line.split(" ")[2][:6] for line in log if line.startswith("delete")} == {"demo-1"}
