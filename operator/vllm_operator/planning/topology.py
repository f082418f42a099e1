"""Engines that must stay inside one zone, rack or NVLink domain: the proof for each domain by itself.

The scheduler seats one pod after the other and cannot see that the domain of the first has no room for the last.  So
the domain is chosen here, for a whole engine, and its pods are bound to it by label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_operator.api.placement import Strategy
from vllm_operator.planning.eligibility import PodRules
from vllm_operator.planning.hosts import Hosts
from vllm_operator.planning.inventory import GpuNode
from vllm_operator.planning.proof import Proof, Seating, Verdict


class DomainSeating:
    """Nodes of one product by their domain; answers as :class:`Seating` does, for one domain.

    Parameters
    ----------
    key
        Label whose value is the domain; nodes without it are in none.
    """

    def __init__(self, nodes: Sequence[GpuNode], rules: PodRules, key: str, hosts: Hosts | None = None) -> None:
        members: dict[str, list[GpuNode]] = {}
        for node in nodes:
            if node.gpus > 0 and node.labels.get(key):
                members.setdefault(node.labels[key], []).append(node)
        self._key = key
        # The domain with least room that holds an engine leaves the others to larger ones.
        self._domains = {
            domain: Seating(found, rules, hosts)
            for domain, found in sorted(members.items(), key=lambda item: (sum(n.free for n in item[1]), item[0]))
        }

    @property
    def largest(self) -> int:
        """GPUs of the largest node that may be used, now or later."""
        return max((seating.largest for seating in self._domains.values()), default=0)

    @property
    def gpus(self) -> int:
        """GPUs of the largest domain that may be used, now or later."""
        return max((seating.gpus for seating in self._domains.values()), default=0)

    @property
    def free(self) -> int:
        """GPUs of the emptiest domain that may be used now."""
        return max((seating.free for seating in self._domains.values()), default=0)

    def prove(self, sizes: Sequence[int], strategy: Strategy) -> Proof:
        """Say whether pods of these sizes can be seated inside one domain."""
        if not self._domains:
            reason = f"no node with GPUs has the label {self._key} of placement.topologyKey"
            return Proof(verdict=Verdict.NEVER, reason=reason)
        proofs = [(domain, seating.prove(sizes, strategy)) for domain, seating in self._domains.items()]
        domain, proof = min(proofs, key=lambda item: item[1].verdict.place)
        if proof.verdict is Verdict.FITS:
            return replace(proof, reason=f"{proof.reason}, {self._key}={domain}")
        others = f" (the others: likewise; {len(proofs)} domains in all)" if len(proofs) > 1 else ""
        return replace(proof, reason=f"inside one {self._key}: {domain}: {proof.reason}{others}")


def seating_of(
    nodes: Sequence[GpuNode], rules: PodRules, topology_key: str = "", hosts: Hosts | None = None
) -> Seating | DomainSeating:
    """Give what answers whether pods can be seated on nodes of one product; ``hosts`` as for :class:`Seating`."""
    return DomainSeating(nodes, rules, topology_key, hosts) if topology_key else Seating(nodes, rules, hosts)
