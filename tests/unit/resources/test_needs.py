"""What pods ask of a node is read out of their rendering: templates, the chart's defaults and KubeRay's own count."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.resources import samples
from tests.unit.resources.samples import DEFAULTS, Object, spec_of

from vllm_operator.planning.quantity import show
from vllm_operator.resources.defaults import RuntimeDefaults
from vllm_operator.resources.needs import host_needs

KUBERAY = {"cpu": "200m of cpu", "memory": "256Mi of memory", "pods": "1 pod slots"}
WAITS = "KubeRay's init container"
HEAD = {"cpu": "1 of cpu", "memory": "4Gi of memory", "pods": "1 pod slots"}


def template(*containers: Object, key: str = "containers", **spec: Any) -> Object:
    return {"pod": {"template": {"spec": {key: list(containers), **spec}}}}


def named(name: str, **requests: str) -> Object:
    return {"name": name, "resources": {"requests": requests}}


@pytest.mark.parametrize(
    ("spec", "pod", "head", "sources"),
    [
        ({}, KUBERAY, HEAD, {}),
        (
            samples.TYPICAL,
            KUBERAY | {"memory": "2Gi of memory"},
            HEAD | {"cpu": "200m of cpu", "memory": "2Gi of memory"},
            {"cpu": "pod.resources", "memory": "pod.resources"},
        ),
        (
            {"pod": {"resources": {"limits": {"cpu": "16", "memory": "480Gi", "ephemeral-storage": "20Gi"}}}},
            {
                "cpu": "16 of cpu",
                "memory": "480Gi of memory",
                "ephemeral-storage": "20Gi of ephemeral-storage",
                "pods": "1 pod slots",
            },
            HEAD,
            dict.fromkeys(("cpu", "memory", "ephemeral-storage"), "pod.resources"),
        ),
        (
            template(named("vllm", cpu="3"), named("proxy", cpu="1", memory="1Gi")),
            KUBERAY | {"cpu": "4 of cpu", "memory": "1Gi of memory"},
            # the template lies over the head, too
            HEAD | {"cpu": "4 of cpu", "memory": "5Gi of memory"},
            {"cpu": "pod.template", "memory": "pod.template"},
        ),
        (
            {"pod": {"resources": {"requests": {"cpu": "1"}}, **template(named("proxy", cpu="1"))["pod"]}},
            KUBERAY | {"cpu": "2 of cpu"},
            HEAD | {"cpu": "2 of cpu"},
            {"cpu": "pod.resources with pod.template"},
        ),
        (
            template(named("fetch", memory="64Gi"), key="initContainers"),
            KUBERAY | {"memory": "64Gi of memory"},
            HEAD | {"memory": "64Gi of memory"},
            {"memory": "pod.template"},
        ),
        (
            {"pod": {"resources": {"limits": {"rdma/ib": 1}}}},
            KUBERAY | {"rdma/ib": "1 of rdma/ib"},
            HEAD,
            {"rdma/ib": "pod.resources"},
        ),
        ({"rayHead": {"resources": {"limits": {"memory": "8Gi"}}}}, KUBERAY, {"memory": "8Gi of memory"}, {}),
    ],
)
def test_needs(spec: Object, pod: Object, head: Object, sources: Object) -> None:
    needs = host_needs(spec_of(spec), DEFAULTS)
    assert {name: show(name, value) for name, value in needs.pod.items()} == pod
    assert {name: show(name, value) for name, value in needs.head.items()} == {"pods": "1 pod slots"} | head
    assert needs.sources == {"cpu": WAITS, "memory": WAITS, "pods": "every pod"} | sources


def test_the_charts_template_counts() -> None:
    defaults = RuntimeDefaults(pod_template=template(named("log", cpu="2"))["pod"]["template"])
    assert host_needs(spec_of(), defaults).pod["cpu"] == 2000


def test_the_head_is_bound_by_its_own_rules() -> None:
    rules = host_needs(spec_of(samples.EVERYTHING), DEFAULTS).head_rules
    assert rules.node_selector == {"pool": "cpu"}
    assert list(rules.tolerations) == [{"operator": "Exists"}]


KEYS = [
    *("metadata", "labels", "spec", "containers", "initContainers", "resources", "requests", "limits", "name", "cpu"),
    *("tolerations", "nodeSelector", "affinity", "volumes", "env", "mountPath", "overhead"),
]
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec"]), json))
def test_no_template_makes_it_stumble(given_template: dict[str, Any]) -> None:
    assert host_needs(spec_of({"pod": {"template": given_template}}), DEFAULTS).pod["pods"] == 1
