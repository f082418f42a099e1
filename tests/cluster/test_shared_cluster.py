"""Several deployments on one RayCluster that the user made: eight GPUs in one Ray pod, taken and given back one by one.

Three more pods of one GPU each are there, which do not matter until two data parallel ranks go there.

The tests run in the order in which they stand: three models, a fourth that has no place, one that goes and one that
comes while the others serve, and one whose deployment is gone while nobody was there to give its GPUs back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.checker.ranks import Evidence, disagreements, gather
from tests.product.ask import complete, service_url
from tests.product.deployment import RESOURCE, Deployment, applying
from tests.product.install import NAMESPACE as OPERATOR_NAMESPACE
from tests.product.install import RELEASE
from tests.product.manifests import dummy
from tests.product.shared_cluster import AUTH, RayPool, manifests
from tests.product.stream import Stream, streaming
from tests.testbed.bed import Bed

pytestmark = [pytest.mark.cluster, pytest.mark.engine, pytest.mark.usefixtures("operator")]

POOL = "pool"
SIZES = {"first": 2, "second": 2, "third": 4}
GPUS = 8
REFERENCE = {"name": POOL, "authSecret": {"name": AUTH}}


def tenant(name: str, tensor: int, **spec: Any) -> dict[str, Any]:
    """Give a small model on the shared cluster."""
    manifest = dummy(name, "dummy-tp", tensor=tensor)
    for pods in ("pod", "rayHead"):
        del manifest["spec"][pods]
    variables = [{"name": "VLLM_CPU_RAY_RANK_DUMP", "value": files(name)}]
    manifest["spec"] |= {"rayClusterRef": REFERENCE, "env": variables, "drain": {"timeoutSeconds": 120}, **spec}
    return manifest


def files(name: str) -> str:
    """Give the folder in which the ranks of a deployment say what they are."""
    return f"/tmp/ranks-{name}"  # noqa: S108 - inside the pods


@pytest.fixture(scope="module")
def pool(bed: Bed, namespace: str) -> Iterator[RayPool]:
    """Give a RayCluster of four nodes with GPUs, eight of them in one pod."""
    bed.api.apply(*manifests(bed, POOL, {GPUS: 1, 1: 3}), namespace=namespace)
    found = RayPool(bed=bed, namespace=namespace, name=POOL)
    bed.wait_for("pods of the shared RayCluster", lambda: len(found.pods) == 5)
    for pod in found.pods:
        bed.kubectl("wait", "--for=condition=Ready", "pod", pod["metadata"]["name"], "-n", namespace, "--timeout=120s")
    yield found
    bed.kubectl("delete", "raycluster", POOL, "-n", namespace, "--wait=false")


@pytest.fixture(scope="module")
def apply(bed: Bed, pool: RayPool) -> Iterator[Callable[[dict[str, Any]], Deployment]]:
    """Apply a deployment; delete it at the end."""
    with applying(bed, pool.namespace) as apply:
        yield apply


@pytest.fixture(scope="module")
def served(apply: Callable[[dict[str, Any]], Deployment]) -> dict[str, Deployment]:
    """Give three models of 2, 2 and 4 GPUs, made at the same time."""
    found = {name: apply(tenant(name, size)) for name, size in SIZES.items()}
    for deployment in found.values():
        deployment.await_ready()
    return found


def look(pool: RayPool, name: str) -> Evidence:
    return gather(pool.bed, pool.namespace, pool.name, files=files(name))


def groups(pool: RayPool) -> dict[str, str]:
    """Give Ray's placement groups that are not removed, by id."""
    tables = look(pool, "none").tables
    return {item["placement_group_id"]: item["name"] for item in tables["groups"] if item["state"] != "REMOVED"}


def test_a_cluster_that_is_not_there_and_a_wrong_token_are_said(
    apply: Callable[[dict[str, Any]], Deployment], bed: Bed, pool: RayPool
) -> None:
    missing = apply(tenant("lost", 1, rayClusterRef={"name": "nowhere"}))
    missing.await_condition("Stalled", "True", reason="RayClusterNotFound", text="nowhere")
    wrong = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "wrong"}, "stringData": {"auth_token": "no"}}
    bed.api.apply(wrong, namespace=pool.namespace)
    refused = apply(tenant("stranger", 1, rayClusterRef={"name": POOL, "authSecret": {"name": "wrong"}}))
    refused.await_condition("Stalled", "True", reason="RayTokenRefused", text="authSecret")
    for deployment in (missing, refused):
        assert deployment.engines == []
        deployment.delete()
    assert groups(pool) == {}


def test_every_entry_of_the_rank_maps_is_true_and_no_gpu_is_had_twice(
    served: dict[str, Deployment], bed: Bed, pool: RayPool
) -> None:
    seats: list[tuple[str, int]] = []
    ports: list[int] = []
    for name, deployment in served.items():
        (engine,) = deployment.engines
        assert engine["rayCluster"] == POOL
        assert disagreements(engine, look(pool, name), tensor=SIZES[name], pipeline=1) == []
        seats += [(rank["pod"], rank["gpuIndex"]) for rank in engine["ranks"]]
        ports += engine["ports"].values()
        assert isinstance(complete(service_url(bed, pool.namespace, name), name, "Hello"), str)
    (pod,) = pool.workers(GPUS)
    assert sorted(seats) == [(pod, index) for index in range(GPUS)]
    assert len(set(ports)) == 2 * len(served)
    assert len(groups(pool)) == len(served)


def test_a_plan_that_overlaps_is_refused_with_the_names_of_the_others(
    served: dict[str, Deployment], apply: Callable[[dict[str, Any]], Deployment], pool: RayPool
) -> None:
    late = apply(tenant("late", 2, placement={"strategy": "STRICT_PACK"}))
    told = late.await_condition("Reconciling", "True", reason="WaitingForGPUs")["message"]
    for name, size in SIZES.items():
        assert f"{pool.namespace}/{name} engine-0: {size}" in told
    assert f"{pool.workers(GPUS)[0]} 8 of 8" in told
    assert late.engines == []
    late.delete()
    assert all(deployment.condition("Ready")["status"] == "True" for deployment in served.values())


@pytest.mark.extended
def test_two_data_parallel_ranks_beside_them_and_nodes_that_do_not_matter(
    served: dict[str, Deployment], apply: Callable[[dict[str, Any]], Deployment], bed: Bed, pool: RayPool
) -> None:
    wide = apply(tenant("wide", 1, parallelism={"tensor": 1, "data": 2}))
    wide.await_ready()
    (engine,) = wide.engines
    evidence = gather(bed, pool.namespace, POOL, world=1, files=files("wide"))
    assert disagreements(engine, evidence, tensor=1, pipeline=1, data=2, core="EngineCoreActor") == []
    pods = {rank["pod"] for rank in engine["ranks"]}
    assert len(pods) == 2
    assert pods < set(pool.workers(1))
    assert isinstance(complete(service_url(bed, pool.namespace, "wide"), "wide", "Hello"), str)
    wide.delete(wait=False)
    bed.wait_for("the end of its groups", lambda: len(groups(pool)) == len(served))


def test_one_goes_and_another_comes_and_the_rest_serves_on(
    served: dict[str, Deployment], apply: Callable[[dict[str, Any]], Deployment], bed: Bed, pool: RayPool
) -> None:
    before = groups(pool)
    hosts = {name: service_url(bed, pool.namespace, name).removeprefix("http://") for name in ("first", "second")}
    streams = [Stream(host, name) for name, host in hosts.items()]
    with streaming(streams):
        bed.kubectl("delete", RESOURCE, "third", "-n", pool.namespace, "--timeout=120s", timeout=130)
        kept = look(pool, "third").tables
        fourth = apply(tenant("fourth", 2))
        fourth.await_ready()
    assert [failure for stream in streams for failure in stream.failures] == []
    assert all(stream.answered > 5 for stream in streams)
    left = {item["placement_group_id"] for item in kept["groups"] if item["state"] != "REMOVED"}
    assert left == {group for group, name in before.items() if not name.startswith("third-")}
    alive = [actor["name"] for actor in kept["actors"] if actor["state"] == "ALIVE" and "third-" in actor["name"]]
    assert alive == []
    (engine,) = fourth.engines
    assert disagreements(engine, look(pool, "fourth"), tensor=2, pipeline=1) == []


def test_what_a_deployment_left_that_is_gone_is_collected(
    served: dict[str, Deployment], apply: Callable[[dict[str, Any]], Deployment], bed: Bed, pool: RayPool
) -> None:
    operator = ("deployment", RELEASE, "-n", OPERATOR_NAMESPACE)
    bed.kubectl("scale", *operator, "--replicas=0")
    bed.wait_for("the end of the operator", lambda: not bed.api.json("get", "pods", "-n", OPERATOR_NAMESPACE)["items"])
    try:
        bed.kubectl("delete", RESOURCE, "second", "-n", pool.namespace, "--wait=false")
        none = '{"metadata": {"finalizers": null}}'
        bed.kubectl("patch", RESOURCE, "second", "-n", pool.namespace, "--type=merge", "-p", none)
        (orphan,) = (group for group, name in groups(pool).items() if name.startswith("second-"))
    finally:
        bed.kubectl("scale", *operator, "--replicas=1")
        bed.kubectl("rollout", "status", *operator, "--timeout=120s", timeout=130)
    # It does not fit beside what was left.
    apply(tenant("fifth", 4))
    bed.wait_for("the end of the orphan", lambda: orphan not in groups(pool))
    tables = look(pool, "none").tables
    assert [
        actor["name"] for actor in tables["actors"] if actor["state"] == "ALIVE" and "second-" in actor["name"]
    ] == []
    assert served["first"].condition("Ready")["status"] == "True"
