"""What a spec refers to must be there before anything is made; what is optional need not."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.reconcile.world import World
from tests.unit.resources import samples

HUB = {"uri": "hf://org/name"}


def env(kind: str, **more: Any) -> dict[str, Any]:
    return {"env": [{"name": "V", "valueFrom": {kind: {"name": "it", "key": "k", **more}}}]}


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        (
            {"model": {**HUB, "hfTokenSecret": {"name": "it"}}},
            "SecretNotFound",
            "spec.model.hfTokenSecret: Secret it does not exist in namespace models; create it",
        ),
        (
            {"model": {**HUB, "cache": {"persistentVolumeClaim": "it"}}},
            "ClaimNotFound",
            "spec.model.cache: PersistentVolumeClaim it does not exist",
        ),
        ({"model": {"uri": "pvc://it/x"}}, "ClaimNotFound", "spec.model.uri: PersistentVolumeClaim it"),
        (
            {"apiKeySecret": {"name": "it", "key": "k"}},
            "SecretNotFound",
            "spec.apiKeySecret: Secret it does not exist in namespace models; create it",
        ),
        (
            {"lora": {"persistentVolumeClaims": ["it"]}},
            "ClaimNotFound",
            "spec.lora.persistentVolumeClaims: PersistentVolumeClaim it does not exist",
        ),
        (env("secretKeyRef"), "SecretNotFound", "spec.env V: Secret it"),
        (env("configMapKeyRef"), "ConfigMapNotFound", "spec.env V: ConfigMap it"),
        ({"envFrom": [{"secretRef": {"name": "it"}}]}, "SecretNotFound", "spec.envFrom[0]: Secret it"),
        ({"envFrom": [{"configMapRef": {"name": "it"}}]}, "ConfigMapNotFound", "spec.envFrom[0]: ConfigMap it"),
    ],
)
async def test_missing_references(spec: dict[str, Any], reason: str, words: str) -> None:
    world = World(spec={**samples.TYPICAL, **spec})
    await world.round()
    assert world.condition("Ready")["reason"] == reason
    assert words in world.condition("Ready")["message"]
    assert world.api.names("RayCluster") == []


@pytest.mark.parametrize(
    "spec",
    [
        env("secretKeyRef", optional=True),
        env("configMapKeyRef", optional=True),
        {"envFrom": [{"secretRef": {"name": "it", "optional": True}}]},
        {"envFrom": [{"configMapRef": {"name": "it", "optional": True}}]},
        {"model": HUB},
        {"env": [{"name": "V", "value": "plain"}]},
    ],
)
async def test_what_may_be_absent(spec: dict[str, Any]) -> None:
    world = World(spec={**samples.TYPICAL, **spec})
    await world.round()
    assert world.api.names("RayCluster")


async def test_no_value_of_a_secret_goes_anywhere() -> None:
    world = World(spec={**samples.TYPICAL, **env("secretKeyRef"), "apiKeySecret": {"name": "it", "key": "k"}})
    secret = {"metadata": {"name": "it", "namespace": "models"}, "data": {"k": "dG9wc2VjcmV0"}}
    world.api.put({"apiVersion": "v1", "kind": "Secret", **secret})
    await world.serve()
    world.api.drop("Secret", "it")
    told = repr(world.api.objects) + repr(world.ray.plans)
    assert "dG9wc2VjcmV0" not in told
    assert "topsecret" not in told


async def test_objects_of_others_with_our_labels_are_not_taken_for_ours() -> None:
    world = World()
    await world.serve()
    live = world.api.body("RayCluster", world.api.names("RayCluster")[0])
    impostor = {**live, "metadata": {**live["metadata"], "name": "impostor", "uid": "x", "ownerReferences": []}}
    world.api.put(impostor)
    world.change(replicas=0)
    await world.depart()
    world.collect()
    assert world.api.names("RayCluster") == ["impostor"]


async def test_nodes_are_listed_only_for_a_new_revision() -> None:
    world = World()
    await world.round()
    world.api.refuse["list", "Node"] = RuntimeError("must not be listed")  # type: ignore[assignment]
    await world.round()
    world.api.refuse.clear()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "spec.model: Field required"),
        ({"model": {"uri": "ftp://x"}}, "spec.model.uri: "),
        (
            {"model": {"uri": "file:///m"}, "vllmConfig": {"extraArgs": ["--port=1"]}},
            "spec: vllmConfig.extraArgs: '--port=1' would override --port",
        ),
    ],
)
async def test_an_invalid_spec_is_told_by_field(spec: dict[str, Any], words: str) -> None:
    world = World(spec=spec)
    await world.round()
    assert world.condition("Ready")["reason"] == "InvalidSpec"
    assert words in world.condition("Ready")["message"]
