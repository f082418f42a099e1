"""``why``: of each kind of trouble the deepest cause that is concrete, what to do, and an exit status to wait by."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.cli import nights
from tests.unit.cli.damage import JUNK, damaged
from tests.unit.cli.nights import SCHEDULER, Night, event, scene_of
from tests.unit.lifecycle.views import at, later
from tests.unit.reconcile.world import World

from vllm_bootstrap import contract
from vllm_operator.cli.plain import plain
from vllm_operator.cli.scene import Scene
from vllm_operator.cli.why import Diagnosis, diagnose
from vllm_operator.cli.why_text import why_text

GOLDEN = Path(__file__).parent / "golden"


def text(told: Diagnosis, width: int = 120) -> str:
    return why_text(told, later(900), width=width)


@pytest.mark.parametrize(
    ("night", "status", "reason", "cause", "more"),
    [
        (
            nights.unschedulable,
            2,
            "Unschedulable",
            ["gpu1-0", "has no node: 0/3 nodes", "Insufficient"],
            "explain demo",
        ),
        (nights.image_pull, 5, "ImagePullFailed", ["lead-0", "registry.example/runtime:1", "not found"], "spec.image"),
        (nights.crash_loop, 5, "Error", ["head", "exit code 3", "4 restarts", "ValueError"], "-c vllm --previous"),
        (nights.out_of_memory, 2, "OOMKilled", ["gpu1-0", "OOMKilled, exit code 137"], "limits.memory; kubectl logs"),
        (
            nights.config_error,
            5,
            "ContainerCrashed",
            ['secret "s" not found'],
            "kubectl describe pod -n models demo-0-",
        ),
        (nights.no_volume, 2, "FailedMount", ["does not start on node gpu-a", 'volume "model"'], "describe pod"),
        (nights.evicted, 2, "PodFailed", ["ended on node gpu-a: Evicted", "ephemeral-storage"], "describe pod"),
        (nights.node_not_ready, 2, "NodeNotReady", ["gpu-a", "Kubelet stopped posting"], "kubectl describe node gpu-a"),
        (nights.node_gone, 2, "Unschedulable", ["node gpu-b, where it ran before, is gone"], "free GPUs"),
        (nights.node_of_a_failure_gone, 2, "NodeGone", ["lost ranks with node gpu-b"], "kubectl get nodes"),
        (nights.quota, 2, "ReplicaFailure", ["KubeRay cannot make", "exceeded quota: gpus"], "describe resourcequota"),
        (nights.refused_template, 2, "InvalidRayClusterSpec", ["headGroupSpec is wrong"], "describe raycluster"),
        (nights.placement_pending, 2, "Placing", ["0 of 1 GPUs free", "demo-dp0 is PENDING"], "-- ray status"),
        (nights.model_not_found, 5, "ModelNotFound", ["attempt 1", "holds no config.json"], "vllm-operator.io/retry="),
        (nights.downloading, 2, "Downloading", ["engine-0 gets its model", "lead-0 42%"], "goes on by itself"),
        (nights.token_refused, 5, "HubAccessDenied", ["attempt 1", "refuses the token"], "tried again by itself"),
        (nights.loading, 2, "Loading", ["engine-0 is Loading, attempt 1"], "lead-0"),
        (nights.no_such_gpus, 5, "NoSuchGPUs", ["no node has a GPU"], "explain demo -n models --live"),
        (nights.waiting_for_gpus, 2, "WaitingForGPUs", ["held by other pods: gpu-a 4 of 4"], "explain demo"),
        (nights.not_all_fit, 2, "WaitingForGPUs", ["engine-4 is Pending", "held by"], "explain demo -n models --live"),
        (nights.given_back, 2, "GPUsGivenBack", ["engine-0", "had no node for 180 s"], "explain demo -n models --live"),
        (
            nights.without_an_adapter,
            5,
            "AdapterFailed",
            ["engine-0 serves, but without the LoRA adapter sql: /opt/sql does not exist"],
            "or spec.lora: kubectl edit vllm -n models demo",
        ),
        (nights.plan_only, 0, "Planned", ["the plan is made, and nothing else"], ""),
        (
            nights.invalid_spec,
            5,
            "InvalidSpec",
            ["would override --tensor-parallel-size"],
            "kubectl edit vllm -n models",
        ),
        (nights.name_conflict, 5, "NameConflict", ["Service demo exists and does not belong"], "rename"),
        (nights.no_kuberay, 5, "KubeRayNotInstalled", ["knows no RayCluster"], "kubectl get crd rayclusters.ray.io"),
        (nights.as_it_is, 2, "CreatingPods", ["is being made"], "describe raycluster"),
        (nights.serving, 0, "Serving", ["Ready since 2026-03-01T12:00:06Z: 1 of 1 engines serve"], ""),
        (nights.scaled_to_zero, 0, "ScaledToZero", ["replicas is 0"], ""),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_the_cause_of(night: Night, status: int, reason: str, cause: list[str], more: str) -> None:
    told = diagnose(scene_of(night))
    assert (told.exit_code, told.cause.reason) == (status, reason)
    for word in cause:
        assert word in told.cause.message
    assert more in told.cause.next
    last = text(told).splitlines()[-2:]
    assert last[0 if more else 1] == f"cause: {told.cause.message}"
    assert not more or last[1] == f"next:  {told.cause.next}"


@pytest.mark.parametrize(
    "night", [nights.unschedulable, nights.out_of_memory, nights.model_not_found, nights.no_such_gpus]
)
@pytest.mark.parametrize("kind", ["Event", "Node", "Pod", "ConfigMap", "RayCluster"])
def test_what_may_not_be_read_is_said_and_ends_nothing(night: Night, kind: str) -> None:
    told = diagnose(scene_of(night, refuse=(kind,)))
    whole = diagnose(scene_of(night))
    assert told.exit_code == whole.exit_code
    read_nodes = bool(whole.nodes)
    names = {"Event": "events", "Node": "nodes", "Pod": "pods", "ConfigMap": "reports", "RayCluster": "RayClusters"}
    if kind != "Node" or read_nodes:
        assert f"({names[kind]}: forbidden for you)" in text(told).splitlines()


def test_without_pods_the_engine_is_told() -> None:
    told = diagnose(scene_of(nights.unschedulable, refuse=("Pod",)))
    assert told.cause.level == "engine"
    assert SCHEDULER in told.cause.message


@pytest.mark.parametrize(
    ("finished", "reason"),
    [(-1000.0, "LauncherExited"), (4.0, "OOMKilled")],
    ids=["long before the failure", "just before it"],
)
def test_only_an_end_near_the_failure_is_its_cause(finished: float, reason: str) -> None:
    async def night(world: World) -> None:
        await nights.out_of_memory(world)
        body = world.api.body("Pod", nights.pod_of(world, "gpu1-0"))
        body["status"]["containerStatuses"][0]["lastState"]["terminated"]["finishedAt"] = at(finished)

    assert diagnose(scene_of(night)).cause.reason == reason


def test_a_failure_that_names_its_reason_is_not_explained_by_an_old_restart() -> None:
    async def night(world: World) -> None:
        await nights.model_not_found(world)
        status = world.api.body("Pod", nights.pod_of(world, "head"))["status"]["containerStatuses"][0]
        status |= {"restartCount": 1, "lastState": {"terminated": {"exitCode": 1, "finishedAt": at(world.clock)}}}

    assert diagnose(scene_of(night)).cause.reason == "ModelNotFound"


def test_the_engine_that_is_stalled_comes_before_one_that_is_on_its_way() -> None:
    async def night(world: World) -> None:
        world.change(replicas=2)
        await world.round()
        world.start_pods()
        world.join_ray()
        await world.rounds(3)
        world.report(contract.Phase.FAILED, engine=1, reason="ConfigRefused", message="no such dtype")
        told = {"type": "PodScheduled", "status": "False", "message": SCHEDULER}
        [name] = [name for name in world.api.names("Pod") if name.startswith("demo-0-") and "-lead-" in name]
        world.api.body("Pod", name)["status"] = {"phase": "Pending", "conditions": [told]}

    told = diagnose(scene_of(night))
    assert (told.exit_code, told.cause.reason) == (5, "ConfigRefused")
    assert "engine-1" in told.cause.message


@pytest.mark.parametrize(
    "reason",
    [
        "InvalidSpec",
        "NameConflict",
        "NoSuchGPUs",
        "WaitingForGPUs",
        "QuotaExceeded",
        "ResourcesNotStated",
        "ModelNotFound",
        "ModelNotReadable",
        "ModelFactsUnavailable",
        "SecretNotFound",
        "ConfigMapNotFound",
        "ClaimNotFound",
        "ImageMissing",
        "KubeRayNotInstalled",
        "Forbidden",
        "RefusedByAPIServer",
    ],
)
def test_what_keeps_the_whole_deployment_back_is_the_cause_beside_an_engine_in_trouble(reason: str) -> None:
    scene = scene_of(nights.unschedulable)
    body = copy.deepcopy(dict(scene.deployment))
    for condition in body["status"]["conditions"]:
        condition |= {"reason": reason, "message": "in the operator's words"}
    told = diagnose(dataclasses.replace(scene, deployment=body))
    assert (told.cause.level, told.cause.reason) == ("deployment", reason)
    assert told.cause.message == "in the operator's words"
    assert told.cause.next


def test_a_spec_that_the_operator_has_not_seen() -> None:
    scene = scene_of(nights.serving)
    body = copy.deepcopy(dict(scene.deployment))
    body["metadata"]["generation"] = 7
    told = diagnose(dataclasses.replace(scene, deployment=body))
    assert (told.exit_code, told.cause.reason) == (2, "NotSeen")
    assert "generation 7" in told.cause.message
    assert told.cause.next.startswith("kubectl get pods -A")


def test_one_that_is_being_deleted() -> None:
    scene = scene_of(nights.serving)
    body = copy.deepcopy(dict(scene.deployment))
    body["metadata"] |= {"deletionTimestamp": at(9), "finalizers": ["example.com/wait"]}
    told = diagnose(dataclasses.replace(scene, deployment=body))
    assert (told.exit_code, told.cause.reason) == (2, "Deleting")
    assert "example.com/wait" in told.cause.next


@pytest.mark.parametrize(
    ("message", "more"),
    [
        ("1 Insufficient nvidia.com/gpu", "kubectl vllm explain demo -n models --live"),
        ("1 Insufficient nvidia.com/mig-1g.10gb", "kubectl vllm explain demo -n models --live"),
        ("1 Insufficient amd.com/gpu", "kubectl vllm explain demo -n models --live"),
        ('persistentvolumeclaim "models" not found', "kubectl describe pvc -n models"),
        ("pod has unbound immediate PersistentVolumeClaims", "kubectl describe pvc -n models"),
        ("1 node(s) had volume node affinity conflict", "zone"),
        ("3 Insufficient memory", "spec.pod.resources.requests"),
        ("3 Insufficient cpu", "spec.pod.resources.requests"),
        ("2 node(s) had untolerated taint {a: b}", "spec.pod.tolerations"),
        ("didn't match Pod's node affinity/selector", "spec.pod.nodeSelector"),
        ("didn't match pod anti-affinity rules", "spec.placement.strategy"),
        ("something new", "kubectl describe pod -n models demo-0-"),
    ],
)
def test_what_to_do_about_what_the_scheduler_says(message: str, more: str) -> None:
    async def night(world: World) -> None:
        await nights.made(world)
        told = {"type": "PodScheduled", "status": "False", "message": message}
        nights.change_pod(world, "lead-0", {"phase": "Pending", "conditions": [told]}, unscheduled=True)

    assert more in diagnose(scene_of(night)).cause.next


def test_who_holds_the_gpus_is_told_behind_the_schedulers_words() -> None:
    scene = scene_of(nights.unschedulable)
    body = copy.deepcopy(dict(scene.deployment))
    body["status"]["engineReplicas"][0]["message"] += "; held by other pods: gpu-a 4 of 4"
    told = diagnose(dataclasses.replace(scene, deployment=body))
    assert "2 node(s) had untolerated taint {gpu: true}; held by other pods: gpu-a 4 of 4" in told.cause.message


def test_events_are_ours_counted_and_bounded_and_the_newest_is_last() -> None:
    async def night(world: World) -> None:
        await nights.made(world)
        [cluster] = world.api.names("RayCluster")
        lead, worker = nights.pod_of(world, "lead-0"), nights.pod_of(world, "gpu1-0")
        world.api.put(event("Pod", lead, "Pulling", "Pulling image", type="Normal", count=2, at=1))
        world.api.put(event("Pod", worker, "Pulling", "Pulling image", type="Normal", count=3, at=4))
        world.api.put(event("Pod", f"{cluster}-gpu1-gone", "Killing", "Stopping container", type="Normal", at=2))
        world.api.put(event("Pod", "somebody-else", "Failed", "not ours"))
        world.api.put(event("Node", "gpu-a", "Failed", "not ours"))
        world.api.put(event("VLLMDeployment", "demo2", "Failed", "not ours"))
        world.api.put(
            event(
                "RayCluster",
                cluster,
                "Old",
                "of another",
                involvedObject={"kind": "RayCluster", "name": cluster, "uid": "x"},
            )
        )
        for index in range(30):
            world.api.put(event("VLLMDeployment", "demo", f"Round{index}", f"round {index}", at=-100 + index))

    told = diagnose(scene_of(night))
    assert [(item.reason, item.count, len(item.objects)) for item in told.events[-2:]] == [
        ("Killing", 1, 1),
        ("Pulling", 5, 2),
    ]
    assert len(told.events) == 32
    assert not {item.message for item in told.events} & {"not ours", "of another"}
    shown = text(told)
    assert "(12 earlier events are left out: -o json)" in shown
    assert "+1" in shown
    assert "round 11" not in shown


def test_many_pods_are_folded_and_those_in_trouble_are_shown() -> None:
    scene = scene_of(nights.unschedulable)
    healthy = next(body for body in scene.pods if "-head-" in body["metadata"]["name"])
    ready = {"type": "Ready", "status": "True"}
    more = []
    for index in range(40):
        body = copy.deepcopy(dict(healthy))
        body["metadata"]["name"] = f"{healthy['metadata']['name']}-{index}"
        body["status"]["conditions"].append(ready)
        more.append(body)
    shown = text(diagnose(dataclasses.replace(scene, pods=(*more, *scene.pods))))
    assert "0/3 nodes are available" in shown
    assert "and 31 more: -o json" in shown


def test_a_terminal_obeys_no_container() -> None:
    async def night(world: World) -> None:
        await nights.made(world)
        last = {"exitCode": 1, "message": "\x1b]0;title\x07\x1b[2Jgone\r\x9b31m"}
        nights.change_pod(world, "head", nights.waiting("CrashLoopBackOff", "\x1b[1m", last, restarts=9))

    shown = text(diagnose(scene_of(night)))
    assert "gone" in shown
    assert all(letter.isprintable() or letter == "\n" for letter in shown)


def test_lines_keep_to_the_width_and_commands_stay_whole() -> None:
    told = diagnose(scene_of(nights.no_such_gpus))
    *lines, cause, more = text(told, width=100).splitlines()
    assert max(map(len, lines)) <= 100
    assert more == f"next:  {told.cause.next}"
    assert cause.startswith("cause: ")


@pytest.mark.parametrize("night", [nights.unschedulable, nights.out_of_memory, nights.node_gone])
def test_data_for_programs(night: Night) -> None:
    told = diagnose(scene_of(night))
    data = json.loads(json.dumps(plain(told)))
    assert data["cause"]["reason"] == told.cause.reason
    assert data["engines"][0]["rayCluster"] == told.engines[0].ray_cluster
    assert {pod["role"] for pod in data["engines"][0]["pods"]} == {"head", "lead", "worker"}
    assert data["conditions"][0]["lastTransitionTime"]


@pytest.mark.parametrize("night", [nights.unschedulable, nights.out_of_memory, nights.node_gone, nights.serving])
def test_golden(night: Night) -> None:
    """``UPDATE_GOLDEN=1`` writes the files anew."""
    told = diagnose(scene_of(night))
    [cluster] = {engine.ray_cluster for engine in told.engines}
    shown = text(told).replace(cluster, "demo-0-pppppppp") + "\n"
    file = GOLDEN / f"why-{night.__name__}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(shown)
    assert shown == file.read_text()


# ---- objects that nobody vouches for --------------------------------------------------------------------------------

BROKEN = [
    scene_of(night)
    for night in (
        nights.unschedulable,
        nights.crash_loop,
        nights.out_of_memory,
        nights.node_gone,
        nights.placement_pending,
    )
]


def as_lists(scene: Scene) -> dict[str, Any]:
    return {
        "deployment": dict(scene.deployment),
        **{key: [dict(item) for item in getattr(scene, key)] for key in ("clusters", "pods", "reports", "events")},
        "nodes": {name: dict(body) if body else None for name, body in scene.nodes.items()},
    }


@st.composite
def damaged_scenes(draw: st.DrawFn) -> Scene:
    data = damaged(draw, as_lists(draw(st.sampled_from(BROKEN))))
    data = data if isinstance(data, dict) else {}

    def objects(key: str) -> tuple[Any, ...]:
        found = data.get(key)
        return tuple(item for item in found if isinstance(item, dict)) if isinstance(found, list) else ()

    body, nodes = data.get("deployment"), data.get("nodes")
    nodes = nodes if isinstance(nodes, dict) else {}
    return Scene(
        deployment=body if isinstance(body, dict) else {},
        nodes={str(name): item if isinstance(item, dict) else None for name, item in nodes.items()},
        **{key: objects(key) for key in ("clusters", "pods", "reports", "events")},
    )


@given(scene=damaged_scenes())
@settings(max_examples=300)
def test_a_damaged_object_stops_nothing(scene: Scene) -> None:
    told = diagnose(scene)
    assert told.exit_code in (0, 2, 5)
    assert told.cause.message
    assert text(told).splitlines()[0]
    json.dumps(plain(told))


@given(
    bodies=st.lists(
        st.dictionaries(st.sampled_from(["metadata", "spec", "status", "involvedObject"]), JUNK), max_size=3
    )
)
@settings(max_examples=100)
def test_any_object_stops_nothing(bodies: list[dict[str, Any]]) -> None:
    items = tuple(bodies)
    body = bodies[0] if bodies else {}
    scene = Scene(
        deployment=body, clusters=items, pods=items, reports=items, events=items, nodes={"n": body, "m": None}
    )
    assert text(diagnose(scene))


@pytest.mark.parametrize("report", ["", "no JSON", "[]", "{}", '{"version": 99}', "[" * 100_000, '{"ranks": 3}'])
def test_a_report_that_cannot_be_read_is_said(report: str) -> None:
    scene = scene_of(nights.loading)
    body = {**scene.reports[0], "data": {"report.json": report}}
    told = diagnose(dataclasses.replace(scene, reports=(body,)))
    assert told.cause.reason == "Loading"
    assert not report or "its report cannot be read" in text(told)


def test_entries_of_a_later_version_are_counted() -> None:
    scene = scene_of(nights.loading)
    body = copy.deepcopy(dict(scene.deployment))
    body["status"]["engineReplicas"][0]["state"] = "Sleeping"
    told = diagnose(dataclasses.replace(scene, deployment=body))
    assert any("1 entries of the status" in line for line in told.unread)
    assert told.engines[0].state == ""
