"""What a real API server says to pods under a quota, and what is said beforehand: they must be of one mind."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.testbed.bed import Bed
from tests.testbed.errors import BedError

from vllm_operator.planning.quota import Pods, QuotaExceededError, UnstatedResourcesError, check_quotas, read_rules

pytestmark = pytest.mark.contract

Object = dict[str, Any]
PLAIN: Object = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
GPUS: Object = {"limits": {"nvidia.com/gpu": "4"}}


def container(resources: Object) -> Object:
    return {"name": "vllm", "image": "registry.example/none:1", "resources": resources}


def spec(resources: Object, **more: Any) -> Object:
    return {"containers": [container(resources)], **more}


Judge = Callable[[Object], tuple[list[Object], str]]


@pytest.fixture
def judge(bed: Bed, namespace: str) -> Judge:
    """Put quota and limits there, and give them as they are then, with what the API server says to a pod."""

    def judged(case: Object) -> tuple[list[Object], str]:
        scopes = {"scopes": case["scopes"]} if case["scopes"] else {}
        wanted = {"ResourceQuota": {"hard": case["hard"], **scopes}}
        if case["given"]:
            wanted["LimitRange"] = {"limits": [{"type": "Container", **case["given"]}]}
        named = {"metadata": {"name": "it"}}
        # Made anew: the scopes of a quota cannot be changed.
        bed.kubectl("delete", "resourcequota/it", "limitrange/it", "-n", namespace, "--ignore-not-found")
        bed.api.apply(
            *({"apiVersion": "v1", "kind": kind, **named, "spec": it} for kind, it in wanted.items()),
            namespace=namespace,
        )
        bed.wait_for("the ServiceAccount", lambda: bed.kubectl("get", "serviceaccount", "default", "-n", namespace), 30)

        def counted() -> list[Object] | None:
            found: list[Object] = bed.api.json("get", "resourcequota,limitrange", "-n", namespace)["items"]
            quotas = [item for item in found if item["kind"] == "ResourceQuota"]
            return found if all(item.get("status", {}).get("used") for item in quotas) else None

        there = bed.wait_for("the quota to be counted", counted, 30) or []
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": case["pod"]}
        try:
            bed.kubectl("create", "--dry-run=server", "-n", namespace, "-f", "-", stdin=json.dumps(pod))
        except BedError as error:
            return there, str(error)
        return there, ""

    return judged


@pytest.mark.parametrize(
    ("hard", "scopes", "pod"),
    [
        ({"requests.cpu": "1"}, [], spec(PLAIN)),
        ({"requests.cpu": "999m"}, [], spec(PLAIN)),
        ({"cpu": "999m"}, [], spec(PLAIN)),
        ({"requests.memory": "1Gi"}, [], spec(PLAIN)),
        ({"limits.memory": "2047Mi"}, [], spec(PLAIN)),
        ({"limits.cpu": "4"}, [], spec(PLAIN)),
        ({"memory": "4Gi"}, [], spec(GPUS)),
        ({"requests.nvidia.com/gpu": "4"}, [], spec(GPUS)),
        ({"requests.nvidia.com/gpu": "3"}, [], spec(GPUS)),
        ({"requests.ephemeral-storage": "1Gi"}, [], spec(PLAIN)),
        ({"pods": "0"}, [], spec(PLAIN)),
        ({"count/pods": "0"}, [], spec(PLAIN)),
        ({"pods": "0"}, ["BestEffort"], spec(PLAIN)),
        ({"pods": "0"}, ["BestEffort"], spec(GPUS)),
        ({"pods": "0"}, ["NotBestEffort"], spec(PLAIN)),
        ({"pods": "0"}, ["Terminating"], spec(PLAIN)),
        ({"pods": "0"}, ["Terminating"], spec(PLAIN, activeDeadlineSeconds=9)),
        (
            {"requests.cpu": "3"},
            [],
            spec(PLAIN, initContainers=[{**container({"requests": {"cpu": "3"}}), "name": "i"}]),
        ),
        (
            {"requests.cpu": "2"},
            [],
            spec(PLAIN, initContainers=[{**container({"requests": {"cpu": "3"}}), "name": "i"}]),
        ),
        (
            {"requests.cpu": "1500m"},
            [],
            spec(PLAIN, initContainers=[{**container(PLAIN), "name": "i", "restartPolicy": "Always"}]),
        ),
    ],
)
@pytest.mark.parametrize("given", [None, {"defaultRequest": {"cpu": "1"}, "default": {"cpu": "8", "memory": "1Gi"}}])
def test_verdict(judge: Judge, hard: Object, scopes: list[str], pod: Object, given: Object | None) -> None:
    there, refusal = judge({"hard": hard, "scopes": scopes, "pod": pod, "given": given})
    pods = [Pods(spec=pod, number=1, container="vllm", field="pod.resources")]
    if not refusal:
        check_quotas(read_rules(there), pods)
        return
    error = UnstatedResourcesError if "must specify" in refusal else QuotaExceededError
    assert "must specify" in refusal or "exceeded quota" in refusal
    with pytest.raises(error):
        check_quotas(read_rules(there), pods)
