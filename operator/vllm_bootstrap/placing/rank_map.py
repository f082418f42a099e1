"""The rank map: where each rank will be, before its process exists."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_bootstrap.contract import EngineCoreReport, EnginePlan, RankReport
from vllm_bootstrap.placing.placement import RankPlace
from vllm_bootstrap.placing.preflight import BundleFacts
from vllm_bootstrap.vllm_adapter.facts import actor_name


def describe_ranks(
    plan: EnginePlan, ranks: Sequence[RankPlace], found: Sequence[BundleFacts]
) -> tuple[RankReport, ...]:
    """Put together what is known of each rank before its actor exists."""
    facts = {(bundle.dp, bundle.bundle): bundle for bundle in found}
    gpus: dict[tuple[int, str], list[int]] = {}
    uuids: dict[str, dict[int, str]] = {}
    for bundle in found:
        gpus.setdefault((bundle.dp, bundle.ray_node), []).append(bundle.gpu)
        if bundle.machine:
            uuids[bundle.ray_node] = dict(bundle.machine.gpu_uuids)
    reports = []
    for place in ranks:
        bundle = facts[place.dp, place.bundle]
        # Not the GPU that Ray gave this bundle: vLLM sorts those of a data parallel rank on a node, and hands them out
        # by local rank.
        gpu = sorted(gpus[place.dp, bundle.ray_node])[place.local_rank]
        reports.append(
            RankReport(
                rank=place.rank,
                tp=place.tp,
                pp=place.pp,
                dp=place.dp,
                bundle=place.bundle,
                ray_node=bundle.ray_node,
                pod=bundle.pod,
                node=bundle.node,
                gpu_index=gpu,
                gpu_uuid=uuids.get(bundle.ray_node, {}).get(gpu, ""),
                actor=actor_name(
                    plan.instance_id, place.rank, tensor=plan.tensor, pipeline=plan.pipeline, data=plan.data
                ),
                driver=place.driver,
                output=place.output,
            )
        )
    return tuple(reports)


def describe_cores(plan: EnginePlan, ranks: Sequence[RankReport]) -> tuple[EngineCoreReport, ...]:
    """Say where the engine core of each data parallel rank will be, where it is an actor."""
    if plan.data == 1:
        return ()
    heads = (rank for rank in ranks if rank.rank % plan.world_size == 0)
    return tuple(EngineCoreReport(dp=rank.dp, pod=rank.pod, ray_node=rank.ray_node) for rank in heads)
