"""Carrying out: whose object it is, what a refusal means, and that tokens are random and made once."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from tests.unit.reconcile.world import World
from tests.unit.resources import samples

from vllm_operator.clients.kubernetes import ApiError, ConflictError
from vllm_operator.lifecycle.actions import Create, CreateTokens, Delete
from vllm_operator.resources import access
from vllm_operator.resources.names import EngineNames, labels, metadata

OWNER = samples.OWNER
NAMES = EngineNames(index="0", ray_cluster="demo-0-x")


def config_map(name: str = "mine") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(OWNER, name, labels(OWNER))}


def tokens() -> CreateTokens:
    return CreateTokens(body=access.token_secret(OWNER, NAMES, auth_token="", control_token=""))


def decoded(secret: dict[str, Any]) -> dict[str, str]:
    return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}


async def test_tokens_are_two_and_new_ones_for_each_engine() -> None:
    world = World()
    await world.actor.carry_out([tokens()], OWNER)
    assert decoded(world.api.body("Secret", "demo-0-x-token")) == {
        "auth_token": "secret-1",
        "control_token": "secret-2",
    }


async def test_tokens_that_are_there_stay() -> None:
    world = World()
    await world.actor.carry_out([tokens()], OWNER)
    before = world.api.body("Secret", "demo-0-x-token")
    assert await world.actor.carry_out([tokens()], OWNER) is None
    assert world.api.body("Secret", "demo-0-x-token") == before
    assert world.api.log == ["create Secret demo-0-x-token"]


async def test_an_object_of_ours_that_exists_is_fine() -> None:
    world = World()
    world.api.put(config_map())
    assert await world.actor.carry_out([Create(body=config_map()), Create(body=config_map("next"))], OWNER) is None
    assert world.api.log == ["create ConfigMap next"]


async def test_one_that_goes_away_is_waited_for() -> None:
    world = World()
    body = config_map()
    body["metadata"]["deletionTimestamp"] = "x"
    world.api.put(body)
    with pytest.raises(ConflictError):
        await world.actor.carry_out([Create(body=config_map())], OWNER)


async def test_a_foreign_name_is_found_before_the_first_object_is_made() -> None:
    world = World()
    theirs = config_map("third")
    theirs["metadata"]["ownerReferences"] = [{**OWNER.reference, "uid": "another"}]
    world.api.put(theirs)
    blocker = await world.actor.carry_out(
        [Create(body=config_map("first")), tokens(), Create(body=config_map("third"))], OWNER
    )
    assert blocker
    assert (blocker.reason, blocker.lasting) == ("NameConflict", True)
    assert "ConfigMap third exists and does not belong to this VLLMDeployment" in blocker.message
    assert world.api.log == []


@pytest.mark.parametrize("controller", [False, None])
async def test_an_owner_that_is_no_controller_is_not_ours(controller: bool | None) -> None:
    world = World()
    theirs = config_map()
    theirs["metadata"]["ownerReferences"] = [{**OWNER.reference, "controller": controller}]
    world.api.put(theirs)
    assert await world.actor.carry_out([Create(body=config_map())], OWNER)


@pytest.mark.parametrize(
    ("error", "reason", "lasting", "words"),
    [
        (ApiError(403, 'pods "x" is forbidden: exceeded quota: gpus'), "Forbidden", False, "exceeded quota"),
        (
            ApiError(403, "unable to create new content in namespace models because it is being terminated"),
            "Forbidden",
            False,
            "being terminated",
        ),
        (ApiError(403, 'User "x" cannot create resource'), "Forbidden", True, "ConfigMap mine: User"),
        (ApiError(422, "metadata.name: Invalid value"), "RefusedByAPIServer", True, "ConfigMap mine: metadata.name"),
        (ApiError(400, "strict decoding error"), "RefusedByAPIServer", True, "strict decoding"),
    ],
)
async def test_a_refusal_is_told_to_the_user_in_the_api_servers_words(
    error: ApiError, reason: str, lasting: bool, words: str
) -> None:
    world = World()
    world.api.refuse["create", "ConfigMap"] = error
    blocker = await world.actor.carry_out([Create(body=config_map()), tokens()], OWNER)
    assert blocker
    assert (blocker.reason, blocker.lasting) == (reason, lasting)
    assert words in blocker.message
    assert world.api.log == [], "what comes after is not made"


@pytest.mark.parametrize("error", [ApiError(500, "etcd"), ApiError(429, "slow down"), ApiError(0, "no answer")])
async def test_a_sick_api_server_is_nobodys_fault_and_the_round_is_repeated(error: ApiError) -> None:
    world = World()
    world.api.refuse["create", "ConfigMap"] = error
    with pytest.raises(ApiError):
        await world.actor.carry_out([Create(body=config_map())], OWNER)


async def test_no_kind_ray_cluster_is_no_kuberay() -> None:
    world = World()
    world.api.unknown.add("RayCluster")
    body = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata(OWNER, "c", {})}
    blocker = await world.actor.carry_out([Create(body=body)], OWNER)
    assert blocker
    assert blocker.reason == "KubeRayNotInstalled"


async def test_removing_what_is_gone_is_fine_and_what_was_replaced_is_not() -> None:
    world = World()
    gone = Delete(api_version="v1", kind="ConfigMap", name="gone")
    assert await world.actor.carry_out([gone], OWNER) is None
    world.api.put(config_map())
    with pytest.raises(ConflictError):
        await world.actor.carry_out([Delete(api_version="v1", kind="ConfigMap", name="mine", uid="old")], OWNER)
    assert world.api.names("ConfigMap") == ["mine"]


async def test_a_ray_head_that_does_not_answer_ends_no_round() -> None:
    world = World()
    await world.round()
    world.start_pods()

    async def refuse(*_: Any) -> str:
        from vllm_operator.clients.ray import RayError  # noqa: PLC0415

        raise RayError("HTTP 500")

    submit, world.ray.submit = world.ray.submit, refuse  # type: ignore[method-assign]
    await world.rounds(2)
    assert not world.ray.plans
    assert world.again == 1.0
    world.ray.submit = submit  # type: ignore[method-assign]
    await world.round()
    assert len(world.ray.plans) == 1
