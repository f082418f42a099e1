"""Tensor and pipeline parallel in every placement strategy, each as a real engine, checked entry by entry.

Tensor parallel alone over two pods is in ``test_profiling``.  One engine at a time: the fixture brings a shape up, all
tests of it run, and it goes before the next one comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.checker.ranks import disagreements, gather
from tests.product.ask import complete, service_url
from tests.product.deployment import Deployment
from tests.product.install import Installation
from tests.product.manifests import dummy
from tests.testbed.bed import Bed

pytestmark = [pytest.mark.cluster, pytest.mark.engine]


@dataclass(frozen=True)
class Shape:
    """A shape and what a user expects of it.

    Attributes
    ----------
    pods
        GPUs of each GPU pod, the lead first.
    nodes
        Kubernetes nodes that must be used; 0 where the strategy only prefers.
    """

    name: str
    model: str
    tensor: int
    pipeline: int
    pods: tuple[int, ...]
    strategy: str = "PACK"
    gpus_per_pod: int | None = None
    nodes: int = 0
    arguments: tuple[str, ...] = ()


SHAPES = [
    Shape("tensor-2-pipeline-2", "dummy-tp-pp", 2, 2, (1, 1, 1, 1), gpus_per_pod=1),
    Shape("pack-6-over-4-and-2", "dummy-pp6", 1, 6, (4, 2), nodes=2),
    Shape("strict-pack-2", "dummy-tp", 2, 1, (2,), strategy="STRICT_PACK", nodes=1),
    Shape("strict-spread-2", "dummy-tp", 2, 1, (1, 1), strategy="STRICT_SPREAD", nodes=2),
    Shape("spread-3", "dummy-pp6", 1, 3, (1, 1, 1), strategy="SPREAD", nodes=2),
]


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: shape.name)
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
    bed.api.apply(manifest, namespace=namespace)
    deployment = Deployment(bed, namespace, shape.name)
    try:
        deployment.await_ready(deadline=300)
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


def test_the_output_rank_is_named(case: tuple[Shape, Deployment]) -> None:
    shape, deployment = case
    ranks: list[dict[str, Any]] = deployment.engines[0]["ranks"]
    assert [rank["rank"] for rank in ranks if rank["output"]] == [shape.tensor * (shape.pipeline - 1)]


def test_it_answers(case: tuple[Shape, Deployment], bed: Bed) -> None:
    _, deployment = case
    url = service_url(bed, deployment.namespace, deployment.name)
    assert complete(url, deployment.name, "Hello", tokens=4)
