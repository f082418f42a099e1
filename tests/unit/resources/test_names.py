"""Names that Kubernetes and KubeRay take, for every CR name that admission lets in."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.resources import samples

from vllm_operator.api import identity
from vllm_operator.resources.names import EngineNames, Owner, engine_labels, engine_name, labels
from vllm_operator.resources.revision import hashes

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")

cr_names = st.from_regex(identity.NAME_PATTERN, fullmatch=True).filter(lambda name: len(name) <= 40)


def everything(names: EngineNames) -> list[str]:
    return [names.ray_cluster, names.secret, names.report, names.service_account]


def test_longest_cluster_name_is_within_kuberays_limit() -> None:
    owner = Owner(name="a" * identity.MAX_NAME_LENGTH, namespace="n", uid="u")
    names = EngineNames.of(owner, 99, hashes(samples.spec_of())[1])
    assert len(names.ray_cluster) <= 53
    assert len(f"{names.ray_cluster}-head-svc") <= 63
    assert all(len(name) <= 63 for name in everything(names))


@given(cr_names, st.integers(0, 99))
def test_names_are_valid_and_labels_too(name: str, index: int) -> None:
    owner = Owner(name=name, namespace="n", uid="u")
    names = EngineNames.of(owner, index, "0123abcd")
    for found in everything(names):
        assert DNS_1035.fullmatch(found)
        assert len(found) <= 63
    for value in engine_labels(owner, index).values():
        assert LABEL.fullmatch(value)
        assert len(value) <= 63


@given(st.integers(0, 99), st.integers(0, 99))
def test_engines_share_no_name(one: int, other: int) -> None:
    owner = Owner(name="a-1", namespace="n", uid="u")
    sibling = Owner(name="a", namespace="n", uid="v")
    first, second = EngineNames.of(owner, one, "00000000"), EngineNames.of(sibling, other, "00000000")
    assert not set(everything(first)) & set(everything(second))
    if one != other:
        assert not set(everything(first)) & set(everything(EngineNames.of(owner, other, "00000000")))


def test_placeholders_are_filled_everywhere_and_only_them() -> None:
    names = EngineNames(index="7", ray_cluster="demo-7-x")
    empty = EngineNames.placeholder()
    rendering = {"a": [empty.ray_cluster, (f"pre-{empty.index}-post", 1)], "b": {"c": empty.secret}, "d": None}
    assert names.fill(rendering) == {"a": ["demo-7-x", ["pre-7-post", 1]], "b": {"c": "demo-7-x-token"}, "d": None}


def test_engine_names() -> None:
    names = EngineNames(index="3", ray_cluster="demo-3-x")
    assert names.engine == engine_name(3) == "engine-3"
    assert names.placement_group == "demo-3-x-dp0"
    assert names.supervisor == "demo-3-x-supervisor"


def test_owner_reference_is_a_controllers() -> None:
    reference = samples.OWNER.reference
    assert reference["controller"] is True
    assert reference["uid"] == samples.OWNER.uid
    assert (reference["apiVersion"], reference["kind"]) == ("vllm-operator.io/v1alpha1", "VLLMDeployment")


@pytest.mark.parametrize("index", [0, 42])
def test_labels_select_one_deployment_and_one_engine(index: int) -> None:
    tags = engine_labels(samples.OWNER, index)
    assert labels(samples.OWNER).items() <= tags.items()
    assert tags["vllm-operator.io/deployment"] == "demo"
    assert tags["vllm-operator.io/engine"] == str(index)
    assert tags["app.kubernetes.io/managed-by"] == "vllm-operator"
