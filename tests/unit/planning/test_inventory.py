"""What a Node object says about its GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_operator.planning.inventory import GIB, MIB, GpuNode, Taint, pod_gpus, read_node, used_gpus


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


@pytest.mark.parametrize(
    ("labels", "product", "memory"),
    [
        ({"nvidia.com/gpu.product": "NVIDIA-L40S", "nvidia.com/gpu.memory": "46068"}, "NVIDIA-L40S", 46068 * MIB),
        ({"amd.com/gpu.product-name": "MI300X", "amd.com/gpu.vram": "192G"}, "MI300X", 192 * GIB),
        ({"nvidia.com/gpu.memory": "much"}, "", 0),
        ({}, "", 0),
    ],
)
def test_product_and_memory_are_what_the_feature_discovery_says(
    labels: dict[str, str], product: str, memory: int
) -> None:
    body = node()
    body["metadata"]["labels"] = labels
    found = read_node(body)
    assert (found.product, found.memory) == (product, memory)
    assert list(found.product_selector.values()) == ([product] if product else [])


def test_taints_are_read() -> None:
    body = node(
        spec={"taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}, {"key": "c", "effect": "NoExecute"}]}
    )
    assert read_node(body).taints == (Taint(key="a", value="b"), Taint(key="c", effect="NoExecute"))
    assert [str(taint) for taint in read_node(body).taints] == ["a=b:NoSchedule", "c:NoExecute"]


def container(gpus: int, kind: str = "limits") -> dict[str, Any]:
    return {"resources": {kind: {"nvidia.com/gpu": str(gpus)}}}


def test_a_pod_holds_what_its_containers_ask_for() -> None:
    assert pod_gpus({"containers": [container(2), container(1, "requests"), {}]}) == 3
    assert pod_gpus({"containers": [container(1)], "initContainers": [container(4)]}) == 4
    assert pod_gpus({}) == 0


def test_used_gpus_are_those_of_pods_that_have_a_node_and_have_not_ended() -> None:
    def pod(uid: str, node_name: str | None, phase: str) -> dict[str, Any]:
        spec = {"containers": [container(2)]} | ({"nodeName": node_name} if node_name else {})
        return {"metadata": {"uid": uid}, "spec": spec, "status": {"phase": phase}}

    pods = [
        pod("1", "a", "Running"),
        pod("2", "a", "Pending"),
        pod("3", "a", "Succeeded"),
        pod("4", "b", "Failed"),
        pod("5", None, "Pending"),
        pod("6", "b", "Running"),
    ]
    assert used_gpus(pods) == {"a": 4, "b": 2}
    assert used_gpus(pods, but=frozenset({"6"})) == {"a": 4}
