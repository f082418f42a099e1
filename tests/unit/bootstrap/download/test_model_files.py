"""Which files of a repository are downloaded, and which should be there."""

from __future__ import annotations

import pytest

from vllm_bootstrap.download.model_files import choose, load_format, missing_weights

LLAMA = (
    ".gitattributes",
    "LICENSE",
    "README.md",
    "config.json",
    "generation_config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "original/consolidated.00.pth",
    "original/params.json",
    "pytorch_model.bin",
    "tokenizer.json",
    "tokenizer.model",
)
SHARDS = frozenset(name for name in LLAMA if name.startswith("model-0"))
MISTRAL = ("config.json", "consolidated.safetensors", "model-00001-of-00001.safetensors", "params.json", "tekken.json")


@pytest.mark.parametrize(
    ("names", "form", "indexed", "left_out"),
    [
        pytest.param(
            LLAMA,
            "auto",
            SHARDS,
            {
                ".gitattributes",
                "README.md",
                "pytorch_model.bin",
                "original/consolidated.00.pth",
                "original/params.json",
            },
            id="safetensors, once",
        ),
        pytest.param(("config.json", "pytorch_model.bin", "a.pt"), "auto", (), {"a.pt"}, id="bin before pt"),
        pytest.param(MISTRAL, "auto", (), {"model-00001-of-00001.safetensors"}, id="Mistral's own form, as vLLM"),
        pytest.param(MISTRAL, "hf", (), set(), id="all safetensors without an index"),
        pytest.param(
            MISTRAL,
            "hf",
            ("model-00001-of-00001.safetensors",),
            {"consolidated.safetensors"},
            id="what the index names",
        ),
        pytest.param(
            LLAMA,
            "dummy",
            SHARDS,
            {*LLAMA}
            - {"LICENSE", "config.json", "generation_config.json"}
            - {"model.safetensors.index.json", "tokenizer.json", "tokenizer.model"},
            id="no weights at all",
        ),
        pytest.param(
            (
                "modules.json",
                "model.safetensors",
                "2_Dense/model.safetensors",
                "2_Dense/pytorch_model.bin",
                "onnx/model.onnx",
                "checkpoint-500/model.safetensors",
                "training_args.bin",
                "model.gguf",
                "tf_model.h5",
            ),
            "auto",
            (),
            {
                "2_Dense/pytorch_model.bin",
                "onnx/model.onnx",
                "checkpoint-500/model.safetensors",
                "training_args.bin",
                "model.gguf",
                "tf_model.h5",
            },
            id="parts in folders, and what other programs read",
        ),
        pytest.param(
            ("config.json", "model-rank-0-part-0.safetensors", "x.gguf"),
            "sharded_state",
            SHARDS,
            set(),
            id="a form of which nothing is known here",
        ),
        pytest.param(
            ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"),
            "auto",
            (),
            {"adapter_model.bin"},
            id="an adapter",
        ),
    ],
)
def test_what_is_downloaded(names: tuple[str, ...], form: str, indexed: frozenset[str], left_out: set[str]):
    assert set(choose(names, form=form, indexed=indexed)) == set(names) - left_out


@pytest.mark.parametrize(
    ("names", "form", "indexed", "missing"),
    [
        ((), "auto", (), []),
        (LLAMA, "auto", SHARDS, []),
        (LLAMA[:6], "auto", SHARDS, ["model-00002-of-00002.safetensors"]),
        (LLAMA[:6], "auto", (), ["model-00002-of-00002.safetensors"]),
        (LLAMA[:6], "dummy", SHARDS, []),
        (("model-rank-0-part-0.safetensors",), "sharded_state", SHARDS, []),
        (MISTRAL, "auto", ("model-00001-of-00001.safetensors", "model-00002-of-00001.safetensors"), []),
        (("model.safetensors", "pytorch_model-00001-of-00002.bin"), "auto", (), []),
        (("pytorch_model-00001-of-00002.bin",), "auto", (), ["pytorch_model-00002-of-00002.bin"]),
    ],
)
def test_weights_that_should_be_there(names: tuple[str, ...], form: str, indexed: tuple[str, ...], missing: list[str]):
    assert missing_weights(names, form=form, indexed=indexed) == missing


@pytest.mark.parametrize(
    ("arguments", "form"),
    [
        ((), "auto"),
        (("--load-format=dummy",), "dummy"),
        (("--load_format", "pt", "--seed=1"), "pt"),
        (("--load-format=pt", "--load-format", "dummy"), "dummy"),
    ],
)
def test_the_load_format_of_the_arguments(arguments: tuple[str, ...], form: str):
    assert load_format(arguments) == form
