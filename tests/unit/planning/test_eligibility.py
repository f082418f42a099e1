"""Which nodes a GPU pod may go to: the scheduler's own rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_operator.planning.eligibility import Obstacle, PodRules, obstacle, read_rules, tolerates
from vllm_operator.planning.inventory import GpuNode, Taint

NODE = GpuNode(name="n", gpus=8, labels={"zone": "z1", "cores": "64", "odd": "1_000"})
SPOT = Taint(key="spot", value="yes", effect="NoSchedule")


def affinity(**term: Any) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def label(key: str, operator: str, *values: str) -> dict[str, Any]:
    return affinity(matchExpressions=[{"key": key, "operator": operator, "values": list(values)}])


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (PodRules(), None),
        (PodRules(node_selector={"zone": "z1"}), None),
        (PodRules(node_selector={"zone": "z2"}), "nodeSelector zone=z2 does not match"),
        (PodRules(node_selector={"pool": "a"}), "nodeSelector pool=a does not match"),
        (PodRules(affinity={}), None),
        (PodRules(affinity={"podAntiAffinity": {}}), None),
        (PodRules(affinity=affinity()), "affinity"),
        (PodRules(affinity=label("zone", "In", "z0", "z1")), None),
        (PodRules(affinity=label("zone", "In", "z0")), "affinity"),
        (PodRules(affinity=label("zone", "NotIn", "z0")), None),
        (PodRules(affinity=label("pool", "NotIn", "a")), None),
        (PodRules(affinity=label("zone", "NotIn", "z1")), "affinity"),
        (PodRules(affinity=label("zone", "Exists")), None),
        (PodRules(affinity=label("pool", "Exists")), "affinity"),
        (PodRules(affinity=label("pool", "DoesNotExist")), None),
        (PodRules(affinity=label("cores", "Gt", "32")), None),
        (PodRules(affinity=label("cores", "Gt", "64")), "affinity"),
        (PodRules(affinity=label("cores", "Lt", "65")), None),
        (PodRules(affinity=label("zone", "Lt", "65")), "affinity"),
        (PodRules(affinity=label("odd", "Gt", "32")), "affinity"),
        (PodRules(affinity=label("zone", "Resembles", "z1")), "affinity"),
        (PodRules(affinity=affinity(matchFields=[{"key": "metadata.name", "operator": "In", "values": ["n"]}])), None),
    ],
)
def test_selectors_and_affinity(rules: PodRules, reason: str | None) -> None:
    found = obstacle(NODE, rules)
    assert (found is None) == (reason is None)
    assert not found or (reason or "") in found.reason


@pytest.mark.parametrize(
    ("toleration", "covered"),
    [
        ({"key": "spot", "value": "yes"}, True),
        ({"key": "spot", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "spot", "value": "no"}, False),
        ({"key": "spot"}, False),
        ({"key": "spot", "operator": "Exists"}, True),
        ({"key": "spot", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"operator": "Exists"}, True),
        ({"value": "yes"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "spot", "operator": "Resembles", "value": "yes"}, False),
    ],
)
def test_tolerations(toleration: dict[str, str], covered: bool) -> None:
    assert tolerates(toleration, SPOT) is covered


@pytest.mark.parametrize(
    ("node", "found"),
    [
        (GpuNode(name="n", gpus=1, taints=(SPOT,)), Obstacle(reason="taint spot=yes:NoSchedule is not tolerated")),
        (GpuNode(name="n", gpus=1, taints=(Taint(key="x", effect="PreferNoSchedule"),)), None),
        (GpuNode(name="n", gpus=1, schedulable=False), Obstacle(reason="the node is cordoned", passing=True)),
        (
            GpuNode(name="n", gpus=1, taints=(Taint(key="node.kubernetes.io/unreachable", effect="NoExecute"),)),
            Obstacle(reason="taint node.kubernetes.io/unreachable:NoExecute is not tolerated", passing=True),
        ),
    ],
)
def test_taints_and_cordons(node: GpuNode, found: Obstacle | None) -> None:
    assert obstacle(node, PodRules()) == found


@pytest.mark.parametrize(
    ("node", "found"),
    [
        (GpuNode(name="n", gpus=1, taints=(SPOT,), schedulable=False), None),
        (GpuNode(name="m", gpus=1), Obstacle(reason="nodeName n does not match")),
        (
            GpuNode(name="n", gpus=1, taints=(Taint(key="x", effect="NoExecute"),)),
            Obstacle(reason="taint x:NoExecute is not tolerated"),
        ),
    ],
)
def test_a_named_node_is_taken_past_the_scheduler(node: GpuNode, found: Obstacle | None) -> None:
    assert obstacle(node, PodRules(node_name="n")) == found


@pytest.mark.parametrize(
    ("toleration", "goes"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_a_cordon_is_tolerated_like_its_taint(toleration: dict[str, str], goes: bool) -> None:
    node = GpuNode(name="n", gpus=1, schedulable=False, taints=(Taint(key="node.kubernetes.io/unschedulable"),))
    assert (obstacle(node, PodRules(tolerations=[toleration])) is None) is goes


KEYS = st.sampled_from(
    [
        *("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms", "matchExpressions"),
        *("matchFields", "key", "operator", "values", "effect", "value", "In", "Gt"),
    ]
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["In", "Gt", "Exists", "zone"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@given(affinity=st.dictionaries(KEYS, anything, max_size=3), tolerations=st.lists(st.dictionaries(KEYS, anything)))
def test_free_form_of_any_form_is_looked_at(affinity: dict[str, Any], tolerations: list[dict[str, Any]]) -> None:
    node = GpuNode(name="n", gpus=1, taints=(SPOT,))
    rules = PodRules(affinity=affinity, tolerations=tolerations)
    assert obstacle(node, rules) is None or obstacle(node, rules)


@given(st.one_of(anything, st.dictionaries(st.sampled_from(["nodeSelector", "tolerations", "affinity"]), anything)))
def test_a_pod_of_any_form_is_read(pod: Any) -> None:
    found = read_rules(pod)
    assert obstacle(GpuNode(name="n", gpus=1, taints=(SPOT,)), found) or found
