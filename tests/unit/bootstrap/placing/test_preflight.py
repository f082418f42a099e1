"""What is found before a launch, and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from vllm_bootstrap.contract import EnginePlan, FailureReason
from vllm_bootstrap.download.checkpoint import ModelSight
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.placing.preflight import (
    BundleFacts,
    MachineFacts,
    judge,
    look_around,
    parse_gpu_list,
    remove_stale_memory,
)
from vllm_bootstrap.vllm_adapter import facts

VERSIONS = {"vllm": "0.32.0", "ray": "2.60.0", "python": "3.11.7", "torch": "2.13.0"}
MACHINE = MachineFacts(versions=VERSIONS)


def bundle(index: int, **changes: object) -> BundleFacts:
    values: dict[str, object] = {
        "bundle": index,
        "ray_node": f"n{index}",
        "address": f"10.0.0.{index}",
        "gpu": 0,
        "pod": f"pod-{index}",
        "node": f"node-{index}",
        "host_ip": f"10.0.0.{index}",
        "machine": MACHINE,
    }
    return BundleFacts(**(values | changes))  # type: ignore[arg-type]


def test_nothing_in_the_way(make_plan: Callable[..., EnginePlan]):
    assert judge(make_plan(), [bundle(0), bundle(1), bundle(2, machine=None, host_ip="")]) == []


def test_an_untested_version_is_a_warning(make_plan: Callable[..., EnginePlan]):
    machine = replace(MACHINE, versions=VERSIONS | {"vllm": "0.40.1"})
    assert judge(make_plan(), [bundle(0, machine=machine)]) == [
        "vLLM 0.40.1 was not tested with this bootstrap (tested: 0.32)"
    ]


def test_data_parallel_is_for_tested_versions(make_plan: Callable[..., EnginePlan]):
    plan = make_plan(tensor=1, pipeline=1, data=2)
    assert judge(plan, [bundle(0), bundle(0, dp=1)]) == []
    machine = replace(MACHINE, versions=VERSIONS | {"vllm": "0.40.1"})
    with pytest.raises(
        EngineFailure, match=r"parallelism\.data needs a vLLM that was tested with it \(0\.32\), this is"
    ) as e:
        judge(plan, [bundle(0, machine=machine)])
    assert e.value.reason is FailureReason.RUNTIME_INCOMPATIBLE
    assert "use an image with one of these, or replicas instead" in e.value.message


@pytest.mark.parametrize(
    ("second", "reason", "message"),
    [
        (
            bundle(1, host_ip="192.168.0.9"),
            FailureReason.PREFLIGHT_FAILED,
            "VLLM_HOST_IP is 192.168.0.9 in pod-1, but its Ray node is at 10.0.0.1",
        ),
        (
            bundle(1, machine=replace(MACHINE, model=ModelSight(found=False))),
            FailureReason.MODEL_NOT_FOUND,
            "/models/demo does not exist in pod pod-1 (node node-1); in the others it is there",
        ),
        (
            bundle(1, machine=replace(MACHINE, versions=VERSIONS | {"vllm": ""})),
            FailureReason.RUNTIME_INCOMPATIBLE,
            "vLLM is not installed in pod pod-1: use a runtime image with both Ray and vLLM",
        ),
        (
            bundle(1, machine=replace(MACHINE, missing_uses=("vllm/x.py: f(a)",))),
            FailureReason.RUNTIME_INCOMPATIBLE,
            "vLLM 0.32.0 in pod pod-1 lacks vllm/x.py: f(a); tested versions: 0.32",
        ),
        (
            bundle(1, machine=replace(MACHINE, versions=VERSIONS | {"vllm": "0.32.1"})),
            FailureReason.RUNTIME_INCOMPATIBLE,
            "the pods have different versions of vllm: 0.32.0 in pod-0, 0.32.1 in pod-1",
        ),
        (
            bundle(1, machine=replace(MACHINE, model=ModelSight(config={"num_attention_heads": 9}))),
            FailureReason.INVALID_PARALLELISM,
            "Total number of attention heads (9) must be divisible by tensor parallel size (2); "
            "possible sizes: 1, 3, 9",
        ),
    ],
)
def test_what_stands_in_the_way(
    make_plan: Callable[..., EnginePlan], second: BundleFacts, reason: FailureReason, message: str
):
    with pytest.raises(EngineFailure) as raised:
        judge(make_plan(tensor=2, pipeline=1), [bundle(0), second])
    assert raised.value.reason is reason
    assert raised.value.message == message


@pytest.mark.parametrize(
    ("config", "data", "expert", "fault"),
    [
        ({"num_experts": 8, "moe_intermediate_size": 128}, 4, False, ""),
        ({"num_experts": 8, "moe_intermediate_size": 128}, 3, False, "intermediate size (128) must be divisible by"),
        ({"num_local_experts": 8, "moe_intermediate_size": 100}, 3, False, "tensor x data parallel size (6)"),
        ({"num_experts": 8, "moe_intermediate_size": 3}, 1, False, ""),
        ({"num_experts": 8, "moe_intermediate_size": 128}, 3, True, ""),
        ({"text_config": {"n_routed_experts": 4}}, 3, True, "4 experts, fewer than the 6 expert parallel ranks"),
        ({"intermediate_size": 100}, 3, False, ""),
    ],
)
def test_how_experts_are_divided(config: Mapping[str, object], data: int, expert: bool, fault: str):
    found = facts.parallelism_fault(config, tensor=2, pipeline=1, data=data, expert=expert)
    assert fault in found
    assert bool(found) is bool(fault)


@pytest.mark.parametrize(
    ("config", "tensor", "pipeline", "fault"),
    [
        ({}, 7, 7, ""),
        ({"num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 4}, 2, 4, ""),
        ({"num_attention_heads": 8, "num_key_value_heads": 2}, 8, 1, ""),
        ({"num_attention_heads": 12, "num_key_value_heads": 4}, 6, 1, "number of key-value heads (4)"),
        ({"num_attention_heads": 6, "num_key_value_heads": 3}, 2, 1, "number of key-value heads (3)"),
        ({"num_attention_heads": 8, "num_hidden_layers": 4}, 1, 5, "larger than the number of layers (4)"),
        ({"text_config": {"num_attention_heads": 9}}, 2, 1, "attention heads (9)"),
    ],
)
def test_parallelism_rules(config: Mapping[str, object], tensor: int, pipeline: int, fault: str):
    found = facts.parallelism_fault(config, tensor=tensor, pipeline=pipeline)
    assert fault in found
    assert bool(fault) == bool(found)


def test_a_model_is_looked_for_only_where_it_is_a_path(tmp_path: Path):
    assert look_around("org/model").model.found
    assert not look_around(str(tmp_path / "absent")).model.found
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 4}))
    found = look_around(str(tmp_path)).model
    assert found.found
    assert found.config == {"num_attention_heads": 4}
    (tmp_path / "config.json").write_text("{")
    assert look_around(str(tmp_path)).model.config == {}


def test_a_model_with_a_part_missing_is_named_with_its_pod(make_plan: Callable[..., EnginePlan], tmp_path: Path):
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"x")
    machine = replace(MACHINE, model=look_around(str(tmp_path)).model)
    with pytest.raises(EngineFailure) as raised:
        judge(make_plan(), [bundle(0), bundle(1, machine=machine)])
    assert raised.value.reason is FailureReason.MODEL_INCOMPLETE
    assert raised.value.message == (
        "the model in /models/demo of pod pod-1 (node node-1) lacks model-00002-of-00002.safetensors: copy it again"
    )
    assert look_around(str(tmp_path), form="dummy").model.missing == ()


def process(proc: Path, pid: int, maps: str = "", *links: str) -> None:
    (proc / str(pid) / "fd").mkdir(parents=True)
    (proc / str(pid) / "maps").write_text(maps)
    for number, link in enumerate(links):
        (proc / str(pid) / "fd" / str(number)).symlink_to(link)


def test_only_memory_that_nobody_uses_is_deleted(tmp_path: Path):
    memory, proc = tmp_path / "shm", tmp_path / "proc"
    memory.mkdir()
    names = ("psm_mapped", "psm_open", "psm_stale", "33787-pp:0-[0-1]-cpushm_0", "sem.mine", "nccl-x")
    for name in names:
        (memory / name).write_text("x")
    process(proc, 1, f"7f00-7f01 rw-s 00000000 00:19 5 {memory}/psm_mapped\n7f02-7f03 r--p 0 00:00 0\n")
    process(proc, 2, "", f"{memory}/psm_open", "/dev/null")
    assert remove_stale_memory(memory, proc) == ["33787-pp:0-[0-1]-cpushm_0", "psm_stale"]
    assert sorted(path.name for path in memory.iterdir()) == sorted({"psm_mapped", "psm_open", "sem.mine", "nccl-x"})


def test_a_process_that_cannot_be_read_protects_its_owners_memory(tmp_path: Path):
    memory, proc = tmp_path / "shm", tmp_path / "proc"
    memory.mkdir()
    (memory / "psm_stale").write_text("x")
    process(proc, 1)
    (proc / "1" / "maps").unlink()
    (proc / "1" / "maps").mkdir()  # reading it fails, and the process is still there
    assert remove_stale_memory(memory, proc) == []


def test_gpu_uuids():
    listing = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aa)\nGPU 1: NVIDIA H100 (UUID: GPU-bb)\n  MIG 1g (UUID: MIG-c)\n"
    assert parse_gpu_list(listing) == {0: "GPU-aa", 1: "GPU-bb"}
    sliced = "GPU 0: NVIDIA A100 (UUID: GPU-aa)\n  MIG 1g.10gb     Device  0: (UUID: MIG-cc)\n"
    assert parse_gpu_list(sliced) == {0: "MIG-cc"}


def package(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(text)
    return folder


def test_the_signatures_of_an_installed_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    uses = (
        facts.Use("a/m.py", "f", ("x", "y")),
        facts.Use("a/m.py", "C.method", ("z",)),
        facts.Use("a/m.py", "C", ("field", "attribute", "typed")),
        facts.Use("a/m.py", "gone"),
        facts.Use("b.py", "g"),
    )
    monkeypatch.setattr(facts, "USES", uses)
    source = (
        "if True:\n    def f(x, *, w=1): ...\n"
        "class C:\n    field: int = 0\n    async def method(self, z): self.attribute = z; self.typed: int = z\n"
    )
    there = package(tmp_path, a__m=source)
    assert facts.missing_uses(there) == ["vllm/a/m.py: f(y)", "vllm/a/m.py: gone", "vllm/b.py"]
    monkeypatch.setattr(facts, "DATA_PARALLEL_USES", (facts.Use("c.py", "Manager"),))
    assert facts.missing_uses(there, data_parallel=True)[-1] == "vllm/c.py"


@pytest.mark.parametrize(
    "text",
    [
        "__version__ = version = '0.32.0'\n",
        "version = '0.32.0'\n",
        '__version__ = "0.32.0"\n',
        "x = 1\n__version__ = version = '0.32.0'",
    ],
)
def test_the_version_of_an_installed_vllm(tmp_path: Path, text: str):
    assert facts.installed_version(package(tmp_path, _version=text)) == "0.32.0"


def test_actor_names():
    assert facts.actor_name("i", 3, tensor=2, pipeline=2) == "vllm_Worker_i_TP1_PP1"
    assert facts.actor_name("i", 1, tensor=1, pipeline=2) == "vllm_Worker_i_PP1"
    assert facts.actor_name("i", 1, tensor=2, pipeline=1) == "vllm_Worker_i_TP1"
    assert facts.actor_name("i", 0, tensor=1, pipeline=1) == "vllm_Worker_i"
    assert facts.actor_name("i", 1, tensor=1, pipeline=1, data=2) == "vllm_Worker_i_dp1"
    assert facts.actor_name("i", 7, tensor=2, pipeline=2, data=2) == "vllm_Worker_i_dp1_TP1_PP1"


@pytest.mark.parametrize(
    ("files", "size"),
    [
        pytest.param({}, 0, id="no weights"),
        pytest.param({"model.safetensors": 30}, 30, id="one file"),
        pytest.param({"model-1.safetensors": 20, "model-2.safetensors": 10}, 30, id="shards"),
        pytest.param({"model-1.safetensors": 20, "consolidated.safetensors": 20}, 20, id="twice, in two forms"),
        pytest.param({"weights.safetensors": 7}, 7, id="a name of its own"),
        pytest.param({"pytorch_model.bin": 5}, 5, id="no safetensors"),
        pytest.param({"tiny.gguf": 3}, 3, id="GGUF"),
    ],
)
def test_the_size_of_a_checkpoint(tmp_path: Path, files: Mapping[str, int], size: int):
    for name, count in files.items():
        (tmp_path / name).write_bytes(b"x" * count)
    assert look_around(str(tmp_path)).model.size == size


@pytest.mark.parametrize(
    ("index", "size"),
    [({"metadata": {"total_size": 99}}, 99), ({"metadata": {}}, 4), ({"metadata": {"total_size": "much"}}, 4), ([], 4)],
)
def test_an_index_says_the_size(tmp_path: Path, index: object, size: int):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").write_bytes(b"four")
    assert look_around(str(tmp_path)).model.size == size


@pytest.mark.parametrize(
    ("found", "planned", "warned"),
    [(0, 14, False), (26, 0, False), (14, 14, False), (15, 14, False), (26, 14, True), (7, 14, True)],
)
def test_a_size_that_was_not_planned_for_is_told(
    make_plan: Callable[..., EnginePlan], found: int, planned: int, warned: bool
):
    machine = replace(MACHINE, model=ModelSight(size=found * 1024**3))
    plan = replace(make_plan(), checkpoint_bytes=planned * 1024**3)
    told = judge(plan, [bundle(0, machine=machine), bundle(1, machine=machine)])
    assert len(told) == warned
    if warned:
        assert f"has {found}.00 GiB, planned were {planned}.00 GiB: correct spec.model.facts" in told[0]
