"""Whether nodes have CPU, memory, storage and pod slots for an engine's pods beside their GPUs, and what is short.

All GPU pods of an engine ask for the same, however many GPUs each has: for a node it is a number of pods, its slots.
The Ray head asks for something else, and may go to any node that its own rules allow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from vllm_operator.planning.eligibility import PodRules, obstacle
from vllm_operator.planning.inventory import GpuNode
from vllm_operator.planning.quantity import Amounts, show, show_amount
from vllm_operator.planning.requests import STANDARD

NAMED = 4

Slots = Callable[[str], int]
"""So many pods go on a node, by its name."""

UNLIMITED = 2**31


@dataclass(frozen=True, kw_only=True)
class HostNeeds:
    """What the pods of an engine ask for beside GPUs, one pod slot each included.

    Attributes
    ----------
    pod
        Of a GPU pod.
    head
        Of the Ray head.
    head_rules
        What the Ray head says of its nodes.
    sources
        By resource, who says that a GPU pod needs it; ``pod.resources`` where nothing else is told.
    memory_limit
        Bytes that the main container of a GPU pod may use at most; 0 when there is no limit.
    shm
        Bytes that its ``/dev/shm`` may hold.
    """

    pod: Amounts = field(default_factory=dict)
    head: Amounts = field(default_factory=dict)
    head_rules: PodRules = field(default_factory=PodRules)
    sources: Mapping[str, str] = field(default_factory=dict)
    memory_limit: int = 0
    shm: int = 0


class Hosts:
    """Nodes, looked at once, for any number of questions.

    Parameters
    ----------
    nodes
        All nodes, those without GPUs, too: the Ray head may go there.
    """

    def __init__(self, nodes: Iterable[GpuNode], needs: HostNeeds) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._needs = needs
        self._counted: dict[tuple[str, bool, str], int] = {}
        # Of a list of GPU nodes, written by hand, it cannot be told where a head would go.
        known = all(node.room and node.room.complete for node in self._nodes.values())
        self._judges_head = known and bool(needs.head)

    def slots(self, *, empty: bool) -> Slots:
        """Give how many GPU pods a node takes, as it is or empty."""
        return self._slots("", self._needs.pod, empty=empty)

    def slots_of(self, resource: str, *, empty: bool) -> Slots:
        """Give the same as if this resource alone were counted."""
        return self._slots(resource, {resource: self._needs.pod.get(resource, 0)}, empty=empty)

    def with_head(
        self, seats: tuple[str, ...], again: Callable[[Slots], tuple[str, ...]], *, empty: bool
    ) -> tuple[tuple[str, ...], str]:
        """Give seats of the GPU pods that leave a place to the Ray head, and its node; no seats when there are none.

        Parameters
        ----------
        seats
            Seats that were found without a thought of it.
        again
            Seats the GPU pods anew, with other slots.
        """
        if not self._judges_head:
            return seats, ""
        taken = Counter(seats)
        full = []
        for node in self._allowed(empty=empty):
            ours = {resource: need * taken[node.name] for resource, need in self._needs.pod.items()}
            if _fitting(node, self._needs.head, ours, empty=empty):
                return seats, node.name
            if taken[node.name] and _fitting(node, self._needs.head, {}, empty=empty):
                full.append(node)
        # The head can only come in where a GPU pod gives way.
        slots = self.slots(empty=empty)
        for node in full:
            beside = _fitting(node, self._needs.pod, self._needs.head, empty=empty)
            if found := again(lambda name, at=node.name, left=beside: left if name == at else slots(name)):  # type: ignore[misc]
                return found, node.name
        return (), ""

    def head_lack(self, *, empty: bool) -> str:
        """Say why the Ray head has no place."""
        allowed = list(self._allowed(empty=empty))
        if not allowed:
            return "the Ray head has no place: rayHead's nodeSelector, affinity and tolerations allow no node"
        left = "" if empty else " left"
        for resource, need in self._needs.head.items():
            offers = {node.name: found for node in allowed if (found := _left(node, resource, empty=empty)) is not None}
            if len(offers) == len(allowed) and max(offers.values()) < need:
                best = max(sorted(offers), key=lambda name: offers[name])
                return (
                    f"the Ray head has no place: no node that it may go to has {show(resource, need)}{left}, which "
                    f"rayHead.resources asks for; {best} has {show_amount(resource, offers[best])}"
                )
        asked = " and ".join(show(resource, need) for resource, need in self._needs.head.items())
        return f"the Ray head has no place: no node that it may go to has {asked}{left} beside the GPU pods"

    def lack(self, free: Mapping[str, int], gpus: int, fits: Callable[[Slots], bool], *, empty: bool) -> str:
        """Say what GPU pods find too little of on nodes that have GPUs for them.

        Parameters
        ----------
        free
            Free GPUs of the nodes.
        gpus
            GPUs of the largest pod.
        fits
            Says whether the pods go on nodes with such slots.
        """
        names = [name for name in sorted(free) if free[name] >= gpus]
        short = [name for name in self._needs.pod if not fits(self.slots_of(name, empty=empty))]
        left = "" if empty else " left"
        if not short:
            asked = " and ".join(show(resource, need) for resource, need in self._needs.pod.items() if need)
            rooms = [f"{name} for {self.slots(empty=empty)(name)}" for name in names[:NAMED]]
            return f"a pod asks for {asked}, and there is room{left} on {_told(rooms, len(names))}"
        resource = short[0]
        source = self._needs.sources.get(resource, "pod.resources")
        need, slots = self._needs.pod[resource], self.slots_of(resource, empty=empty)
        told = [f"{name} has {self._offer(name, resource, empty=empty)}" for name in names[:NAMED]]
        offers = _told(told, len(names))
        if not any(slots(name) for name in names):
            which = f"no node with {gpus} {'' if empty else 'free '}GPU{'' if gpus == 1 else 's'}"
            return f"{which} has {show(resource, need)}{left}, which {source} asks for; {offers}"
        return f"each pod asks for {show(resource, need)} ({source}); {offers}"

    def _offer(self, name: str, resource: str, *, empty: bool) -> str:
        node = self._nodes[name]
        there, left = _left(node, resource, empty=True), _left(node, resource, empty=empty)
        if there is None or left is None:
            return "enough"
        told = show_amount(resource, max(0, left))
        return told if empty else f"{told} of {show_amount(resource, there)}"

    def _slots(self, key: str, need: Amounts, *, empty: bool) -> Slots:
        def slots(name: str) -> int:
            if (key, empty, name) not in self._counted:
                self._counted[key, empty, name] = _fitting(self._nodes[name], need, {}, empty=empty)
            return self._counted[key, empty, name]

        return slots

    def _allowed(self, *, empty: bool) -> Iterator[GpuNode]:
        found = ((node, obstacle(node, self._needs.head_rules)) for node in self._nodes.values())
        return (node for node, why in found if why is None or (empty and why.passing))


def _fitting(node: GpuNode, need: Amounts, taken: Amounts, *, empty: bool) -> int:
    """Give how many pods go on a node beside what is taken."""
    numbers = [
        max(0, left - taken.get(resource, 0)) // amount
        for resource, amount in need.items()
        if amount > 0 and (left := _left(node, resource, empty=empty)) is not None
    ]
    return min(numbers, default=UNLIMITED)


def _left(node: GpuNode, resource: str, *, empty: bool) -> int | None:
    return node.room.left(resource, empty=empty) if node.room else None


def by_kind(resource: str) -> tuple[int, str]:
    """Sort key: what every pod asks for before what few do."""
    return (STANDARD.index(resource) if resource in STANDARD else len(STANDARD), resource)


def _told(shown: Sequence[str], of: int) -> str:
    return ", ".join(shown) + (f" and {of - len(shown)} more" if of > len(shown) else "")
