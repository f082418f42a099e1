"""The test bed itself: what every other cluster test takes for granted."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from tests.product.manifests import pod
from tests.testbed import render
from tests.testbed.bed import Bed, overlay
from tests.testbed.errors import BedError
from tests.testbed.python_runtime import Runtime

pytestmark = pytest.mark.cluster

TOKEN = "a-token-of-the-smoke-test"
PYTHON = "/usr/bin/python3"

LIST_PODS = """
import json, os, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
token, namespace = open(f"{folder}/token").read(), open(f"{folder}/namespace").read()
address = os.environ["KUBERNETES_SERVICE_HOST"] + ":" + os.environ["KUBERNETES_SERVICE_PORT"]
request = urllib.request.Request(
    f"https://{address}/api/v1/namespaces/{namespace}/pods", headers={"Authorization": f"Bearer {token}"}
)
context = ssl.create_default_context(cafile=f"{folder}/ca.crt")
pods = json.load(urllib.request.urlopen(request, context=context, timeout=20))
print(json.dumps({"address": address, "pods": [pod["metadata"]["name"] for pod in pods["items"]]}))
"""

RESOLVE = """
import json, socket, time
begin = time.monotonic()
try:
    unknown = socket.gethostbyname("no-such-host.example")
except socket.gaierror:
    unknown = None
seconds = time.monotonic() - begin
names = {name: socket.gethostbyname(name) for name in ("kubernetes.default", "kubernetes.default.svc.cluster.local")}
print(json.dumps({"names": names, "unknown": unknown, "seconds": seconds}))
"""


def output_of(bed: Bed, namespace: str, name: str, code: str) -> Any:
    """Run Python in a pod to its end, and give what it printed."""
    bed.api.apply(pod(name, PYTHON, "-c", code, restartPolicy="Never"), namespace=namespace)

    def phase() -> str:
        found = bed.kubectl("get", "pod", name, "-n", namespace, "-o", "jsonpath={.status.phase}")
        return found if found in ("Succeeded", "Failed") else ""

    ended = bed.wait_for(f"pod {name} to end", phase)
    text = bed.kubectl("logs", name, "-n", namespace)
    assert ended == "Succeeded", text
    return json.loads(text)


def address_of(bed: Bed, namespace: str, name: str) -> str:
    bed.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "-n", namespace, "--timeout=120s")
    return bed.kubectl("get", "pod", name, "-n", namespace, "-o", "jsonpath={.status.podIP}")


def fetch(url: str, token: str | None = None) -> int:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=2.0) as response:  # noqa: S310
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_a_pod_reaches_the_api_server_and_lists_its_own_namespace(bed: Bed, namespace: str) -> None:
    role = ["create", "rolebinding", "look", "--clusterrole=view", f"--serviceaccount={namespace}:default"]
    bed.kubectl(*role, "-n", namespace)
    seen = output_of(bed, namespace, "lister", LIST_PODS)
    assert seen == {"address": "198.19.0.1:443", "pods": ["lister"]}


def test_names_resolve_and_unknown_names_fail_at_once(bed: Bed, namespace: str) -> None:
    seen = output_of(bed, namespace, "resolver", RESOLVE)
    assert set(seen["names"].values()) == {"198.19.0.1"}
    assert seen["unknown"] is None
    assert seen["seconds"] < 2.0


def test_pods_of_two_nodes_talk_through_a_service(bed: Bed, namespace: str) -> None:
    first, second = (node.name for node in bed.nodes[:2])
    server = "echo served by $0 >/tmp/index.html; cd /tmp; exec python3 -m http.server 8080"
    bed.api.apply(
        pod("near", "sleep", "inf", node=first),
        pod("far", "sh", "-c", server, second, node=second),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "far"},
            "spec": {"selector": {"app": "far"}, "ports": [{"port": 80, "targetPort": 8080}]},
        },
        namespace=namespace,
    )
    for name, node in (("near", first), ("far", second)):
        address_of(bed, namespace, name)
        assert bed.kubectl("get", "pod", name, "-n", namespace, "-o", "jsonpath={.spec.nodeName}") == node
    ask = "import urllib.request as r; print(r.urlopen('http://far', timeout=5).read().decode().strip())"
    answer = bed.wait_for(
        "an answer through the Service", lambda: bed.kubectl("exec", "near", "-n", namespace, "--", PYTHON, "-c", ask)
    )
    assert answer.strip() == f"served by {second}"
    assert '"GET / HTTP/1.1" 200' in bed.kubectl("logs", "far", "-n", namespace)
    bed.kubectl("delete", "pod", "near", "far", "-n", namespace, "--now")


def test_gpus_are_scheduled_and_run_out(bed: Bed, namespace: str) -> None:
    largest = max(bed.nodes, key=lambda node: node.gpus)
    labels = bed.api.json("get", "node", largest.name)["metadata"]["labels"]
    assert labels["nvidia.com/gpu.product"] == largest.product
    bed.api.apply(
        pod("all-gpus", "sleep", "inf", gpus=largest.gpus, node=largest.name),
        pod("one-more", "sleep", "inf", gpus=1, node=largest.name),
        namespace=namespace,
    )

    def phases() -> dict[str, str]:
        items = bed.api.json("get", "pods", "-n", namespace)["items"]
        return {item["metadata"]["name"]: item["status"].get("phase", "") for item in items}

    bed.wait_for("one of the two to run", lambda: "Running" in (phases()["all-gpus"], phases()["one-more"]))

    def refusal() -> str:
        left = bed.kubectl("get", "events", "-n", namespace, "--field-selector", "reason=FailedScheduling")
        return left if "Insufficient nvidia.com/gpu" in left else ""

    bed.wait_for("the scheduler to say what is missing", refusal)
    bed.kubectl("delete", "pod", "all-gpus", "one-more", "-n", namespace, "--now")


def test_the_audit_log_tells_who_created_what(bed: Bed, namespace: str) -> None:
    bed.kubectl("create", "configmap", "traced", "-n", namespace)
    events = [json.loads(line) for line in bed.audit_log.read_text(encoding="utf-8").splitlines()]
    mine = [
        event
        for event in events
        if event["objectRef"].get("namespace") == namespace and event["objectRef"].get("name") == "traced"
    ]
    seen = [(event["verb"], event["user"]["username"], event["responseStatus"]["code"]) for event in mine]
    assert seen == [("create", "admin", 201)]
    assert {event["verb"] for event in events} <= {"create", "update", "patch", "delete", "deletecollection"}
    assert {event["stage"] for event in events}.isdisjoint({"RequestReceived"})


def test_a_stopped_kubelet_leaves_its_containers_serving_and_a_gone_machine_does_not(bed: Bed, namespace: str) -> None:
    node = bed.nodes[-1]
    bed.api.apply(pod("server", PYTHON, "-m", "http.server", "8080", node=node.name), namespace=namespace)
    url = f"http://{address_of(bed, namespace, 'server')}:8080/"
    bed.wait_for("the server to answer", lambda: fetch(url) == 200)

    bed.stop_kubelet(node.name)
    assert fetch(url) == 200
    bed.start_kubelet(node.name)
    assert fetch(url) == 200

    bed.stop_node(node.name)
    assert fetch(url) == 0
    bed.start_node(node.name)

    def restarts() -> int:
        status = bed.api.json("get", "pod", "server", "-n", namespace)["status"]["containerStatuses"][0]
        return int(status["restartCount"]) if status["ready"] else 0

    assert bed.wait_for("the server to be started again", restarts) == 1
    again = address_of(bed, namespace, "server")
    bed.wait_for("the server to answer again", lambda: fetch(f"http://{again}:8080/") == 200)
    allocatable = bed.api.json("get", "node", node.name)["status"]["allocatable"]
    assert allocatable["nvidia.com/gpu"] == str(node.gpus)
    bed.kubectl("delete", "pod", "server", "-n", namespace, "--now")


def test_kubectl_reports_what_the_server_said(bed: Bed) -> None:
    with pytest.raises(BedError, match='pods "no-such-pod" not found'):
        bed.kubectl("get", "pod", "no-such-pod")


def ray_template(runtime: Runtime, port: int, gpus: int) -> dict[str, Any]:
    extra = overlay(runtime.mounts, runtime.env, ["ray"])["spec"]
    (container,) = extra["containers"]
    settings = {"RAY_AUTH_MODE": "token", "RAY_memory_monitor_refresh_ms": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    token = {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": {"name": "ray-token", "key": "token"}}}
    probe = {"tcpSocket": {"port": port}, "periodSeconds": 1, "failureThreshold": 120}
    container |= {
        "image": render.THIN_IMAGE,
        "env": [*container["env"], token, *({"name": name, "value": value} for name, value in settings.items())],
        "resources": {"limits": {"nvidia.com/gpu": gpus}} if gpus else {},
        "readinessProbe": probe,
        "livenessProbe": probe,
    }
    return {"spec": {"terminationGracePeriodSeconds": 1, **extra}}


def ray_cluster(runtime: Runtime) -> dict[str, Any]:
    head = ray_template(runtime, 6379, 0)
    names = {"gcs-server": 6379, "client": 10001, "dashboard": 8265, "metrics": 8080, "serve": 8000}
    head["spec"]["containers"][0]["ports"] = [{"name": name, "containerPort": number} for name, number in names.items()]
    small = {"object-store-memory": "80000000"}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "smoke"},
        "spec": {
            "rayVersion": "2.60.0",
            "headGroupSpec": {"rayStartParams": {"num-cpus": "0", "num-gpus": "0", **small}, "template": head},
            "workerGroupSpecs": [
                {
                    "groupName": "gpu",
                    "replicas": 2,
                    "minReplicas": 2,
                    "maxReplicas": 2,
                    "rayStartParams": {"num-cpus": "1", "num-gpus": "1", **small},
                    "template": ray_template(runtime, 52365, 1),
                }
            ],
        },
    }


LIST_NODES = """
import json
from ray.util.state import list_nodes
print(json.dumps([[n.node_ip, n.state, n.resources_total.get("GPU", 0)] for n in list_nodes(detail=True)]))
"""


def test_kuberay_makes_a_ray_cluster_whose_nodes_are_the_pods(bed: Bed, namespace: str, runtime: Runtime) -> None:
    bed.kubectl("create", "secret", "generic", "ray-token", f"--from-literal=token={TOKEN}", "-n", namespace)
    bed.api.apply(ray_cluster(runtime), namespace=namespace)

    def ready_pods() -> dict[str, str] | None:
        items = bed.api.json("get", "pods", "-n", namespace, "-l", "ray.io/cluster=smoke")["items"]
        ready = [
            item
            for item in items
            if any(c["type"] == "Ready" and c["status"] == "True" for c in item["status"].get("conditions", []))
        ]
        found = {item["status"]["podIP"]: item["metadata"]["labels"]["ray.io/node-type"] for item in ready}
        return found if len(found) == 3 else None

    pods = bed.wait_for("head and two workers", ready_pods, 180.0)
    assert pods is not None
    assert sorted(pods.values()) == ["head", "worker", "worker"]
    (head,) = (address for address, kind in pods.items() if kind == "head")

    name = bed.kubectl(
        *("get", "pods", "-n", namespace, "-l", "ray.io/cluster=smoke,ray.io/node-type=head", "-o", "name")
    ).strip()
    asked = ["exec", name, "-n", namespace, "-c", "ray", "--", str(runtime.python), "-c", LIST_NODES]

    def ray_nodes() -> Any:
        found = json.loads(bed.kubectl(*asked).strip().splitlines()[-1])
        return found if len(found) == 3 else None

    nodes = bed.wait_for("Ray to list three nodes", ray_nodes)
    expected = sorted([address, "ALIVE", 1.0 if kind == "worker" else 0] for address, kind in pods.items())
    assert sorted(nodes) == expected

    version = f"http://{head}:8265/api/version"
    assert (fetch(version), fetch(version, "wrong"), fetch(version, TOKEN)) == (401, 403, 200)
    bed.kubectl("delete", "raycluster", "smoke", "-n", namespace)
