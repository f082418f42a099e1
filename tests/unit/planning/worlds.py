"""Models, nodes and wishes for hypothesis: small enough to try all placements, odd enough for the edges of memory."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from tests.unit.planning.oracle import PASSING

from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.planning.inventory import GIB, GpuNode, Taint

PRODUCTS = ("NVIDIA-A100-SXM4-80GB", "NVIDIA-L40S")
SPOT = "spot"


def _config(
    *, heads: int, repeated: int, layers: int, intermediate: int, experts: int, dense: int, latent: bool, window: int
) -> dict[str, Any]:
    return {
        "architectures": ["MadeForCausalLM"],
        "hidden_size": 8192,
        "head_dim": 128,
        "intermediate_size": intermediate,
        "max_position_embeddings": 32768,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": heads // repeated if heads % repeated == 0 else heads,
        "sliding_window": window,
        "vocab_size": 64000,
        **({"num_experts": experts, "moe_intermediate_size": intermediate // 8} if experts else {}),
        **({"first_k_dense_replace": dense} if experts else {}),
        **({"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128} if latent else {}),
    }


configs = st.builds(
    _config,
    heads=st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16]),
    repeated=st.sampled_from([1, 2, 4, 8]),
    layers=st.integers(1, 9),
    intermediate=st.sampled_from([8192, 16384, 24576, 9216, 28000]),
    experts=st.sampled_from([0, 0, 0, 8, 32]),
    dense=st.integers(0, 3),
    latent=st.sampled_from([False, False, False, True]),
    window=st.sampled_from([0, 0, 1024]),
)
"""Models of 1 to 60 GB; every layer has about one."""

facts = st.one_of(
    *[configs.map(lambda config: {"config": config})] * 4,
    st.none(),
    st.sampled_from(["1B", "7B", "14B", "32B"]).map(lambda size: {"parameters": size}),
)


def _placement(strategy: str, per_pod: int | None) -> dict[str, Any]:
    allowed = per_pod if strategy in ("PACK", "SPREAD") else None
    return {"strategy": strategy} | ({"gpusPerPod": allowed} if allowed else {})


placements = st.builds(
    _placement,
    strategy=st.sampled_from(["PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD"]),
    per_pod=st.none() | st.integers(1, 5),
)


def _spec(
    *,
    facts: dict[str, Any] | None,
    placement: dict[str, Any],
    sizes: tuple[int | None, int | None],
    config: dict[str, Any],
    pod: dict[str, Any],
    products: list[str],
) -> VLLMDeploymentSpec:
    return VLLMDeploymentSpec.model_validate(
        {
            "model": {"uri": "file:///m", "facts": facts},
            "parallelism": {"tensor": sizes[0], "pipeline": sizes[1]},
            "placement": placement,
            "vllmConfig": config,
            "pod": pod,
            "accelerators": [{"product": product} for product in products],
        }
    )


specs = st.builds(
    _spec,
    facts=facts,
    placement=placements,
    sizes=st.tuples(
        st.sampled_from([None, None, None, None, 1, 2, 3, 4, 8]), st.sampled_from([None, None, None, None, 1, 2, 3, 5])
    ),
    config=st.fixed_dictionaries(
        {"maxModelLen": st.sampled_from([512, 8192, 32768])},
        optional={"gpuMemoryUtilization": st.sampled_from([0.5, 0.95]), "maxNumSeqs": st.sampled_from([1, 1024])},
    ),
    pod=st.fixed_dictionaries(
        {},
        optional={
            "nodeSelector": st.just({"pool": "a"}),
            "tolerations": st.just([{"key": SPOT, "operator": "Exists"}]),
        },
    ),
    products=st.sampled_from([[], [], [PRODUCTS[0]], [PRODUCTS[1], PRODUCTS[0]]]),
)

TAINTS = (
    (),
    (),
    (),
    (),
    (),
    (),
    (Taint(key=SPOT),),
    (Taint(key=SPOT, effect="PreferNoSchedule"),),
    (Taint(key=PASSING),),
)

rows = st.tuples(
    st.sampled_from([4, 3, 2, 1, 5, 0, 4, 2]),
    st.sampled_from([0, 0, 0, 0, 0, 1, 2, 5]),
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from(["a", "a", "a", "b"]),
    st.sampled_from(TAINTS),
    st.sampled_from([True] * 6 + [False]),
)


def _nodes(rows: list[tuple[Any, ...]], memories: tuple[int, int]) -> tuple[GpuNode, ...]:
    return tuple(
        GpuNode(
            name=f"n{index}",
            gpus=gpus,
            used=min(used, gpus),
            product=PRODUCTS[second],
            memory=memories[second] * GIB,
            labels={"pool": pool, "nvidia.com/gpu.product": PRODUCTS[second]},
            taints=taints,
            schedulable=schedulable,
        )
        for index, (gpus, used, second, pool, taints, schedulable) in enumerate(rows)
    )


memories = st.tuples(st.sampled_from([8, 6, 12, 16, 24, 80]), st.sampled_from([10, 6, 48]))
fleets = st.builds(_nodes, st.lists(rows, min_size=2, max_size=5) | st.lists(rows, max_size=1), memories)
