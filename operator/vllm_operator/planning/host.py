"""An estimate of the host memory, ``/dev/shm`` and CPUs that an engine's largest pod uses: advice, never a request.

Nothing is asked of the scheduler on the strength of it: loaders, models and images differ by gigabytes.  It is shown in
the status, and what contradicts it badly is warned of, because a pod that is killed for memory says so only in minutes.

Sources, all of vLLM 0.32: ``model_loader/weight_utils.py`` (what each loader holds), ``config/offload.py``,
``config/cache.py`` and ``config/multimodal.py`` (what is kept on the host by option), ``shm_broadcast.py`` and
``executor/ray_executor_v2.py`` (rings), ``parallel_state.py`` (a ring for each group), and its guide "CPU resources for
GPU deployments" (2 + N cores).  What a process takes beside the weights is experience, not a formula.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vllm_operator.api.vllm_config import VLLMConfig
from vllm_operator.planning.hosts import HostNeeds
from vllm_operator.planning.inventory import GIB, MIB, GpuNode
from vllm_operator.planning.quantity import MEMORY, show_amount

POD_BYTES = 1 * GIB
"""Raylet, its agents and KubeRay's shell, in every pod."""

LEAD_BYTES = 3 * GIB
"""Supervisor, API server and engine core, in the lead pod."""

CORE_BYTES = 1 * GIB
"""A further engine core in the pod, of another data parallel rank."""

RANK_BYTES = 5 * GIB
"""A rank beside its weights: libraries, CUDA's host side, compiled kernels, pinned buffers."""

LEAST_RANK_BYTES = 1 * GIB
"""What no rank stays below; with less a pod certainly dies."""

SHARD_BYTES = 5 * GIB
"""A file of a checkpoint, as hubs split them; while it is read it is mapped into the rank's memory."""

PROCESSOR_CACHE_GIB = 4.0
"""``--mm-processor-cache-gb`` unless it is given; once in the API server and once in the engine core."""

OBJECT_STORE_BYTES = 200_000_000
"""Ray's object store, in ``/dev/shm``: unset it would take 30 % of that, which NCCL needs, and no token passes it."""

RING_CHUNKS = 10
GROUP_RING_BYTES = 6 * 4 * MIB
ANSWER_RING_BYTES = RING_CHUNKS * 24 * MIB
CALL_RING_BYTES = RING_CHUNKS * 16 * MIB
NCCL_RANK_BYTES = 512 * MIB
"""NCCL's buffers of a rank where GPUs of a pod cannot reach each other directly."""

STREAMED = frozenset({"auto", "hf", "safetensors", "mistral", "fastsafetensors", "instanttensor", "pt", "npcache"})
SHARDED = frozenset({"sharded_state", "runai_streamer_sharded"})
WHOLE_QUANTIZATIONS = frozenset({"bitsandbytes", "gguf"})


@dataclass(frozen=True, kw_only=True)
class HostEstimate:
    """What the largest pod uses of its host; all of it is an estimate.

    Attributes
    ----------
    memory
        Bytes while the model is loaded, ``shm`` included: a tmpfs counts against the pod's memory limit.
    shm
        Bytes of ``/dev/shm``.
    cpus
        Physical cores that are busy at the same time.
    """

    memory: float
    shm: float
    cpus: int


def estimate_host(
    config: VLLMConfig,
    *,
    ranks: int,
    world: int,
    cores: int = 1,
    checkpoint: float = 0,
    weights: float = 0,
    has_towers: bool = False,
) -> HostEstimate:
    """Estimate what the lead pod uses; the other pods use somewhat less.

    Parameters
    ----------
    ranks
        Ranks in the pod.
    world
        Ranks of the engine.
    cores
        Engine cores in the pod: one for each data parallel rank that begins there.
    checkpoint
        Bytes of the checkpoint; 0 when they are not known, and one file is assumed.
    weights
        Bytes of the weights of its neediest rank.
    has_towers
        The model sees or hears.
    """
    shm = _shm(ranks, cores)
    cache = 2 * GIB * _number(config, "mm-processor-cache-gb", PROCESSOR_CACHE_GIB)
    towers = cache if has_towers else 0.0
    rank = (
        RANK_BYTES + _loading(config, checkpoint or SHARD_BYTES, weights) + GIB * _number(config, "cpu-offload-gb", 0.0)
    )
    offloaded = GIB * _number(config, "kv-offloading-size", 0.0) * ranks / world
    return HostEstimate(
        memory=POD_BYTES + LEAD_BYTES + (cores - 1) * CORE_BYTES + towers + ranks * rank + offloaded + shm,
        shm=shm,
        cpus=1 + cores + ranks,
    )


def host_warnings(
    estimate: HostEstimate, needs: HostNeeds, seats: Iterable[str], nodes: Sequence[GpuNode], *, ranks: int
) -> tuple[str, ...]:
    """Say what contradicts the estimate badly: a memory limit that must kill the pod, a node that is too small.

    Parameters
    ----------
    seats
        The nodes that the pods are planned on.
    ranks
        Ranks in the largest pod.
    """
    told = []
    least = needs.shm + POD_BYTES + ranks * LEAST_RANK_BYTES
    if 0 < needs.memory_limit < least:
        told.append(
            f"the memory limit {show_amount(MEMORY, needs.memory_limit)} (pod.resources) is below the sum of /dev/shm "
            f"({show_amount(MEMORY, needs.shm)}, pod.shmSize), which counts against it, and the "
            f"{show_amount(MEMORY, least - needs.shm)} that the processes of {_ranks(ranks)} need at the least: "
            "the pod is killed before that is full"
        )
    taken = set(seats)
    for node in nodes:
        there = node.room.left(MEMORY, empty=True) if node.room and node.name in taken else None
        if there is not None and there < estimate.memory:
            told.append(
                f"{node.name} has {show_amount(MEMORY, there)} of memory for pods, loading may take an estimated "
                f"{show_amount(MEMORY, math.ceil(estimate.memory))} in a pod of {_ranks(ranks)}"
            )
            break
    return tuple(told)


def _loading(config: VLLMConfig, checkpoint: float, weights: float) -> float:
    """Give the bytes of a checkpoint that a rank holds at once.

    The default loader maps one file after the other.  Of a sharded checkpoint a rank reads its own part; the streamer
    of Run:ai has no limit of its own by default, and of what is not known here the worst is assumed.
    """
    form = _text(config, "load-format") or "auto"
    quantization = config.quantization or _text(config, "quantization")
    if form == "dummy":
        return 0.0
    if form in SHARDED and weights:
        return weights
    if form in STREAMED and quantization not in WHOLE_QUANTIZATIONS:
        return min(checkpoint, SHARD_BYTES)
    return checkpoint


def _shm(ranks: int, cores: int) -> float:
    """Give what a lead pod has in ``/dev/shm``: the driver's rings to and from the ranks beside it, NCCL, Ray."""
    rings = cores * CALL_RING_BYTES + ranks * ANSWER_RING_BYTES
    together = GROUP_RING_BYTES + ranks * NCCL_RANK_BYTES if ranks > 1 else 0
    return float(OBJECT_STORE_BYTES + rings + together)


def _text(config: VLLMConfig, option: str) -> str:
    """Give the value of a further argument, ``--name value`` or ``--name=value``; empty when it is not there."""
    found = ""
    arguments = config.extra_args
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.lstrip("-").replace("_", "-") == option and name.startswith("--"):
            found = value if equals else (arguments[index + 1] if index + 1 < len(arguments) else "")
    return found


def _number(config: VLLMConfig, option: str, otherwise: float) -> float:
    try:
        value = float(_text(config, option))
    except ValueError:
        return otherwise
    return value if 0 <= value < 2**20 else otherwise


def _ranks(number: int) -> str:
    return f"{number} rank" + ("" if number == 1 else "s")
