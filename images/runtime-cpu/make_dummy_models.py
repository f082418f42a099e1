"""Write tiny models that have a config and a tokenizer but no weights, for ``--load-format dummy``.

Their shapes divide where the tests want them to: SmolLM2's 9 heads allow no tensor parallel of 2.  Heads are 64 wide
because the CPU attention kernel has no smaller ones.

    python make_dummy_models.py DEMO_MODEL_DIR OUT_DIR
"""

# ruff: noqa: INP001, T201 - a script
from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")

HEAD_SIZE = 64

SHAPES: dict[str, dict[str, Any]] = {
    "dummy-tp": {"num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2},
    "dummy-tp-pp": {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4},
    "dummy-pp6": {"num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 6},
    "dummy-moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "dummy-mla": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_hidden_layers": 4,
        "head_dim": None,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": HEAD_SIZE,
        "v_head_dim": 128,
        "tie_word_embeddings": False,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "moe_intermediate_size": 128,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
    },
    "dummy-window": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": HEAD_SIZE,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 6,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
    },
}
"""Folder name → what differs; ``dummy-pp6`` has a layer for each of six stages."""


def config(demo: dict[str, Any], shape: dict[str, Any]) -> dict[str, Any]:
    """Give a Llama config of the wanted shape, or another one's, with the demo model's vocabulary."""
    hidden = shape["num_attention_heads"] * HEAD_SIZE
    given = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "head_dim": HEAD_SIZE,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": demo["bos_token_id"],
        "eos_token_id": demo["eos_token_id"],
        "vocab_size": demo["vocab_size"],
        **shape,
    }
    return {key: value for key, value in given.items() if key == "q_lora_rank" or value is not None}


def write(demo: Path, out: Path, shape: dict[str, Any]) -> None:
    """Write one model folder, in one step."""
    draft = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        for name in TOKENIZER_FILES:
            if (demo / name).exists():
                shutil.copyfile(demo / name, draft / name)
        text = json.dumps(config(json.loads((demo / "config.json").read_text()), shape), indent=1)
        (draft / "config.json").write_text(text)
        draft.chmod(0o755)
        shutil.rmtree(out, ignore_errors=True)
        draft.rename(out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def main() -> None:
    """Write all shapes."""
    parser = argparse.ArgumentParser(description="Write dummy models.")
    parser.add_argument("demo", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, shape in SHAPES.items():
        write(arguments.demo, arguments.out.resolve() / name, shape)
        print(f"{name}: {shape}")


if __name__ == "__main__":
    main()
