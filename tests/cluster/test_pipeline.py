"""The example of the README on the test bed: a real model in two pipeline stages over two pods.

One engine, shared by all tests of this module; they run in the order in which they stand: first what must hold while
it serves, then what must hold when it is hurt, last that nothing is left of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml
from tests.checker.ranks import disagreements, gather
from tests.product.ask import chat, complete, service_url
from tests.product.audit import mutations, position
from tests.product.deployment import Deployment
from tests.product.install import REPOSITORY, Installation
from tests.product.memory import plan_memory, read_memory
from tests.testbed.bed import Bed

pytestmark = [pytest.mark.cluster, pytest.mark.engine]

MANIFEST = yaml.safe_load((REPOSITORY / "examples" / "smollm2-pipeline.yaml").read_text())
ENVIRONMENT = {"NCCL_DEBUG": "WARN", "A_PLAIN_VARIABLE": "reaches every rank"}
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"licence": "s3cret"}}
MORE = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "more"}, "data": {"COLOUR": "blue"}}


@pytest.fixture(scope="module")
def served(operator: Installation, bed: Bed, namespace: str) -> Iterator[Deployment]:
    """Give the example, serving, with variables from everywhere."""
    manifest = json.loads(json.dumps(MANIFEST))
    manifest["spec"]["env"] = [
        *({"name": name, "value": value} for name, value in ENVIRONMENT.items()),
        {"name": "LICENCE", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "licence"}}},
    ]
    manifest["spec"]["envFrom"] = [{"prefix": "MY_", "configMapRef": {"name": "more"}}]
    bed.api.apply(SECRET, MORE, manifest, namespace=namespace)
    deployment = Deployment(bed, namespace, manifest["metadata"]["name"])
    try:
        deployment.await_ready()
        yield deployment
    finally:
        deployment.delete()


def test_it_answers_through_its_service(served: Deployment, bed: Bed) -> None:
    url = service_url(bed, served.namespace, served.name)
    assert complete(url, served.name, "The capital of France is").strip() == "Paris"
    assert chat(url, served.name, "Say hello.")


def test_every_entry_of_the_rank_map_is_true(served: Deployment, bed: Bed) -> None:
    (engine,) = served.engines
    evidence = gather(bed, served.namespace, engine["rayCluster"])
    assert disagreements(engine, evidence, tensor=1, pipeline=2) == []


def test_memory_is_as_the_planner_reckons(served: Deployment, bed: Bed) -> None:
    config = json.loads((bed.runtime().model / "config.json").read_text())
    spec = served.read()["spec"]
    planned, reported = (
        plan_memory(spec, config, step_tokens=spec["vllmConfig"]["maxModelLen"]),
        read_memory(bed, served),
    )
    assert reported.weights == {rank: pytest.approx(weights, rel=0.1) for rank, weights in enumerate(planned.weights)}
    assert reported.tokens == pytest.approx(planned.tokens, rel=0.1)


def test_variables_reach_every_rank(served: Deployment, bed: Bed) -> None:
    evidence = gather(bed, served.namespace, served.engines[0]["rayCluster"])
    assert sorted(evidence.processes) == [0, 1]
    wanted = {
        **ENVIRONMENT,
        "LICENCE": "s3cret",
        "MY_COLOUR": "blue",
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    }
    for process in evidence.processes.values():
        assert {name: process["environment"].get(name) for name in wanted} == wanted


def test_status_says_it_all(served: Deployment) -> None:
    status = served.status
    conditions = {item["type"]: item["status"] for item in status["conditions"]}
    assert conditions == {
        "Ready": "True",
        "Available": "True",
        "Reconciling": "False",
        "Stalled": "False",
        "Planned": "True",
        "RayClustersReady": "True",
        "RuntimeCompatible": "True",
    }
    (engine,) = status["engineReplicas"]
    assert (engine["state"], engine["attempt"], engine["restarts"]) == ("Serving", 1, 0)
    assert set(engine["timings"]) == {"created", "podsScheduled", "rayNodesJoined", "placed", "loaded", "firstToken"}
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)
    assert status["url"] == f"http://{served.name}.{served.namespace}.svc:8000"
    assert [(shape["pods"], shape["gpus"]) for shape in status["plan"]["podShapes"]] == [(1, 1), (1, 1)]


def test_no_secret_value_stands_in_the_pods_or_the_status(served: Deployment, bed: Bed) -> None:
    pods = bed.kubectl("get", "pods,rayclusters,configmaps", "-n", served.namespace, "-o", "json")
    assert "s3cret" not in pods
    assert "s3cret" not in json.dumps(served.read())


def test_an_unchanged_deployment_is_left_alone(served: Deployment, bed: Bed, operator: Installation) -> None:
    before = _versions(bed, served.namespace)
    start = position(bed)
    manifest = served.read()
    bed.kubectl("annotate", "vllm", served.name, "-n", served.namespace, "a-user=looked", "--overwrite")
    operator.restart()
    bed.wait_for("the new operator to lead", lambda: " leads" in operator.logs())
    bed.kubectl("annotate", "vllm", served.name, "-n", served.namespace, "a-user=looked-again", "--overwrite")
    seen = operator.rounds()
    bed.wait_for("two resyncs", lambda: operator.rounds() >= seen + 2)
    served.await_condition("Ready", "True")
    assert _versions(bed, served.namespace) == before
    engines = f"system:serviceaccount:{served.namespace}:"
    written = [item for item in mutations(bed, start) if item.user == operator.account or item.user.startswith(engines)]
    assert [item for item in written if item.resource != "leases"] == []
    assert served.read()["spec"] == manifest["spec"]


def test_a_report_that_was_deleted_comes_back_and_the_engine_serves_on(served: Deployment, bed: Bed) -> None:
    (before,) = served.engines
    name = before["report"]
    bed.kubectl("delete", "configmap", name, "-n", served.namespace)

    def told() -> str:
        data: dict[str, str] = bed.api.json("get", "configmap", name, "-n", served.namespace).get("data", {})
        return data.get("report.json", "")

    report = json.loads(bed.wait_for("the report to be there again", told))
    assert (report["phase"], report["attempt"], len(report["ranks"])) == ("Serving", before["attempt"], 2)
    (after,) = served.engines
    assert (after["state"], after["attempt"], after["ranks"]) == ("Serving", before["attempt"], before["ranks"])


def _versions(bed: Bed, namespace: str) -> dict[str, str]:
    """ResourceVersions of everything of the namespace that we make; pods and KubeRay's status run by themselves."""
    kinds = "services,configmaps,secrets,serviceaccounts,roles,rolebindings,controllerrevisions"
    listed = bed.api.json("get", kinds, "-n", namespace, "-l", "app.kubernetes.io/managed-by=vllm-operator")["items"]
    found = {f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["resourceVersion"] for item in listed}
    clusters = bed.api.json("get", "rayclusters", "-n", namespace)["items"]
    return found | {f"RayCluster/{item['metadata']['name']}": str(item["metadata"]["generation"]) for item in clusters}


KILL = """
import os, signal
wanted = {words!r}
for entry in os.listdir('/proc'):
    if entry.isdigit() and int(entry) != os.getpid():
        try:
            line = open(f'/proc/{{entry}}/cmdline').read().replace(chr(0), ' ')
        except OSError:
            continue
        if any(word in line for word in wanted):
            os.kill(int(entry), signal.SIGKILL)
            print(line[:80])
"""


@pytest.mark.parametrize(
    ("victims", "pod"),
    [
        pytest.param(
            ["Supervisor", "vllm_bootstrap.entrypoints.launcher"], "lead", id="supervisor and launcher together"
        ),
        pytest.param(["RayWorkerProc"], "gpu1", id="a rank of the second pod"),
    ],
)
def test_an_engine_that_dies_comes_back(served: Deployment, bed: Bed, victims: list[str], pod: str) -> None:
    (before,) = served.engines
    name = next(rank["pod"] for rank in before["ranks"] if f"-{pod}-worker-" in rank["pod"])
    printed = bed.kubectl("exec", "-n", served.namespace, name, "--", "python", "-c", KILL.format(words=victims))
    assert len(printed.splitlines()) >= len(victims)
    served.await_condition("Ready", "False")

    engine = served.await_engine("Serving", attempt=before["attempt"] + 1)
    failure = served.status["lastFailures"][0]
    assert (failure["engine"], failure["attempt"]) == ("engine-0", before["attempt"])
    assert failure["message"]
    evidence = gather(bed, served.namespace, engine["rayCluster"])
    assert disagreements(engine, evidence, tensor=1, pipeline=2) == []
    alive = [actor["name"] for actor in evidence.tables["actors"] if actor["state"] == "ALIVE"]
    assert sorted(name for name in alive if name.startswith("vllm_Worker")) == [
        rank["actor"] for rank in engine["ranks"]
    ]
    url = service_url(bed, served.namespace, served.name)
    assert complete(url, served.name, "The capital of France is").strip() == "Paris"


def test_deleting_it_removes_everything(served: Deployment, bed: Bed) -> None:
    bed.stop_kuberay()
    try:
        served.delete()
        kinds = "rayclusters,pods,services,configmaps,secrets,serviceaccounts,roles,rolebindings,controllerrevisions"
        selector = "app.kubernetes.io/managed-by=vllm-operator"
        bed.wait_for(
            "everything of it to be gone",
            lambda: not bed.api.json("get", kinds, "-n", served.namespace, "-l", selector)["items"],
            60,
        )
    finally:
        bed.start_kuberay()
