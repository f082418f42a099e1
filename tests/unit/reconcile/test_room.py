"""GPUs that are promised, taken by others, and given back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.lifecycle import views
from tests.unit.reconcile.world import KEY, World, deployment, node
from tests.unit.resources import samples

from vllm_operator.clients.kubernetes import ApiError
from vllm_operator.planning.inventory import ZONE_LABEL
from vllm_operator.reconcile.reconciler import Key

PRODUCT = "nvidia.com/gpu.product"
RAY = {"distributedExecutorBackend": "ray"}


def holder(name: str, where: str, gpus: int) -> dict[str, Any]:
    """Give a pod of somebody else."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "elsewhere"},
        "spec": {"nodeName": where, "containers": [{"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]},
        "status": {"phase": "Running"},
    }


def unscheduled(world: World, prefix: str, since: float) -> None:
    """Let the scheduler find no node for a pod."""
    body = world.api.body("Pod", world.pod(prefix))
    del body["spec"]["nodeName"]
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": views.at(since)}
    body["status"] = {"phase": "Pending", "conditions": [told | {"message": "2 Insufficient nvidia.com/gpu"}]}


def clusters(world: World) -> list[str]:
    return [name.rsplit("-", 1)[0] for name in world.api.names("RayCluster")]


async def test_replicas_beyond_the_room_wait() -> None:
    world = World(spec={**samples.TYPICAL, "replicas": 5})
    await world.round()
    assert clusters(world) == [f"demo-{index}" for index in range(4)], "eight GPUs, two for each engine"
    assert world.engines["engine-4"]["reason"] == "WaitingForGPUs"
    assert "planned" in world.engines["engine-4"]["message"]
    assert world.reconciler.waiting == {KEY}
    world.api.put(node("gpu-c"))
    await world.round()
    assert len(clusters(world)) == 5


async def test_a_replica_that_no_node_could_ever_hold_is_stalled() -> None:
    world = World(spec={**samples.TYPICAL, "parallelism": {"tensor": 4}, "placement": {"strategy": "STRICT_PACK"}})
    await world.round()
    assert clusters(world) == ["demo-0"]
    world.api.drop("RayCluster", world.api.names("RayCluster")[0])
    for name in ("gpu-a", "gpu-b"):
        world.api.put(node(name, gpus=2))
    await world.round()
    assert clusters(world) == []
    assert world.condition("Stalled")["reason"] == "NoSuchGPUs"


async def test_what_is_promised_to_one_is_not_promised_to_another() -> None:
    spec = {**samples.TYPICAL, "parallelism": {"tensor": 4, "pipeline": 2}}
    world = World(spec=spec)
    world.api.put(deployment(spec, name="second", uid="uid-second"))
    second = Key("models", "second")
    await asyncio.gather(world.reconciler.reconcile(KEY), world.reconciler.reconcile(second))
    assert clusters(world) == ["demo-0"]
    status = world.api.body("VLLMDeployment", "second")["status"]
    ready = next(item for item in status["conditions"] if item["type"] == "Ready")
    assert ready["reason"] == "WaitingForGPUs"
    assert "(models/demo-0-" in ready["message"], "it says who was first"
    assert world.reconciler.waiting == {second}


async def test_pods_that_have_a_node_are_not_counted_twice() -> None:
    world = World()
    await world.serve()
    for index in range(3):
        world.api.put(deployment(samples.TYPICAL, name=f"more-{index}", uid=f"uid-{index}"))
        await world.reconciler.reconcile(Key("models", f"more-{index}"))
    assert len(clusters(world)) == 4, "eight GPUs, two for each engine"


async def serving_without_a_worker(*, since: float) -> World:
    """Give an engine that served, whose worker is gone, and whose GPU somebody else took."""
    world = World()
    await world.serve()
    world.api.put(holder("notebook", "gpu-a", 2))
    world.api.put(holder("training", "gpu-b", 4))
    world.api.put(holder("other", "gpu-a", 1))
    unscheduled(world, f"{world.api.names('RayCluster')[0]}-gpu1-0", since)
    return world


async def test_who_took_the_gpu_is_told_before_the_deadline() -> None:
    world = await serving_without_a_worker(since=0)
    await world.round()
    engine = world.engines["engine-0"]
    assert engine["reason"] == "Unschedulable"
    assert "2 Insufficient nvidia.com/gpu" in engine["message"]
    assert "elsewhere/training" in engine["message"]
    assert 0 < world.again <= 180


async def test_an_engine_that_cannot_be_whole_gives_its_gpus_back_and_comes_again() -> None:
    world = await serving_without_a_worker(since=-200)
    log = await world.round()
    assert f"delete RayCluster {world.api.names('RayCluster')[0]}" in log
    failure = world.status["lastFailures"][-1]
    assert failure["reason"] == "GPUsGivenBack"
    assert "elsewhere/training" in failure["message"]
    world.collect()
    await world.round(10)
    assert world.condition("Ready")["reason"] == "WaitingForGPUs"
    assert "elsewhere/training" in world.condition("Ready")["message"]
    assert world.condition("Reconciling")["status"] == "True"
    assert clusters(world) == []
    world.api.drop("Pod", "training", namespace="elsewhere")
    await world.round()
    assert clusters(world) == ["demo-0"]


@pytest.mark.parametrize(("returns", "pause"), [(1, 5), (2, 10), (3, 20)])
async def test_what_a_plan_cannot_see_is_tried_ever_more_seldom(returns: int, pause: float) -> None:
    world = World()
    for _ in range(returns):
        await world.round(400)
        world.start_pods()
        unscheduled(world, f"{world.api.names('RayCluster')[0]}-gpu1-0", world.clock - 200)
        await world.round()
        world.collect()
    await world.round(pause - 1)
    assert world.engines["engine-0"]["reason"] == "GPUsGivenBack"
    assert "tried again at" in world.engines["engine-0"]["message"]
    assert clusters(world) == []
    assert world.again == pytest.approx(1)
    await world.round(1)
    assert clusters(world) == ["demo-0"]


async def test_what_was_planned_and_fits_no_more_is_planned_anew() -> None:
    world = World(spec={**RAY, "model": {"uri": "file:///m", "facts": {"parameters": "7B"}}})
    for body, product in zip(world.nodes, ("NVIDIA-GeForce-RTX-3090", "NVIDIA-A100-SXM4-80GB"), strict=True):
        body["metadata"]["labels"] = {PRODUCT: product}
    await world.round()
    assert world.status["plan"]["accelerator"] == "NVIDIA-GeForce-RTX-3090"
    world.api.drop("RayCluster", world.api.names("RayCluster")[0])
    world.api.put(holder("notebook", "gpu-a", 4))
    await world.round()
    assert world.status["plan"]["accelerator"] == "NVIDIA-A100-SXM4-80GB"
    [cluster] = world.api.names("RayCluster")
    pod = world.api.body("RayCluster", cluster)["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    assert pod["nodeSelector"] == {PRODUCT: "NVIDIA-A100-SXM4-80GB"}
    assert len(world.api.names("ControllerRevision")) == 1
    assert not [line for line in await world.round() if "ControllerRevision" in line]


async def test_what_was_planned_stays_while_it_fits() -> None:
    world = World(spec={**RAY, "model": {"uri": "file:///m", "facts": {"parameters": "7B"}}})
    for body, product in zip(world.nodes, ("NVIDIA-L40S", "NVIDIA-A100-SXM4-80GB"), strict=True):
        body["metadata"]["labels"] = {PRODUCT: product}
    await world.round()
    world.nodes[1]["metadata"]["labels"] = {PRODUCT: "NVIDIA-GeForce-RTX-3090"}
    world.api.drop("RayCluster", world.api.names("RayCluster")[0])
    log = await world.round()
    assert not [line for line in log if "ControllerRevision" in line], "a cheaper GPU is no reason to move"
    assert world.status["plan"]["accelerator"] == "NVIDIA-L40S"


async def test_one_look_serves_all_that_wait() -> None:
    world = World(spec={**samples.TYPICAL, "parallelism": {"tensor": 4, "pipeline": 2}})
    world.api.put(holder("notebook", "gpu-a", 1))
    for index in range(5):
        world.api.put(deployment(world.spec, name=f"more-{index}", uid=f"uid-{index}"))
    keys = [KEY, *(Key("models", f"more-{index}") for index in range(5))]
    world.api.reads = 0
    await asyncio.gather(*(world.reconciler.reconcile(key) for key in keys))
    first = world.api.reads
    world.clock += 0.5
    await asyncio.gather(*(world.reconciler.reconcile(key) for key in keys))
    assert world.api.reads - first == first - 4, "nodes, pods, RayClusters and Deployments were read once"
    assert world.reconciler.waiting == set(keys)


def racks(world: World, *names: str) -> None:
    for body, rack in zip(world.nodes, names, strict=True):
        body["metadata"]["labels"] = {"example.com/rack": rack}


async def test_each_engine_is_bound_to_a_domain_of_its_own() -> None:
    placement = {"topologyKey": "example.com/rack", "gpusPerPod": 2}
    world = World(
        spec={**samples.TYPICAL, "replicas": 3, "parallelism": {"tensor": 4}, "placement": placement},
    )
    racks(world, "a", "b")
    await world.round()
    bound = {
        name.rsplit("-", 1)[0]: {
            group["template"]["spec"]["nodeSelector"]["example.com/rack"]
            for group in world.api.body("RayCluster", name)["spec"]["workerGroupSpecs"]
        }
        for name in world.api.names("RayCluster")
    }
    assert bound == {"demo-0": {"a"}, "demo-1": {"b"}}
    assert world.engines["engine-2"]["reason"] == "WaitingForGPUs"
    assert "inside one example.com/rack" in world.engines["engine-2"]["message"]


async def test_a_plan_is_made_and_nothing_else() -> None:
    world = World(spec={**samples.TYPICAL, "planOnly": True})
    assert await world.round() == ["status VLLMDeployment demo"]
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("True", "Planned")
    assert world.status["plan"]["gpus"] == 2
    assert world.status["plan"]["podShapes"]
    assert "engineReplicas" not in world.status
    assert world.condition("RayClustersReady")["status"] == "Unknown"
    assert await world.round() == []
    world.change(planOnly=False)
    assert "create RayCluster demo-0-d72fcd62" in await world.round()


async def test_a_plan_needs_no_kuberay() -> None:
    world = World(spec={**samples.TYPICAL, "planOnly": True})
    world.api.unknown.add("RayCluster")
    await world.round()
    assert world.condition("Ready")["reason"] == "Planned"


async def test_a_plan_that_cannot_be_says_why() -> None:
    world = World(spec={**samples.TYPICAL, "planOnly": True, "parallelism": {"tensor": 64}})
    await world.round()
    assert world.condition("Stalled")["reason"] == "NoSuchGPUs"
    assert world.api.names("ControllerRevision") == []


@pytest.mark.parametrize(
    "change", [{"parallelism": {"tensor": 4}}, {"replicas": 0}, {"replicas": 3}, {"image": "registry.example/other:2"}]
)
async def test_what_is_there_serves_on_while_a_change_is_only_planned(change: dict[str, Any]) -> None:
    world = World()
    await world.serve()
    revision = world.status["revision"]
    world.change(planOnly=True, **change)
    assert await world.round() == ["status VLLMDeployment demo"]
    assert world.status["revision"] == revision
    assert world.condition("Ready")["reason"] == "Planned"
    assert world.condition("Available")["status"] == "True"
    assert world.engines["engine-0"]["state"] == "Serving"
    assert await world.round() == []


async def test_slices_and_whole_gpus_of_a_node_are_held_and_promised_apart() -> None:
    slice_ = "nvidia.com/mig-1g.10gb"
    spec = {**samples.TYPICAL, "parallelism": {"tensor": 1}, "placement": {}, "accelerators": [{"product": "*MIG*"}]}
    world = World(spec={**spec, "replicas": 3})
    for body in world.nodes:
        body["status"]["allocatable"][slice_] = "1"
        body["metadata"]["labels"] = {f"{slice_}.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}
    world.api.put(holder("notebook", "gpu-a", 4))
    await world.round()
    assert clusters(world) == ["demo-0", "demo-1"], "whole GPUs that somebody holds are no slices"
    pod = world.api.body("RayCluster", world.api.names("RayCluster")[0])["spec"]["workerGroupSpecs"][0]["template"]
    assert pod["spec"]["containers"][0]["resources"]["limits"][slice_] == "1"
    assert world.status["plan"]["resource"] == slice_
    assert world.engines["engine-2"]["reason"] == "WaitingForGPUs"
    assert "models/demo-0-" in world.engines["engine-2"]["message"]
    world.change(accelerators=[], parallelism={"tensor": 4}, replicas=1)
    await world.round()
    assert world.status["plan"]["resource"] == "nvidia.com/gpu"


@pytest.mark.parametrize(
    "template",
    [
        {"nodeSelector": {"pool": "b"}},
        {"nodeName": "gpu-b"},
        {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["b"]}]}
                        ]
                    }
                }
            }
        },
    ],
)
@pytest.mark.parametrize("of_chart", [True, False])
async def test_what_templates_say_of_nodes_is_planned_with(template: dict[str, Any], of_chart: bool) -> None:
    own = {"pod": {**samples.TYPICAL["pod"], **({} if of_chart else {"template": {"spec": template}})}}
    world = World(spec={**samples.TYPICAL, **own, "parallelism": {"tensor": 4}, "placement": {}, "replicas": 2})
    if of_chart:
        defaults = replace(samples.DEFAULTS, pod_template={"spec": template})
        world.settings = replace(world.settings, defaults=defaults)
        world.restart()
    for body, pool in zip(world.nodes, "ab", strict=True):
        body["metadata"]["labels"] = {"pool": pool}
    await world.round()
    assert clusters(world) == ["demo-0"]
    assert world.engines["engine-1"]["reason"] == "WaitingForGPUs"
    world.change(parallelism={"tensor": 8})
    await world.round()
    assert world.condition("Stalled")["reason"] == "NoSuchGPUs"
    assert "do not go into gpu-b 4" in world.condition("Stalled")["message"]
    assert "1 node left out" in world.condition("Stalled")["message"]


async def test_taints_are_tolerated_by_a_template() -> None:
    world = World(spec={**samples.TYPICAL, "pod": {"template": {"spec": {"tolerations": [{"operator": "Exists"}]}}}})
    for body in world.nodes:
        body["spec"] = {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}
    await world.round()
    assert clusters(world) == ["demo-0"]


CLAIM = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models", "namespace": "models"}}


def stored(world: World, zone: str, mode: str = "ReadWriteMany", phase: str = "Bound") -> None:
    """Let the model's claim have a volume in a zone."""
    spec = {"volumeName": "pv-1", "accessModes": [mode]}
    world.api.put({**CLAIM, "spec": spec, "status": {"phase": phase, "accessModes": [mode]}})
    terms = [{"matchExpressions": [{"key": ZONE_LABEL, "operator": "In", "values": [zone]}]}]
    affinity = {"required": {"nodeSelectorTerms": terms}}
    world.api.put(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "pv-1"},
            "spec": {"nodeAffinity": affinity},
        }
    )
    for body, where in zip(world.nodes, "ab", strict=True):
        body["metadata"]["labels"] = {ZONE_LABEL: where}


STORED = {**samples.TYPICAL, "model": {"uri": "pvc://models/m"}, "placement": {}}


async def test_engines_stay_where_their_volume_is() -> None:
    world = World(spec={**STORED, "parallelism": {"tensor": 4}, "replicas": 2})
    stored(world, "b")
    await world.round()
    assert clusters(world) == ["demo-0"]
    assert world.engines["engine-1"]["reason"] == "WaitingForGPUs", "also what was planned once is proved again"
    world.change(parallelism={"tensor": 8})
    await world.round()
    assert "1 node left out: the volume of claim models cannot be reached" in world.condition("Stalled")["message"]


@pytest.mark.parametrize("phase", ["Pending", "Lost"])
async def test_a_claim_without_a_volume_restricts_nothing(phase: str) -> None:
    world = World(spec={**STORED, "parallelism": {"tensor": 8}})
    stored(world, "b", phase=phase)
    await world.round()
    assert clusters(world) == ["demo-0"]


async def test_a_volume_that_may_not_be_read_restricts_nothing() -> None:
    world = World(spec={**STORED, "parallelism": {"tensor": 8}})
    stored(world, "b")
    world.api.refuse["get", "PersistentVolume"] = ApiError(403, "forbidden")
    await world.round()
    assert clusters(world) == ["demo-0"]
    world.change(parallelism={"tensor": 2})
    world.api.refuse["get", "PersistentVolume"] = ApiError(500, "broken")
    with pytest.raises(ApiError):
        await world.round()


@pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteOncePod"])
async def test_a_claim_for_one_node_holds_one_pod(mode: str) -> None:
    world = World(spec={**STORED, "parallelism": {"tensor": 8}})
    stored(world, "b", mode)
    world.nodes[0]["metadata"]["labels"] = {ZONE_LABEL: "b"}
    await world.round()
    told = world.condition("Stalled")["message"]
    assert f"claim models is {mode}: it cannot be mounted by 2 pods on nodes of their own" in told
    assert "a ReadWriteMany or ReadOnlyMany claim would do, or one pod: STRICT_PACK" in told
    world.change(parallelism={"tensor": 4})
    await world.round()
    assert clusters(world) == ["demo-0"]
    assert world.status["plan"]["podShapes"] == [{"name": "lead", "pods": 1, "gpus": 4}]
