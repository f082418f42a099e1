"""Whole kinds of trouble: the operator itself writes the status, the rest is what a cluster says in such a night."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

from tests.unit.lifecycle import views
from tests.unit.reconcile.world import World, node
from tests.unit.resources import samples

from vllm_bootstrap import contract
from vllm_operator.cli.scene import Scene, read_scene
from vllm_operator.clients.kubernetes import ApiError, KubernetesClient

Object = dict[str, Any]
Night = Callable[[World], Awaitable[None]]

SCHEDULER = "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint {gpu: true}."
QUOTA = 'pods "demo-0" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: 4, limited: 4'
PULL = 'Back-off pulling image "registry.example/runtime:1": not found'


def healthy_nodes(world: World) -> None:
    for name in ("gpu-a", "gpu-b"):
        world.api.put(ready_node(name))


def ready_node(name: str, ready: str = "True", **spec: Any) -> Object:
    body = node(name)
    body["spec"] = spec
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": views.at(60)}
    if ready != "True":
        condition |= {"reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}
    body["status"]["conditions"] = [condition]
    return body


def pod_of(world: World, role: str) -> str:
    """Give the name of the pod of ``head``, ``lead-0`` or ``gpu1-0``."""
    [cluster] = world.api.names("RayCluster")
    return world.pod(f"{cluster}-{role}")


def change_pod(world: World, role: str, status: Object, *, unscheduled: bool = False) -> str:
    """Give a pod another status."""
    name = pod_of(world, role)
    body = world.api.body("Pod", name)
    body["status"] = status
    if unscheduled:
        del body["spec"]["nodeName"]
    world.api.put(body)
    return name


def event(kind: str, name: str, reason: str, message: str, **more: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{reason}.{more.get('count', 1)}", "namespace": "models"},
        "involvedObject": {"kind": kind, "name": name},
        "reason": reason,
        "message": message,
        "type": more.pop("type", "Warning"),
        "lastTimestamp": views.at(more.pop("at", 5)),
        "count": more.pop("count", 1),
        **more,
    }


def waiting(reason: str, message: str = "", last: Object | None = None, restarts: int = 0) -> Object:
    container: Object = {"name": "vllm", "state": {"waiting": {"reason": reason, "message": message}}}
    container |= {"restartCount": restarts} | ({"lastState": {"terminated": last}} if last else {})
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": views.at(0)}
    return {"phase": "Pending", "conditions": [scheduled], "containerStatuses": [container]}


def killed(at: float = 2.0) -> Object:
    return {"reason": "OOMKilled", "exitCode": 137, "finishedAt": views.at(at)}


async def made(world: World) -> None:
    await world.round()
    world.start_pods()


async def unschedulable(world: World) -> None:
    await made(world)
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": SCHEDULER}
    name = change_pod(world, "gpu1-0", {"phase": "Pending", "conditions": [told]}, unscheduled=True)
    world.api.put(event("Pod", name, "FailedScheduling", SCHEDULER, count=3))


async def image_pull(world: World) -> None:
    await made(world)
    name = change_pod(world, "lead-0", waiting("ImagePullBackOff", PULL))
    world.api.put(event("Pod", name, "Failed", "Failed to pull image", count=4))
    world.api.put(event("Pod", name, "BackOff", PULL, type="Normal", at=9))


async def crash_loop(world: World) -> None:
    await made(world)
    last = {
        "reason": "Error",
        "exitCode": 3,
        "finishedAt": views.at(1),
        "message": "trace\nValueError: no such thing\n",
    }
    change_pod(world, "head", waiting("CrashLoopBackOff", "back-off 40s", last, restarts=4))


async def out_of_memory(world: World) -> None:
    """Let the container of a worker be killed and run again: all that the operator sees is a rank that died."""
    await world.serve()
    world.report(
        contract.Phase.FAILED, reason="LauncherExited", message="the launcher exited with status 1", failed_rank=1
    )
    status = views.running(started=5)
    status["containerStatuses"][0] |= {"restartCount": 1, "lastState": {"terminated": killed(world.clock - 1)}}
    change_pod(world, "gpu1-0", status)


async def config_error(world: World) -> None:
    await made(world)
    change_pod(world, "lead-0", waiting("CreateContainerConfigError", 'secret "s" not found'))


async def no_volume(world: World) -> None:
    await made(world)
    name = change_pod(world, "lead-0", waiting("ContainerCreating"))
    world.api.put(event("Pod", name, "FailedMount", 'MountVolume.SetUp failed for volume "model": timed out'))


async def evicted(world: World) -> None:
    await made(world)
    said = {"reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}
    change_pod(world, "gpu1-0", {"phase": "Failed", **said})


async def node_not_ready(world: World) -> None:
    await world.serve()
    world.api.put(ready_node("gpu-a", "Unknown"))
    lead = change_pod(world, "lead-0", views.running(ready=False, ready_since=world.clock))
    world.api.put(event("Pod", lead, "NodeNotReady", "Node is not ready"))


async def node_gone(world: World) -> None:
    """Let a node go with its pod, and KubeRay make the pod anew, for which there is no room."""
    await world.serve()
    name = pod_of(world, "gpu1-0")
    cluster = name.removesuffix("-gpu1-0-3")
    body = world.api.body("Pod", name)
    world.api.drop("Pod", name)
    world.api.drop("Node", "gpu-b", "")
    report = world.api.body("ConfigMap", f"{cluster}-report")
    told = json.loads(report["data"]["report.json"])
    told["ranks"][1]["node"] = "gpu-b"
    report["data"]["report.json"] = json.dumps(told)
    await world.round()
    body["metadata"]["name"] = f"{cluster}-gpu1-0-9"
    world.api.put(body)
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": SCHEDULER}
    change_pod(world, "gpu1-0", {"phase": "Pending", "conditions": [scheduled]}, unscheduled=True)


async def node_of_a_failure_gone(world: World) -> None:
    """Let a rank die with its node; the engine waits for its next attempt."""
    await world.serve()
    world.report(contract.Phase.FAILED, reason="RankDied", message="rank 1 on pod x died: node failure", failed_rank=1)
    await world.round()
    cr = world.api.body("VLLMDeployment", "demo")
    cr["status"]["lastFailures"][0]["node"] = "gpu-b"
    world.api.put(cr)
    world.api.drop("Node", "gpu-b", "")


async def quota(world: World) -> None:
    await world.round()
    [name] = world.api.names("RayCluster")
    body = world.api.body("RayCluster", name)
    told = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreateHeadPod", "message": QUOTA}
    world.api.put({**body, "status": {"conditions": [told]}})


async def refused_template(world: World) -> None:
    await world.round()
    [name] = world.api.names("RayCluster")
    world.api.put(event("RayCluster", name, "InvalidRayClusterSpec", "headGroupSpec is wrong"))


async def placement_pending(world: World) -> None:
    await world.round()
    world.start_pods()
    world.join_ray()
    await world.rounds(3)
    group = contract.PlacementGroupReport(name="demo-dp0", id="1", strategy="PACK", state="PENDING")
    message = "PACK of 2 bundles of 1 GPU was not placed; 10.0.0.1 (lead): 1 of 1 GPUs free, 10.0.0.2: 0 of 1 GPUs free"
    world.report(contract.Phase.PLACING, message=message, placement_groups=(group,))


async def model_not_found(world: World) -> None:
    await world.round()
    world.start_pods()
    world.join_ray()
    await world.rounds(3)
    words = "OSError: /opt/models/smollm2 holds no config.json"
    world.report(contract.Phase.FAILED, reason="ModelNotFound", message=words, log_tail=("Traceback", words))


async def downloading(world: World) -> None:
    await world.round()
    world.start_pods()
    world.join_ray()
    await world.rounds(3)
    told = (contract.DownloadReport(pod="lead-0", done=42, total=100),)
    world.report(contract.Phase.PLACING, message="downloading hf://org/name: lead-0 42%", downloads=told)


async def token_refused(world: World) -> None:
    await world.round()
    world.start_pods()
    world.join_ray()
    await world.rounds(3)
    words = "spec.model.hfTokenSecret: https://huggingface.co refuses the token (401)"
    world.report(contract.Phase.FAILED, reason="HubAccessDenied", message=words)


async def loading(world: World) -> None:
    await world.round()
    world.start_pods()
    world.join_ray()
    await world.rounds(3)
    world.report(contract.Phase.LOADING)


async def no_such_gpus(world: World) -> None:
    for body in world.nodes:
        body["status"]["allocatable"] = {}


async def waiting_for_gpus(world: World) -> None:
    for name in ("gpu-a", "gpu-b"):
        pod = views.pod_body(f"other-{name}", node=name, labels={})
        pod["kind"], pod["metadata"]["namespace"], pod["metadata"]["labels"] = "Pod", "others", {}
        pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "4"}}
        world.api.put(pod)


async def not_all_fit(world: World) -> None:
    """Ask for more engines than there are GPUs for; the first ones serve."""
    world.change(replicas=5)
    for body, gpus in zip(world.nodes, ("8", "0"), strict=True):
        body["status"]["allocatable"] = {"nvidia.com/gpu": gpus}
    await world.serve()


async def given_back(world: World) -> None:
    """Let a pod have no node until its engine gives the GPUs of the others back."""
    await unschedulable(world)
    body = world.api.body("Pod", pod_of(world, "gpu1-0"))
    body["status"]["conditions"][0]["lastTransitionTime"] = views.at(0)
    await world.round()
    await world.round(200)
    world.collect()


async def plan_only(world: World) -> None:
    world.change(planOnly=True)


async def invalid_spec(world: World) -> None:
    world.change(vllmConfig={"extraArgs": ["--tensor-parallel-size=8"]})


async def name_conflict(world: World) -> None:
    world.api.put({"kind": "Service", "metadata": {"name": "demo", "namespace": "models"}, "spec": {}})


async def no_kuberay(world: World) -> None:
    world.api.unknown.add("RayCluster")


async def scaled_to_zero(world: World) -> None:
    world.change(replicas=0)


async def serving(world: World) -> None:
    await world.serve()


async def without_an_adapter(world: World) -> None:
    """Let all engines serve, one of them without an adapter that is wanted."""
    world.change(lora={"adapters": [{"name": "sql", "uri": "file:///opt/sql"}]})
    await world.serve()
    state, message = contract.AdapterState.FAILED, "/opt/sql does not exist"
    told = contract.AdapterReport(name="sql", path="/opt/sql", state=state, message=message)
    world.report(contract.Phase.SERVING, adapters=(told,))


async def as_it_is(world: World) -> None:
    """Leave the world to what the operator does in one round."""


def world_of(night: Night, *, rounds: int = 1, spec: Object | None = None) -> World:
    """Let a night happen, and the operator look at it."""

    async def happen() -> World:
        world = World(spec=copy.deepcopy(spec or samples.TYPICAL))
        healthy_nodes(world)
        await night(world)
        for _ in range(rounds):
            await world.round()
        return world

    return asyncio.run(happen())


def scene_of(night: Night, *, refuse: tuple[str, ...] = (), **how: Any) -> Scene:
    """Let a night happen, and a user read what is there, who may not read some kinds."""
    world = world_of(night, **how)
    for kind in refuse:
        world.api.refuse["list", kind] = world.api.refuse["get", kind] = ApiError(403, f"{kind} is forbidden")
    return asyncio.run(read_scene(cast("KubernetesClient", world.api), "models", "demo"))
