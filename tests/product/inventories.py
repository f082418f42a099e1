"""Random small inventories, each with what a CR asks of it: as the API server gets them, so that all of it is legal.

The same number gives the same inventory.  Each keeps to itself by a label of its nodes that its CR selects; all its
pods carry it, too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tests.testbed import kwok

INVENTORY = "scheduler-test/inventory"
ENDED = "scheduler-test/ended"
UNINITIALIZED = "node.cloudprovider.kubernetes.io/uninitialized"
GPU = "nvidia.com/gpu"

_PRODUCTS = ("NVIDIA-A100-SXM4-80GB", "NVIDIA-L40S", "NVIDIA-GeForce-RTX-3090", "")
_TAINTS = (
    {"key": "dedicated", "value": "llm", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "batch", "effect": "NoExecute"},
    {"key": "maintenance", "effect": "NoExecute"},
    {"key": "slow", "value": "yes", "effect": "PreferNoSchedule"},
)
_TOLERATIONS = (
    {"key": "dedicated", "value": "llm"},
    {"key": "dedicated", "operator": "Equal", "value": "batch", "effect": "NoExecute"},
    {"key": "dedicated", "operator": "Exists"},
    {"key": "dedicated", "operator": "Exists", "effect": "NoExecute"},
    {"key": "maintenance", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3600},
    {"key": "maintenance"},
    {"operator": "Exists"},
    {"operator": "Exists", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},
)
_EXPRESSIONS: tuple[dict[str, Any], ...] = (
    {"key": "zone", "operator": "In", "values": ["z1", "z2"]},
    {"key": "zone", "operator": "NotIn", "values": ["z1"]},
    {"key": "pool", "operator": "NotIn", "values": ["b", "c"]},
    {"key": "pool", "operator": "Exists"},
    {"key": "pool", "operator": "DoesNotExist"},
    {"key": "cores", "operator": "Gt", "values": ["32"]},
    {"key": "cores", "operator": "Lt", "values": ["64"]},
    {"key": "cores", "operator": "Gt", "values": ["0"]},
    {"key": "nowhere", "operator": "Lt", "values": ["9"]},
)
# Label values that look like numbers, or do not.
_CORES = ("16", "33", "64", "128", "064", "1_000", "many", "")


@dataclass(frozen=True)
class Inventory:
    """Nodes, what is on them, and the spec of a CR that wants to go there.

    Attributes
    ----------
    foreign
        Pods of others, bound.
    """

    name: str
    nodes: tuple[dict[str, Any], ...]
    foreign: tuple[dict[str, Any], ...]
    spec: dict[str, Any]


def inventory(number: int) -> Inventory:
    """Give the inventory of a number."""
    chance = random.Random(number)  # noqa: S311 - a test that can be repeated
    name = f"inventory-{number}"
    products = chance.sample(_PRODUCTS, chance.choice((1, 1, 1, 2, 3)))
    nodes = tuple(
        _node(chance, f"{name}-{index}", name, products) for index in range(chance.choice((1, 2, 2, 3, 3, 4, 6)))
    )
    foreign = tuple(pod for node in nodes for pod in _foreign(chance, node))
    return Inventory(name=name, nodes=nodes, foreign=foreign, spec=_spec(chance, name, nodes))


def _node(chance: random.Random, name: str, inventory: str, products: Sequence[str]) -> dict[str, Any]:
    product = chance.choice(products)
    optional = {
        "nvidia.com/gpu.product": product,
        "zone": chance.choice(("z1", "z2", "z3")),
        "pool": chance.choice(("a", "a", "b", "")),
        "cores": chance.choice(_CORES),
    }
    labels = {INVENTORY: inventory} | {key: value for key, value in optional.items() if value}
    taints = [dict(item) for item in _TAINTS if chance.random() < 0.07]
    if chance.random() < 0.05:
        taints.append({"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"})
    return kwok.node(
        name,
        gpus=chance.choice((0, 1, 2, 2, 3, 4, 4, 4, 6, 8, 8, 8)),
        labels=labels,
        taints=taints,
        cordoned=chance.random() < 0.1,
        ready=chance.random() > 0.05,
    )


def _foreign(chance: random.Random, node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give pods of others on a node: of one container, of two, with an init container, with a sidecar, ended."""
    left = int(node["status"]["allocatable"][GPU])
    while left and chance.random() < 0.5:
        gpus = chance.randint(1, left)
        left -= gpus
        one = chance.randint(1, gpus)
        name = f"{node['metadata']['name']}-held-{left}"
        match chance.choice(("plain", "plain", "two", "init", "sidecar", "ended")):
            case "two" if one < gpus:
                yield _pod(name, node, [_container("a", one), _container("b", gpus - one)])
            case "init":
                yield _pod(name, node, [_container("main", one)], [_container("first", gpus)])
            case "sidecar" if one < gpus:
                beside = {**_container("beside", gpus - one), "restartPolicy": "Always"}
                yield _pod(name, node, [_container("main", one)], [beside])
            case "ended":
                yield _pod(name, node, [_container("main", gpus)], ended=True)
            case _:
                yield _pod(name, node, [_container("main", gpus)])


def _container(name: str, gpus: int) -> dict[str, Any]:
    return {"name": name, "image": "foreign", "resources": {"limits": {GPU: str(gpus)}}}


def _pod(
    name: str,
    node: dict[str, Any],
    containers: list[dict[str, Any]],
    first: Sequence[dict[str, Any]] = (),
    *,
    ended: bool = False,
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {INVENTORY: node["metadata"]["labels"][INVENTORY], ENDED: str(ended).lower()},
        },
        "spec": {
            "nodeName": node["metadata"]["name"],
            "tolerations": [{"operator": "Exists"}],
            "initContainers": list(first),
            "containers": containers,
        },
    }


def _spec(chance: random.Random, name: str, nodes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    strategy = chance.choice(("PACK", "PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD"))
    placement: dict[str, Any] = {"strategy": strategy}
    spec: dict[str, Any] = {"model": {"uri": "hf://some/model"}, "placement": placement}
    if chance.random() < 0.95:
        spec["parallelism"] = _sizes(chance, _room(strategy, nodes))
    if strategy in ("PACK", "SPREAD") and chance.random() < 0.4:
        placement["gpusPerPod"] = chance.choice((1, 2, 2, 3, 4))
    pod: dict[str, Any] = {"labels": {INVENTORY: name}, "nodeSelector": {INVENTORY: name}}
    if chance.random() < 0.1:
        pod["nodeSelector"]["pool"] = chance.choice(("a", "b"))
    pod["tolerations"] = [dict(item) for item in _TOLERATIONS if chance.random() < 0.1]
    pod["affinity"] = {"nodeAffinity": _affinity(chance, nodes)}
    return {**spec, "pod": pod}


def _room(strategy: str, nodes: Sequence[dict[str, Any]]) -> int:
    """Give the GPUs that an engine of this strategy could have, if nothing stood in its way."""
    gpus = [int(node["status"]["allocatable"][GPU]) for node in nodes]
    return {"STRICT_PACK": max(gpus), "STRICT_SPREAD": sum(map(bool, gpus))}.get(strategy, sum(gpus))


def _sizes(chance: random.Random, room: int) -> dict[str, int]:
    """Give sizes for which there is room, mostly."""
    sizes = [(tensor, pipeline) for tensor in (1, 2, 3, 4, 8) for pipeline in (1, 2, 3, 5)]
    chance.shuffle(sizes)
    wanted = min(12, room if chance.random() < 0.8 else 2 * room)
    tensor, pipeline = next((item for item in sizes if 4 * prod(item) >= wanted >= prod(item)), sizes[0])
    return {"tensor": tensor, "pipeline": pipeline}


def _affinity(chance: random.Random, nodes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    affinity: dict[str, Any] = {}
    if chance.random() < 0.2:
        terms = [_term(chance, nodes) for _ in range(chance.choice((1, 1, 2)))]
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    if chance.random() < 0.3:
        # What a user prefers pulls against what the plan prefers.
        term = {"matchExpressions": [chance.choice(_EXPRESSIONS)]}
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [{"weight": 100, "preference": term}]
    return affinity


def _term(chance: random.Random, nodes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    node = chance.choice(nodes)["metadata"]["name"]
    match chance.choice(("labels", "labels", "labels", "labels", "both", "field", "nothing")):
        case "labels":
            return {"matchExpressions": chance.sample(_EXPRESSIONS, chance.choice((1, 1, 2)))}
        case "both":
            field = {"key": "metadata.name", "operator": "NotIn", "values": [node]}
            return {"matchExpressions": [chance.choice(_EXPRESSIONS)], "matchFields": [field]}
        case "field":
            return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        case _:
            return {}
