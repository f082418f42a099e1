"""Bad input: each kind gets a condition that says what is wrong, where, and what to do, and nothing is half-made.

What admission refuses is tested in ``tests/contract``; here is what only the cluster, the image or vLLM can know.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.product.deployment import STARTED, Deployment, applying
from tests.product.install import Installation
from tests.product.manifests import dummy
from tests.testbed.bed import Bed

pytestmark = pytest.mark.cluster

MADE = "rayclusters,services,secrets,configmaps,serviceaccounts,roles,rolebindings"
OURS = "app.kubernetes.io/managed-by=vllm-operator"


@pytest.fixture
def apply(operator: Installation, bed: Bed, namespace: str) -> Iterator[Callable[[dict[str, Any]], Deployment]]:
    """Apply a manifest, and remove it at the end."""
    with applying(bed, namespace) as apply:
        yield apply


def _secret_variable(name: str, key: str = "key") -> list[dict[str, Any]]:
    return [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}]


BLOCKED = [
    pytest.param(
        dummy("gpus-of-no-node", "dummy-tp", tensor=2, pipeline=4, strategy="STRICT_PACK"),
        "NoSuchGPUs",
        r"STRICT_PACK of 8 GPUs cannot fit: the largest node, gpu-[ab], has 4, a pod needs 8; PACK would fit",
        id="GPUs that no node has",
    ),
    pytest.param(
        dummy("nodes-too-few", "dummy-tp", tensor=4, strategy="STRICT_SPREAD"),
        "NoSuchGPUs",
        r"STRICT_SPREAD of 4 GPUs cannot fit: 4 nodes are needed, 2 have a GPU \(gpu-a, gpu-b\); SPREAD would fit",
        id="nodes too few for STRICT_SPREAD",
    ),
    pytest.param(
        dummy("secret-missing", "dummy-tp", env=_secret_variable("no-such-secret")),
        "SecretNotFound",
        r"spec.env TOKEN: Secret no-such-secret does not exist in namespace \S+; create it",
        id="missing Secret",
    ),
    pytest.param(
        dummy("config-map-missing", "dummy-tp", envFrom=[{"configMapRef": {"name": "no-such-map"}}]),
        "ConfigMapNotFound",
        r"spec.envFrom\[0\]: ConfigMap no-such-map does not exist",
        id="missing ConfigMap",
    ),
    pytest.param(
        dummy("claim-missing", "dummy-tp", model={"uri": "pvc://no-such-claim/model"}),
        "ClaimNotFound",
        r"spec.model.uri: PersistentVolumeClaim no-such-claim does not exist",
        id="missing claim",
    ),
    pytest.param(
        dummy("abbreviated", "dummy-tp", arguments=("--tensor-par=2",)),
        "InvalidSpec",
        r"'--tensor-par=2' would override --tensor-parallel-size, which the operator sets",
        id="an argument of the operator's, abbreviated",
    ),
]


@pytest.mark.parametrize(("manifest", "reason", "text"), BLOCKED)
def test_nothing_is_made_before_it_can_be(
    apply: Callable[[dict[str, Any]], Deployment], bed: Bed, manifest: dict[str, Any], reason: str, text: str
) -> None:
    deployment = apply(manifest)
    stalled = deployment.await_condition("Stalled", "True", reason=reason)
    assert re.search(text, stalled["message"]), stalled["message"]
    assert deployment.condition("Ready")["reason"] == reason
    assert deployment.condition("Reconciling")["status"] == "False"
    made = bed.api.json("get", MADE, "-n", deployment.namespace, "-l", OURS)["items"]
    assert [item["kind"] for item in made] == []


def test_a_secret_that_comes_later_is_noticed(apply: Callable[[dict[str, Any]], Deployment], bed: Bed) -> None:
    deployment = apply(dummy("later", "dummy-tp", env=_secret_variable("comes-later")))
    deployment.await_condition("Stalled", "True", reason="SecretNotFound")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "comes-later"}, "stringData": {"other": "x"}}
    bed.api.apply(secret, namespace=deployment.namespace)
    bed.wait_for("the missing key to be named", lambda: "no key key" in deployment.condition("Stalled")["message"])
    secret["stringData"] = {"key": "x"}
    bed.api.apply(secret, namespace=deployment.namespace)
    deployment.await_condition("Stalled", "False")


@pytest.mark.parametrize("kind", ["Service", "RayCluster"])
def test_what_is_not_ours_is_left_alone(
    apply: Callable[[dict[str, Any]], Deployment], bed: Bed, namespace: str, kind: str
) -> None:
    manifest = dummy(f"conflict-{kind.lower()}", "dummy-tp")
    name = manifest["metadata"]["name"]
    foreign = _foreign_service(name)
    if kind == "RayCluster":
        first = apply(manifest)
        cluster = bed.wait_for("a RayCluster", lambda: [e.get("rayCluster") for e in first.engines if e])[0]
        first.delete()
        foreign = _foreign_ray_cluster(cluster)
    bed.api.apply(foreign, namespace=namespace)
    before = bed.api.json("get", kind.lower(), foreign["metadata"]["name"], "-n", namespace)
    deployment = apply(manifest)
    stalled = deployment.await_condition("Stalled", "True", reason="NameConflict")
    assert f"{kind} {foreign['metadata']['name']} exists and does not belong to this" in stalled["message"]
    after = bed.api.json("get", kind.lower(), foreign["metadata"]["name"], "-n", namespace)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"] == before["spec"]
    made = bed.api.json("get", "secrets,serviceaccounts,roles", "-n", namespace, "-l", OURS)["items"]
    assert made == []
    bed.kubectl("delete", kind.lower(), foreign["metadata"]["name"], "-n", namespace)


def _foreign_service(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": "mine"}, "ports": [{"port": 80}]},
    }


def _foreign_ray_cluster(name: str) -> dict[str, Any]:
    container = {"name": "ray", "image": "localhost/none:1", "imagePullPolicy": "Never"}
    template = {"spec": {"containers": [container]}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name},
        "spec": {"suspend": True, "headGroupSpec": {"rayStartParams": {}, "template": template}},
    }


def test_an_image_that_cannot_be_pulled(apply: Callable[[dict[str, Any]], Deployment]) -> None:
    manifest = dummy("no-pull", "dummy-tp", image="127.0.0.1:9/none:1")
    manifest["spec"]["pod"]["template"] = {"spec": {"containers": [{"name": "vllm", "imagePullPolicy": "Always"}]}}
    deployment = apply(manifest)
    stalled = deployment.await_condition("Stalled", "True", reason="ImagePullFailed")
    assert "image 127.0.0.1:9/none:1 cannot be pulled" in stalled["message"]
    assert "check spec.image, the registry and pod.imagePullSecrets" in stalled["message"]


def test_an_image_without_ray(apply: Callable[[dict[str, Any]], Deployment]) -> None:
    manifest = dummy("no-ray", "dummy-tp")
    path = {"name": "PATH", "value": "/usr/bin:/bin"}
    manifest["spec"]["pod"]["template"] = {"spec": {"containers": [{"name": "vllm", "env": [path]}]}}
    deployment = apply(manifest)
    # The container's own last words: the kubelet adds them to the exit code a moment later.
    stalled = deployment.await_condition("Stalled", "True", reason="ImageWithoutRay", text="ray: command not found")
    assert "use an image with ray[default] and vllm" in stalled["message"]
    deployment.await_condition("RuntimeCompatible", "False")


@pytest.mark.engine
@pytest.mark.parametrize(
    ("manifest", "reason", "text"),
    [
        pytest.param(
            dummy("bad-argument", "dummy-tp", arguments=("--no-such-option=1",)),
            "ArgumentsRefused",
            r"no-such-option",
            id="an argument that vLLM does not know",
        ),
        pytest.param(
            dummy("bad-value", "dummy-tp", arguments=("--max-num-batched-tokens=1", "--max-num-seqs=64")),
            "ConfigRefused",
            r"max_num_batched_tokens",
            id="values that vLLM refuses together",
            marks=pytest.mark.extended,
        ),
        pytest.param(
            dummy("heads", "dummy-tp", tensor=3, gpus_per_pod=3),
            "InvalidParallelism",
            r"attention heads \(4\) must be divisible by tensor parallel size \(3\)",
            id="tensor that does not divide the heads",
        ),
        pytest.param(
            dummy("no-model", "no-such-model"),
            "ModelNotFound",
            r"/opt/models/dummy/no-such-model",
            id="a model that is not there",
            marks=pytest.mark.extended,
        ),
    ],
)
def test_what_vllm_refuses_is_said_in_its_own_words(
    apply: Callable[[dict[str, Any]], Deployment], manifest: dict[str, Any], reason: str, text: str
) -> None:
    deployment = apply(manifest)
    stalled = deployment.await_condition("Stalled", "True", reason=reason, deadline=STARTED)
    assert re.search(text, stalled["message"]), stalled["message"]
    assert "Traceback" not in stalled["message"]
    failure = deployment.status["lastFailures"][0]
    assert (failure["engine"], failure["reason"], failure["attempt"]) == ("engine-0", reason, 1)


def test_kuberay_that_is_not_installed(apply: Callable[[dict[str, Any]], Deployment], bed: Bed) -> None:
    bed.uninstall_kuberay()
    try:
        deployment = apply(dummy("no-kuberay", "dummy-tp"))
        stalled = deployment.await_condition("Stalled", "True", reason="KubeRayNotInstalled")
        assert "install the KubeRay operator and its CRDs" in stalled["message"]
    finally:
        bed.install_kuberay()
    deployment.await_condition("Stalled", "False")
    bed.wait_for("its pods", lambda: bed.kubectl("get", "pods", "-n", deployment.namespace, "-o", "name"))
