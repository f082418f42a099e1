"""A LoRA adapter's folder: what is wrong with it is said before vLLM is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.product.lora import safetensors, write_adapter

from vllm_bootstrap.download.adapter_files import CONFIG, WEIGHTS, BaseModel, adapter_fault

BASE = BaseModel(hidden=32, layers=2)
FITS = {"hidden": 32, "layers": 2}


@pytest.mark.parametrize("module", ["self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj", "mlp.experts.3.gate_proj"])
def test_a_good_one(tmp_path: Path, module: str) -> None:
    assert adapter_fault(write_adapter(tmp_path / "a", seed=1, module=module, **FITS), BASE) == ""


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"hidden": 16}, "its o_proj is 16 wide, and the model's hidden size is 32: it is of another base model"),
        ({"hidden": 64, "module": "mlp.up_proj"}, "its up_proj is 64 wide, and the model's hidden size is 32"),
        ({"layers": 4}, "it has weights for layer 2, and the model has 2 layers: it is of another base model"),
    ],
)
def test_one_of_another_model(tmp_path: Path, shape: dict[str, int], words: str) -> None:
    folder = write_adapter(tmp_path / "a", seed=1, **{**FITS, **shape})  # type: ignore[arg-type]
    fault = adapter_fault(folder, BASE)
    assert fault.startswith(words)
    assert fault.endswith("(it was trained for tests/dummy)")
    assert adapter_fault(folder, BaseModel()) == "", "what is not known is not judged"


def test_a_part_of_another_kind_is_not_judged(tmp_path: Path) -> None:
    name = "base_model.model.vision_tower.layers.30.self_attn.q_proj.lora_A.weight"
    folder = write_adapter(tmp_path / "a", seed=1, **FITS)
    (folder / WEIGHTS).write_bytes(safetensors({name: ([8, 4], b"\0" * 128)}))
    assert adapter_fault(folder, BASE) == ""


def test_no_folder(tmp_path: Path) -> None:
    assert "does not exist, or is no folder" in adapter_fault(tmp_path / "none", BASE)
    (tmp_path / "file").touch()
    assert "does not exist, or is no folder" in adapter_fault(tmp_path / "file", BASE)


@pytest.mark.parametrize(
    ("config", "words"), [(None, "has no adapter_config.json"), ("{", "cannot be read"), ("[]", "holds no JSON object")]
)
def test_a_config_that_is_none(tmp_path: Path, config: str | None, words: str) -> None:
    folder = write_adapter(tmp_path / "a", seed=1, **FITS)
    (folder / CONFIG).unlink()
    if config is not None:
        (folder / CONFIG).write_text(config)
    assert words in adapter_fault(folder, BASE)


def test_weights_that_are_missing_or_of_an_older_form(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", seed=1, **FITS)
    (folder / WEIGHTS).unlink()
    assert "has a adapter_config.json, but no adapter_model.safetensors" in adapter_fault(folder, BASE)
    (folder / "adapter_model.bin").touch()
    assert adapter_fault(folder, BASE) == "", "vLLM reads it, and says what it has against it"


@pytest.mark.parametrize("header", [{"a": 1}, {"a": {"shape": [1]}}, ["a"], "a", {"a": {"data_offsets": [0]}}])
def test_a_header_that_is_none(tmp_path: Path, header: object) -> None:
    folder = write_adapter(tmp_path / "a", seed=1, **FITS)
    text = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text)
    assert "is no whole safetensors file" in adapter_fault(folder, BASE)


@given(st.integers(0, 4000))
def test_weights_that_were_cut_off_are_never_taken(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    folder = write_adapter(tmp_path_factory.mktemp("cut") / "a", seed=1, **FITS)
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[: min(length, len(whole) - 1)])
    assert "is no whole safetensors file" in adapter_fault(folder, BASE)
