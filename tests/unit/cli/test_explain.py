"""``explain``: the plan that stands, why it is so, what holds it, and what a plan made now would be."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.cli import nights
from tests.unit.cli.damage import JUNK, damaged
from tests.unit.cli.nights import Night, scene_of
from tests.unit.reconcile.world import World
from tests.unit.resources import samples

from vllm_operator.cli.documents import Document, InputError
from vllm_operator.cli.explain import Explanation, LivePlan, explain, plan_live, read_live
from vllm_operator.planning.catalogue import BUILT_IN
from vllm_operator.planning.facts import ModelFacts
from vllm_operator.planning.inventory import GIB, GpuNode
from vllm_operator.planning.known import HubFacts, HubTrouble, Trouble
from vllm_operator.planning.plan import stated_facts

GOLDEN = Path(__file__).parent / "golden"
CHOSEN: dict[str, Any] = {
    "model": {"uri": "file:///m", "facts": {"parameters": "20B"}},
    "distributedExecutorBackend": "ray",
}
TIGHT = CHOSEN | {"vllmConfig": {"maxModelLen": 30_000_000}, "parallelism": {"tensor": 1, "pipeline": 1}}
A100, L40S = "NVIDIA-A100-SXM4-80GB", "NVIDIA-L40S"


async def two_kinds(world: World) -> None:
    for body, product, memory in zip(world.nodes, (A100, L40S), (81920, 46068), strict=True):
        body["metadata"]["labels"] = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": str(memory)}
    await world.round()
    world.start_pods()


def told(night: Night, **how: Any) -> Explanation:
    scene = scene_of(night, **how)
    return explain(scene.deployment, scene.pods)


def nodes(**gpus: int) -> list[GpuNode]:
    kinds = {"a100": (A100, 80), "l40s": (L40S, 45)}
    return [
        GpuNode(name=name, gpus=count, product=kinds[name][0], memory=kinds[name][1] * GIB)
        for name, count in gpus.items()
    ]


@pytest.mark.parametrize(
    ("night", "status", "words"),
    [
        (nights.serving, 0, ["models/demo: planned", "tensor 1 x pipeline 2, PACK: 2 GPUs an engine, 1 engine"]),
        (nights.serving, 0, ["executor:", "ray: 2 ranks over 2 pods", "nothing is known of the model", "gpu-a"]),
        (nights.no_such_gpus, 4, ["not planned: NoSuchGPUs", "why:         no node has a GPU", "there is no pod"]),
        (nights.waiting_for_gpus, 3, ["not planned: WaitingForGPUs", "held by other pods: gpu-a 4 of 4"]),
        (nights.invalid_spec, 5, ["not planned: InvalidSpec", "use parallelism.tensor"]),
    ],
)
def test_what_is_told(night: Night, status: int, words: list[str]) -> None:
    found = told(night)
    assert found.exit_code == status
    for word in words:
        assert word in found.text(wide=True, width=0)


def test_a_blocked_change_of_a_spec_leaves_the_plan_of_the_earlier_one() -> None:
    async def night(world: World) -> None:
        await world.serve()
        await nights.invalid_spec(world)

    found = told(night)
    assert found.exit_code == 5
    assert "the plan below is of an earlier spec" in found.text(wide=False, width=120)
    assert found.plan is not None


def test_before_the_operator_has_looked() -> None:
    body = {"metadata": {"name": "demo", "namespace": "models", "generation": 1}, "spec": {}}
    found = explain(body, ())
    assert found.exit_code == 2
    assert "models/demo: no plan yet" in found.text(wide=False, width=120)
    assert "the operator has not looked at the present spec yet" in found.text(wide=False, width=120)


@pytest.mark.parametrize("wide", [False, True])
def test_golden(wide: bool) -> None:
    """``UPDATE_GOLDEN=1`` writes the files anew."""
    found = told(two_kinds, spec=CHOSEN)
    shown = found.text(wide=wide, width=0 if wide else 120)
    [cluster] = {pod.cluster for pod in found.pods}
    shown = shown.replace(found.revision, "eeeeeeee-pppppppp").replace(cluster, "demo-0-pppppppp") + "\n"
    file = GOLDEN / f"explain{'-wide' * wide}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(shown)
    assert shown == file.read_text()


def test_a_warning_is_told() -> None:
    shown = told(two_kinds, spec=TIGHT).text(wide=False, width=120)
    assert "warning:" in shown


@pytest.mark.parametrize(
    ("there", "verdict", "differences"),
    [
        (nodes(l40s=4, a100=4), "Fits", {}),
        (nodes(a100=4), "Fits", {"accelerator": (L40S, A100)}),
        (nodes(), "Never", {}),
        ([GpuNode(name="l40s", gpus=4, used=4, product=L40S, memory=45 * GIB)], "NotNow", {}),
    ],
    ids=["the same", "other GPUs", "none", "held"],
)
def test_a_plan_made_now(there: list[GpuNode], verdict: str, differences: dict[str, tuple[str, str]]) -> None:
    scene = scene_of(two_kinds, spec=CHOSEN)
    plan = explain(scene.deployment, scene.pods).plan
    assert plan is not None
    assert plan.accelerator == L40S
    live = plan_live(read_live(scene.deployment), plan, there, BUILT_IN)
    assert live.verdict == verdict
    found = {item.what: (item.planned, item.now) for item in live.differences}
    assert found.items() >= differences.items()
    assert bool(found) == bool(differences)


def document(**spec: Any) -> Document:
    return read_live({"metadata": {"name": "demo"}, "spec": {"model": {"uri": "hf://org/model"}} | spec})


def from_spec(**facts: Any) -> ModelFacts:
    found = stated_facts(document(model={"uri": "hf://org/model", "facts": facts}).spec)
    assert found is not None
    return found


def test_a_spec_that_does_not_obey_the_api_is_named() -> None:
    with pytest.raises(InputError, match=r"spec\.model: Field required"):
        read_live({"spec": {}})


@pytest.mark.parametrize(
    ("planned", "words"),
    [
        (
            lambda: plan_live(document(model={"uri": "hf://a/b", "facts": {"config": {"a": 1}}}), None, (), BUILT_IN),
            "spec.model.facts: config.json has no",
        ),
        (lambda: plan_live(document(), None, nodes(a100=4), BUILT_IN), "ask it with --hub"),
        (
            lambda: plan_live(
                document(), None, nodes(a100=4), BUILT_IN, HubTrouble(trouble=Trouble.DENIED, message="no entry")
            ),
            "it cannot be planned: no entry",
        ),
    ],
    ids=["facts that cannot be read", "a hub that was not asked", "a hub that does not tell"],
)
def test_what_cannot_be_planned_now(planned: Callable[[], LivePlan], words: str) -> None:
    live = planned()
    assert live.verdict == ""
    assert words in live.reason


def test_what_the_hub_says_is_planned_with() -> None:
    told = HubFacts(facts=from_spec(parameters="70B"), commit="c0ffee")
    live = plan_live(document(), None, nodes(a100=4), BUILT_IN, told)
    assert live.verdict == "Fits"
    assert "2 GPUs" in live.reason


def test_data_for_programs() -> None:
    data = json.loads(json.dumps(told(two_kinds, spec=CHOSEN).data()))
    assert data["plan"]["accelerator"] == L40S
    assert data["plan"]["memory"]["weightsMiB"] > 0
    assert [pod["role"] for pod in data["pods"]] == ["head", "lead"]
    assert data["plan"]["candidates"][0]["fits"] is True


PLANNED = [scene_of(two_kinds, spec=CHOSEN), scene_of(nights.no_such_gpus, spec=samples.TYPICAL)]


@st.composite
def damaged_objects(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    scene = draw(st.sampled_from(PLANNED))
    whole = damaged(draw, {"body": copy.deepcopy(dict(scene.deployment)), "pods": [dict(pod) for pod in scene.pods]})
    data = whole if isinstance(whole, dict) else {}
    body, pods = data.get("body"), data.get("pods")
    found = [pod for pod in pods if isinstance(pod, dict)] if isinstance(pods, list) else []
    return (body if isinstance(body, dict) else {}), found


@given(objects=damaged_objects(), width=st.sampled_from([0, 80, 120]))
@settings(max_examples=150)
def test_a_damaged_object_stops_nothing(objects: tuple[dict[str, Any], list[dict[str, Any]]], width: int) -> None:
    found = explain(*objects)
    assert found.exit_code in (0, 2, 3, 4, 5)
    assert found.text(wide=not width, width=width)
    json.dumps(found.data())


@given(spec=st.dictionaries(st.sampled_from(["model", "parallelism", "placement"]), JUNK))
@settings(max_examples=50)
def test_any_spec_is_planned_or_refused(spec: dict[str, Any]) -> None:
    try:
        read = read_live({"spec": spec})
    except InputError:
        return
    assert plan_live(read, None, nodes(a100=4), BUILT_IN).reason
