"""The planner and the real scheduler agree: what fits is scheduled, what never fits stays pending, what waits comes.

Two hundred random inventories are nodes of kwok on the real API server.  The planner reads them back as the operator
would; the pods that it plans are rendered by the operator's own code and left to the real kube-scheduler.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.product.engine_pods import DEFAULTS, engine_pods
from tests.product.inventories import ENDED, INVENTORY, UNINITIALIZED, Inventory, inventory
from tests.testbed import kwok as fake
from tests.testbed.bed import Bed
from tests.testbed.progress import say

from vllm_operator.api.identity import LABEL_DEPLOYMENT
from vllm_operator.api.placement import Strategy
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.planning.candidate import Candidate, Choice
from vllm_operator.planning.catalogue import BUILT_IN
from vllm_operator.planning.inventory import GpuNode
from vllm_operator.planning.layout import pod_sizes
from vllm_operator.planning.plan import plan, shape_of, survey
from vllm_operator.planning.proof import Verdict
from vllm_operator.planning.shapes import Shape
from vllm_operator.reconcile.inventory import read_inventory
from vllm_operator.resources.pod import node_rules

pytestmark = pytest.mark.cluster

INVENTORIES = 200
ENOUGH = 30
"""Inventories of each verdict, for the test to say something."""
DEADLINE = 120.0
CLIENTS = 4

AWAY = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
CORDONED = "node.kubernetes.io/unschedulable"

Body = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """An inventory with the planner's verdict, and the pods that ask the scheduler for his.

    Attributes
    ----------
    engines
        One that fits; of what does not fit, one for each product that there is.
    """

    inventory: Inventory
    strategy: Strategy
    nodes: tuple[GpuNode, ...]
    choice: Choice
    engines: tuple[list[Body], ...]

    @property
    def verdict(self) -> Verdict:
        return self.choice.verdict

    def tell(self, pods: Mapping[str, Body]) -> str:
        """Say all that is needed to see who is wrong."""
        there = [f"{n.name} {n.free}/{n.gpus} {n.product} {[str(t) for t in n.taints]}" for n in self.nodes]
        placed = [
            f"{name} {pods[name]['spec'].get('nodeName') or _refusal(pods[name])}"
            for engine in self.engines
            for name in _names(engine)
        ]
        spec = json.dumps(self.inventory.spec)
        return "\n  ".join([f"{self.verdict}: {self.choice.reason}", spec, *there, *placed])


@dataclass(frozen=True)
class Cluster:
    """The bed with its inventories."""

    bed: Bed
    namespace: str

    def create(self, bodies: Sequence[Sequence[Body]]) -> None:
        """Create lists of objects, each list in its order, several lists at a time."""
        bundles = [[body for bodies_ in bodies[start::CLIENTS] for body in bodies_] for start in range(CLIENTS)]

        def post(items: Sequence[Body]) -> None:
            document = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
            self.bed.kubectl("create", "-n", self.namespace, "-f", "-", stdin=document)

        with ThreadPoolExecutor(max_workers=CLIENTS) as pool:
            list(pool.map(post, filter(None, bundles)))

    def read(self, resource: str, selector: str) -> list[Body]:
        return list(self.bed.api.json("get", resource, "-n", self.namespace, "-l", selector)["items"])

    def delete_pods(self, selector: str) -> None:
        """Delete pods at once, as one request: kubectl would ask for each."""
        query = urlencode({"labelSelector": selector, "gracePeriodSeconds": 0})
        self.bed.kubectl("delete", "--raw", f"/api/v1/namespaces/{self.namespace}/pods?{query}")

    def watch(self, resource: str, selector: str, names: Iterable[str], done: Callable[[Body], bool]) -> set[str]:
        """Wait until each of these objects is as it should be; give those that are not at the deadline."""
        left = set(names)
        chosen = ("-n", self.namespace, "-l", selector)
        for body in self.bed.api.follow(resource, *chosen, deadline=DEADLINE) if left else ():
            (left.discard if done(body) else _ignore)(body["metadata"]["name"])
            if not left:
                break
        return left

    def plan(self, inventories: Sequence[Inventory]) -> list[Case]:
        """Plan each inventory on its nodes, as the API server has them once they are as they should be."""
        names = _names(node for item in inventories for node in item.nodes)
        assert not self.watch("nodes", INVENTORY, names, _is_as_made)
        nodes: dict[str, list[GpuNode]] = defaultdict(list)
        for node in read_inventory(self.read("nodes", INVENTORY), self.read("pods", ENDED), ()).room():
            nodes[node.labels[INVENTORY]].append(node)
        return [_case(item, tuple(nodes[item.name]), self.namespace) for item in inventories]


def _ignore(_: str) -> None:
    return


def _names(bodies: Iterable[Body]) -> list[str]:
    return [body["metadata"]["name"] for body in bodies]


def _refusal(pod: Body) -> str:
    """Give why the scheduler finds no node for a pod; empty while it has not said so."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    found = next((item for item in conditions if item["type"] == "PodScheduled"), {})
    return str(found.get("message")) if found.get("reason") == "Unschedulable" else ""


def _case(item: Inventory, nodes: tuple[GpuNode, ...], namespace: str) -> Case:
    spec = VLLMDeploymentSpec.model_validate(item.spec)
    rules = node_rules(spec, DEFAULTS)
    choice = survey(spec, nodes, BUILT_IN, rules=rules).choice
    if choice.verdict is Verdict.FITS:
        shapes = [plan(spec, nodes, BUILT_IN, rules=rules).shape]
    else:
        shapes = [_wanted(spec, candidate, nodes) for candidate in choice.candidates or (_NOTHING,)]
    engines = tuple(
        engine_pods(spec, shape, name=f"{item.name}-{index}", namespace=namespace) for index, shape in enumerate(shapes)
    )
    return Case(item, spec.placement.strategy, nodes, choice, engines)


_NOTHING = Candidate(product="", tensor=1, pipeline=1, sizes=(), verdict=Verdict.NEVER, reason="no node has a GPU")


def _wanted(spec: VLLMDeploymentSpec, candidate: Candidate, nodes: tuple[GpuNode, ...]) -> Shape:
    """Give the pods of what does not fit: of the sizes that the user left open the smallest, easiest to seat."""
    world = candidate.gpus
    strict = spec.placement.strategy is Strategy.STRICT_PACK
    sizes = pod_sizes(world, world if strict else min(spec.placement.gpus_per_pod or 1, world))
    shape = shape_of(spec, replace(candidate, sizes=sizes, seats=("nowhere",) * len(sizes)), nodes)
    return replace(shape, groups=tuple(replace(group, nodes=()) for group in shape.groups))


@pytest.fixture(scope="module")
def cluster(bed: Bed, kwok: None, namespace: str) -> Iterator[Cluster]:
    """Give an API server without any of our nodes, and leave it so."""
    made = Cluster(bed, namespace)
    yield made
    made.delete_pods("")
    bed.kubectl("delete", "--raw", f"/api/v1/nodes?labelSelector={INVENTORY}")


@pytest.fixture(scope="module")
def inventories(cluster: Cluster) -> list[Inventory]:
    """Give the inventories, with nodes and foreign pods in the state in which they are planned on."""
    made = [inventory(number) for number in range(INVENTORIES)]
    nodes = [node for item in made for node in item.nodes]
    cluster.create([item.nodes for item in made])
    foreign = [pod for item in made for pod in item.foreign]
    cluster.create([item.foreign for item in made])
    away = set(_names(node for node in nodes if _is_away(node)))
    there = [pod for pod in foreign if pod["spec"]["nodeName"] not in away]
    assert not cluster.watch("pods", ENDED, _names(there), lambda pod: pod["status"]["phase"] == "Running")
    ended = _names(pod for pod in foreign if pod["metadata"]["labels"][ENDED] == "true")
    succeeded = ("--subresource=status", "-p", json.dumps({"status": {"phase": "Succeeded"}}))
    cluster.bed.kubectl("patch", "pods", *ended, "-n", cluster.namespace, *succeeded)
    return made


def _is_away(node: Body) -> bool:
    """Say whether nobody plays a node."""
    return fake.LABEL not in node["metadata"]["labels"]


def _is_as_made(node: Body) -> bool:
    """Say whether Kubernetes has set, and taken away, the taints of a node's state."""
    cordoned = bool(node["spec"].get("unschedulable"))
    taints = {taint["key"] for taint in node["spec"].get("taints") or ()}
    return (bool(AWAY & taints), CORDONED in taints) == (_is_away(node), cordoned)


@pytest.fixture(scope="module")
def cases(cluster: Cluster, inventories: list[Inventory]) -> list[Case]:
    """Give every inventory planned, after the scheduler has looked at every pod, and seated all that fit."""
    planned = cluster.plan(inventories)
    say(f"verdicts: {dict(Counter(str(case.verdict) for case in planned))}")
    cluster.create([engine for case in planned for engine in case.engines])
    fitting = {name for case in planned if case.verdict is Verdict.FITS for name in _names(case.engines[0])}

    def decided(pod: Body) -> bool:
        waits = pod["metadata"]["name"] not in fitting and _refusal(pod)
        return bool(pod["spec"].get("nodeName") or waits)

    every = [name for case in planned for engine in case.engines for name in _names(engine)]
    cluster.watch("pods", LABEL_DEPLOYMENT, every, decided)
    return planned


@pytest.fixture(scope="module")
def seated(cluster: Cluster, cases: list[Case]) -> dict[str, Body]:
    """Give the pods of all engines before anything changes, by name."""
    return {pod["metadata"]["name"]: pod for pod in cluster.read("pods", LABEL_DEPLOYMENT)}


@pytest.fixture(scope="module")
def released(cluster: Cluster, cases: list[Case], seated: dict[str, Body]) -> list[Case]:
    """Give what had to wait, planned anew after all that stood in its way is gone."""
    waiting = [case for case in cases if case.verdict is Verdict.NOT_NOW]
    bed, chosen = cluster.bed, f"{INVENTORY} in ({','.join(case.inventory.name for case in waiting)})"
    cluster.delete_pods(chosen)
    nodes = [node for case in waiting for node in case.inventory.nodes]
    bed.kubectl("uncordon", *_names(node for node in nodes if node["spec"]["unschedulable"]))
    bed.kubectl("label", "nodes", *_names(node for node in nodes if _is_away(node)), f"{fake.LABEL}=fake")
    raw = _names(node for node in nodes if any(taint["key"] == UNINITIALIZED for taint in node["spec"]["taints"]))
    bed.kubectl("taint", "nodes", *raw, f"{UNINITIALIZED}-")
    again = cluster.plan([case.inventory for case in waiting])
    cluster.create([engine for case in again for engine in case.engines])
    every = [name for case in again for engine in case.engines for name in _names(engine)]
    cluster.watch("pods", LABEL_DEPLOYMENT, every, lambda pod: bool(pod["spec"].get("nodeName")))
    return again


def _faults(case: Case, pods: Mapping[str, Body]) -> bool:
    """Say whether an engine that fits is seated otherwise than its strategy and its plan say."""
    (engine,) = case.engines
    nodes = [pods[name]["spec"].get("nodeName", "") for name in _names(engine)]
    products = {node.name: node.product for node in case.nodes}
    if not all(nodes):
        return True
    strict = {Strategy.STRICT_PACK: 1, Strategy.STRICT_SPREAD: len(nodes)}
    right = len(set(nodes)) == strict.get(case.strategy, len(set(nodes)))
    return not right or {products.get(node) for node in nodes} != {case.choice.best.product if case.choice.best else ""}


def _no_disagreement(found: list[str]) -> None:
    assert not found, "\n\n".join(found)


def test_every_verdict_is_there_often_enough(cases: list[Case]) -> None:
    counted = Counter(case.verdict for case in cases)
    assert all(counted[verdict] >= ENOUGH for verdict in Verdict), counted


def test_what_fits_is_scheduled(cases: list[Case], seated: dict[str, Body]) -> None:
    fitting = [case for case in cases if case.verdict is Verdict.FITS]
    _no_disagreement([case.tell(seated) for case in fitting if _faults(case, seated)])


def test_what_does_not_fit_stays_pending(cases: list[Case], seated: dict[str, Body]) -> None:
    unfit = [case for case in cases if case.verdict is not Verdict.FITS]
    _no_disagreement([case.tell(seated) for case in unfit if not _all_refused(case, seated)])


def test_what_had_to_wait_is_scheduled_when_the_way_is_free(cluster: Cluster, released: list[Case]) -> None:
    pods = {pod["metadata"]["name"]: pod for pod in cluster.read("pods", LABEL_DEPLOYMENT)}
    _no_disagreement([case.tell(pods) for case in released if case.verdict is not Verdict.FITS or _faults(case, pods)])


def test_what_never_fits_is_pending_for_good(cluster: Cluster, cases: list[Case], released: list[Case]) -> None:
    pods = {pod["metadata"]["name"]: pod for pod in cluster.read("pods", LABEL_DEPLOYMENT)}
    never = [case for case in cases if case.verdict is Verdict.NEVER]
    _no_disagreement([case.tell(pods) for case in never if not _all_refused(case, pods)])


def _all_refused(case: Case, pods: Mapping[str, Body]) -> bool:
    """Say whether of each engine a pod has no node, and the scheduler has said so."""
    return all(
        any(_refusal(pods[name]) and not pods[name]["spec"].get("nodeName") for name in _names(engine))
        for engine in case.engines
    )
