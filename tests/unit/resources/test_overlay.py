"""What ``pod.template`` and the chart's ``runtime.podTemplate`` do to a pod."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_operator.resources.overlay import merge

BASE = {
    "spec": {
        "containers": [
            {
                "name": "vllm",
                "image": "i",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
                "ports": [{"name": "http", "containerPort": 8000}],
                "volumeMounts": [{"name": "dshm", "mountPath": "/cache"}],
                "readinessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": 5},
            }
        ],
        "volumes": [{"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
        "tolerations": [{"key": "a"}],
        "nodeSelector": {"a": "1"},
    }
}


def container(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "vllm", **fields}]}}


@pytest.mark.parametrize(
    ("over", "path", "value"),
    [
        pytest.param(container(image="j"), ["image"], "j", id="a field"),
        pytest.param(
            container(env=[{"name": "C", "value": "3"}]),
            ["env"],
            [*BASE["spec"]["containers"][0]["env"], {"name": "C", "value": "3"}],
            id="a further variable",
        ),
        pytest.param(
            container(env=[{"name": "A", "valueFrom": {"secretKeyRef": {}}}]),
            ["env", 0],
            {"name": "A", "valueFrom": {"secretKeyRef": {}}},
            id="a source in the place of a value",
        ),
        pytest.param(
            container(env=[{"name": "B", "value": "2"}]),
            ["env", 1],
            {"name": "B", "value": "2"},
            id="a value in the place of a source",
        ),
        pytest.param(
            container(volumeMounts=[{"name": "dshm", "mountPath": "/x"}]),
            ["volumeMounts"],
            [{"name": "dshm", "mountPath": "/cache"}, {"name": "dshm", "mountPath": "/x"}],
            id="a volume mounted twice",
        ),
        pytest.param(
            container(volumeMounts=[{"name": "own", "mountPath": "/cache"}]),
            ["volumeMounts"],
            [{"name": "own", "mountPath": "/cache"}],
            id="another volume at the same place",
        ),
        pytest.param(
            container(ports=[{"name": ["x"], "containerPort": 9}]),
            ["ports"],
            [{"name": "http", "containerPort": 8000}, {"name": ["x"], "containerPort": 9}],
            id="a name that is no name is the API server's to refuse",
        ),
        pytest.param(
            container(ports=[{"containerPort": 9}]),
            ["ports"],
            [{"name": "http", "containerPort": 8000}, {"containerPort": 9}],
            id="a port without a name keeps the named ones",
        ),
        pytest.param(
            container(readinessProbe={"exec": {"command": ["true"]}}),
            ["readinessProbe"],
            {"exec": {"command": ["true"]}, "periodSeconds": 5},
            id="another way of a probe",
        ),
        pytest.param(
            container(readinessProbe={"periodSeconds": 9}),
            ["readinessProbe"],
            {"tcpSocket": {"port": 1}, "periodSeconds": 9},
            id="another rhythm of a probe",
        ),
        pytest.param(container(readinessProbe=None), ["readinessProbe"], None, id="no probe"),
    ],
)
def test_container(over: dict[str, Any], path: list[str | int], value: Any) -> None:
    found: Any = merge(BASE, over)["spec"]["containers"][0]
    for step in path:
        found = found.get(step) if isinstance(step, str) else found[step]
    assert found == value


@pytest.mark.parametrize(
    ("over", "field", "value"),
    [
        (
            {"volumes": [{"name": "dshm", "hostPath": {"path": "/x"}}]},
            "volumes",
            [{"name": "dshm", "hostPath": {"path": "/x"}}],
        ),
        (
            {"volumes": [{"name": "dshm", "emptyDir": {"sizeLimit": "9Gi"}}]},
            "volumes",
            [{"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "9Gi"}}],
        ),
        ({"tolerations": [{"key": "b"}]}, "tolerations", [{"key": "b"}]),
        ({"nodeSelector": {"b": "2"}}, "nodeSelector", {"a": "1", "b": "2"}),
        ({"nodeSelector": None}, "nodeSelector", None),
        ({"priorityClassName": "high"}, "priorityClassName", "high"),
    ],
)
def test_pod(over: dict[str, Any], field: str, value: Any) -> None:
    assert merge(BASE, {"spec": over})["spec"].get(field) == value


def test_sidecars_and_init_containers_come_after_the_ray_container() -> None:
    merged = merge(BASE, {"spec": {"containers": [{"name": "side"}], "initContainers": [{"name": "first"}]}})
    assert [item["name"] for item in merged["spec"]["containers"]] == ["vllm", "side"]
    assert merged["spec"]["initContainers"] == [{"name": "first"}]


def test_nothing_is_changed_in_place() -> None:
    before = repr(BASE)
    merge(BASE, container(env=[{"name": "A", "value": "9"}], readinessProbe=None))
    assert repr(BASE) == before
    assert merge(BASE, {}) == BASE
