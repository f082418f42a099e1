"""Tensor and pipeline parallel in every placement strategy, each as a real engine, checked entry by entry.

The models differ in kind (grouped heads, experts, latent attention, windows): the planner's formula for memory is held
against each of them, too.

Tensor parallel alone over two pods is in ``test_profiling``.  One engine at a time: the fixture brings a shape up, all
tests of it run, and it goes before the next one comes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.checker.ranks import disagreements, gather
from tests.product.ask import complete, service_url
from tests.product.deployment import Deployment
from tests.product.install import Installation, dummy_models
from tests.product.manifests import dummy
from tests.product.memory import plan_memory, read_memory
from tests.testbed.bed import Bed

pytestmark = [pytest.mark.cluster, pytest.mark.engine]

STEP_TOKENS = 128


@dataclass(frozen=True)
class Shape:
    """A shape and what a user expects of it.

    Attributes
    ----------
    pods
        GPUs of each GPU pod, the lead first.
    nodes
        Kubernetes nodes that must be used; 0 where the strategy only prefers.
    length
        Tokens of the longest request.
    """

    name: str
    model: str
    tensor: int
    pipeline: int
    pods: tuple[int, ...]
    strategy: str = "PACK"
    gpus_per_pod: int | None = None
    nodes: int = 0
    length: int = 256
    arguments: tuple[str, ...] = ()


SHAPES = [
    Shape("tensor-2-pipeline-2", "dummy-tp-pp", 2, 2, (1, 1, 1, 1), gpus_per_pod=1),
    Shape(
        "strict-spread-2",
        "dummy-mla",
        2,
        1,
        (1, 1),
        strategy="STRICT_SPREAD",
        nodes=2,
        arguments=("--attention-backend=CPU_MLA",),
    ),
]
FURTHER_SHAPES = [
    Shape("pack-6-over-4-and-2", "dummy-pp6", 1, 6, (4, 2), nodes=2),
    Shape("strict-pack-2", "dummy-moe", 2, 1, (2,), strategy="STRICT_PACK", nodes=1),
    Shape(
        "spread-3",
        "dummy-window",
        1,
        3,
        (1, 1, 1),
        strategy="SPREAD",
        nodes=2,
        # Blocks that are small beside the window, and steps that are small beside a request.
        length=1024,
        arguments=("--block-size=32", f"--max-num-batched-tokens={STEP_TOKENS}", "--max-num-seqs=64"),
    ),
]


@pytest.fixture(
    scope="module",
    params=[*SHAPES, *(pytest.param(shape, marks=pytest.mark.extended) for shape in FURTHER_SHAPES)],
    ids=lambda shape: shape.name,
)
def case(
    request: pytest.FixtureRequest, operator: Installation, bed: Bed, namespace: str
) -> Iterator[tuple[Shape, Deployment]]:
    """Give a shape, serving."""
    shape: Shape = request.param
    manifest = dummy(
        shape.name,
        shape.model,
        tensor=shape.tensor,
        pipeline=shape.pipeline,
        strategy=shape.strategy,
        gpus_per_pod=shape.gpus_per_pod,
        arguments=shape.arguments,
    )
    manifest["spec"]["vllmConfig"]["maxModelLen"] = shape.length
    bed.api.apply(manifest, namespace=namespace)
    deployment = Deployment(bed, namespace, shape.name)
    try:
        deployment.await_ready()
        yield shape, deployment
    finally:
        # Also when it did not come up: the next shape needs its GPUs.
        deployment.delete()


def test_pods_are_as_the_strategy_says(case: tuple[Shape, Deployment], bed: Bed) -> None:
    shape, deployment = case
    (engine,) = deployment.engines
    pods = Counter(rank["pod"] for rank in engine["ranks"])
    assert tuple(sorted(pods.values(), reverse=True)) == shape.pods
    assert pods[engine["pod"]] == shape.pods[0], "the lead pod is the largest"
    nodes = {rank["node"] for rank in engine["ranks"]}
    if shape.nodes:
        assert len(nodes) == shape.nodes
    (group,) = engine["placementGroups"]
    assert (group["strategy"], group["state"]) == (shape.strategy, "CREATED")


def test_every_entry_of_the_rank_map_is_true(case: tuple[Shape, Deployment], bed: Bed) -> None:
    shape, deployment = case
    (engine,) = deployment.engines
    evidence = gather(bed, deployment.namespace, engine["rayCluster"])
    assert disagreements(engine, evidence, tensor=shape.tensor, pipeline=shape.pipeline) == []


def test_memory_is_as_the_planner_reckons(case: tuple[Shape, Deployment], bed: Bed) -> None:
    shape, deployment = case
    config = json.loads((dummy_models(bed) / shape.model / "config.json").read_text())
    planned = plan_memory(deployment.read()["spec"], config, step_tokens=STEP_TOKENS)
    reported = read_memory(bed, deployment)
    assert len(reported.weights) == shape.tensor * shape.pipeline
    assert reported.weights == {
        rank: pytest.approx(planned.weights[rank // shape.tensor], rel=0.1) for rank in reported.weights
    }
    assert reported.tokens == pytest.approx(planned.tokens, rel=0.1)


def test_the_output_rank_is_named(case: tuple[Shape, Deployment]) -> None:
    shape, deployment = case
    ranks: list[dict[str, Any]] = deployment.engines[0]["ranks"]
    assert [rank["rank"] for rank in ranks if rank["output"]] == [shape.tensor * (shape.pipeline - 1)]


def test_it_answers(case: tuple[Shape, Deployment], bed: Bed) -> None:
    _, deployment = case
    url = service_url(bed, deployment.namespace, deployment.name)
    assert complete(url, deployment.name, "Hello", tokens=4)
