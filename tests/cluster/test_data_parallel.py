"""Data parallel over two pods: a mixture of experts, and a dense model on tensor parallel ranks.

A dense model without them is in ``test_shared_cluster``.
Expert parallel cannot be run here: vLLM's kernel for experts on a CPU takes no map of them, and ends in a segfault.

One engine at a time: the fixture brings a shape up, all tests of it run in the order in which they stand, and it goes
before the next one comes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.checker.ranks import Evidence, disagreements, gather
from tests.product.ask import metrics, post, service_url
from tests.product.deployment import Deployment
from tests.product.install import Installation
from tests.product.manifests import dummy
from tests.testbed.bed import Bed

pytestmark = [pytest.mark.cluster, pytest.mark.engine]

SECRETS = {"HF_TOKEN": "hf_secret-of-the-hub", "LICENCE_KEY": "s3cret-licence"}
KEYS = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "dp-keys"}, "stringData": SECRETS}
PLAIN = {"A_PLAIN_VARIABLE": "reaches every rank", "NCCL_DEBUG": "WARN"}


@dataclass(frozen=True)
class Victim:
    """Processes that are killed, and what the failure must say.

    Attributes
    ----------
    words
        Of their command lines.
    lead
        They are in the lead pod; otherwise in the other one.
    """

    words: str
    reason: str
    message: str
    lead: bool = False


RANKS = Victim("RayWorkerProc", "RankDied", "rank {rank} on pod {pod}")
CORE = Victim("DPMoEEngineCoreActor", "RankDied", "the DPMoEEngineCoreActor of data parallel rank {rank} on pod {pod}")
COORDINATOR = Victim("DPCoordinator", "LauncherExited", "vLLM's data parallel coordinator", lead=True)


@dataclass(frozen=True)
class Shape:
    """A shape and what a user expects of it.

    Attributes
    ----------
    core
        Class of the actor that each data parallel rank must have.
    victims
        What is killed, one after the other.  An attempt costs the better part of a minute, so each is killed in one
        shape only, and the last one's next attempt is not waited for.
    """

    name: str
    model: str
    core: str
    victims: tuple[Victim, ...]
    tensor: int = 1
    data: int = 2

    @property
    def placed_groups(self) -> list[tuple[str, str]]:
        """Strategy and state of the placement groups that the status must name."""
        return [("PACK", "CREATED")] * self.data


MOE = Shape("moe", "dummy-moe", "DPMoEEngineCoreActor", (CORE, COORDINATOR))
DENSE = Shape("dense", "dummy-tp", "EngineCoreActor", (RANKS,), tensor=2)


@dataclass(frozen=True)
class Case:
    """A shape that serves."""

    shape: Shape
    deployment: Deployment
    bed: Bed

    @property
    def engine(self) -> dict[str, Any]:
        """The one engine."""
        (engine,) = self.deployment.engines
        return engine

    @property
    def url(self) -> str:
        """Address of the Service."""
        return service_url(self.bed, self.deployment.namespace, self.deployment.name)

    def evidence(self) -> Evidence:
        """What the witnesses say."""
        return gather(self.bed, self.deployment.namespace, self.engine["rayCluster"], world=self.shape.tensor)

    def disagreements(self, engine: dict[str, Any], evidence: Evidence) -> list[str]:
        """Every entry of the rank map that a witness contradicts."""
        shape = self.shape
        return disagreements(engine, evidence, tensor=shape.tensor, pipeline=1, data=shape.data, core=shape.core)

    def execute(self, pod: str, code: str) -> str:
        """Run Python in a pod."""
        return self.bed.kubectl("exec", "-i", "-n", self.deployment.namespace, pod, "--", "python", "-", stdin=code)


@pytest.fixture(
    scope="module",
    params=[MOE, pytest.param(DENSE, marks=pytest.mark.extended)],
    ids=lambda shape: shape.name,
)
def case(request: pytest.FixtureRequest, operator: Installation, bed: Bed, namespace: str) -> Iterator[Case]:
    """Give a shape, serving."""
    shape: Shape = request.param
    manifest = dummy(shape.name, shape.model, tensor=shape.tensor, gpus_per_pod=shape.tensor)
    manifest["spec"]["parallelism"]["data"] = shape.data
    manifest["spec"]["env"] = [
        *({"name": name, "value": value} for name, value in PLAIN.items()),
        *({"name": name, "valueFrom": {"secretKeyRef": {"name": "dp-keys", "key": name}}} for name in SECRETS),
    ]
    bed.api.apply(KEYS, manifest, namespace=namespace)
    deployment = Deployment(bed, namespace, shape.name)
    try:
        deployment.await_ready()
        yield Case(shape, deployment, bed)
    finally:
        # Also when it did not come up: the next shape needs its GPUs.
        deployment.delete()


def test_the_plan_says_it(case: Case) -> None:
    plan = case.deployment.status["plan"]
    shape = case.shape
    assert (plan["distributedExecutorBackend"], plan["dataParallelBackend"]) == ("ray", "ray")
    assert (plan["data"], plan["tensor"], plan["pipeline"]) == (2, shape.tensor, 1)
    assert plan["gpus"] == 2 * shape.tensor
    assert [(item["pods"], item["gpus"]) for item in plan["podShapes"]] == [(1, shape.tensor), (1, shape.tensor)]


def test_every_entry_of_the_rank_map_is_true(case: Case) -> None:
    engine = case.engine
    assert [(group["strategy"], group["state"]) for group in engine["placementGroups"]] == case.shape.placed_groups
    evidence = case.evidence()
    assert case.disagreements(engine, evidence) == []
    workers = [actor for actor in evidence.tables["actors"] if actor["class_name"] == "RayWorkerProc"]
    assert sum(actor["state"] == "ALIVE" for actor in workers) == 2 * case.shape.tensor
    groups = {group["placement_group_id"] for group in evidence.tables["groups"] if group["state"] == "CREATED"}
    assert groups == {group["id"] for group in engine["placementGroups"]}, "vLLM has made none of its own"
    assert len({rank["pod"] for rank in engine["ranks"]}) == 2


def test_every_data_parallel_rank_answers(case: Case) -> None:
    for rank in range(case.shape.data):
        before = finished(case)
        body = {"model": case.shape.name, "prompt": "Hello", "max_tokens": 2, "temperature": 0}
        answer = post(case.url, "/v1/completions", body, headers={"X-data-parallel-rank": str(rank)})
        assert answer["choices"][0]["finish_reason"] == "length"
        case.bed.wait_for(
            f"rank {rank}, and only that, to count its answer",
            lambda before=before, rank=rank: finished(case) == {**before, rank: before[rank] + 1},
            30,
        )


def finished(case: Case) -> dict[int, int]:
    """Answers by data parallel rank."""
    found = re.findall(
        r'^vllm:request_success_total\{engine="(\d+)",finished_reason="length",.*\} (\S+)$', metrics(case.url), re.M
    )
    return {int(engine): int(float(count)) for engine, count in found}


def test_variables_reach_every_rank(case: Case) -> None:
    evidence = case.evidence()
    assert sorted(evidence.processes) == list(range(2 * case.shape.tensor))
    wanted = PLAIN | SECRETS
    for process in evidence.processes.values():
        assert {name: process["environment"].get(name) for name in wanted} == wanted


TABLES = """
import json, logging, ray
from ray.util import state
ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
kinds = ("actors", "runtime_envs", "jobs", "workers", "tasks", "placement_groups")
found = {kind: getattr(state, f"list_{kind}")(detail=True, limit=10000) for kind in kinds}
print(json.dumps({kind: [str(row) for row in rows] for kind, rows in found.items()}))
"""


def test_no_secret_stands_in_rays_tables(case: Case) -> None:
    head = next(name for name in case.evidence().pods if "-head-" in name)
    tables = json.loads(case.execute(head, TABLES).splitlines()[-1])
    assert all(tables[kind] for kind in ("actors", "runtime_envs", "jobs", "workers"))
    text = json.dumps(tables)
    assert "reaches every rank" in text, "plain variables do stand there: the tables are the right ones"
    assert [name for name, value in SECRETS.items() if value in text] == []


KILL = """
import os, signal
for entry in os.listdir('/proc'):
    if entry.isdigit() and int(entry) != os.getpid():
        try:
            line = open(f'/proc/{{entry}}/cmdline').read().replace(chr(0), ' ')
        except OSError:
            continue
        if {words!r} in line:
            os.kill(int(entry), signal.SIGKILL)
            print(line[:80])
"""


def test_a_process_that_dies_is_named_and_an_attempt_follows_on_the_same_groups(case: Case) -> None:
    *victims, last = case.shape.victims
    for victim in victims:
        before = case.engine
        kill(case, victim)
        engine = case.deployment.await_engine("Serving", attempt=before["attempt"] + 1)
        assert engine["placementGroups"] == before["placementGroups"]
        assert [rank["rayNode"] for rank in engine["ranks"]] == [rank["rayNode"] for rank in before["ranks"]]
        evidence = case.evidence()
        assert case.disagreements(engine, evidence) == []
        alive = [actor["class_name"] for actor in evidence.tables["actors"] if actor["state"] == "ALIVE"]
        assert (alive.count("RayWorkerProc"), alive.count(case.shape.core)) == (2 * case.shape.tensor, 2)
        case.bed.wait_for("the Service to lead to it again", lambda: is_reached(case.url))
        test_every_data_parallel_rank_answers(case)
    kill(case, last)


def kill(case: Case, victim: Victim) -> None:
    """Kill processes; see that what follows names one of them."""
    before = case.engine
    pod = (
        before["pod"] if victim.lead else next(rank["pod"] for rank in before["ranks"] if rank["pod"] != before["pod"])
    )
    assert case.execute(pod, KILL.format(words=victim.words))
    case.deployment.await_condition("Ready", "False")
    failure = case.deployment.await_seen("its failure", lambda body: failure_of(body, before["attempt"]))
    assert failure["reason"] == victim.reason
    ranks = [-1] if victim.lead else [rank["rank"] for rank in before["ranks"] if rank["pod"] == pod]
    assert failure.get("rank", -1) in ranks
    assert failure["message"].startswith(victim.message.format(rank=failure.get("rank"), pod=pod))


def failure_of(body: dict[str, Any], attempt: int) -> dict[str, Any] | None:
    failures = body["status"].get("lastFailures", [])
    return next((dict(item) for item in failures if item["attempt"] == attempt), None)


def is_reached(url: str) -> bool:
    """Whether a Service has its endpoint; kube-proxy is a moment later than the pod's readiness."""
    try:
        metrics(url)
    except OSError:
        return False
    return True


def test_deleting_it_leaves_nothing(case: Case) -> None:
    name, namespace = case.deployment.name, case.deployment.namespace
    case.deployment.delete()
    assert case.bed.api.json("get", "rayclusters,pods", "-n", namespace)["items"] == []
    mark = f"ENGINE_INSTANCE_ID={name}-"
    case.bed.wait_for("its processes to be gone", lambda: not marked(mark))


def marked(mark: str) -> list[str]:
    """Processes of this machine, on which the nodes are, whose environment has a mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            found += [path.parent.name] if mark.encode() in path.read_bytes() else []
        except OSError:
            continue
    return found
