"""Which change of the spec is a change of the engine, of the pods, of both or of nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.resources import samples

from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.resources.names import EngineNames
from vllm_operator.resources.revision import (
    controller_revision,
    hashes,
    read_controller_revision,
    revision_name,
)

HUB = {"model": {"uri": "hf://org/name"}}
CLAIM = {"model": {"uri": "pvc://claim/a"}}
LORA = {"lora": {"adapters": [{"name": "sql", "uri": "file:///a"}]}}
HUB_ADAPTER = {"name": "hub", "uri": "hf://org/a", "revision": "v1"}
SECRET_ENV = {"env": [{"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}


def changed(before: samples.Object, after: samples.Object) -> str:
    one, other = hashes(samples.spec_of(before)), hashes(samples.spec_of(after))
    return " ".join(word for word, moved in (("engine", one[0] != other[0]), ("pods", one[1] != other[1])) if moved)


@pytest.mark.parametrize(
    ("before", "after", "moves"),
    [
        pytest.param({}, {"replicas": 3}, "", id="replicas"),
        pytest.param({}, {"replicas": 0}, "", id="scaled to zero"),
        pytest.param({}, {"image": "other"}, "pods", id="image"),
        pytest.param({}, {"parallelism": {"tensor": 2}}, "engine pods", id="tensor"),
        pytest.param({}, {"parallelism": {"pipeline": 2}}, "engine pods", id="pipeline"),
        pytest.param({}, {"parallelism": {"data": 2}}, "engine pods", id="data"),
        pytest.param({}, {"parallelism": {"expert": True}}, "engine pods", id="expert"),
        pytest.param(
            {"parallelism": {"tensor": 2}},
            {"parallelism": {"tensor": 2, "data": 1, "expert": False}},
            "",
            id="what the API server fills in",
        ),
        pytest.param({}, {"placement": {"strategy": "SPREAD"}}, "engine pods", id="strategy"),
        pytest.param({}, {"placement": {"gpusPerPod": 1}}, "pods", id="gpusPerPod"),
        pytest.param({}, {"vllmConfig": {"maxModelLen": 1}}, "engine", id="maxModelLen"),
        pytest.param({}, {"vllmConfig": {"extraArgs": ["--x"]}}, "engine", id="extraArgs"),
        pytest.param({}, {"env": [{"name": "A", "value": "1"}]}, "engine", id="a plain variable"),
        pytest.param({}, SECRET_ENV, "engine pods", id="a variable from a Secret"),
        pytest.param({}, {"envFrom": [{"secretRef": {"name": "s"}}]}, "engine pods", id="envFrom"),
        pytest.param({}, {"model": {"uri": "file:///other"}}, "engine", id="another path in the image"),
        pytest.param({}, {"apiKeySecret": {"name": "s", "key": "k"}}, "pods", id="an API key"),
        pytest.param({}, {"drain": {"timeoutSeconds": 600}}, "", id="how long it drains"),
        pytest.param({}, {"suspend": True}, "", id="suspended"),
        pytest.param({}, HUB, "engine pods", id="a hub's model has a cache volume, a path has none"),
        pytest.param(HUB, {"model": {"uri": "hf://org/other"}}, "engine", id="another model of the hub"),
        pytest.param(HUB, {"model": {**HUB["model"], "revision": "v2"}}, "engine", id="another revision of it"),
        pytest.param(
            HUB,
            {"model": {**HUB["model"], "cache": {"persistentVolumeClaim": "c"}}},
            "engine pods",
            id="a claim for the cache",
        ),
        pytest.param(
            HUB, {"model": {**HUB["model"], "hfTokenSecret": {"name": "t"}}}, "engine pods", id="a token of the hub"
        ),
        pytest.param(CLAIM, {"model": {"uri": "pvc://claim/b"}}, "engine", id="another path on the claim"),
        pytest.param(CLAIM, {"model": {"uri": "pvc://other/a"}}, "engine pods", id="another claim"),
        pytest.param({}, {"model": {"uri": "file:///m", "name": "n"}}, "engine", id="served name"),
        pytest.param({}, {"pod": {"shmSize": "1Gi"}}, "pods", id="shmSize"),
        pytest.param({}, {"pod": {"labels": {"a": "b"}}}, "pods", id="labels"),
        pytest.param({}, {"pod": {"template": {"spec": {}}}}, "pods", id="template"),
        pytest.param({}, {"rayHead": {"nodeSelector": {"a": "b"}}}, "pods", id="rayHead"),
        pytest.param({}, {"lora": {}}, "engine", id="an engine that can take adapters"),
        pytest.param({"lora": {}}, LORA, "", id="the first adapter"),
        pytest.param(LORA, {"lora": {"adapters": []}}, "", id="no adapter any more"),
        pytest.param(LORA, {"lora": {"adapters": [HUB_ADAPTER]}}, "", id="an adapter of the hub"),
        pytest.param(LORA, {"lora": {**LORA["lora"], "maxLoraRank": 64}}, "engine", id="a higher rank"),
        pytest.param(LORA, {"lora": {**LORA["lora"], "maxLoras": 2}}, "engine", id="more adapters in a batch"),
        pytest.param(LORA, {"lora": {**LORA["lora"], "persistentVolumeClaims": ["c"]}}, "pods", id="their claim"),
        # what a user may write out without meaning a change
        pytest.param({}, {"placement": {"strategy": "PACK"}}, "", id="the default strategy"),
        pytest.param({}, {"placement": {}, "vllmConfig": {}, "pod": {}, "env": [], "rayHead": {}}, "", id="empty"),
        pytest.param({}, {"distributedExecutorBackend": "auto"}, "", id="the default executor"),
        pytest.param(
            {"pod": {"resources": {"limits": {"cpu": "4"}}}},
            {"pod": {"resources": {"limits": {"cpu": 4}}}},
            "",
            id="a quantity as a number",
        ),
        pytest.param(
            {"model": {**HUB["model"], "hfTokenSecret": {"name": "t"}}},
            {"model": {**HUB["model"], "hfTokenSecret": {"name": "t", "key": "token"}}},
            "",
            id="a default within",
        ),
        pytest.param({}, {"unknownToThisVersion": {"a": 1}}, "", id="a field of another version"),
    ],
)
def test_what_moves_what(before: samples.Object, after: samples.Object, moves: str) -> None:
    assert changed(before, after) == moves


def test_a_later_version_with_a_new_defaulted_field_changes_nobodys_hash() -> None:
    class LaterSpec(VLLMDeploymentSpec):
        suspend: bool = False
        topology_key: str = "kubernetes.io/hostname"

    for whole in (samples.TYPICAL, samples.EVERYTHING):
        assert hashes(LaterSpec.model_validate(whole)) == hashes(samples.spec_of(whole))


@pytest.mark.parametrize(
    ("spec", "name"), [(samples.TYPICAL, "22e7104e-d72fcd62"), (samples.EVERYTHING, "3ef1df64-bab31f35")]
)
def test_hashes_stay_what_they_are(spec: samples.Object, name: str) -> None:
    """A change of this file is an upgrade that restarts every engine of every user."""
    assert revision_name(*hashes(samples.spec_of(spec))) == name


def test_hash_of_pods_covers_all_that_renders_them() -> None:
    """Two specs of equal ``pods8`` have equal pods: the RayCluster's name says so."""
    variants: list[samples.Object] = [
        {},
        HUB,
        CLAIM,
        {"model": {"uri": "file:///other"}},
        {"model": {"uri": "hf://org/other", "revision": "v1"}},
        {"model": {"uri": "pvc://claim/b"}},
        {"model": {"uri": "file:///m", "name": "n"}},
        {"env": [{"name": "A", "value": "1"}]},
        {"vllmConfig": {"maxModelLen": 4}},
        {"replicas": 2},
    ]
    seen: dict[str, Any] = {}
    for variant in variants:
        spec = samples.spec_of(variant)
        rendering = samples.rendered(spec, names=EngineNames.placeholder())
        assert seen.setdefault(hashes(spec)[1], rendering) == rendering


def test_controller_revision_keeps_a_revision_whole() -> None:
    revision = samples.revision_of(samples.spec_of(samples.TYPICAL))
    body = controller_revision(samples.OWNER, revision, number=3)
    assert body["revision"] == 3
    assert body["metadata"]["name"] == f"demo-{revision.name}"
    assert read_controller_revision(json.loads(json.dumps(body))) == revision


def test_a_rendering_has_no_trace_of_one_engine() -> None:
    text = json.dumps(dict(samples.revision_of(samples.spec_of(samples.TYPICAL)).cluster_spec))
    assert "demo-0-" not in text
    filled = EngineNames(index="5", ray_cluster="demo-5-cafe").fill(json.loads(text))
    assert "@" not in json.dumps(filled)
    assert "demo-5-cafe-token" in json.dumps(filled)
    assert '"vllm-operator.io/engine": "5"' in json.dumps(filled)


def test_rendering_is_deterministic() -> None:
    one, other = (samples.revision_of(samples.spec_of(samples.TYPICAL)) for _ in range(2))
    assert json.dumps(one.cluster_spec) == json.dumps(other.cluster_spec)
    assert json.dumps(one.engine) == json.dumps(other.engine)
