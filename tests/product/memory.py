"""The planner's formula for memory beside what a running engine says of itself."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from tests.checker.ranks import gather
from tests.product.ask import metrics, service_url
from tests.product.deployment import Deployment
from tests.testbed.bed import Bed

from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.planning.catalogue import BUILT_IN
from vllm_operator.planning.plan import survey
from vllm_operator.planning.sizing import rank_needs

_BUDGET = "--kv-cache-memory-bytes="


@dataclass(frozen=True)
class Planned:
    """What the formula says.

    Attributes
    ----------
    weights
        Bytes of a rank, by pipeline stage.
    tokens
        Tokens in the cache of the stage that holds the fewest.
    """

    weights: tuple[float, ...]
    tokens: int


@dataclass(frozen=True)
class Reported:
    """What the engine says.

    Attributes
    ----------
    weights
        Bytes that each rank loaded, by global rank.
    tokens
        vLLM's own figure for the tokens in its cache.
    """

    weights: dict[int, int]
    tokens: int


def plan_memory(spec: dict[str, Any], config: dict[str, Any], *, step_tokens: int) -> Planned:
    """Reckon for a spec with explicit sizes and a budget for the cache (``--kv-cache-memory-bytes``).

    Parameters
    ----------
    step_tokens
        Tokens that the engine computes in one step; the planner reckons with vLLM's default on large GPUs.
    """
    read = VLLMDeploymentSpec.model_validate({**spec, "model": {**spec["model"], "facts": {"config": config}}})
    seen = survey(read, (), BUILT_IN)
    assert seen.facts
    load = replace(seen.load, max_num_batched_tokens=step_tokens)
    needs = rank_needs(seen.facts, load, tensor=read.tensor, pipeline=read.pipeline)
    (budget,) = (int(item.removeprefix(_BUDGET)) for item in read.vllm_config.extra_args if item.startswith(_BUDGET))
    tokens = [need.cached_tokens(budget + need.weights + need.margin, load.max_model_len) for need in needs]
    return Planned(weights=tuple(need.weights for need in needs), tokens=min(tokens))


def read_memory(bed: Bed, deployment: Deployment) -> Reported:
    """Ask the engine: its ranks for their weights, its metrics for the cache."""
    (engine,) = deployment.engines
    processes = gather(bed, deployment.namespace, engine["rayCluster"]).processes
    told = metrics(service_url(bed, deployment.namespace, deployment.name))
    found = re.search(r'^vllm:cache_config_info\{.*kv_cache_size_tokens="(\d+)"', told, re.MULTILINE)
    assert found, "vLLM does not say how many tokens its cache holds"
    return Reported(
        weights={rank: process["weight_bytes"] for rank, process in processes.items()}, tokens=int(found[1])
    )
