"""Whose word counts about a model, and what follows when nobody gives one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.planning import models

from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.planning.catalogue import BUILT_IN
from vllm_operator.planning.estimate import estimate
from vllm_operator.planning.facts import read_config
from vllm_operator.planning.inventory import GIB, GpuNode
from vllm_operator.planning.known import HubAnswer, HubFacts, HubTrouble, ModelUnknownError, Trouble, known
from vllm_operator.planning.plan import describe, plan, survey

NODES = [GpuNode(name="a", gpus=8, product="NVIDIA-L40S", memory=48 * GIB)]
TOLD = HubFacts(facts=read_config(models.LLAMA_8B, checkpoint_bytes=16_060_522_496), commit="0123abc")


def trouble(kind: Trouble) -> HubTrouble:
    return HubTrouble(trouble=kind, message="why and what to do")


def spec(uri: str = "hf://org/name", **more: Any) -> VLLMDeploymentSpec:
    model = {"uri": uri} | ({"facts": more.pop("facts")} if "facts" in more else {})
    return VLLMDeploymentSpec.model_validate({"model": model, "vllmConfig": {"maxModelLen": 8192}} | more)


@pytest.mark.parametrize("told", [None, TOLD, *map(trouble, Trouble)])
@pytest.mark.parametrize("explicit", [True, False])
def test_the_spec_comes_first(told: HubAnswer | None, explicit: bool) -> None:
    stated = estimate(7e9)
    found = known("hf://org/name", stated, told, is_explicit=explicit)
    assert (found.facts, found.source, found.doubt) == (stated, "spec", "")


@pytest.mark.parametrize(("commit", "source"), [("0123abc", "hub, commit 0123abc"), ("", "hub")])
def test_then_the_hub(commit: str, source: str) -> None:
    found = known("hf://org/name", None, replace(TOLD, commit=commit), is_explicit=False)
    assert (found.facts, found.source, found.doubt) == (TOLD.facts, source, "")


@pytest.mark.parametrize("kind", Trouble)
def test_explicit_sizes_need_no_facts(kind: Trouble) -> None:
    found = known("hf://org/name", None, trouble(kind), is_explicit=True)
    assert (found.facts, found.source) == (None, "")
    assert found.doubt == "memory was not checked: why and what to do"


@pytest.mark.parametrize("kind", [Trouble.MISSING, Trouble.DENIED, Trouble.UNAVAILABLE])
def test_sizes_that_depend_on_facts_wait_for_them(kind: Trouble) -> None:
    with pytest.raises(ModelUnknownError) as error:
        known("hf://org/name", None, trouble(kind), is_explicit=False)
    assert error.value.trouble is kind
    assert str(error.value) == (
        "why and what to do; or set parallelism.tensor and parallelism.pipeline, or model.facts"
    )


def test_what_cannot_be_read_by_anybody_is_not_waited_for() -> None:
    found = known("hf://org/name", None, trouble(Trouble.UNREADABLE), is_explicit=False)
    assert found.doubt == "memory was not checked and sizes that are left out are 1: why and what to do"


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("hf://org/name", "no hub was asked for the model, and spec.model.facts is empty"),
        ("pvc://claim/m", "nothing is known of pvc://claim/m: set spec.model.facts"),
    ],
)
@pytest.mark.parametrize("explicit", [True, False])
def test_nobody_was_asked(uri: str, words: str, explicit: bool) -> None:
    found = known(uri, None, None, is_explicit=explicit)
    assert found.facts is None
    assert found.doubt.endswith(words)
    assert ("left out are 1" in found.doubt) is not explicit


def test_a_plan_says_whose_word_it_follows() -> None:
    told = describe(plan(spec(), NODES, BUILT_IN, told=TOLD))
    assert (told["facts"], told["warning"]) == ("hub, commit 0123abc", "")
    assert told["memory"]["weightsMiB"] == round(16_060_522_496 / 2**20)
    told = describe(plan(spec(facts={"parameters": "70B"}), NODES, BUILT_IN, told=TOLD))
    assert told["facts"] == "spec"
    assert told["gpus"] > 1


def test_a_plan_without_facts_warns_beside_its_other_warnings() -> None:
    told = describe(
        plan(
            spec(parallelism={"tensor": 4, "pipeline": 1}, placement={"gpusPerPod": 1}),
            NODES,
            BUILT_IN,
            told=trouble(Trouble.DENIED),
        )
    )
    assert told["facts"] == ""
    assert told["warning"] == (
        "a tensor group of 4 lies in more than one pod; memory was not checked: why and what to do"
    )
    assert "memory" not in told


@pytest.mark.parametrize(("quantization", "share"), [(None, 1.0), ("fp8", 0.56)])
def test_the_hub_s_facts_are_taken_as_vllm_loads_them(quantization: str | None, share: float) -> None:
    config = {"maxModelLen": 8192} | ({"quantization": quantization} if quantization else {})
    found = survey(spec(vllmConfig=config), NODES, BUILT_IN, told=TOLD).facts
    assert found
    assert found.checkpoint_bytes == pytest.approx(TOLD.facts.checkpoint_bytes * share, rel=0.03)
