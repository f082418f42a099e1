"""Compare a CR's rank map with Ray, with Kubernetes, and with the rank processes themselves."""

from __future__ import annotations

import json
import re
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
        What each rank process wrote, by global rank: those of data parallel rank 0 first.
    tables
        Ray's tables.
    """

    pods: dict[str, Any]
    tables: dict[str, Any]
    processes: dict[int, dict[str, Any]] = field(default_factory=dict)


def gather(bed: Bed, namespace: str, ray_cluster: str, *, world: int = 0, files: str = RANK_FILES) -> Evidence:
    """Ask the three witnesses.

    Parameters
    ----------
    world
        Ranks of one data parallel rank, where there are several; each pod must hold one of these at the most, because
        the processes of different ones call themselves by the same numbers.
    files
        Folder in the pods where the engine's ranks write what they are.
    """
    listed = bed.api.json("get", "pods", "-n", namespace, "-l", f"ray.io/cluster={ray_cluster}")["items"]
    pods = {pod["metadata"]["name"]: pod for pod in listed}
    head = next(name for name, pod in pods.items() if pod["metadata"]["labels"]["ray.io/node-type"] == "head")
    printed = bed.kubectl("exec", "-i", "-n", namespace, head, "--", "python", "-", stdin=_TABLES.read_text())
    evidence = Evidence(pods=pods, tables=json.loads(printed.splitlines()[-1]))
    for name in pods:
        if name != head:
            evidence.processes.update(_processes(bed, namespace, name, world, files))
    return evidence


def _processes(bed: Bed, namespace: str, pod: str, world: int, files: str) -> dict[int, dict[str, Any]]:
    script = f"import glob,json; print(json.dumps([json.load(open(p)) for p in glob.glob('{files}/rank-*.json')]))"
    told = json.loads(bed.kubectl("exec", "-n", namespace, pod, "--", "python", "-c", script))
    return {data_rank(item) * world + item["rank"]: {**item, "pod": pod} for item in told}


def data_rank(process: dict[str, Any]) -> int:
    """Read a process's data parallel rank out of the name that vLLM gave its actor."""
    found = re.search(r"_dp(\d+)", process["ray"].get("actor_name") or "")
    return int(found[1]) if found else 0


def disagreements(
    engine: dict[str, Any], evidence: Evidence, *, tensor: int, pipeline: int, data: int = 1, core: str = ""
) -> list[str]:
    """Give every entry of an engine's rank map that a witness contradicts; empty when all agree.

    Parameters
    ----------
    engine
        Entry of ``status.engineReplicas``.
    tensor, pipeline, data
        What the user asked for.
    core
        Class of the actor that each data parallel rank must have; none where there is one of these.
    """
    ranks = engine["ranks"]
    world = tensor * pipeline
    wrong: list[str] = []
    if [rank["rank"] for rank in ranks] != list(range(world * data)):
        return [f"ranks are {[rank['rank'] for rank in ranks]}, expected 0..{world * data - 1}"]
    for number in range(data):
        bundles = [rank["bundle"] for rank in ranks if rank["dp"] == number]
        if sorted(bundles) != list(range(world)):
            wrong.append(f"bundles of dp {number} are {bundles}: each must be used once")
    outputs = [rank["rank"] for rank in ranks if rank["output"]]
    if outputs != [world * number + world - tensor for number in range(data)]:
        wrong.append(f"output ranks are {outputs}")
    seats = [(rank["pod"], rank["gpuIndex"]) for rank in ranks]
    if len(set(seats)) != world * data:
        wrong.append(f"two ranks share a GPU: {seats}")
    wrong += _core_faults(engine, evidence, data if data > 1 else 0, core)
    for rank in ranks:
        checks = _expected(rank, evidence, tensor, pipeline)
        wrong += [
            f"rank {rank['rank']}: {key} is {rank.get(key)!r}, {witness} says {value!r}"
            for key, witness, value in checks
            if rank.get(key) != value
        ]
    return wrong


def _core_faults(engine: dict[str, Any], evidence: Evidence, data: int, core: str) -> list[str]:
    """Compare the engine cores with Ray's actors of that class, each beside its first rank and in its group."""
    told = [
        (item["dp"], item["kind"], item["actorId"], item["state"], item["rayNode"], item["pod"])
        for item in engine.get("engineCores", [])
    ]
    alive = [actor for actor in evidence.tables["actors"] if actor["state"] == "ALIVE"]
    heads = {rank["dp"]: rank for rank in reversed(engine["ranks"])}
    seen = []
    for actor in alive:
        if actor["class_name"].endswith("EngineCoreActor"):
            ranks = [other for other in alive if other["placement_group_id"] == actor["placement_group_id"]]
            numbers = {data_rank({"ray": {"actor_name": other["name"]}}) for other in ranks if other["name"]}
            number = numbers.pop() if len(numbers) == 1 else -1
            pod = heads.get(number, {}).get("pod")
            seen.append((number, actor["class_name"], actor["actor_id"], "ALIVE", actor["node_id"], pod))
    wrong = [] if sorted(told) == sorted(seen) else [f"engine cores are {told}, Ray has {seen}"]
    if [kind for _, kind, *_ in sorted(told)] != [core] * data:
        wrong.append(f"engine cores are {told}, expected {data} of {core}")
    return wrong


def _expected(rank: dict[str, Any], evidence: Evidence, tensor: int, pipeline: int) -> list[tuple[str, str, Any]]:
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
        ("pp", "the layout", number // tensor % pipeline),
        ("tp", "the process", process["tensor_rank"]),
        ("pp", "the process", process["pipeline_rank"]),
        ("dp", "the layout", number // (tensor * pipeline)),
        ("dp", "the process", data_rank(process)),
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
