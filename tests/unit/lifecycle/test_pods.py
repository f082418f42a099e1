"""What a pod that does not run says: the reason, the words, and whether somebody must do something."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.lifecycle.views import pod, pod_body, running

from vllm_operator.api.status import Reason
from vllm_operator.lifecycle.pods import first_trouble, read_pod

SCHEDULER = "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint {gpu: true}."


def status(**parts: Any) -> dict[str, Any]:
    return {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}], **parts}


def container(state: dict[str, Any], name: str = "vllm", **more: Any) -> dict[str, Any]:
    return {"name": name, "state": state, "restartCount": 1, **more}


def waiting(reason: str, message: str = "", last: dict[str, Any] | None = None) -> dict[str, Any]:
    lines = {"lastState": {"terminated": last}} if last else {}
    return status(containerStatuses=[container({"waiting": {"reason": reason, "message": message}}, **lines)])


def ended(**words: Any) -> dict[str, Any]:
    return status(containerStatuses=[container({"terminated": words})])


UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": SCHEDULER}],
}


@pytest.mark.parametrize(
    ("found", "reason", "words", "lasting"),
    [
        pytest.param(UNSCHEDULABLE, Reason.UNSCHEDULABLE, ["pod p", SCHEDULER], False, id="unschedulable"),
        pytest.param(
            waiting("ImagePullBackOff", 'Back-off pulling image "x": not found'),
            Reason.IMAGE_PULL_FAILED,
            ["registry.example/runtime:1", "not found", "pod.imagePullSecrets"],
            True,
            id="pull",
        ),
        pytest.param(waiting("ErrImagePull"), Reason.IMAGE_PULL_FAILED, ["ErrImagePull"], False, id="first pull"),
        pytest.param(
            waiting("CreateContainerConfigError", 'secret "s" not found'),
            Reason.CONTAINER_CRASHED,
            ["container vllm", 'secret "s" not found'],
            True,
            id="a Secret that is gone",
        ),
        pytest.param(
            waiting("CrashLoopBackOff", last={"exitCode": 1, "message": "ValueError: no such thing\n"}),
            Reason.CONTAINER_CRASHED,
            ["pod p, container vllm ended: ValueError: no such thing"],
            False,
            id="first crash, with last words",
        ),
        pytest.param(
            status(containerStatuses=[{**container({"terminated": {"exitCode": 3}}), "restartCount": 3}]),
            Reason.CONTAINER_CRASHED,
            ["exit code 3"],
            True,
            id="crash after crash, without",
        ),
        pytest.param(
            ended(exitCode=137, reason="OOMKilled"),
            Reason.CONTAINER_CRASHED,
            ["OOMKilled", "pod.resources.limits.memory", "exit code 137"],
            True,
            id="out of memory",
        ),
        pytest.param(
            ended(exitCode=127, message="bash: line 1: ray: command not found"),
            Reason.IMAGE_WITHOUT_RAY,
            ["registry.example/runtime:1 has no Ray", "ray: command not found", "images/runtime"],
            True,
            id="image without Ray",
        ),
        pytest.param(
            ended(exitCode=1, message="sh: 1: ray: not found"),
            Reason.IMAGE_WITHOUT_RAY,
            ["ray: not found"],
            True,
            id="image without Ray, another shell",
        ),
        pytest.param(
            status(initContainerStatuses=[container({"terminated": {"exitCode": 127}}, name="wait-gcs-ready")]),
            Reason.IMAGE_WITHOUT_RAY,
            ["wait-gcs-ready", "exit code 127"],
            True,
            id="image without Ray, init container",
        ),
    ],
)
def test_trouble(found: dict[str, Any], reason: Reason, words: list[str], lasting: bool) -> None:
    trouble = pod("p", status=found).trouble
    assert trouble
    assert trouble.reason is reason
    assert trouble.lasting is lasting
    for word in words:
        assert word in trouble.message


@pytest.mark.parametrize(
    "found",
    [
        running(),
        waiting("ContainerCreating"),
        waiting("PodInitializing"),
        {},
        {"phase": "Pending"},
        status(initContainerStatuses=[container({"terminated": {"exitCode": 0}}, name="wait-gcs-ready")]),
        status(
            containerStatuses=[
                container({"running": {}}, lastState={"terminated": {"exitCode": 1, "message": "the last time"}})
            ]
        ),
    ],
    ids=["running", "creating", "initializing", "empty", "new", "init container done", "runs again after a crash"],
)
def test_no_trouble(found: dict[str, Any]) -> None:
    assert read_pod({**pod_body("p"), "status": found}).trouble is None


def test_long_last_words_keep_their_end() -> None:
    trouble = pod("p", status=ended(exitCode=1, message="x" * 5000 + "the cause")).trouble
    assert trouble
    assert trouble.message.endswith("the cause")
    assert len(trouble.message) < 1000


def test_fields() -> None:
    view = pod("p", lead=True, node="n1", status=running(ready=True, ready_since=-5))
    assert (view.name, view.node, view.ip, view.running, view.ready) == ("p", "n1", "10.0.0.1", True, True)
    assert (view.lead, view.head, view.deleting) == (True, False, False)
    assert view.ready_changed_at.startswith("2026-03-01T11:59:55")
    assert view.scheduled_at.startswith("2026-03-01T11:58:00")
    assert view.started_at.startswith("2026-03-01T11:58:20")
    assert pod("p", head=True).head
    assert pod("p", deleting=True).deleting
    assert pod("p", status=UNSCHEDULABLE).scheduled_at == ""
    assert pod("p", status=ended(exitCode=1)).started_at == ""


def test_a_sidecar_is_not_the_main_container() -> None:
    found = running()
    found["containerStatuses"].insert(0, container({"running": {}}, name="a-sidecar"))
    found["containerStatuses"][1]["state"] = {"waiting": {"reason": "ContainerCreating"}}
    assert not pod("p", status=found).running


def test_the_trouble_to_report_is_the_lasting_one_then_the_heads() -> None:
    pull, crash = waiting("ImagePullBackOff"), ended(exitCode=137, reason="OOMKilled")
    pods = [
        pod("a", status=UNSCHEDULABLE),
        pod("c", status=pull),
        pod("b", status=crash),
        pod("head", head=True, status=UNSCHEDULABLE),
        pod("gone", status=crash, deleting=True),
    ]
    told = [first_trouble(pods), first_trouble([pods[0], pods[3]]), first_trouble([pods[4]]), first_trouble([])]
    assert [trouble and trouble.message.split(" ")[1].strip(":,") for trouble in told] == ["b", "head", None, None]


def test_a_command_that_was_not_found_is_trouble_also_while_it_is_tried_again() -> None:
    again = container({"running": {}}, lastState={"terminated": {"exitCode": 127, "message": "ray: command not found"}})
    found = read_pod(pod_body("p", status=status(containerStatuses=[again])))
    assert found.trouble
    assert (found.trouble.reason, found.trouble.lasting, found.running) == (Reason.IMAGE_WITHOUT_RAY, True, False)
    other = container({"running": {}}, lastState={"terminated": {"exitCode": 1, "message": "timed out"}})
    found = read_pod(pod_body("p", status=status(containerStatuses=[other])))
    assert (found.trouble, found.running) == (None, True)
