"""The GPUs of a cluster, by what a pod can ask for: one product under one resource name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm_operator.planning.catalogue import Catalogue, is_product
from vllm_operator.planning.devices import Sharing, Usage, usage_of, vendor_rank
from vllm_operator.planning.hosts import Hosts
from vllm_operator.planning.inventory import GpuNode
from vllm_operator.planning.proof import Seating
from vllm_operator.planning.sizing import Load
from vllm_operator.planning.topology import DomainSeating, seating_of
from vllm_operator.planning.wish import AcceleratorWish, Wish


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The nodes of one product under one resource name.

    Attributes
    ----------
    resource
        Name under which pods ask for its GPUs.
    selector
        Node selector for the product; empty where no label tells it.
    memory
        Bytes of one GPU; 0 when not known.
    price
        Of one GPU, an hour.
    preference
        Place of the product in the user's list.
    """

    product: str
    resource: str
    sharing: Sharing
    usage: Usage
    selector: Mapping[str, str]
    memory: int
    price: float
    preference: int
    seating: Seating | DomainSeating

    @property
    def budget(self) -> float:
        """Bytes of a GPU that vLLM may use."""
        return self.memory * self.usage.utilization

    @property
    def is_part(self) -> bool:
        """What it counts as GPUs are parts of GPUs."""
        return self.sharing is not Sharing.NONE


def find_fleets(wish: Wish, load: Load, nodes: Sequence[GpuNode], catalogue: Catalogue) -> list[Fleet]:
    """Group the nodes that the user's accelerators allow, by product and resource."""
    hosts = Hosts(nodes, wish.needs) if wish.needs else None
    by_product: dict[tuple[str, str], list[GpuNode]] = {}
    for node in nodes:
        if node.gpus > 0:
            by_product.setdefault((node.product, node.resource), []).append(node)
    memories = {
        (product, resource): min(catalogue.memory(product, *told) for told in {(n.memory, n.replicas) for n in members})
        for (product, resource), members in sorted(by_product.items())
    }
    preferences = _preferences(wish, memories, catalogue)
    return [
        _fleet(
            wish,
            load,
            by_product[key],
            memory=memory,
            price=catalogue.price(key[0], memory),
            place=preferences[key],
            hosts=hosts,
        )
        for key, memory in memories.items()
        if key in preferences
    ]


def _preferences(
    wish: Wish, memories: Mapping[tuple[str, str], int], catalogue: Catalogue
) -> dict[tuple[str, str], int]:
    """Give the place in the user's list of each product and resource that is wanted.

    An alternative means GPUs of one vendor, because an image is made for those of one: of several the first.
    """
    places: dict[tuple[str, str], int] = {}
    for place, wanted in enumerate(wish.accelerators or (AcceleratorWish(),)):
        meant = [key for key, memory in memories.items() if _is_wanted(wanted, key[0], memory, catalogue)]
        first = min((vendor_rank(resource) for _, resource in meant), default=0)
        for key in meant:
            if vendor_rank(key[1]) == first:
                places.setdefault(key, place)
    return places


def _is_wanted(wanted: AcceleratorWish, product: str, memory: int, catalogue: Catalogue) -> bool:
    kind = catalogue.find(product)
    named = not wanted.product or is_product(wanted.product, product)
    classed = not wanted.kind or (kind is not None and wanted.kind in kind.classes)
    return named and classed and memory >= wanted.memory


def _fleet(
    wish: Wish,
    load: Load,
    members: Sequence[GpuNode],
    *,
    memory: int,
    price: float,
    place: int,
    hosts: Hosts | None,
) -> Fleet:
    first = members[0]
    # Of nodes that no selector tells apart, any may be the worst of them.
    sharing = max({node.sharing for node in members}, key=list(Sharing).index)
    told = {node.replicas for node in members}
    return Fleet(
        product=first.product,
        resource=first.resource,
        sharing=sharing,
        usage=usage_of(
            sharing, 0 if 0 in told else max(told), asked=wish.utilization, usual=load.gpu_memory_utilization
        ),
        selector=first.product_selector,
        memory=memory,
        price=price,
        preference=place,
        seating=seating_of(members, wish.pod_rules, wish.topology_key, hosts),
    )
