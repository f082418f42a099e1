"""Nodes out of a file, and what is wrong with one that describes none."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_operator.planning.inventory import GIB, Taint
from vllm_operator.planning.inventory_file import InventoryError, parse_inventory, read_inventory

INVENTORIES = Path(__file__).parent / "data" / "inventories"


def load(name: str) -> Any:
    return parse_inventory((INVENTORIES / f"{name}.yaml").read_text())


def test_short_form() -> None:
    nodes = load("h100-pods")
    assert len(nodes) == 16
    assert [node.name for node in nodes[:2]] == ["h100-0", "h100-1"]
    assert (nodes[0].gpus, nodes[0].memory, nodes[0].zone) == (8, 80 * GIB, "z1")
    assert nodes[12].free == 2
    assert not nodes[13].schedulable
    assert nodes[14].taints == (Taint(key="cloud.google.com/gke-spot", value="true"),)


def test_what_kubectl_prints() -> None:
    node = {
        "kind": "Node",
        "metadata": {"name": "a", "labels": {"nvidia.com/gpu.product": "X", "nvidia.com/gpu.memory": "81559"}},
        "spec": {"taints": [{"key": "k", "effect": "NoExecute"}]},
        "status": {"allocatable": {"nvidia.com/gpu": "8"}},
    }
    container = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    pods = [
        {
            "kind": "Pod",
            "metadata": {"name": phase},
            "spec": {"nodeName": "a", "containers": [container]},
            "status": {"phase": phase},
        }
        for phase in ("Running", "Pending", "Succeeded", "Failed")
    ]
    (found,) = read_inventory({"kind": "List", "items": [node, *pods]})
    assert (found.product, found.memory, found.gpus, found.used) == ("X", 81559 * 2**20, 8, 4)
    assert str(found.taints[0]) == "k:NoExecute"


def test_a_node_may_offer_several_resources() -> None:
    entries = [{"name": "a", "gpus": 4}, {"name": "a", "gpus": 7, "resource": "nvidia.com/mig-1g.10gb"}]
    assert [(node.name, node.resource) for node in read_inventory({"nodes": entries})] == [
        ("a", "nvidia.com/gpu"),
        ("a", "nvidia.com/mig-1g.10gb"),
    ]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "a mapping"),
        ([], "a mapping"),
        ({}, "neither a list nodes nor"),
        ({"nodes": {}}, "neither a list nodes nor"),
        ({"nodes": ["a"]}, r"nodes\[0\] is no mapping"),
        ({"nodes": [{"gpus": 1}]}, r"nodes\[0\] has no name"),
        ({"nodes": [{"name": "a", "gpu": 1}]}, "unknown gpu; known are"),
        ({"nodes": [{"name": "a", "gpus": "8"}]}, "gpus is no number"),
        ({"nodes": [{"name": "a", "gpus": -1}]}, "gpus is no number"),
        ({"nodes": [{"name": "a", "gpus": 1, "used": 2}]}, "2 GPUs are used of 1"),
        ({"nodes": [{"name": "a", "gpus": 1}, {"name": "a", "gpus": 1}]}, "named twice: a"),
        ({"nodes": [{"name": "a", "resource": "gpu"}]}, "gpu is no GPU resource that is known"),
        ({"nodes": [{"name": "a[3-1]", "gpus": 1}]}, "stands for -1 nodes"),
        ({"nodes": [{"name": "a[0-99999]", "gpus": 1}]}, "stands for 100000 nodes"),
        ({"nodes": [{"name": "a", "labels": ["x"]}]}, "labels is a mapping"),
        ({"nodes": [{"name": "a", "taints": [{}]}]}, "a taint needs a key"),
        ({"items": ["a"]}, r"items\[0\] is no Kubernetes object"),
    ],
)
def test_what_is_wrong_is_said(data: object, words: str) -> None:
    with pytest.raises(InventoryError, match=words):
        read_inventory(data)


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)
fields = st.sampled_from(
    ["name", "product", "memoryGiB", "gpus", "used", "resource", "labels", "taints", "unschedulable"]
)


@given(st.lists(st.dictionaries(fields, values, max_size=5), max_size=3))
def test_anything_is_read_or_refused(entries: list[dict[str, Any]]) -> None:
    with contextlib.suppress(InventoryError):
        read_inventory({"nodes": entries})


@given(st.text(alphabet="nodes:[]{}-, a1\n\"'"))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InventoryError):
        parse_inventory(text)


def test_what_a_node_has_beside_gpus() -> None:
    nodes = [{"name": "a", "gpus": 8, "hostCpu": 96, "hostMemoryGiB": 0.5}, {"name": "b", "gpus": 8}]
    known, unknown = read_inventory({"nodes": nodes})
    assert known.room
    left = [known.room.left(name) for name in ("cpu", "memory", "pods", "rdma/ib")]
    assert left == [96_000, GIB // 2, None, None]
    assert unknown.room is None
    pod = {"containers": [{"resources": {"requests": {"cpu": "2"}}}], "nodeName": "c"}
    objects = [
        {"kind": "Node", "metadata": {"name": "c"}, "status": {"allocatable": {"cpu": "8"}}},
        {"kind": "Pod", "metadata": {"name": "p"}, "spec": pod},
    ]
    [listed] = read_inventory({"items": objects})
    assert listed.room
    assert listed.room.left("cpu") == 6000
