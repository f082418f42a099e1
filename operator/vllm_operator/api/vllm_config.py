"""``spec.vllmConfig``: what vLLM is told, and which of its options are the operator's alone."""

from __future__ import annotations

import re

from pydantic import Field

from vllm_operator.api.fields import LongText, ShortText
from vllm_operator.api.schema import ApiModel, rule, rules

OPERATOR_ARGUMENTS = (
    "api-key",
    "api-server-count",
    "config",
    "device-ids",
    "distributed-executor-backend",
    "dp",
    "dpa",
    "dpb",
    "dpe",
    "dph",
    "dpl",
    "dpm",
    "dpn",
    "dpp",
    "dpr",
    "grpc",
    "grpc-port",
    "h",
    "headless",
    "help",
    "host",
    "master-addr",
    "master-port",
    "model",
    "n",
    "nnodes",
    "node-rank",
    "pcp",
    "pipeline-parallel-size",
    "port",
    "pp",
    "prefill-context-parallel-size",
    "r",
    "served-model-name",
    "ssl-certfile",
    "ssl-keyfile",
    "tensor-parallel-size",
    "tp",
    "uds",
)
"""vLLM options that the operator sets or that would break what it sets; named in a refusal."""
_FAMILY = "data-parallel-"
"""All options that begin so are the operator's, too."""
ARGUMENT_FIELDS = {
    "data-parallel-size": "parallelism.data",
    "distributed-executor-backend": "distributedExecutorBackend",
    "dp": "parallelism.data",
    "model": "model.uri",
    "pipeline-parallel-size": "parallelism.pipeline",
    "pp": "parallelism.pipeline",
    "served-model-name": "model.name",
    "tensor-parallel-size": "parallelism.tensor",
    "tp": "parallelism.tensor",
}


def _argument_pattern() -> str:
    names = "|".join([*OPERATOR_ARGUMENTS, f"{_FAMILY}.*"]).replace("-", "[-_]")
    return f"^(--?({names})([=.]|$)|-[nr][0-9])"


class VLLMConfig(ApiModel):
    """What vLLM is told; each field is the option of the same name."""

    max_model_len: int | None = Field(default=None, ge=1, le=2**31 - 1, description="--max-model-len, in tokens.")
    gpu_memory_utilization: float | None = Field(
        default=None, gt=0, le=1, description="--gpu-memory-utilization, a share of the GPU's memory."
    )
    dtype: ShortText | None = Field(default=None, description="--dtype: auto, bfloat16, float16 or float32.")
    quantization: ShortText | None = Field(default=None, description="--quantization.")
    kv_cache_dtype: ShortText | None = Field(default=None, description="--kv-cache-dtype.")
    max_num_seqs: int | None = Field(default=None, ge=1, le=2**31 - 1, description="--max-num-seqs.")
    extra_args: list[LongText] = Field(
        default_factory=list,
        max_length=128,
        description="Further arguments for vLLM's own parser; not those that the operator sets.",
        json_schema_extra={
            "x-kubernetes-list-type": "atomic",
            **rules(
                rule(
                    f"self.all(a, !a.matches('{_argument_pattern()}'))",
                    "extraArgs must not hold what the operator sets (use model, parallelism and "
                    "distributedExecutorBackend): " + ", ".join((*OPERATOR_ARGUMENTS, f"{_FAMILY}*")),
                )
            ),
        },
    )


def refused_argument(argument: str) -> str | None:
    """Give the option of the operator that an extra argument would override, if any.

    vLLM's parser takes ``_`` for ``-``, ``-n2`` for ``-n 2``, ``--model.x`` for a part of ``--model`` and, as
    argparse does, any unambiguous beginning of an option: ``--ten`` is ``--tensor-parallel-size``.  So a beginning
    is refused, too: one that is ambiguous vLLM would refuse itself.
    """
    if not argument.startswith("-"):
        return None
    if argument[:2] in ("-n", "-r") and argument[2:3].isdigit():
        return argument[1]
    option = re.split("[=.]", argument.lstrip("-"), maxsplit=1)[0].replace("_", "-")
    if option in OPERATOR_ARGUMENTS or option.startswith(_FAMILY) or not option:
        return option or None
    if _FAMILY.startswith(option):
        return f"{_FAMILY}size"
    return next((name for name in OPERATOR_ARGUMENTS if name.startswith(option)), None)
