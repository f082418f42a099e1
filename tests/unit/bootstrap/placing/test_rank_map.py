"""The rank map as the status shows it, and what is read from Ray's tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_bootstrap.contract import EnginePlan
from vllm_bootstrap.placing.placement import order_ranks
from vllm_bootstrap.placing.preflight import BundleFacts, MachineFacts
from vllm_bootstrap.placing.rank_map import describe_ranks
from vllm_bootstrap.supervising.actor_table import describe_death, sight


def test_a_rank_has_the_gpu_that_vllm_gives_it_not_the_one_that_ray_gave_its_bundle(
    make_plan: Callable[..., EnginePlan],
):
    plan = make_plan(tensor=2, pipeline=2)
    node_of = {0: "w", 1: "l", 2: "l", 3: "w"}
    gpu_of = {0: 1, 1: 5, 2: 3, 3: 0}
    machine = MachineFacts(gpu_uuids={gpu: f"GPU-{gpu}" for gpu in range(8)})
    found = [
        BundleFacts(
            bundle=bundle,
            ray_node=node,
            address=node,
            gpu=gpu_of[bundle],
            pod=f"pod-{node}",
            node=f"node-{node}",
            machine=machine if node == "l" else None,
        )
        for bundle, node in node_of.items()
    ]
    ranks = describe_ranks(plan, order_ranks(node_of, lead="l", tensor=2, pipeline=2), found)
    assert [(r.rank, r.bundle, r.pod, r.node, r.gpu_index, r.gpu_uuid) for r in ranks] == [
        (0, 1, "pod-l", "node-l", 3, "GPU-3"),
        (1, 2, "pod-l", "node-l", 5, "GPU-5"),
        (2, 0, "pod-w", "node-w", 0, ""),
        (3, 3, "pod-w", "node-w", 1, ""),
    ]
    assert [r.actor for r in ranks] == [
        f"vllm_Worker_demo-12345678-engine-0-1_TP{tp}_PP{pp}" for pp in range(2) for tp in range(2)
    ]
    assert [r.driver for r in ranks] == [True, False, True, False]
    assert [r.output for r in ranks] == [False, False, True, False]
    assert {r.state for r in ranks} == {"PENDING"}


def row(state: str, cause: Mapping[str, Any] | None = None) -> SimpleNamespace:
    return SimpleNamespace(state=state, actor_id="a", pid=7, death_cause=cause, class_name="RayWorkerProc")


@pytest.mark.parametrize(
    ("words", "own"),
    [
        ("The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR", True),
        ("The actor died because its node has died. Node Id: 01", True),
        ("Task was killed due to the node running low on memory.", True),
        ("The actor is dead because it was killed by `ray.kill`.", False),
        ("The actor is dead because its owner has died. Owner Id: 1d", False),
        ("The actor is dead because all references to the actor were removed", False),
    ],
)
def test_who_died_by_itself(words: str, own: bool):
    seen = sight(row("DEAD", {"actor_died_error_context": {"error_message": words, "name": "x"}}))
    assert seen.cause == words
    assert seen.own is own


def test_rays_advice_is_no_cause():
    words = "Its worker process has died. End of file. Some common causes include: (1) the OOM killer"
    assert describe_death({"c": {"error_message": words}}) == "Its worker process has died. End of file."


def test_an_actor_that_never_lived_and_the_last_line_of_its_traceback():
    words = (
        "Could not create the actor because its associated runtime env failed to be created.\n"
        "Traceback (most recent call last):\n  File x\n    y\nRuntimeEnvSetupError: nsight is not installed\n\n"
    )
    seen = sight(row("DEAD", {"runtime_env_failed_context": {"error_message": words}}))
    assert seen.unborn
    assert seen.own
    assert seen.cause == (
        "Could not create the actor because its associated runtime env failed to be created. "
        "RuntimeEnvSetupError: nsight is not installed"
    )


def test_the_living_have_no_cause():
    assert sight(row("ALIVE", None)).cause == ""
    assert describe_death(None) == ""
    assert describe_death({"context": {"other": 1}}) == "{'context': {'other': 1}}"
