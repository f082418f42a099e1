"""What a Node object says about its GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_operator.planning.inventory import GpuNode, candidates, read_node


def node(**parts: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n"}, **parts}


@pytest.mark.parametrize(
    ("body", "gpus"),
    [
        (node(status={"allocatable": {"nvidia.com/gpu": "8", "cpu": "64"}}), 8),
        (node(status={"allocatable": {"nvidia.com/gpu": 4}}), 4),
        (node(status={"allocatable": {"cpu": "4"}}), 0),
        (node(status={}), 0),
        (node(), 0),
        (node(status={"allocatable": {"nvidia.com/gpu": "many"}}), 0),
    ],
)
def test_gpus_are_the_allocatable_ones(body: dict[str, Any], gpus: int) -> None:
    assert read_node(body).gpus == gpus


def test_labels_and_cordon_are_read() -> None:
    body = node(spec={"unschedulable": True})
    body["metadata"]["labels"] = {"zone": "a"}
    assert read_node(body) == GpuNode(name="n", gpus=0, labels={"zone": "a"}, schedulable=False)
    assert read_node(node()).schedulable


def test_candidates_are_the_usable_nodes_largest_first_then_by_name() -> None:
    nodes = [
        GpuNode(name="b", gpus=4, labels={"pool": "x"}),
        GpuNode(name="cpu", gpus=0, labels={"pool": "x"}),
        GpuNode(name="cordoned", gpus=8, labels={"pool": "x"}, schedulable=False),
        GpuNode(name="elsewhere", gpus=8, labels={"pool": "y"}),
        GpuNode(name="unlabelled", gpus=8),
        GpuNode(name="big", gpus=8, labels={"pool": "x", "zone": "a"}),
        GpuNode(name="a", gpus=4, labels={"pool": "x"}),
    ]
    assert [item.name for item in candidates(nodes, {"pool": "x"})] == ["big", "a", "b"]
    assert [item.name for item in candidates(nodes, {})] == ["big", "elsewhere", "unlabelled", "a", "b"]
    assert candidates([], {}) == []
