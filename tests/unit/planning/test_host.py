"""The estimate of host memory, /dev/shm and CPUs follows the loader, and warns only of what must go wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planning import models
from tests.unit.resources import samples
from tests.unit.resources.samples import spec_of

from vllm_operator.api.vllm_config import VLLMConfig
from vllm_operator.planning.catalogue import BUILT_IN
from vllm_operator.planning.host import (
    LEAD_BYTES,
    POD_BYTES,
    RANK_BYTES,
    SHARD_BYTES,
    HostEstimate,
    estimate_host,
    host_warnings,
)
from vllm_operator.planning.hosts import HostNeeds
from vllm_operator.planning.inventory import GIB, GpuNode
from vllm_operator.planning.plan import describe, plan
from vllm_operator.planning.requests import Room
from vllm_operator.resources.needs import host_needs

LARGE = 130 * GIB


def config(*arguments: str, **more: Any) -> VLLMConfig:
    return VLLMConfig.model_validate({"extraArgs": list(arguments), **more})


def host(*arguments: str, ranks: int = 8, checkpoint: int = LARGE, towers: bool = False, **more: Any) -> HostEstimate:
    return estimate_host(
        config(*arguments, **more), ranks=ranks, world=8, checkpoint=checkpoint, weights=17 * GIB, has_towers=towers
    )


@pytest.mark.parametrize(
    ("arguments", "more", "least", "most"),
    [
        ([], {}, SHARD_BYTES, SHARD_BYTES),
        (["--load-format=safetensors"], {}, SHARD_BYTES, SHARD_BYTES),
        (["--load_format", "fastsafetensors"], {}, SHARD_BYTES, SHARD_BYTES),
        (["--load-format", "dummy"], {}, 0, 0),
        (["--load-format=sharded_state"], {}, 17 * GIB, 17 * GIB),
        (["--load-format=runai_streamer"], {}, LARGE, LARGE),
        (["--load-format", "tensorizer"], {}, LARGE, LARGE),
        (["--load-format", "what-comes-next"], {}, LARGE, LARGE),
        ([], {"quantization": "bitsandbytes"}, LARGE, LARGE),
        (["--quantization", "gguf"], {}, LARGE, LARGE),
        (["--load-format"], {}, SHARD_BYTES, SHARD_BYTES),
        (["--cpu-offload-gb", "10"], {}, SHARD_BYTES + 10 * GIB, SHARD_BYTES + 10 * GIB),
        (["--kv-offloading-size=80"], {}, SHARD_BYTES + 10 * GIB, SHARD_BYTES + 10 * GIB),
        (["--cpu-offload-gb", "much"], {}, SHARD_BYTES, SHARD_BYTES),
        (["--cpu-offload-gb", "nan"], {}, SHARD_BYTES, SHARD_BYTES),
    ],
)
def test_what_a_rank_holds_follows_the_loader(
    arguments: list[str], more: dict[str, Any], least: float, most: float
) -> None:
    found = host(*arguments, **more)
    each = (found.memory - found.shm - POD_BYTES - LEAD_BYTES) / 8 - RANK_BYTES
    assert least <= each <= most


def test_a_small_checkpoint_is_no_more_than_itself() -> None:
    assert host(checkpoint=GIB).memory == host().memory - 8 * (SHARD_BYTES - GIB)
    assert host(checkpoint=0).memory == host().memory


def test_what_images_need_is_kept_twice() -> None:
    assert host(towers=True).memory == host().memory + 8 * GIB
    assert host("--mm-processor-cache-gb=0", towers=True).memory == host().memory


def test_cores_are_two_more_than_ranks() -> None:
    assert [host(ranks=ranks).cpus for ranks in (1, 8)] == [3, 10]


@given(st.integers(1, 16), st.sampled_from(["auto", "dummy", "tensorizer"]))
def test_more_ranks_never_use_less(ranks: int, form: str) -> None:
    one, more = (host(f"--load-format={form}", ranks=number) for number in (ranks, ranks + 1))
    assert (one.memory, one.shm, one.cpus) < (more.memory, more.shm, more.cpus)
    assert one.shm < one.memory


@pytest.mark.parametrize(
    ("limit", "shm", "words"),
    [
        (0, 16 * GIB, []),
        (
            8 * GIB,
            16 * GIB,
            ["the memory limit 8Gi (pod.resources) is below the sum of /dev/shm (16Gi, pod.shmSize)", "the 2Gi that"],
        ),
        (18 * GIB, 16 * GIB, []),
        (3 * GIB, GIB // 2, []),
    ],
)
def test_a_limit_below_what_is_certainly_used_is_warned_of(limit: int, shm: int, words: list[str]) -> None:
    needs = HostNeeds(memory_limit=limit, shm=shm)
    told = host_warnings(host(ranks=1), needs, ["a"], [GpuNode(name="a", gpus=8)], ranks=1)
    assert bool(told) == bool(words)
    assert all(word in told[0] for word in words)


def test_a_node_that_is_too_small_is_named() -> None:
    nodes = [
        GpuNode(name=name, gpus=8, room=Room(allocatable={"memory": size * GIB}))
        for name, size in (("a", 64), ("b", 8))
    ]
    [told] = host_warnings(host(), HostNeeds(), ["a"], nodes, ranks=8)
    assert "a has 64Gi of memory for pods, loading may take an estimated" in told
    assert host_warnings(host("--load-format=dummy", ranks=1), HostNeeds(), ["a"], nodes, ranks=1) == ()


def test_a_model_that_is_known_counts_with_its_checkpoint() -> None:
    facts = {"config": models.LLAMA_70B, "checkpointBytes": 150 * GIB}
    spec = spec_of(
        {
            "model": {"uri": "file:///m", "facts": facts},
            "vllmConfig": config("--load-format=tensorizer").model_dump(by_alias=True),
        }
    )
    nodes = [GpuNode(name="a", gpus=8, product="NVIDIA-H100-80GB-HBM3", memory=80 * GIB)]
    told = describe(plan(spec, nodes, BUILT_IN))
    assert told["host"]["hostMemoryMiB"] > told["gpus"] * 150 * 1024


@pytest.mark.parametrize(
    ("spec", "warned"),
    [(samples.TYPICAL, False), ({}, False), ({"pod": {"resources": {"limits": {"memory": "8Gi"}}}}, True)],
)
def test_the_plan_tells_it(spec: dict[str, Any], warned: bool) -> None:
    whole = spec_of(spec)
    needs = host_needs(whole, samples.DEFAULTS)
    told = describe(plan(whole, samples.NODES, BUILT_IN, needs=needs, bare=needs))
    assert told["host"] == {"hostMemoryMiB": 14927, "shmMiB": 591, "cpus": 3}
    assert ("the pod is killed" in told["warning"]) == warned
