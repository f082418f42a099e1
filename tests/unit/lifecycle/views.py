"""Pods, reports and engines as the lifecycle sees them, healthy unless a test says otherwise."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vllm_bootstrap import contract
from vllm_operator.lifecycle.engine import EngineStep, due_turn, step
from vllm_operator.lifecycle.engine_view import ClusterView, EngineView, JobView, RayView
from vllm_operator.lifecycle.entry import Turn
from vllm_operator.lifecycle.pods import PodView, read_pod
from vllm_operator.lifecycle.recovery import Recovery

NOW = datetime.datetime(2026, 3, 1, 12, 0, 0, tzinfo=datetime.UTC)
RECOVERY = Recovery(backoff_seconds=5, max_backoff_seconds=40, silence_seconds=30)
DEADLINES = contract.Deadlines()
UID = "uid-1"
REVISION = "eeeeeeee-pppppppp"
CLUSTER = "demo-0-pppppppp"
SESSION = "session_1"


def at(seconds: float) -> str:
    """Give an instant relative to ``NOW``, as pods and reports write it."""
    return (NOW + datetime.timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def later(seconds: float) -> datetime.datetime:
    return NOW + datetime.timedelta(seconds=seconds)


def pod_body(name: str, **parts: Any) -> dict[str, Any]:
    """Give a Pod object; ``head``, ``lead``, ``labels``, ``status``, ``node`` and ``deleting`` shape it."""
    tags = {"ray.io/cluster": CLUSTER, "ray.io/node-type": "head" if parts.get("head") else "worker"}
    if parts.get("lead"):
        tags["vllm-operator.io/lead"] = "true"
    body: dict[str, Any] = {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": tags | parts.get("labels", {})},
        "spec": {
            "nodeName": parts.get("node", f"node-{name}"),
            "containers": [{"name": "vllm", "image": "registry.example/runtime:1"}],
            "initContainers": [{"name": "wait-gcs-ready", "image": "registry.example/runtime:1"}],
        },
        "status": parts.get("status") or running(),
    }
    if parts.get("deleting"):
        body["metadata"]["deletionTimestamp"] = at(0)
    return body


def running(*, ready: bool = False, ready_since: float = -60, started: float = -100) -> dict[str, Any]:
    """Give the status of a pod whose container runs."""
    return {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(-120)},
            {"type": "Ready", "status": str(ready), "lastTransitionTime": at(ready_since)},
        ],
        "containerStatuses": [
            {"name": "vllm", "restartCount": 0, "state": {"running": {"startedAt": at(started)}}},
        ],
    }


def pod(name: str, **parts: Any) -> PodView:
    return read_pod(pod_body(name, **parts))


def pods(*, ready: bool = False, ready_since: float = -60, started: float = -100) -> tuple[PodView, ...]:
    """Give a head, a lead and one worker, all running."""
    return (
        pod("head", head=True, status=running(started=-100)),
        pod("lead", lead=True, status=running(ready=ready, ready_since=ready_since, started=started)),
        pod("worker"),
    )


def ranks(pod_names: Sequence[str] = ("lead", "worker")) -> tuple[contract.RankReport, ...]:
    return tuple(
        contract.RankReport(
            rank=index,
            tp=0,
            pp=index,
            bundle=index,
            ray_node=f"ray-{name}",
            pod=name,
            node="told-by-ray",
            gpu_index=0,
            actor=f"actor-{index}",
            state="ALIVE",
            driver=True,
            output=index == len(pod_names) - 1,
        )
        for index, name in enumerate(pod_names)
    )


def report(phase: contract.Phase = contract.Phase.SERVING, **changes: Any) -> contract.EngineReport:
    base = contract.EngineReport(
        uid=UID,
        engine="engine-0",
        revision=REVISION,
        attempt=1,
        ray_session=SESSION,
        sequence=1,
        phase=phase,
        time=at(-10),
        timings=contract.TimingsReport(ray_nodes_joined=at(-20)),
        ranks=ranks(),
        placement_groups=(contract.PlacementGroupReport(name="pg", id="1", strategy="PACK", state="CREATED"),),
    )
    return replace(base, **changes)


def ray(**changes: Any) -> RayView:
    base = RayView(session=SESSION, gpus=(("ray-lead", 1), ("ray-worker", 1)))
    return replace(base, **changes)


def job(status: str, message: str = "") -> RayView:
    return ray(job=JobView(status=status, message=message))


def engine(**changes: Any) -> EngineView:
    base = EngineView(
        name="engine-0",
        uid=UID,
        revision=REVISION,
        cluster=ClusterView(name=CLUSTER, uid="uid-cluster", revision=REVISION, created_at=at(-200)),
        sizes=(1, 1),
        pods=pods(),
    )
    return replace(base, **changes)


def turn(view: EngineView, now: datetime.datetime = NOW) -> Turn:
    return due_turn(view, recovery=RECOVERY, now=now)


def advance(view: EngineView, now: datetime.datetime = NOW) -> EngineStep:
    """Take one look."""
    return step(view, turn(view, now), recovery=RECOVERY, deadlines=DEADLINES, now=now)
