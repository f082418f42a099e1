"""From sizes to pods: how many GPUs each has, with the proof that they have seats, or what would help."""

from __future__ import annotations

from dataclasses import replace

from vllm_operator.api.placement import Strategy
from vllm_operator.planning.candidate import Candidate
from vllm_operator.planning.devices import Sharing
from vllm_operator.planning.fleet import Fleet
from vllm_operator.planning.proof import Proof, Verdict, of_pods
from vllm_operator.planning.wish import Wish


def place(wish: Wish, fleet: Fleet, tensor: int, pipeline: int) -> Candidate:
    """Give the pods and the proof for them: of the shapes that the user left open the first that fits."""
    gpus = tensor * pipeline * wish.data
    if fleet.is_part and gpus > 1:
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


def pod_sizes(world: int, per_pod: int) -> tuple[int, ...]:
    """Give the GPUs of each pod: as many whole ones as there are, and a smaller one for the rest."""
    whole, rest = divmod(world, per_pod)
    return (per_pod,) * whole + ((rest,) if rest else ())


def _prove(wish: Wish, fleet: Fleet, sizes: tuple[int, ...], strategy: Strategy) -> Proof:
    volume = wish.pod_rules.volume
    if volume and volume.mode and len(sizes) > 1:
        told = f"claim {volume.claim} is {volume.mode}: it cannot be mounted by {len(sizes)} pods on nodes of their own"
        return Proof(verdict=Verdict.NEVER, reason=told)
    return fleet.seating.prove(sizes, of_pods(strategy, wish.data))


def _torn(wish: Wish, fleet: Fleet, tensor: int, pipeline: int) -> Candidate:
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


def _per_pod(wish: Wish, fleet: Fleet, tensor: int, pipeline: int) -> list[int]:
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


def _remedy(wish: Wish, fleet: Fleet, tensor: int, pipeline: int) -> str:
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
