"""A pod that finds GPUs but no memory would wait for ever: it is not made, and the condition says what is short."""

from __future__ import annotations

from typing import Any

from tests.unit.reconcile.world import World
from tests.unit.resources import samples

LARGE: dict[str, Any] = {**samples.TYPICAL, "pod": {"resources": {"requests": {"memory": "480Gi"}}}}


def rooms(world: World, **allocatable: str) -> None:
    for node in world.nodes:
        node["status"]["allocatable"] |= {"cpu": "64", "memory": "512Gi", "pods": "110"} | allocatable


def other(node: str, memory: str, namespace: str = "elsewhere", **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"other-{node}", "namespace": namespace, "labels": labels},
        "spec": {"nodeName": node, "containers": [{"resources": {"requests": {"memory": memory}}}]},
        "status": {"phase": "Running"},
    }


async def test_memory_that_others_hold_is_waited_for() -> None:
    world = World(spec=LARGE)
    rooms(world)
    for name in ("gpu-a", "gpu-b"):
        world.api.put(other(name, "212Gi"))
    await world.round()
    ready = world.condition("Ready")
    assert ready["reason"] == "WaitingForGPUs"
    assert "has 480Gi of memory left, which pod.resources asks for; gpu-a has 300Gi of 512Gi" in ready["message"]
    assert world.condition("Stalled")["status"] == "False"
    assert world.api.names("RayCluster") == []
    for name in ("gpu-a", "gpu-b"):
        world.api.drop("Pod", f"other-{name}", "elsewhere")
    await world.round()
    assert len(world.api.names("RayCluster")) == 1


async def test_memory_of_pods_that_make_room_counts_as_free() -> None:
    world = World(spec=LARGE)
    rooms(world)
    for name in ("gpu-a", "gpu-b"):
        world.api.put(other(name, "212Gi", "models", **{"vllm-operator.io/deployment": "demo"}))
    await world.round()
    assert world.api.names("ControllerRevision")


async def test_memory_that_no_node_has_stalls() -> None:
    world = World(spec=LARGE)
    rooms(world, memory="300Gi")
    await world.round()
    stalled = world.condition("Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "NoSuchGPUs")
    assert "no node with 1 GPU has 480Gi of memory, which pod.resources asks for; gpu-a has 300Gi" in stalled["message"]


async def test_a_head_that_no_node_holds_stalls() -> None:
    world = World(spec={**samples.TYPICAL, "rayHead": {"resources": {"requests": {"memory": "1Ti"}}}})
    rooms(world)
    await world.round()
    assert world.condition("Stalled")["status"] == "True"
    assert "1Ti of memory, which rayHead.resources asks for" in world.condition("Stalled")["message"]


async def test_memory_that_is_promised_to_another_engine_is_taken() -> None:
    world = World(spec=LARGE | {"replicas": 2})
    rooms(world)
    await world.round()
    assert len(world.api.names("RayCluster")) == 1
    assert "480Gi of memory left" in world.engines["engine-1"]["message"]
    assert world.engines["engine-1"]["reason"] == "WaitingForGPUs"


async def test_a_pod_that_waits_for_memory_says_who_is_in_the_way() -> None:
    world = World(spec=LARGE)
    rooms(world)
    await world.round()
    world.start_pods()
    world.api.put(other("gpu-a", "100Gi"))
    world.api.put(other("gpu-b", "100Gi"))
    for name in world.api.names("Pod"):
        pod = world.api.body("Pod", name) if not name.startswith("other") else None
        if pod:
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "Insufficient",
            }
            pod["spec"].pop("nodeName")
            pod["status"] = {
                "phase": "Pending",
                "conditions": [condition | {"lastTransitionTime": "2026-03-01T12:00:00Z"}],
            }
    await world.round()
    assert "480Gi of memory left" in world.engines["engine-0"]["message"]
