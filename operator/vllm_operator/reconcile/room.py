"""What an engine needs of nodes or pods, and what there is of it.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from vllm_operator.api.placement import Strategy
from vllm_operator.planning.demand import Demand, prove_demand
from vllm_operator.planning.eligibility import PodRules
from vllm_operator.planning.inventory import GpuNode
from vllm_operator.planning.proof import Verdict, of_pods
from vllm_operator.reconcile.inventory import of_cluster
from vllm_operator.reconcile.observe import Observation
from vllm_operator.reconcile.shared import SharedCluster
from vllm_operator.reconcile.shared import room as shared_room
from vllm_operator.resources.needs import needs_of
from vllm_operator.resources.ray_cluster import gpu_pods
from vllm_operator.resources.revision import Revision


def room_of(
    seen: Observation, shared: str, but: Callable[[Mapping[str, Any]], bool] = lambda _: False
) -> tuple[GpuNode, ...]:
    """Give what an engine may be put on: the nodes, or the pods of a shared RayCluster.

    Parameters
    ----------
    but
        Says of the metadata of an object that holds GPUs whether it is to be left out.
    """
    nodes = seen.inventory.nodes if seen.inventory else ()
    if not shared:
        return seen.inventory.room(but=but) if seen.inventory else ()
    cluster = seen.shared.get(shared, SharedCluster(name=shared))
    own = {item.stem for name, item in seen.tenancies.items() if but(seen.holdings[name]["metadata"])}
    return shared_room(cluster, nodes, but=lambda item: item.stem in own)


def demand_of(seen: Observation, revision: Revision, holder: str) -> Demand:
    """Give what an engine asks of nodes, or of the pods of a shared RayCluster.

    Parameters
    ----------
    holder
        What others are told who asks for the same.
    """
    if revision.shared_cluster:
        return Demand(
            holder=holder,
            sizes=sizes_of(revision),
            rules=PodRules(node_selector=revision.engine.get("nodeSelector", {})),
            strategy=Strategy(revision.engine.get("strategy", "PACK")),
            resource=revision.plan["resource"],
        )
    pods = gpu_pods(revision.cluster_spec)
    return Demand(
        holder=holder,
        sizes=pods.sizes,
        rules=replace(pods.rules, volume=seen.volume),
        strategy=of_pods(Strategy(revision.engine.get("strategy", "PACK")), revision.engine.get("data", 1)),
        topology_key=pods.topology_key,
        resource=pods.resource,
        needs=needs_of(revision.cluster_spec, seen.spec, seen.rules.defaults),
    )


def sizes_of(revision: Revision) -> tuple[int, ...]:
    """Give the GPUs of each pod of an engine, the largest first."""
    return tuple(sorted((g["gpus"] for g in revision.engine["groups"] for _ in range(g["pods"])), reverse=True))


def hindrance(seen: Observation, cluster: str, revision: Revision) -> str:
    """Say why the nodes do not hold an engine, and who holds what it would need."""
    if not seen.inventory:
        return ""
    room = seen.inventory.room(but=of_cluster(seen.owner, cluster))
    proof = prove_demand(room, demand_of(seen, revision, cluster))
    return "" if proof.verdict is Verdict.FITS else proof.reason
