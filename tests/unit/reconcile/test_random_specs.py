"""10,000 specs that nobody would write, on nodes that nobody has: a plan or a reason, and never an exception.

All of them go through the models and the planner; some through a whole round of the operator, whose status must obey
the CRD.  A failure names the seed of its spec.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import Any

import pytest
from pydantic import ValidationError
from tests.unit.api.random_specs import SCHEMA, random_nodes, random_spec
from tests.unit.api.structural import violations
from tests.unit.reconcile.world import World
from tests.unit.resources.samples import DEFAULTS

from vllm_operator.api.spec import VLLMDeploymentSpec, explain
from vllm_operator.planning.catalogue import BUILT_IN
from vllm_operator.planning.facts import FactsError
from vllm_operator.planning.inventory_file import read_inventory
from vllm_operator.planning.plan import GPUsTakenError, NoSuchGPUsError, plan
from vllm_operator.resources.needs import host_needs
from vllm_operator.resources.pod import node_rules

SPECS, PARTS = 10_000, 20
ROUNDS = 20
"""One of so many goes through a whole round of the operator, too."""

REASONS = {FactsError: "InvalidSpec", NoSuchGPUsError: "NoSuchGPUs", GPUsTakenError: "WaitingForGPUs"}


class Full(dict[str, Any]):
    """The data of a Secret that has every key."""

    def __contains__(self, key: object) -> bool:
        return True


def world_of(spec: Any, objects: list[dict[str, Any]]) -> World:
    """Give a world in which all that a spec refers to is there."""
    world = World(spec=spec if isinstance(spec, dict) else {})
    for kind, _, name in list(world.api.objects):
        if kind == "Node":
            world.api.drop(kind, name, "")
    for body in objects:
        world.api.put(body)
    find = world.api.find

    async def found(kind: Any, namespace: str, name: str) -> dict[str, Any] | None:
        if kind.kind in ("Secret", "ConfigMap", "PersistentVolumeClaim") and not name.startswith("demo-"):
            return {"metadata": {"name": name}, "data": Full(key="value")}
        return await find(kind, namespace, name)

    world.api.find = found  # type: ignore[method-assign]
    return world


def admitted(body: Any) -> VLLMDeploymentSpec | None:
    """Read a spec; a refusal says where the fault is."""
    try:
        return VLLMDeploymentSpec.model_validate(body)
    except ValidationError as error:
        told = explain(error)
    assert re.match(r"spec(\..+)?: \S", told, re.DOTALL), told
    return None


def verdict(spec: VLLMDeploymentSpec, objects: list[dict[str, Any]]) -> str:
    """Plan; gives the reason of the condition that is to be expected, empty for a plan."""
    if spec.ray_cluster_ref:
        return "RayClusterNotFound"  # none is in this world
    try:
        rules, nodes = node_rules(spec, DEFAULTS), read_inventory({"items": objects})
        needs, bare = (host_needs(spec, DEFAULTS, with_ray=with_ray) for with_ray in (True, False))
        plan(spec, nodes, BUILT_IN, rules=rules, needs=needs, bare=bare)
    except (FactsError, NoSuchGPUsError, GPUsTakenError) as error:
        told, reason = str(error), REASONS[type(error)]
    else:
        return ""
    assert re.search(r"\w", told)
    return reason


def said(body: Any, objects: list[dict[str, Any]], expected: str) -> None:
    """Let the operator do a round, and hold what it wrote against the CRD."""
    world = world_of(body, objects)
    asyncio.run(world.round())
    assert list(violations(world.status, SCHEMA["status"])) == []
    assert json.loads(json.dumps(list(world.api.objects.values()))), "nothing is written that JSON cannot hold"
    made = [*world.api.names("RayCluster"), *world.api.names("Deployment")]
    stalled, ready = world.condition("Stalled"), world.condition("Ready")
    if expected:
        assert ready["reason"] == expected
        assert ready["message"]
        assert (stalled["status"] == "True") is (expected != "WaitingForGPUs")
        assert not made
    else:
        assert world.status["plan"]["podShapes"]
        engines = 0 if body.get("planOnly") or body.get("suspend") else int(body.get("replicas", 1))
        # The plan is for one engine; the others are made if they have seats, too.
        assert min(1, engines) <= len(made) <= engines


@pytest.mark.parametrize("part", range(PARTS))
def test_a_plan_or_a_reason(part: int) -> None:
    for seed in range(part, SPECS, PARTS):
        chance = random.Random(seed)  # noqa: S311 - no secret
        body, objects = random_spec(chance), random_nodes(chance)
        try:
            spec = admitted(body)
            expected = verdict(spec, objects) if spec else "InvalidSpec"
            if seed // PARTS % ROUNDS == 0 and isinstance(body, dict):
                said(body, objects, expected)
        except Exception as error:
            error.add_note(f"seed {seed}: {json.dumps(body)[:2000]}")
            raise
