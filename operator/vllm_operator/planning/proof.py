"""Whether the pods of an engine can be seated on the nodes, proved before any of them is made.

Nobody else says so in time: a pod that cannot be scheduled waits for ever, and vLLM waits half an hour for its
placement group.  Three answers: it fits now; not now, because somebody holds the GPUs or a node is away; never, on the
nodes that there are.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice

from vllm_operator.api.placement import Strategy
from vllm_operator.planning.eligibility import Obstacle, PodRules, obstacle
from vllm_operator.planning.hosts import HostNeeds, Hosts, Slots
from vllm_operator.planning.inventory import GpuNode

NAMED = 4
"""So many nodes are named in a reason; of more only the number is told."""


class Verdict(enum.StrEnum):
    """Whether something can be placed."""

    FITS = "Fits"
    NOT_NOW = "NotNow"
    NEVER = "Never"

    @property
    def place(self) -> int:
        """Its place among the verdicts, the best first."""
        return tuple(Verdict).index(self)


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The answer, and why.

    Attributes
    ----------
    seats
        The node of each pod, in the order of the sizes that were asked for; empty unless it fits.
    head
        The node of the Ray head; empty when no place was looked for.
    """

    verdict: Verdict
    reason: str
    seats: tuple[str, ...] = ()
    head: str = ""


class Seating:
    """Nodes of one product, looked at once, for any number of questions.

    Parameters
    ----------
    nodes
        The nodes.
    rules
        What the CR says of its nodes.
    hosts
        All nodes, and what the pods need of them beside GPUs; without it only GPUs count.
    """

    def __init__(self, nodes: Sequence[GpuNode], rules: PodRules, hosts: Hosts | None = None) -> None:
        with_gpus = [node for node in nodes if node.gpus > 0]
        self._obstacles = {node.name: obstacle(node, rules) for node in with_gpus}
        self._nodes = with_gpus
        self._hosts = hosts
        self._reachable = [node for node in with_gpus if _passing(self._obstacles[node.name])]
        self._free = _by_room({n.name: n.free for n in with_gpus if self._obstacles[n.name] is None})
        self._whole = _by_room({node.name: node.gpus for node in self._reachable})

    @property
    def largest(self) -> int:
        """GPUs of the largest node that may be used, now or later."""
        return next(iter(self._whole.values()), 0)

    @property
    def gpus(self) -> int:
        """GPUs of all nodes that may be used, now or later."""
        return sum(self._whole.values())

    @property
    def free(self) -> int:
        """GPUs of all nodes that may be used now."""
        return sum(self._free.values())

    def prove(self, sizes: Sequence[int], strategy: Strategy) -> Proof:
        """Say whether pods of these sizes can be seated.

        Parameters
        ----------
        sizes
            GPUs of each pod.  All but one smaller one are of one size; for these taking the emptiest node first is
            exact, see :func:`seat`.
        strategy
            STRICT_SPREAD seats every pod on a node of its own; the other strategies have become sizes already.
        """
        apart = strategy is Strategy.STRICT_SPREAD
        seats, head = self._seats(sizes, apart=apart, empty=False)
        if seats:
            reason = f"{_pods(sizes)} on {_count(len(set(seats)), 'node')}"
            return Proof(verdict=Verdict.FITS, reason=reason, seats=seats, head=head)
        wish = f"{strategy} of {_count(sum(sizes), 'GPU')}"
        if self._seats(sizes, apart=apart, empty=True)[0]:
            lack = self._lack(sizes, apart=apart, empty=False)
            held = _held(self._reachable, self._obstacles)
            return Proof(verdict=Verdict.NOT_NOW, reason=f"{wish} does not fit now: {lack}{held}")
        lack = self._lack(sizes, apart=apart, empty=True)
        excluded = _excluded(self._nodes, self._obstacles)
        return Proof(verdict=Verdict.NEVER, reason=f"{wish} cannot fit: {lack}{excluded}")

    def _seats(self, sizes: Sequence[int], *, apart: bool, empty: bool) -> tuple[tuple[str, ...], str]:
        """Seat the pods, and the head, on the nodes as they are, or as if nobody held anything."""
        free = self._whole if empty else self._free
        if self._hosts is None:
            return seat(sizes, free, apart=apart), ""

        def seated(slots: Slots) -> tuple[str, ...]:
            return seat(sizes, free, apart=apart, slots=slots)

        seats = seated(self._hosts.slots(empty=empty))
        return self._hosts.with_head(seats, seated, empty=empty) if seats else ((), "")

    def _lack(self, sizes: Sequence[int], *, apart: bool, empty: bool) -> str:
        free = self._whole if empty else self._free

        def fits(slots: Slots | None) -> bool:
            return bool(seat(sizes, free, apart=apart, slots=slots))

        if self._hosts is None or not fits(None):
            return _lack(sizes, free, apart=apart)
        if not fits(self._hosts.slots(empty=empty)):
            return self._hosts.lack(free, max(sizes), fits, empty=empty)
        return self._hosts.head_lack(empty=empty)


def prove(
    sizes: Sequence[int],
    strategy: Strategy,
    nodes: Sequence[GpuNode],
    rules: PodRules,
    needs: HostNeeds | None = None,
) -> Proof:
    """Say whether pods of these sizes can be seated on nodes of one product; see :meth:`Seating.prove`."""
    return Seating(nodes, rules, Hosts(nodes, needs) if needs else None).prove(sizes, strategy)


def of_pods(strategy: Strategy, data: int) -> Strategy:
    """Give the strategy that pods must obey where it holds for each data parallel rank by itself.

    STRICT_PACK has become sizes of pods then: each holds whole data parallel ranks.
    """
    return Strategy.PACK if data > 1 and strategy is Strategy.STRICT_PACK else strategy


def seat(sizes: Sequence[int], free: Mapping[str, int], *, apart: bool, slots: Slots | None = None) -> tuple[str, ...]:
    """Seat pods on nodes, the largest first, each on the node that has most left; empty when they do not fit.

    Ties go to the first name, so that equal questions have equal answers.

    Parameters
    ----------
    slots
        So many pods go on a node, whatever GPUs it has.  For whole pods of one size the order does not matter: a node
        takes a number of them.  Nor does it for one smaller pod after them: wherever they could sit otherwise to leave
        it a place, a node keeps room for a whole one, and so for the smaller.
    """
    if sum(sizes) > sum(free.values()):
        return ()
    order = sorted(free.items(), key=lambda item: (-item[1], item[0]))
    # A pod goes to one of the emptiest nodes: of so many pods none reaches further.
    taking = (item for item in order if slots is None or slots(item[0]) > 0)
    heap = [(-gpus, name) for name, gpus in islice(taking, len(sizes))]
    heapify(heap)
    seats: dict[int, str] = {}
    taken: Counter[str] = Counter()
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        if not heap or -heap[0][0] < sizes[index]:
            return ()
        left, node = heappop(heap)
        seats[index] = node
        taken[node] += 1
        if not apart and (slots is None or taken[node] < slots(node)):
            heappush(heap, (left + sizes[index], node))
    return tuple(seats[index] for index in range(len(sizes)))


def _by_room(room: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(room.items(), key=lambda item: (-item[1], item[0])))


def _lack(sizes: Sequence[int], free: Mapping[str, int], *, apart: bool) -> str:
    if not any(free.values()):
        return "no GPU is left for it"
    largest = max(sizes)
    best = max(sorted(free), key=lambda name: free[name])
    if free[best] < largest:
        return f"the largest node, {best}, has {free[best]}, a pod needs {largest}"
    offered = [name for name in free if free[name] >= min(sizes)]
    if apart and len(offered) < len(sizes):
        return f"{len(sizes)} nodes are needed, {len(offered)} have a GPU ({_names(offered)})"
    return f"{_pods(sizes)} do not go into {_names([f'{name} {free[name]}' for name in sorted(free)])}"


def _held(nodes: Sequence[GpuNode], obstacles: Mapping[str, Obstacle | None]) -> str:
    busy = [node for node in nodes if node.used]
    away = [f"{node.name}: {found.reason}" for node in nodes if (found := obstacles[node.name])]
    # Of many nodes only those are put into words that are named.
    words = [f"{node.name} {node.used} of {node.gpus}{_by(node)}" for node in busy[:NAMED]]
    told = [f"; held by other pods: {_names(words + [node.name for node in busy[NAMED:]])}"] if busy else []
    return "".join([*told, *([f"; {_names(away)}"] if away else [])])


def _by(node: GpuNode) -> str:
    return f" ({_names(node.holders)})" if node.holders else ""


def _excluded(nodes: Sequence[GpuNode], obstacles: Mapping[str, Obstacle | None]) -> str:
    reasons = Counter(
        found.reason for node in nodes if node.gpus > 0 and (found := obstacles[node.name]) and not found.passing
    )
    return "".join(f"; {_count(number, 'node')} left out: {reason}" for reason, number in sorted(reasons.items()))


def _passing(found: Obstacle | None) -> bool:
    return found is None or found.passing


def _pods(sizes: Sequence[int]) -> str:
    counted = Counter(sizes)
    parts = [f"{number} x {_count(size, 'GPU')}" for size, number in sorted(counted.items(), reverse=True)]
    return f"{_count(len(sizes), 'pod')} ({' + '.join(parts)})"


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return f"{shown} and {len(names) - NAMED} more" if len(names) > NAMED else shown


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
