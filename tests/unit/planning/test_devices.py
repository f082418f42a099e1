"""Slices, shared GPUs and GPUs of several vendors: which are taken, for what, and what the engine is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_operator.planning.candidate import Candidate, Choice
from vllm_operator.planning.catalogue import BUILT_IN
from vllm_operator.planning.choose import choose
from vllm_operator.planning.devices import Sharing, usage_of
from vllm_operator.planning.estimate import estimate
from vllm_operator.planning.facts import ModelFacts
from vllm_operator.planning.inventory import GIB, GpuNode
from vllm_operator.planning.proof import Verdict
from vllm_operator.planning.sizing import Load
from vllm_operator.planning.wish import AcceleratorWish, Wish

A100 = "NVIDIA-A100-SXM4-80GB"
SLICE, SLICE_3G = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
WHOLE = GpuNode(name="whole", gpus=8, product=A100, memory=80 * GIB)
SLICED = GpuNode(name="mig", gpus=7, product=f"{A100}-MIG-1g.10gb", memory=10 * GIB, resource=SLICE)
SLICED_3G = GpuNode(name="mig", gpus=2, product=f"{A100}-MIG-3g.40gb", memory=40 * GIB, resource=SLICE_3G)
SHARED = GpuNode(
    name="shared",
    gpus=32,
    product=f"{A100}-SHARED",
    memory=20 * GIB,
    labels={"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.product": f"{A100}-SHARED"},
)
AMD = GpuNode(name="amd", gpus=8, product="AMD_Instinct_MI300X_OAM", memory=192 * GIB, resource="amd.com/gpu")
INTEL = GpuNode(name="xe", gpus=8, product="Max_1550", memory=128 * GIB, resource="gpu.intel.com/xe")
LOAD = Load(max_model_len=4096)
SMALL, MIDDLE, LARGE = estimate(1e9), estimate(12e9), estimate(70e9)


def plan(facts: ModelFacts | None, *nodes: GpuNode, wish: Wish | None = None) -> Choice:
    return choose(wish or Wish(), facts, LOAD, nodes, BUILT_IN)


def taken(facts: ModelFacts | None, *nodes: GpuNode, wish: Wish | None = None) -> Candidate:
    best = plan(facts, *nodes, wish=wish).best
    assert best
    return best


@pytest.mark.parametrize(
    ("facts", "nodes", "resource", "node"),
    [
        # A slice is isolated, and cheaper than the whole.
        (SMALL, (WHOLE, SLICED, SLICED_3G), SLICE, "mig"),
        (MIDDLE, (WHOLE, SLICED, SLICED_3G), SLICE_3G, "mig"),
        (LARGE, (WHOLE, SLICED, SLICED_3G), "nvidia.com/gpu", "whole"),
        # A shared GPU is not isolated: only where there is nothing else.
        (SMALL, (WHOLE, SHARED), "nvidia.com/gpu", "whole"),
        (SMALL, (SHARED,), "nvidia.com/gpu", "shared"),
        (SMALL, (SHARED, SLICED), SLICE, "mig"),
        # An image is made for GPUs of one vendor.
        (LARGE, (AMD, WHOLE), "nvidia.com/gpu", "whole"),
        (LARGE, (AMD,), "amd.com/gpu", "amd"),
        (LARGE, (AMD, INTEL), "amd.com/gpu", "amd"),
        (LARGE, (INTEL,), "gpu.intel.com/xe", "xe"),
    ],
)
def test_which_gpus_are_taken(facts: ModelFacts, nodes: tuple[GpuNode, ...], resource: str, node: str) -> None:
    best = taken(facts, *nodes)
    assert (best.resource, set(best.seats), best.verdict) == (resource, {node}, Verdict.FITS)


@pytest.mark.parametrize(
    ("wished", "resources"),
    [
        (("*",), ["nvidia.com/gpu"]),
        (("*MI300X*",), ["amd.com/gpu"]),
        (("*MI300X*", "*A100*"), ["amd.com/gpu", "nvidia.com/gpu"]),
    ],
)
def test_a_vendor_is_named_by_a_product(wished: tuple[str, ...], resources: list[str]) -> None:
    wish = Wish(tensor=2, pipeline=1, accelerators=tuple(AcceleratorWish(product=item) for item in wished))
    assert [item.resource for item in plan(LARGE, AMD, WHOLE, wish=wish).candidates] == resources


def test_a_user_who_names_the_shared_gpus_gets_them() -> None:
    wish = Wish(accelerators=(AcceleratorWish(product="*SHARED"), AcceleratorWish()))
    assert taken(SMALL, WHOLE, SHARED, wish=wish).product == f"{A100}-SHARED"


@pytest.mark.parametrize("wish", [Wish(tensor=2), Wish(pipeline=2), Wish(tensor=2, pipeline=2)])
@pytest.mark.parametrize("facts", [None, SMALL])
@pytest.mark.parametrize(("node", "words"), [(SLICED, "slices (MIG) of GPUs"), (SHARED, "shared GPUs (time-slicing)")])
def test_parts_of_gpus_do_not_work_together(wish: Wish, facts: ModelFacts | None, node: GpuNode, words: str) -> None:
    found = plan(facts, node, wish=wish)
    assert found.verdict is Verdict.NEVER
    assert f"ranks cannot work together on {words}: NCCL takes each GPU once; use whole GPUs" in found.reason
    assert taken(facts, node, WHOLE, wish=wish).seats[0] == "whole"


def test_the_reason_of_whole_gpus_comes_first() -> None:
    found = plan(None, SLICED, WHOLE, wish=Wish(tensor=16))
    assert "the largest node, whole, has 8" in plan(None, WHOLE, wish=Wish(tensor=16, gpus_per_pod=16)).reason
    assert "slices" not in found.reason


def test_memory_is_that_of_the_slice_or_share() -> None:
    assert plan(MIDDLE, SLICED).verdict is Verdict.NEVER
    assert plan(LARGE, SHARED).verdict is Verdict.NEVER
    explicit = Wish(tensor=1, pipeline=1)
    assert "are more than a GPU has (10 GiB)" in plan(MIDDLE, SLICED, wish=explicit).reason
    # Shared by nobody knows how many: nothing is promised.
    unknown = GpuNode(name="s", gpus=8, product=f"{A100}-SHARED")
    assert "is not known" in taken(LARGE, unknown, wish=explicit).warning


@pytest.mark.parametrize(
    ("sharing", "asked", "usage", "words"),
    [
        (Sharing.NONE, None, (0.92, None), ""),
        (Sharing.NONE, 0.5, (0.5, None), ""),
        (Sharing.MIG, 0.5, (0.5, None), ""),
        (Sharing.TIME_SLICING, None, (0.92, 0.23), "vLLM is told to take 0.23 of it"),
        (Sharing.TIME_SLICING, 0.2, (0.8, None), "memory is not isolated between the 4 pods"),
        (Sharing.TIME_SLICING, 0.9, (1.0, None), "gpuMemoryUtilization 0.9 leaves too little, use 0.225"),
        (Sharing.MPS, None, (0.92, None), "set gpuMemoryUtilization to 0.23 if vLLM sees the whole"),
    ],
)
def test_what_vllm_takes_of_a_gpu(
    sharing: Sharing, asked: float | None, usage: tuple[float, float | None], words: str
) -> None:
    found = usage_of(sharing, 4 if not sharing.is_isolated else 1, asked=asked, usual=asked or 0.92)
    assert (found.utilization, found.told) == usage
    assert words in found.warning
    assert bool(found.warning) == bool(words)


@given(replicas=st.integers(2, 64), usual=st.floats(0.1, 1.0))
def test_pods_of_a_time_sliced_gpu_never_take_more_than_it_has(replicas: int, usual: float) -> None:
    told = usage_of(Sharing.TIME_SLICING, replicas, asked=None, usual=usual).told
    assert told is not None
    assert told * replicas <= usual
