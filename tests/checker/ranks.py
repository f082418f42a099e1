"""Compare a CR's rank map with Ray, with Kubernetes, and with the rank processes themselves."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.testbed.bed import Bed

RANK_FILES = "/tmp/ranks"  # noqa: S108 - inside the pods
_TABLES = Path(__file__).with_name("ray_tables.py")


@dataclass(frozen=True)
class Evidence:
    """What the witnesses said of one engine.

    Attributes
    ----------
    pods
        Pods by name, as the API server has them.
    processes
        What each rank process wrote, by global rank.
    tables
        Ray's tables.
    """

    pods: dict[str, Any]
    tables: dict[str, Any]
    processes: dict[int, dict[str, Any]] = field(default_factory=dict)


def gather(bed: Bed, namespace: str, ray_cluster: str) -> Evidence:
    """Ask the three witnesses."""
    listed = bed.api.json("get", "pods", "-n", namespace, "-l", f"ray.io/cluster={ray_cluster}")["items"]
    pods = {pod["metadata"]["name"]: pod for pod in listed}
    head = next(name for name, pod in pods.items() if pod["metadata"]["labels"]["ray.io/node-type"] == "head")
    printed = bed.kubectl("exec", "-i", "-n", namespace, head, "--", "python", "-", stdin=_TABLES.read_text())
    evidence = Evidence(pods=pods, tables=json.loads(printed.splitlines()[-1]))
    for name in pods:
        if name != head:
            evidence.processes.update(_processes(bed, namespace, name))
    return evidence


def _processes(bed: Bed, namespace: str, pod: str) -> dict[int, dict[str, Any]]:
    script = f"import glob,json; print(json.dumps([json.load(open(p)) for p in glob.glob('{RANK_FILES}/rank-*.json')]))"
    told = json.loads(bed.kubectl("exec", "-n", namespace, pod, "--", "python", "-c", script))
    return {item["rank"]: {**item, "pod": pod} for item in told}


def disagreements(engine: dict[str, Any], evidence: Evidence, *, tensor: int, pipeline: int) -> list[str]:
    """Give every entry of an engine's rank map that a witness contradicts; empty when all agree.

    Parameters
    ----------
    engine
        Entry of ``status.engineReplicas``.
    tensor, pipeline
        What the user asked for.
    """
    ranks = engine["ranks"]
    world = tensor * pipeline
    wrong: list[str] = []
    if [rank["rank"] for rank in ranks] != list(range(world)):
        return [f"ranks are {[rank['rank'] for rank in ranks]}, expected 0..{world - 1}"]
    if sorted(rank["bundle"] for rank in ranks) != list(range(world)):
        wrong.append(f"bundles are {[rank['bundle'] for rank in ranks]}: each must be used once")
    outputs = [rank["rank"] for rank in ranks if rank["output"]]
    if outputs != [world - tensor]:
        wrong.append(f"output ranks are {outputs}, expected {world - tensor}")
    seats = [(rank["pod"], rank["gpuIndex"]) for rank in ranks]
    if len(set(seats)) != world:
        wrong.append(f"two ranks share a GPU: {seats}")
    for rank in ranks:
        checks = _expected(rank, evidence, tensor)
        wrong += [
            f"rank {rank['rank']}: {key} is {rank.get(key)!r}, {witness} says {value!r}"
            for key, witness, value in checks
            if rank.get(key) != value
        ]
    return wrong


def _expected(rank: dict[str, Any], evidence: Evidence, tensor: int) -> list[tuple[str, str, Any]]:
    number = rank["rank"]
    process = evidence.processes.get(number)
    actors = {actor["name"]: actor for actor in evidence.tables["actors"] if actor["class_name"] == "RayWorkerProc"}
    actor = actors.get(rank["actor"])
    pod = evidence.pods.get(rank["pod"])
    if process is None or actor is None or pod is None:
        found = {"the rank's own file": process, "Ray's actor": actor, "the pod": pod}
        return [("rank", f"({name} is missing)", None) for name, value in found.items() if value is None]
    table = evidence.tables["tables"][actor["placement_group_id"]]
    node_ip = next(node["ip"] for node in evidence.tables["nodes"] if node["node_id"] == actor["node_id"])
    own = process["ray"]
    return [
        ("tp", "the layout", number % tensor),
        ("pp", "the layout", number // tensor),
        ("tp", "the process", process["tensor_rank"]),
        ("pp", "the process", process["pipeline_rank"]),
        ("dp", "the layout", 0),
        ("driver", "the process", process["is_driver_worker"]),
        ("pod", "the process's hostname", process["hostname"]),
        ("pod", "the pod that has the file", process["pod"]),
        ("node", "Kubernetes", pod["spec"]["nodeName"]),
        ("rayNode", "the actor table", actor["node_id"]),
        ("rayNode", "the process", own["node_id"]),
        ("rayNode", "the bundle table", table["bundles_to_node_id"][str(rank["bundle"])]),
        ("actor", "the process", own["actor_name"]),
        ("state", "the actor table", actor["state"]),
        ("gpuIndex", "the process", _gpu(process)),
        ("pod", "Ray's address of the node", _pod_of(node_ip, evidence)),
    ]


def _gpu(process: dict[str, Any]) -> int:
    return int(process["assigned_gpus"][process["local_rank"]])


def _pod_of(ip: str, evidence: Evidence) -> str:
    return next((name for name, pod in evidence.pods.items() if pod["status"].get("podIP") == ip), "")
