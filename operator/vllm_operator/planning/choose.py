"""Which GPUs, and how many: candidates with a verdict each, and the one that is taken.

What the user said is never overruled: explicit sizes are checked, and only what was left out is chosen.  Of what fits,
the user's order of accelerators comes first, then the cost; so a small model leaves the large GPUs alone.  Tensor
parallel stays inside a node where it can, pipeline parallel goes over nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vllm_operator.api.spec import Strategy
from vllm_operator.planning import rules
from vllm_operator.planning.catalogue import Catalogue, is_product
from vllm_operator.planning.devices import GPU_RESOURCE, Sharing, Usage, usage_of, vendor_rank
from vllm_operator.planning.eligibility import PodRules
from vllm_operator.planning.facts import ModelFacts
from vllm_operator.planning.hosts import HostNeeds, Hosts
from vllm_operator.planning.inventory import GIB, GpuNode
from vllm_operator.planning.proof import Proof, Seating, Verdict, of_pods
from vllm_operator.planning.sizing import Load, RankNeed, Sizing
from vllm_operator.planning.topology import DomainSeating, seating_of

MAX_PIPELINE = 64
MAX_DATA = 64


@dataclass(frozen=True, kw_only=True)
class AcceleratorWish:
    """One of the alternatives that the user named.

    Attributes
    ----------
    product
        Pattern for the product, or empty.
    kind
        A class of the catalogue, or empty.
    memory
        Least bytes of one GPU.
    """

    product: str = ""
    kind: str = ""
    memory: int = 0


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the user said; ``None`` is what may be chosen.

    Attributes
    ----------
    data, expert
        Data parallel size and expert parallel; these are not chosen.
    strategy
        Holds for each data parallel rank by itself.
    gpus_per_pod
        GPUs of each pod.
    topology_key
        Label of nodes within one value of which an engine stays; empty where it may go anywhere.
    accelerators
        Alternatives in order; none means any.
    utilization
        Share of a GPU's memory that vLLM may use, as vLLM counts it.
    needs
        What the pods ask for beside GPUs; ``None`` when it is not looked at.
    """

    tensor: int | None = None
    pipeline: int | None = None
    data: int = 1
    expert: bool = False
    strategy: Strategy = Strategy.PACK
    gpus_per_pod: int | None = None
    topology_key: str = ""
    accelerators: tuple[AcceleratorWish, ...] = ()
    utilization: float | None = None
    pod_rules: PodRules = field(default_factory=PodRules)
    needs: HostNeeds | None = None

    @property
    def is_explicit(self) -> bool:
        """Both sizes are the user's."""
        return self.tensor is not None and self.pipeline is not None


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to place an engine.

    Attributes
    ----------
    sizes
        GPUs of each pod.
    selector
        Node selector for the product; empty where no label tells it.
    need
        The neediest rank; ``None`` when the model is not known.
    cached_tokens
        Tokens that the cache of the neediest rank holds.
    cost
        Of all GPUs, an hour.
    preference
        Place of the accelerator in the user's list.
    warning
        What may go wrong although it can be placed.
    data
        Data parallel size.
    is_hint
        It is shown, and not chosen: only the user asks for data parallel.
    resource
        Name under which its pods ask for GPUs.
    utilization
        What vLLM must be told to use of a GPU's memory; ``None`` when its own default, or the user's, is right.
    """

    product: str
    tensor: int
    pipeline: int
    sizes: tuple[int, ...]
    verdict: Verdict
    reason: str
    selector: Mapping[str, str] = field(default_factory=dict)
    seats: tuple[str, ...] = ()
    need: RankNeed | None = None
    cached_tokens: int = 0
    cost: float = 0.0
    preference: int = 0
    warning: str = ""
    data: int = 1
    is_hint: bool = False
    resource: str = GPU_RESOURCE
    sharing: Sharing = Sharing.NONE
    utilization: float | None = None

    @property
    def gpus(self) -> int:
        """GPUs of the engine."""
        return self.tensor * self.pipeline * self.data

    @property
    def is_torn(self) -> bool:
        """A tensor group lies in more than one pod."""
        return any(size % self.tensor for size in self.sizes)

    def warned(self, text: str) -> Candidate:
        """Give the same with one warning more."""
        return replace(self, warning="; ".join(part for part in (self.warning, text) if part))

    @property
    def rank(self) -> tuple[object, ...]:
        """Sort key: the best first."""
        return (
            self.is_hint,
            self.verdict.place,
            self.preference,
            # Whole GPUs have the more telling reason for a no.
            self.sharing is not Sharing.NONE if self.verdict is Verdict.NEVER else not self.sharing.is_isolated,
            self.is_torn,
            round(self.cost, 6),
            self.pipeline,
            len(self.sizes),
            self.product,
            self.resource,
            self.tensor,
        )


@dataclass(frozen=True, kw_only=True)
class Choice:
    """All candidates, the best first."""

    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate | None:
        """The one that is taken, whether it fits now or is waited for."""
        return next((item for item in self.candidates if not item.is_hint and item.verdict is not Verdict.NEVER), None)

    @property
    def verdict(self) -> Verdict:
        """Verdict of the best."""
        return self.best.verdict if self.best else Verdict.NEVER

    @property
    def reason(self) -> str:
        """Why, in a sentence."""
        if self.best:
            return self.best.reason
        return self.candidates[0].reason if self.candidates else "no node has a GPU"


@dataclass(frozen=True, kw_only=True)
class _Fleet:
    """The nodes of one product under one resource name."""

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


def choose(wish: Wish, facts: ModelFacts | None, load: Load, nodes: Iterable[GpuNode], catalogue: Catalogue) -> Choice:
    """Give every way to place an engine that is worth looking at.

    Parameters
    ----------
    facts
        ``None`` when nothing is known of the model: then sizes that were left out are 1.
    """
    # An API server's list has no order that one may rely on.
    there = tuple(sorted(nodes, key=lambda node: node.name))
    hosts = Hosts(there, wish.needs) if wish.needs else None
    by_product: dict[tuple[str, str], list[GpuNode]] = {}
    for node in there:
        if node.gpus > 0:
            by_product.setdefault((node.product, node.resource), []).append(node)
    memories = {
        (product, resource): min(catalogue.memory(product, *told) for told in {(n.memory, n.replicas) for n in members})
        for (product, resource), members in sorted(by_product.items())
    }
    preferences = _preferences(wish, memories, catalogue)
    fleets = [
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
    found = [candidate for fleet in fleets for candidate in _of_fleet(wish, facts, load, fleet)]
    if memories and not found:
        products = sorted({product for product, _ in memories})
        found = [_none(wish, load, [fleet.product for fleet in fleets], products)]
    return Choice(candidates=tuple(sorted(found, key=lambda item: item.rank)))


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
) -> _Fleet:
    first = members[0]
    # Of nodes that no selector tells apart, any may be the worst of them.
    sharing = max({node.sharing for node in members}, key=list(Sharing).index)
    told = {node.replicas for node in members}
    return _Fleet(
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


def _of_fleet(wish: Wish, facts: ModelFacts | None, load: Load, fleet: _Fleet) -> list[Candidate]:
    if facts is None:
        return [_place(wish, fleet, wish.tensor or 1, wish.pipeline or 1)]
    tensors = _tensors(wish, facts, fleet)
    longest = 1 if _is_part(fleet) else min(MAX_PIPELINE, len(facts.layers))
    # Pipeline parallel is for what one node cannot hold: only with as much tensor parallel as there can be.
    found = [
        *_sized(wish, facts, load, fleet, tensors[:-1], longest=1),
        *_sized(wish, facts, load, fleet, tensors[-1:], longest=longest),
    ]
    whole = any(item.verdict is Verdict.FITS and not item.is_torn for item in found)
    if not whole and not wish.tensor and not _is_part(fleet):
        found += _last_resorts(wish, facts, load, fleet, tensors[:-1], known=found)
    return found + _data_parallel(wish, facts, load, fleet)


def _last_resorts(
    wish: Wish,
    facts: ModelFacts,
    load: Load,
    fleet: _Fleet,
    smaller: Sequence[int],
    *,
    known: Sequence[Candidate],
) -> list[Candidate]:
    """Give what is tried when nothing better has seats: pipelines of smaller tensor groups, and groups over nodes."""
    longest = min(MAX_PIPELINE, len(facts.layers))
    # What is more than what is free could only be waited for, and something to wait for is known already.
    waits = any(item.verdict is not Verdict.NEVER for item in known)
    reach = min(rules.MAX_TENSOR, fleet.seating.free if waits else fleet.seating.gpus)
    found = _sized(wish, facts, load, fleet, [size for size in smaller if size <= reach], longest=longest)
    if not any(item.verdict is Verdict.FITS for item in (*known, *found)):
        wider = _accepted(wish, facts, range(fleet.seating.largest + 1, reach + 1))
        found += _sized(wish, facts, load, fleet, wider, longest=longest)
    told = {(item.tensor, item.pipeline) for item in known}
    return [item for item in found if item.verdict is not Verdict.NEVER and (item.tensor, item.pipeline) not in told]


def _sized(
    wish: Wish, facts: ModelFacts, load: Load, fleet: _Fleet, tensors: Sequence[int], *, longest: int
) -> list[Candidate]:
    """Give the candidate of each tensor size, with the smallest pipeline size that has room for the model."""
    candidates = []
    for tensor in tensors:
        sizing = Sizing(facts, load, tensor, wish.data)
        pipeline = wish.pipeline or _pipeline(sizing, load, fleet, longest)
        if pipeline:
            placed = _place(wish, fleet, tensor, pipeline)
            candidates.append(_judge(placed, facts, sizing, load, fleet, wish=wish))
    return candidates


def _data_parallel(wish: Wish, facts: ModelFacts, load: Load, fleet: _Fleet) -> list[Candidate]:
    """Give the smallest data parallel layout of a mixture of experts: attention is repeated, experts are divided."""
    if not facts.experts or wish.data > 1 or wish.pipeline not in (None, 1) or not fleet.memory or _is_part(fleet):
        return []
    tensor = wish.tensor or 1
    if rules.faults(facts, tensor=tensor, pipeline=1, expert=wish.expert):
        return []
    for data in range(2, MAX_DATA // tensor + 1):
        asked = replace(wish, data=data)
        divided = facts.experts.routed if wish.expert else facts.experts.intermediate
        if divided % (tensor * data):
            continue
        sizing = Sizing(facts, load, tensor, data)
        told = _judge(_place(asked, fleet, tensor, 1), facts, sizing, load, fleet, wish=replace(asked, pipeline=None))
        if told.need and told.need.total(load.max_model_len) <= fleet.budget:
            return [replace(told, is_hint=True).warned("taken only when parallelism.data asks for it")]
    return []


def _tensors(wish: Wish, facts: ModelFacts, fleet: _Fleet) -> list[int]:
    if wish.tensor:
        return [wish.tensor]
    largest = 1 if _is_part(fleet) else fleet.seating.largest
    return _accepted(wish, facts, range(1, largest + 1)) or [1]


def _accepted(wish: Wish, facts: ModelFacts, tensors: Iterable[int]) -> list[int]:
    sizes = [size for size in tensors if facts.heads % size == 0]
    return [
        size for size in sizes if not rules.faults(facts, tensor=size, pipeline=1, data=wish.data, expert=wish.expert)
    ]


def _is_part(fleet: _Fleet) -> bool:
    return fleet.sharing is not Sharing.NONE


def _pipeline(sizing: Sizing, load: Load, fleet: _Fleet, longest: int) -> int:
    """Give the smallest pipeline size with which every rank has room, 0 when there is none."""
    if not fleet.memory:
        return 1
    held = (size for size in range(1, longest + 1) if sizing.holds(size, load.max_model_len, fleet.budget))
    return next(held, 0)


def _place(wish: Wish, fleet: _Fleet, tensor: int, pipeline: int) -> Candidate:
    """Give the pods and the proof for them: of the shapes that the user left open the first that fits."""
    gpus = tensor * pipeline * wish.data
    if _is_part(fleet) and gpus > 1:
        return _torn(wish, fleet, tensor, pipeline)
    tried: list[tuple[tuple[int, ...], Proof]] = []
    # Where there are too few GPUs free, or in all, no other pods give a better answer.
    enough = Verdict.FITS if gpus <= fleet.seating.free else Verdict.NOT_NOW
    for per_pod in _per_pod(wish, fleet, tensor, pipeline):
        sizes = pod_sizes(gpus, per_pod)
        tried.append((sizes, _prove(wish, fleet, sizes, wish.strategy)))
        if tried[-1][1].verdict.place <= enough.place or gpus > fleet.seating.gpus:
            break
    sizes, proof = min(tried, key=lambda item: item[1].verdict.place)
    reason = proof.reason
    if proof.verdict is Verdict.NEVER:
        reason += f"; {_remedy(wish, fleet, tensor, pipeline)}"
    return Candidate(
        product=fleet.product,
        selector=fleet.selector,
        tensor=tensor,
        pipeline=pipeline,
        data=wish.data,
        sizes=sizes,
        verdict=proof.verdict,
        reason=reason,
        seats=proof.seats,
        cost=gpus * fleet.price,
        preference=fleet.preference,
        resource=fleet.resource,
        sharing=fleet.sharing,
        utilization=fleet.usage.told,
        warning=(
            f"a tensor group of {tensor} lies in more than one pod"
            if any(size % tensor for size in sizes)
            else fleet.usage.warning
        ),
    )


def _prove(wish: Wish, fleet: _Fleet, sizes: tuple[int, ...], strategy: Strategy) -> Proof:
    volume = wish.pod_rules.volume
    if volume and volume.mode and len(sizes) > 1:
        told = f"claim {volume.claim} is {volume.mode}: it cannot be mounted by {len(sizes)} pods on nodes of their own"
        return Proof(verdict=Verdict.NEVER, reason=told)
    return fleet.seating.prove(sizes, of_pods(strategy, wish.data))


def _torn(wish: Wish, fleet: _Fleet, tensor: int, pipeline: int) -> Candidate:
    """Refuse several ranks on parts of GPUs: nothing says that these are not parts of one and the same."""
    what = "slices (MIG) of GPUs" if fleet.sharing is Sharing.MIG else f"shared GPUs ({fleet.sharing})"
    return Candidate(
        product=fleet.product,
        tensor=tensor,
        pipeline=pipeline,
        data=wish.data,
        sizes=(),
        verdict=Verdict.NEVER,
        reason=(
            f"{tensor * pipeline * wish.data} ranks cannot work together on {what}: NCCL takes each GPU once; "
            "use whole GPUs, or tensor 1 and pipeline 1" + (" without parallelism.data" if wish.data > 1 else "")
        ),
        preference=fleet.preference,
        resource=fleet.resource,
        sharing=fleet.sharing,
    )


def _per_pod(wish: Wish, fleet: _Fleet, tensor: int, pipeline: int) -> list[int]:
    """Give the GPUs that a pod may have, in the order in which they are tried."""
    world = tensor * pipeline
    gpus = world * wish.data
    if wish.gpus_per_pod:
        return [min(wish.gpus_per_pod, gpus)]
    largest = max(1, min(gpus, fleet.seating.largest))
    if wish.strategy is Strategy.STRICT_PACK:
        # Each data parallel rank in one pod; several in one where nodes are large enough.
        return [max(largest - largest % world, world), *([world] if largest >= 2 * world else [])]
    if wish.strategy is Strategy.SPREAD:
        return [1]
    if wish.strategy is Strategy.STRICT_SPREAD:
        # The GPUs of one data parallel rank are to be apart, those of different ones need not.
        return list(range(1, wish.data + 1))
    # Whole tensor groups in each pod first, their traffic is the heaviest there is; then whole data parallel ranks.
    return sorted(
        range(1, largest + 1), key=lambda size: (size % tensor != 0, wish.data > 1 and size % world != 0, -size)
    )


def _remedy(wish: Wish, fleet: _Fleet, tensor: int, pipeline: int) -> str:
    """Say what would help: another strategy, if it fits."""
    gpus = tensor * pipeline * wish.data
    milder = {Strategy.STRICT_PACK: Strategy.PACK, Strategy.STRICT_SPREAD: Strategy.SPREAD}.get(wish.strategy)
    if milder or wish.gpus_per_pod:
        other = replace(wish, strategy=milder or wish.strategy, gpus_per_pod=None)
        for per_pod in _per_pod(other, fleet, tensor, pipeline):
            proof = _prove(wish, fleet, pod_sizes(gpus, per_pod), other.strategy)
            if proof.verdict is Verdict.FITS:
                without = "" if milder else " without placement.gpusPerPod"
                return f"{other.strategy}{without} would fit: {proof.reason}"
    if wish.pod_rules.volume and wish.pod_rules.volume.mode:
        shared = replace(wish, pod_rules=replace(wish.pod_rules, volume=None))
        layouts = [pod_sizes(gpus, per_pod) for per_pod in _per_pod(shared, fleet, tensor, pipeline)]
        if any(_prove(shared, fleet, sizes, wish.strategy).verdict is not Verdict.NEVER for sizes in layouts):
            return (
                "a ReadWriteMany or ReadOnlyMany claim would do, or one pod: STRICT_PACK where a node is large enough"
            )
    return "add nodes or lower parallelism"


def pod_sizes(world: int, per_pod: int) -> tuple[int, ...]:
    """Give the GPUs of each pod: as many whole ones as there are, and a smaller one for the rest."""
    whole, rest = divmod(world, per_pod)
    return (per_pod,) * whole + ((rest,) if rest else ())


def _judge(
    candidate: Candidate, facts: ModelFacts, sizing: Sizing, load: Load, fleet: _Fleet, *, wish: Wish
) -> Candidate:
    """Hold a candidate against the model: vLLM's rules, and the memory of the neediest rank.

    A cache that is too small only warns where all sizes are the user's: part of the figure is an estimate.
    """
    sizes = {"tensor": candidate.tensor, "pipeline": candidate.pipeline, "data": candidate.data}
    if faults := rules.faults(facts, **sizes, expert=wish.expert):
        return replace(candidate, verdict=Verdict.NEVER, reason="; ".join(faults), seats=())
    needs = sizing.needs(candidate.pipeline)
    need = max(needs, key=lambda item: item.total(load.max_model_len))
    memory, budget = fleet.memory, fleet.budget
    tokens = min(item.cached_tokens(budget, load.max_model_len) for item in needs)
    judged = replace(candidate, need=need, cached_tokens=tokens)
    if not memory:
        return judged.warned(f"the memory of {candidate.product or 'these GPUs'} is not known")
    if (weights := max(item.weights for item in needs)) > memory:
        told = f"the weights of a rank ({weights / GIB:.1f} GiB) are more than a GPU has ({memory / GIB:.0f} GiB)"
        return replace(judged, verdict=Verdict.NEVER, reason=told, seats=())
    if need.total(load.max_model_len) > budget:
        told = (
            f"a rank needs {need.total(load.max_model_len) / GIB:.1f} GiB for one request of {load.max_model_len} "
            f"tokens, vLLM may use {budget / GIB:.1f} GiB"
        )
        return (
            judged.warned(told) if wish.is_explicit else replace(judged, verdict=Verdict.NEVER, reason=told, seats=())
        )
    return judged


def _none(wish: Wish, load: Load, wanted: Sequence[str], there: Sequence[str]) -> Candidate:
    named = ", ".join(product or "GPUs without a product label" for product in wanted or there)
    if wanted:
        reason = f"no number of GPUs of a kind holds the model with one request of {load.max_model_len} tokens: {named}"
    else:
        reason = f"no node has one of the accelerators that are asked for; there are {named}"
    tensor, pipeline = wish.tensor or 1, wish.pipeline or 1
    return Candidate(
        product="",
        tensor=tensor,
        pipeline=pipeline,
        data=wish.data,
        sizes=(),
        verdict=Verdict.NEVER,
        reason=reason,
    )
