"""What a Node object says about its GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_operator.planning.devices import Sharing, is_gpu, product_label
from vllm_operator.planning.inventory import GIB, MIB, GpuNode, Taint, pod_gpus, read_node, read_nodes, used_gpus
from vllm_operator.planning.requests import Room

WHOLE, SHARED, SLICE = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
A100 = "NVIDIA-A100-SXM4-80GB"


def node(labels: dict[str, str] | None = None, /, **parts: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n", "labels": labels or {}}, **parts}


def offering(labels: dict[str, str] | None = None, /, **allocatable: Any) -> tuple[GpuNode, ...]:
    """Read a node that offers some resources."""
    return read_node(node(labels, status={"allocatable": allocatable}))


@pytest.mark.parametrize(
    ("body", "gpus"),
    [
        (node(status={"allocatable": {"nvidia.com/gpu": "8", "cpu": "64"}}), [8]),
        (node(status={"allocatable": {"nvidia.com/gpu": 4}}), [4]),
        (node(status={"allocatable": {"nvidia.com/gpu": "0"}}), []),
        (node(status={"allocatable": {"cpu": "4"}}), []),
        (node(status={}), []),
        (node(status=None), []),
        (node(), []),
        (node(status={"allocatable": {"nvidia.com/gpu": "many"}}), []),
    ],
)
def test_gpus_are_the_allocatable_ones(body: dict[str, Any], gpus: list[int]) -> None:
    assert [pool.gpus for pool in read_node(body)] == gpus


def test_nodes_without_gpus_are_there_for_a_head() -> None:
    bare = read_nodes([node(status={"allocatable": {"cpu": "4"}}), node()])
    assert [(item.name, item.gpus, item.room and item.room.left("cpu")) for item in bare] == [
        ("n", 0, 4000),
        ("n", 0, None),
    ]


def test_labels_and_cordon_are_read() -> None:
    body = node({"zone": "a"}, spec={"unschedulable": True}, status={"allocatable": {WHOLE: "1"}})
    room = Room(allocatable={WHOLE: 1})
    assert read_node(body) == (GpuNode(name="n", gpus=1, labels={"zone": "a"}, schedulable=False, room=room),)
    assert offering(**{WHOLE: 1})[0].schedulable


def nvidia(resource: str, product: str, memory: int, **more: str) -> dict[str, str]:
    told = {f"{resource}.{key}": value for key, value in more.items()}
    return {f"{resource}.product": product, f"{resource}.memory": str(memory), **told}


MIG = f"{A100}-MIG-1g.10gb"
MPS = {"nvidia.com/gpu.sharing-strategy": "mps"}
INTEL = {"gpu.intel.com/product": "Max_1550", "gpu.intel.com/device.count": "2"}
BOTH = {"gpu.intel.com/memory.max": str(256 * GIB)}


@pytest.mark.parametrize(
    ("offered", "labels", "product", "memory", "sharing"),
    [
        ((WHOLE, 8), nvidia(WHOLE, "NVIDIA-L40S", 46068), "NVIDIA-L40S", 46068 * MIB, Sharing.NONE),
        ((WHOLE, 8), nvidia(WHOLE, "NVIDIA-L40S", 46068, replicas="1"), "NVIDIA-L40S", 46068 * MIB, Sharing.NONE),
        ((WHOLE, 8), {"nvidia.com/gpu.memory": "much"}, "", 0, Sharing.NONE),
        ((WHOLE, 8), {}, "", 0, Sharing.NONE),
        # time slicing under the same name and renamed, MPS
        ((WHOLE, 8), nvidia(WHOLE, "X-SHARED", 8000, replicas="4"), "X-SHARED", 2000 * MIB, Sharing.TIME_SLICING),
        ((SHARED, 8), nvidia(WHOLE, "X", 8000, replicas="4"), "X-SHARED", 2000 * MIB, Sharing.TIME_SLICING),
        ((SHARED, 8), nvidia(WHOLE, "X", 8000, replicas="4") | MPS, "X-SHARED", 2000 * MIB, Sharing.MPS),
        ((WHOLE, 8), nvidia(WHOLE, "X-SHARED", 8000), "X-SHARED", 0, Sharing.TIME_SLICING),
        ((SHARED, 8), {}, "", 0, Sharing.TIME_SLICING),
        # slices: the mixed strategy has its own names, the single one those of whole GPUs
        ((SLICE, 7), nvidia(SLICE, MIG, 9728), MIG, 9728 * MIB, Sharing.MIG),
        ((SLICE, 7), nvidia(WHOLE, A100, 81920), "MIG-1g.10gb", 0, Sharing.MIG),
        ((f"{SLICE}.me", 1), nvidia(f"{SLICE}.me", f"{MIG}.me", 9728), f"{MIG}.me", 9728 * MIB, Sharing.MIG),
        ((f"{SLICE}.me", 1), {}, "MIG-1g.10gb.me", 0, Sharing.MIG),
        ((WHOLE, 56), nvidia(WHOLE, MIG, 9728), MIG, 9728 * MIB, Sharing.MIG),
        ((WHOLE, 56), nvidia(WHOLE, f"{A100}-MIG-INVALID", 0), f"{A100}-MIG-INVALID", 0, Sharing.MIG),
        (
            (SLICE, 14),
            nvidia(SLICE, f"{MIG}-SHARED", 9728, replicas="2"),
            f"{MIG}-SHARED",
            4864 * MIB,
            Sharing.TIME_SLICING,
        ),
        (
            ("amd.com/gpu", 8),
            {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"},
            "AMD_Instinct_MI300X_OAM",
            192 * GIB,
            Sharing.NONE,
        ),
        (("gpu.intel.com/i915", 2), INTEL | BOTH, "Max_1550", 128 * GIB, Sharing.NONE),
        (("gpu.intel.com/xe", 2), INTEL, "Max_1550", 0, Sharing.NONE),
        (("gpu.intel.com/xe", 2), INTEL | {"gpu.intel.com/memory": str(48 * GIB)}, "Max_1550", 48 * GIB, Sharing.NONE),
        (("gpu.intel.com/i915", 8), INTEL | BOTH, "Max_1550", 32 * GIB, Sharing.TIME_SLICING),
    ],
)
def test_product_memory_and_sharing_are_what_the_feature_discovery_says(
    offered: tuple[str, int], labels: dict[str, str], product: str, memory: int, sharing: Sharing
) -> None:
    resource, gpus = offered
    (found,) = offering(labels, **{resource: gpus})
    assert (found.resource, found.gpus) == (resource, gpus)
    assert (found.product, found.memory, found.sharing) == (product, memory, sharing)
    # Pods are sent to the product by a label that the node has.
    assert found.product_selector.items() <= labels.items()
    assert len(found.product_selector) == (product_label(resource) in labels)


def test_a_node_is_seen_once_for_each_resource() -> None:
    labels = nvidia(WHOLE, A100, 81920) | nvidia(SLICE, MIG, 9728)
    body = node(labels, status={"allocatable": {WHOLE: "4", SLICE: "7", "nvidia.com/mig-3g.40gb": "0", "cpu": "8"}})
    pools = read_node(body, {"n": {WHOLE: 1, SLICE: 2}, "m": {WHOLE: 4}})
    assert [(pool.resource, pool.free, pool.memory // MIB) for pool in pools] == [(WHOLE, 3, 81920), (SLICE, 5, 9728)]
    assert pools[1].product_selector == {f"{SLICE}.product": MIG}


@pytest.mark.parametrize(
    ("resource", "known"),
    [
        (WHOLE, True),
        (SHARED, True),
        (SLICE, True),
        ("nvidia.com/mig-3g.40gb", True),
        ("nvidia.com/mig-1g.10gb.me", True),
        ("nvidia.com/mig-1c.3g.40gb.shared", True),
        ("amd.com/gpu", True),
        ("gpu.intel.com/i915", True),
        ("gpu.intel.com/xe", True),
        ("gpu.intel.com/i915_monitoring", False),
        ("nvidia.com/gpu.count", False),
        ("nvidia.com/mig-", False),
        ("xamd.com/gpu", False),
        ("cpu", False),
    ],
)
def test_names_of_gpu_resources(resource: str, known: bool) -> None:
    assert is_gpu(resource) is known


label_values = st.one_of(st.text(max_size=8), st.sampled_from(["0", "-1", "7", "1e3", "X-SHARED", MIG, "16G", "mps"]))


@given(
    resource=st.sampled_from([WHOLE, SHARED, SLICE, "amd.com/gpu", "gpu.intel.com/xe"]),
    parts=st.dictionaries(st.sampled_from(["product", "memory", "replicas", "count"]), label_values),
    others=st.dictionaries(
        st.sampled_from(["amd.com/gpu.vram", "gpu.intel.com/memory.max", "gpu.intel.com/device.count", *MPS]),
        label_values,
    ),
    gpus=st.integers(1, 64),
)
def test_any_labels_are_read(resource: str, parts: dict[str, str], others: dict[str, str], gpus: int) -> None:
    labels = {f"{resource.removesuffix('.shared')}.{key}": value for key, value in parts.items()} | others
    (found,) = offering(labels, **{resource: gpus})
    assert found.gpus == gpus
    assert found.memory >= 0
    assert found.replicas >= 0
    assert found.sharing in Sharing


def test_taints_are_read() -> None:
    taints = [{"key": "a", "value": "b", "effect": "NoSchedule"}, {"key": "c", "effect": "NoExecute"}]
    (found,) = read_node(node(spec={"taints": taints}, status={"allocatable": {WHOLE: "1"}}))
    assert found.taints == (Taint(key="a", value="b"), Taint(key="c", effect="NoExecute"))
    assert [str(taint) for taint in found.taints] == ["a=b:NoSchedule", "c:NoExecute"]


def container(gpus: int, kind: str = "limits") -> dict[str, Any]:
    return {"resources": {kind: {"nvidia.com/gpu": str(gpus)}}}


def test_a_pod_holds_what_its_containers_ask_for() -> None:
    assert pod_gpus({"containers": [container(2), container(1, "requests"), {}]}) == {WHOLE: 3}
    assert pod_gpus({"containers": [container(1)], "initContainers": [container(4)]}) == {WHOLE: 4}
    slices = {"resources": {"limits": {SLICE: "1", "amd.com/gpu": 2, "cpu": "3"}}}
    assert pod_gpus({"containers": [container(1), slices, slices]}) == {WHOLE: 1, SLICE: 2, "amd.com/gpu": 4}
    assert pod_gpus({}) == {}


def test_a_sidecar_holds_beside_the_containers_and_beside_the_init_containers_after_it() -> None:
    beside = {**container(2), "restartPolicy": "Always"}
    assert pod_gpus({"containers": [container(1)], "initContainers": [beside]}) == {WHOLE: 3}
    assert pod_gpus({"containers": [container(1)], "initContainers": [beside, container(4)]}) == {WHOLE: 6}
    assert pod_gpus({"containers": [container(1)], "initContainers": [container(4), beside]}) == {WHOLE: 4}


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
    assert used_gpus(pods) == {"a": {WHOLE: 4}, "b": {WHOLE: 2}}
    assert used_gpus(pods, but=frozenset({"6"})) == {"a": {WHOLE: 4}}
