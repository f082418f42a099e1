"""What a quota allows, who it counts, and what its API server would refuse."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_operator.planning.quota import (
    Pods,
    QuotaError,
    QuotaExceededError,
    UnstatedResourcesError,
    check_quotas,
    read_rules,
    usage,
)

Object = dict[str, Any]
GPU = "nvidia.com/gpu"


def pods(number: int = 1, name: str = "vllm", more: Object | None = None, **limits: str) -> Pods:
    spec = {"containers": [{"name": name, "resources": {"limits": limits}}], **(more or {})}
    return Pods(spec=spec, number=number, container="vllm", field="pod.resources")


def gpu_pods(number: int, gpus: int, **limits: str) -> Pods:
    return pods(number, **{"cpu": "8", "memory": "64Gi", GPU: str(gpus), **limits})


def quota(hard: Object, used: Object | None = None, **spec: Any) -> Object:
    status = {"hard": hard, "used": used or dict.fromkeys(hard, "0")}
    return {"kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": {"hard": hard, **spec}, "status": status}


def limit_range(**item: Any) -> Object:
    return {"kind": "LimitRange", "metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", **item}]}}


ENGINE = (pods(cpu="1", memory="4Gi"), gpu_pods(2, 8))


@pytest.mark.parametrize(
    ("hard", "used", "words"),
    [
        ({"requests.nvidia.com/gpu": "16"}, {}, ""),
        (
            {"requests.nvidia.com/gpu": "16"},
            {"requests.nvidia.com/gpu": "4"},
            "ResourceQuota team allows 16 of requests.nvidia.com/gpu, others use 4, the engine asks for 16",
        ),
        ({"requests.amd.com/gpu": "0"}, {}, ""),
        ({"requests.cpu": "17"}, {}, ""),
        ({"requests.cpu": "16500m"}, {}, "allows 16500m of requests.cpu, others use 0, the engine asks for 17"),
        ({"cpu": "16"}, {}, "allows 16 of cpu, others use 0, the engine asks for 17"),
        ({"limits.cpu": "16"}, {}, "allows 16 of limits.cpu"),
        ({"memory": "132Gi"}, {}, ""),
        ({"memory": "132Gi"}, {"memory": "1"}, "allows 132Gi of memory, others use 1, the engine asks for 132Gi"),
        ({"requests.memory": "131Gi"}, {}, "requests.memory"),
        ({"limits.memory": "131Gi"}, {}, "limits.memory"),
        ({"pods": "3"}, {}, ""),
        ({"pods": "10"}, {"pods": "8"}, "allows 10 of pods, others use 8, the engine asks for 3"),
        ({"count/pods": "2"}, {}, "allows 2 of count/pods"),
        ({"count/rayclusters.ray.io": "1"}, {}, ""),
        (
            {"count/rayclusters.ray.io": "1"},
            {"count/rayclusters.ray.io": "1"},
            "allows 1 of count/rayclusters.ray.io, others use 1, the engine asks for 1",
        ),
        ({"count/secrets": "0", "services": "0", "requests.storage": "1Gi"}, {}, ""),
        ({"requests.ephemeral-storage": "0"}, {}, ""),
        ({"pods": "1", "requests.nvidia.com/gpu": "1"}, {}, "; ResourceQuota team allows 1 of requests.nvidia.com/gpu"),
        ({}, {}, ""),
    ],
)
def test_what_is_allowed(hard: Object, used: Object, words: str) -> None:
    rules = read_rules([quota(hard, used)])
    if not words:
        assert check_quotas(rules, ENGINE) == ()
        return
    with pytest.raises(QuotaExceededError) as refusal:
        check_quotas(rules, ENGINE)
    assert words in str(refusal.value)


HIGH = {"priorityClassName": "high"}


def priority(operator: str, *values: str) -> Object:
    return {
        "scopeSelector": {
            "matchExpressions": [{"scopeName": "PriorityClass", "operator": operator, "values": list(values)}]
        }
    }


@pytest.mark.parametrize(
    ("scope", "pod", "counted"),
    [
        ({"scopes": ["NotTerminating"]}, pods(cpu="1"), True),
        ({"scopes": ["Terminating"]}, pods(cpu="1"), False),
        ({"scopes": ["Terminating"]}, pods(cpu="1", more={"activeDeadlineSeconds": 5}), True),
        ({"scopes": ["NotTerminating"]}, pods(cpu="1", more={"activeDeadlineSeconds": 5}), False),
        ({"scopes": ["BestEffort"]}, pods(cpu="1"), False),
        ({"scopes": ["BestEffort"]}, pods(), True),
        ({"scopes": ["NotBestEffort"]}, pods(memory="1Gi"), True),
        ({"scopes": ["NotBestEffort"]}, pods(), False),
        ({"scopes": ["NotBestEffort", "Terminating"]}, pods(cpu="1"), False),
        (priority("In", "high", "higher"), pods(more=HIGH), True),
        (priority("In", "low"), pods(more=HIGH), False),
        (priority("In", "low"), pods(), False),
        (priority("NotIn", "low"), pods(), True),
        (priority("NotIn", "high"), pods(more=HIGH), False),
        (priority("Exists"), pods(more=HIGH), True),
        (priority("Exists"), pods(), False),
        (priority("DoesNotExist"), pods(), True),
        (priority("Resembles"), pods(), False),
    ],
)
def test_a_quota_counts_only_the_pods_of_its_scopes(scope: Object, pod: Pods, counted: bool) -> None:
    rules = read_rules([quota({"pods": "0", "count/rayclusters.ray.io": "0"}, **scope)])
    if counted:
        with pytest.raises(QuotaExceededError, match="allows 0 of pods"):
            check_quotas(rules, [pod])
    else:
        assert check_quotas(rules, [pod]) == ()


def test_a_scope_that_is_not_known_blocks_nothing_and_is_said() -> None:
    rules = read_rules([quota({"pods": "0"}, scopes=["CrossNamespacePodAffinity"])])
    [note] = check_quotas(rules, ENGINE)
    assert "ResourceQuota team is not looked at" in note
    assert "CrossNamespacePodAffinity" in note


def test_pods_that_make_room_count_as_free() -> None:
    used = {"requests.nvidia.com/gpu": "16", "count/rayclusters.ray.io": "1", "pods": "3"}
    full = quota({"requests.nvidia.com/gpu": "16", "count/rayclusters.ray.io": "1", "pods": "3"}, used)
    live = [{"spec": dict(item.spec), "status": {"phase": "Running"}} for item in ENGINE for _ in range(item.number)]
    assert check_quotas(read_rules([full], live, clusters=1), ENGINE) == ()
    ended = [item | {"status": {"phase": "Failed"}} for item in live]
    with pytest.raises(QuotaExceededError):
        check_quotas(read_rules([full], ended, clusters=1), ENGINE)


@pytest.mark.parametrize(
    ("hard", "pod", "words"),
    [
        ({"requests.cpu": "100"}, pods(), "ResourceQuota team limits requests.cpu"),
        ({"limits.memory": "1Ti"}, pods(cpu="1"), "as vllm does not; state it in pod.resources"),
        ({"memory": "1Ti", "cpu": "9"}, pods(), "limits cpu, memory: the API server refuses pods"),
        ({"memory": "1Ti"}, pods(name="proxy"), "as proxy does not; state it in pod.template"),
    ],
)
def test_what_a_quota_limits_must_be_stated(hard: Object, pod: Pods, words: str) -> None:
    with pytest.raises(UnstatedResourcesError) as refusal:
        check_quotas(read_rules([quota(hard)]), [pod])
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    "hard", [{"requests.nvidia.com/gpu": "1"}, {"requests.ephemeral-storage": "1Gi"}, {"pods": "1"}]
)
def test_other_resources_need_not_be_stated(hard: Object) -> None:
    assert check_quotas(read_rules([quota(hard)]), [pods()]) == ()


def test_what_a_limit_range_gives_is_stated_and_counts() -> None:
    given = limit_range(defaultRequest={"cpu": "2"}, default={"cpu": "4", "memory": "1Gi"})
    hard = quota({"requests.cpu": "2", "limits.cpu": "4", "limits.memory": "1Gi"})
    # A default limit is no request of memory: only what defaultRequest names is.
    assert check_quotas(read_rules([hard, given]), [pods()]) == ()
    with pytest.raises(QuotaExceededError, match=r"allows 2 of requests\.cpu, others use 0, the engine asks for 4"):
        check_quotas(read_rules([hard, given]), [pods(2)])
    with pytest.raises(QuotaExceededError, match=r"asks for 3$"):
        check_quotas(read_rules([quota({"requests.cpu": "2"}), given]), [pods(cpu="3")])


def test_a_new_quota_counts_before_it_has_a_status() -> None:
    body = quota({"pods": "1"})
    with pytest.raises(QuotaExceededError):
        check_quotas(read_rules([body | {"status": {}}]), ENGINE)


def test_what_a_pod_uses() -> None:
    spec = {
        "containers": [{"resources": {"limits": {"memory": "2Gi", GPU: "2", "hugepages-2Mi": "4Mi"}}}],
        "initContainers": [{"resources": {"requests": {"cpu": "1"}}}],
    }
    assert usage(spec) == {
        "pods": 1,
        "count/pods": 1,
        "cpu": 1000,
        "requests.cpu": 1000,
        "memory": 2**31,
        "requests.memory": 2**31,
        "limits.memory": 2**31,
        "hugepages-2Mi": 2**22,
        "requests.hugepages-2Mi": 2**22,
        "requests.nvidia.com/gpu": 2,
    }


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["hard", "used", "scopes", "scopeSelector", "matchExpressions", "values", "limits", "cpu", "type"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(st.sampled_from(["ResourceQuota", "LimitRange"]), json, json, json)
def test_nothing_makes_it_stumble(kind: str, meta: Any, spec: Any, status: Any) -> None:
    rules = read_rules([{"kind": kind, "metadata": meta, "spec": spec, "status": status}])
    with contextlib.suppress(QuotaError):
        check_quotas(rules, ENGINE)
