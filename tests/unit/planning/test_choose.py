"""The GPUs follow from the model, the user's words are kept, and the reason names what is there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planning import models
from tests.unit.planning.test_inventory_file import load

from vllm_operator.api.placement import Strategy
from vllm_operator.planning.candidate import Choice
from vllm_operator.planning.catalogue import BUILT_IN
from vllm_operator.planning.choose import choose
from vllm_operator.planning.eligibility import PodRules
from vllm_operator.planning.estimate import estimate
from vllm_operator.planning.facts import ModelFacts, read_config
from vllm_operator.planning.inventory import GIB, GpuNode
from vllm_operator.planning.proof import Verdict
from vllm_operator.planning.sizing import Load
from vllm_operator.planning.wish import AcceleratorWish, Wish

LOAD = Load(max_model_len=8192)
A100, L40S, RTX = "NVIDIA-A100-SXM4-80GB", "NVIDIA-L40S", "NVIDIA-GeForce-RTX-3090"


def plan(wish: Wish, facts: ModelFacts | None, inventory: str, load_: Load = LOAD) -> Choice:
    return choose(wish, facts, load_, load(inventory), BUILT_IN)


@pytest.mark.parametrize(
    ("size", "product", "tensor"),
    [
        (0.1e9, RTX, 1),
        (8e9, RTX, 1),
        (14e9, RTX, 2),
        (21e9, L40S, 1),
        (32e9, A100, 1),
        (70e9, A100, 2),
        (200e9, A100, 8),
    ],
)
def test_the_gpu_follows_from_the_size_of_the_model(size: float, product: str, tensor: int) -> None:
    best = plan(Wish(), estimate(size), "mixed").best
    assert best
    assert (best.product, best.tensor * best.pipeline) == (product, tensor)
    assert best.verdict is Verdict.FITS


@pytest.mark.parametrize(
    ("wish", "verdict", "words"),
    [
        (
            Wish(pipeline=6, strategy=Strategy.STRICT_PACK),
            Verdict.NEVER,
            "STRICT_PACK of 6 GPUs cannot fit: the largest node, gpu-a, has 4",
        ),
        (Wish(pipeline=6), Verdict.FITS, "2 pods (1 x 4 GPUs + 1 x 2 GPUs) on 2 nodes"),
        (Wish(pipeline=2, strategy=Strategy.STRICT_SPREAD), Verdict.FITS, "on 2 nodes"),
        (Wish(pipeline=3, strategy=Strategy.STRICT_SPREAD), Verdict.NEVER, "3 nodes are needed, 2 have a GPU"),
    ],
)
def test_four_plus_four(wish: Wish, verdict: Verdict, words: str) -> None:
    found = plan(wish, None, "four-plus-four")
    assert found.verdict is verdict
    assert words in found.reason


def test_a_tensor_group_is_not_torn_where_pods_can_hold_it() -> None:
    nodes = [GpuNode(name=name, gpus=6, product=A100, memory=80 * GIB) for name in "ab"]
    best = choose(Wish(tensor=4, pipeline=2), None, LOAD, nodes, BUILT_IN).best
    assert best
    assert (best.sizes, best.warning) == ((4, 4), "")
    torn = choose(Wish(tensor=8), None, LOAD, nodes, BUILT_IN).best
    assert torn
    assert (torn.sizes, torn.warning) == ((6, 2), "a tensor group of 8 lies in more than one pod")


def test_smaller_pods_where_larger_ones_do_not_fit_now() -> None:
    nodes = [GpuNode(name=name, gpus=8, used=4, product=A100, memory=80 * GIB) for name in "ab"]
    best = choose(Wish(tensor=2, pipeline=4), None, LOAD, nodes, BUILT_IN).best
    assert best
    assert (best.sizes, best.verdict) == ((4, 4), Verdict.FITS)


def test_sixteen_nodes_one_cordoned_two_spot() -> None:
    assert plan(Wish(tensor=8, pipeline=12), None, "h100-pods").verdict is Verdict.FITS
    assert plan(Wish(tensor=8, pipeline=13), None, "h100-pods").verdict is Verdict.NOT_NOW
    never = plan(Wish(tensor=8, pipeline=15), None, "h100-pods")
    assert never.verdict is Verdict.NEVER
    assert "2 nodes left out: taint cloud.google.com/gke-spot=true:NoSchedule is not tolerated" in never.reason
    tolerant = PodRules(tolerations=[{"key": "cloud.google.com/gke-spot", "operator": "Exists"}])
    assert plan(Wish(tensor=8, pipeline=14, pod_rules=tolerant), None, "h100-pods").verdict is Verdict.FITS


def test_three_models_side_by_side_on_one_machine() -> None:
    (box,) = load("one-machine")
    used = 0
    for tensor in (2, 2, 4):
        node = GpuNode(name=box.name, gpus=box.gpus, used=used, product=box.product, memory=box.memory)
        assert choose(Wish(tensor=tensor), None, LOAD, [node], BUILT_IN).verdict is Verdict.FITS
        used += tensor
    full = GpuNode(name=box.name, gpus=box.gpus, used=used, product=box.product, memory=box.memory)
    found = choose(Wish(tensor=1), None, LOAD, [full], BUILT_IN)
    assert found.verdict is Verdict.NOT_NOW
    assert "held by other pods: box 8 of 8" in found.reason


def test_the_users_order_of_accelerators_is_kept() -> None:
    wish = Wish(accelerators=(AcceleratorWish(product="*A100*"), AcceleratorWish(kind="inference")))
    assert [item.product for item in plan(wish, estimate(8e9), "mixed").candidates[:1]] == [A100]
    small = Wish(accelerators=(AcceleratorWish(memory=40 * GIB),))
    assert {item.product for item in plan(small, estimate(8e9), "mixed").candidates} == {A100, L40S}
    nothing = plan(Wish(accelerators=(AcceleratorWish(product="*H100*"),)), estimate(8e9), "mixed")
    assert nothing.verdict is Verdict.NEVER
    assert nothing.reason.startswith("no node has one of the accelerators that are asked for; there are NVIDIA-A100")


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (Wish(tensor=3), "tensor 3 does not divide the 32 attention heads: use one of 1, 2, 4, 8, 16, 32"),
        (Wish(tensor=7), "tensor 7 does not divide the 32 attention heads"),
        (Wish(pipeline=33), "pipeline 33 is more than the 32 layers"),
    ],
)
def test_explicit_sizes_are_checked(wish: Wish, words: str) -> None:
    found = plan(wish, read_config(models.LLAMA_8B), "mixed")
    assert found.verdict is Verdict.NEVER
    assert words in found.reason


def test_explicit_sizes_are_never_overruled() -> None:
    found = plan(Wish(tensor=4, pipeline=2), read_config(models.LLAMA_8B), "mixed").best
    assert found
    assert (found.tensor, found.pipeline, found.product) == (4, 2, A100)
    heavy = plan(Wish(tensor=1, pipeline=1), read_config(models.LLAMA_70B), "mixed")
    assert heavy.verdict is Verdict.NEVER
    assert "the weights of a rank (131.4 GiB) are more than a GPU has" in heavy.reason


def test_a_cache_that_is_too_small_is_a_warning() -> None:
    nodes = [GpuNode(name="a", gpus=1, product=RTX, memory=24 * GIB)]
    wish = Wish(tensor=1, pipeline=1)
    found = choose(wish, read_config(models.LLAMA_8B), Load(max_model_len=131072), nodes, BUILT_IN).best
    assert found
    assert "GiB for one request of 131072 tokens, vLLM may use 22.1 GiB" in found.warning


@pytest.mark.parametrize(
    ("wish", "sizes"), [(Wish(pipeline=2), (2, 2)), (Wish(tensor=2), (2, 2)), (Wish(tensor=1), (1, 3))]
)
def test_what_is_left_out_is_chosen_so_that_it_fits(wish: Wish, sizes: tuple[int, int]) -> None:
    best = choose(wish, estimate(100e9), LOAD, load("h100-pods"), BUILT_IN).best
    assert best
    assert ((best.tensor, best.pipeline), best.warning) == (sizes, "")


def test_wanted_gpus_that_are_too_small_are_named() -> None:
    found = plan(Wish(accelerators=(AcceleratorWish(product="*3090"),)), estimate(20e12), "mixed")
    assert found.reason == (
        "no number of GPUs of a kind holds the model with one request of 8192 tokens: NVIDIA-GeForce-RTX-3090"
    )


def test_pipeline_goes_over_nodes_when_one_node_is_too_small() -> None:
    nodes = [GpuNode(name=f"n{index}", gpus=8, product=A100, memory=80 * GIB) for index in range(4)]
    best = choose(Wish(), read_config(models.DEEPSEEK_V3), LOAD, nodes, BUILT_IN).best
    assert best
    assert best.tensor == 8
    assert best.pipeline == 2
    assert best.sizes == (8, 8)


def test_a_model_that_nothing_holds() -> None:
    found = plan(Wish(), estimate(2.8e12), "mixed")
    assert found.verdict is Verdict.NEVER
    assert found.best is None


def test_no_node_at_all() -> None:
    found = choose(Wish(), None, LOAD, (), BUILT_IN)
    assert (found.verdict, found.reason) == (Verdict.NEVER, "no node has a GPU")


wishes = st.builds(
    Wish,
    tensor=st.one_of(st.none(), st.integers(1, 16)),
    pipeline=st.one_of(st.none(), st.integers(1, 16)),
    strategy=st.sampled_from(Strategy),
    gpus_per_pod=st.one_of(st.none(), st.integers(1, 8)),
)


@given(
    wish=wishes,
    size=st.one_of(st.none(), st.floats(1e8, 1e12)),
    inventory=st.sampled_from(["mixed", "four-plus-four", "one-machine", "h100-pods"]),
)
def test_every_wish_has_an_answer(wish: Wish, size: float | None, inventory: str) -> None:
    facts = estimate(size) if size else None
    found = plan(wish, facts, inventory)
    assert found.reason
    assert found == plan(wish, facts, inventory)
    free = {node.name: node.free for node in load(inventory)}
    for item in found.candidates:
        assert wish.tensor in (None, item.tensor)
        assert wish.pipeline in (None, item.pipeline)
        if item.verdict is Verdict.FITS:
            assert sum(item.sizes) == item.gpus
            for name in set(item.seats):
                held = sum(gpus for gpus, node in zip(item.sizes, item.seats, strict=True) if node == name)
                assert held <= free[name]
