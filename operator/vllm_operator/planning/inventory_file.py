"""Nodes out of a file: as kubectl prints them, or in a short form that people write by hand.

The short form has a list ``nodes`` of ``{name, product, memoryGiB, gpus, used, resource, labels, taints,
unschedulable, hostCpu, hostMemoryGiB}``; a name like ``h100-[0-11]`` stands for as many nodes, and a node with GPUs
under several resource names has an entry for each.  ``memoryGiB`` is what a pod gets with one GPU; ``hostCpu`` and
``hostMemoryGiB`` are what a node has for pods beside, and limit nothing where they are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from vllm_operator.planning.devices import GPU_RESOURCE, is_gpu
from vllm_operator.planning.inventory import GIB, GpuNode, Taint, hold_rooms, read_nodes, used_gpus
from vllm_operator.planning.quantity import CPU, MEMORY
from vllm_operator.planning.quota import NamespaceRules, read_rules
from vllm_operator.planning.requests import Room, held_amounts

MAX_NODES = 10_000
_HOST_FIELDS = {"hostCpu": (CPU, 1000), "hostMemoryGiB": (MEMORY, GIB)}
_FIELDS = {
    "name",
    "product",
    "memoryGiB",
    "gpus",
    "used",
    "resource",
    "labels",
    "taints",
    "unschedulable",
    *_HOST_FIELDS,
}


class InventoryError(ValueError):
    """The file does not describe nodes; the message says what is wrong, and where."""


def parse_inventory(text: str) -> tuple[GpuNode, ...]:
    """Read YAML or JSON; see :func:`read_inventory`.

    Raises
    ------
    InventoryError
        It is neither, or describes no nodes.
    """
    return read_inventory(_parsed(text))


def parse_rules(text: str, namespace: str) -> NamespaceRules:
    """Read the quotas and limits of a namespace, where the file is a Kubernetes ``List`` that holds them.

    Raises
    ------
    InventoryError
        It is neither YAML nor JSON.
    """
    data = _parsed(text)
    items = data.get("items") if isinstance(data, Mapping) else None
    objects = [item for item in (items if isinstance(items, list) else ()) if isinstance(item, Mapping)]
    return read_rules(item for item in objects if _namespace(item) == namespace)


def _parsed(text: str) -> object:
    # YAML takes the bracket of an unquoted range for a list.
    quoted = re.sub(r"(\bname:\s*)([\w.-]*\[\d+-\d+\][\w.-]*)", r'\1"\2"', text)
    try:
        return yaml.safe_load(quoted)
    except yaml.YAMLError as error:
        raise InventoryError(f"no YAML: {' '.join(str(error).split())}") from error


def _namespace(body: Mapping[str, Any]) -> str:
    meta = body.get("metadata")
    return str((meta if isinstance(meta, Mapping) else {}).get("namespace") or "default")


def read_inventory(data: object) -> tuple[GpuNode, ...]:
    """Read the content of a file.

    Parameters
    ----------
    data
        YAML or JSON, parsed: a Kubernetes ``List`` of nodes (with their pods, if what is used is to count, and with
        ResourceQuotas and LimitRanges, which :func:`parse_rules` reads), or the short form.

    Raises
    ------
    InventoryError
        It is neither.
    """
    if not isinstance(data, Mapping):
        raise InventoryError("a mapping with the key nodes, or a List of Node objects, is expected")
    if isinstance(data.get("items"), list):
        return _from_objects(data["items"])
    if not isinstance(data.get("nodes"), list):
        raise InventoryError("there is neither a list nodes nor a list items")
    nodes = tuple(node for index, entry in enumerate(data["nodes"]) for node in _from_short(entry, f"nodes[{index}]"))
    counted = Counter((node.name, node.resource) for node in nodes)
    if repeated := sorted({name for (name, _), times in counted.items() if times > 1}):
        raise InventoryError(f"a node is named twice: {', '.join(repeated[:4])}")
    return nodes


def _from_objects(items: list[Any]) -> tuple[GpuNode, ...]:
    for index, item in enumerate(items):
        if not isinstance(item, Mapping) or not isinstance(item.get("metadata"), Mapping):
            raise InventoryError(f"items[{index}] is no Kubernetes object")
    pods = [item for item in items if item.get("kind") == "Pod"]
    nodes = read_nodes((item for item in items if item.get("kind") == "Node"), used_gpus(pods))
    return hold_rooms(nodes, held_amounts(pods))


def _from_short(entry: object, where: str) -> Iterator[GpuNode]:
    if not isinstance(entry, Mapping):
        raise InventoryError(f"{where} is no mapping")
    if unknown := sorted(set(entry) - _FIELDS):
        raise InventoryError(f"{where}: unknown {', '.join(map(str, unknown))}; known are {', '.join(sorted(_FIELDS))}")
    gpus, used = _number(entry, "gpus", where), _number(entry, "used", where)
    if used > gpus:
        raise InventoryError(f"{where}: {used} GPUs are used of {gpus}")
    labels, taints = entry.get("labels") or {}, entry.get("taints") or []
    if not isinstance(labels, Mapping) or not isinstance(taints, list):
        raise InventoryError(f"{where}: labels is a mapping, taints a list")
    resource = entry.get("resource") or GPU_RESOURCE
    if not is_gpu(str(resource)):
        raise InventoryError(
            f"{where}: {resource} is no GPU resource that is known, as {GPU_RESOURCE} or amd.com/gpu is"
        )
    for name in _names(entry.get("name"), where):
        yield GpuNode(
            name=name,
            gpus=int(gpus),
            used=int(used),
            product=str(entry.get("product") or ""),
            memory=round(_number(entry, "memoryGiB", where) * GIB),
            labels={str(key): str(value) for key, value in labels.items()},
            taints=tuple(_taint(item, where) for item in taints),
            schedulable=not entry.get("unschedulable", False),
            resource=str(resource),
            room=_room(entry, where),
        )


def _room(entry: Mapping[str, Any], where: str) -> Room | None:
    there = {
        name: round(_number(entry, key, where) * unit) for key, (name, unit) in _HOST_FIELDS.items() if key in entry
    }
    return Room(allocatable=there, complete=False) if there else None


def _names(name: object, where: str) -> Iterator[str]:
    if not isinstance(name, str) or not name:
        raise InventoryError(f"{where} has no name")
    span = re.fullmatch(r"(.*)\[(\d+)-(\d+)\](.*)", name)
    if not span:
        yield name
        return
    first, last = int(span[2]), int(span[3])
    if not 0 <= last - first < MAX_NODES:
        raise InventoryError(f"{where}: {name} stands for {last - first + 1} nodes, 1 to {MAX_NODES} are possible")
    for number in range(first, last + 1):
        yield f"{span[1]}{number}{span[4]}"


def _number(entry: Mapping[str, Any], key: str, where: str) -> float:
    value = entry.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise InventoryError(f"{where}: {key} is no number of at least 0, but {value!r}")
    return value


def _taint(item: object, where: str) -> Taint:
    if not isinstance(item, Mapping) or not item.get("key"):
        raise InventoryError(f"{where}: a taint needs a key")
    return Taint(
        key=str(item["key"]), value=str(item.get("value") or ""), effect=str(item.get("effect") or "NoSchedule")
    )
