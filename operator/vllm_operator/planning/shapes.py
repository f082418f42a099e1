"""From tensor, pipeline and strategy to pods: how many, with how many GPUs, and whether nodes exist for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vllm_operator.api.spec import Strategy, VLLMDeploymentSpec
from vllm_operator.planning.inventory import GpuNode, candidates

LEAD_GROUP = "lead"


@dataclass(frozen=True, kw_only=True)
class PodShape:
    """Pods of one shape; one worker group of the RayCluster."""

    name: str
    pods: int
    gpus: int


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The pods of one engine: the lead first, larger pods before smaller."""

    tensor: int
    pipeline: int
    strategy: Strategy
    groups: tuple[PodShape, ...]

    @property
    def pods(self) -> int:
        """Number of GPU pods."""
        return sum(group.pods for group in self.groups)

    @property
    def sizes(self) -> list[int]:
        """GPUs of each pod, largest first."""
        return sorted((group.gpus for group in self.groups for _ in range(group.pods)), reverse=True)


class NoSuchGPUsError(Exception):
    """No set of nodes of this cluster could ever hold the engine; the message says what is there."""


def plan_shape(spec: VLLMDeploymentSpec, nodes: Iterable[GpuNode]) -> Shape:
    """Choose the pods of an engine.

    Parameters
    ----------
    spec
        The CR's spec.
    nodes
        All nodes; those that ``pod.nodeSelector`` excludes and cordoned ones are left out here.

    Raises
    ------
    NoSuchGPUsError
        A pod is larger than every node, or the nodes together cannot hold all pods.
    """
    usable = candidates(nodes, spec.pod.node_selector)
    strategy = spec.placement.strategy
    per_pod = _gpus_per_pod(spec, usable)
    shape = Shape(
        tensor=spec.tensor, pipeline=spec.pipeline, strategy=strategy, groups=_groups(spec.world_size, per_pod)
    )
    _prove(shape, usable)
    return shape


def _gpus_per_pod(spec: VLLMDeploymentSpec, usable: Sequence[GpuNode]) -> int:
    world = spec.world_size
    if spec.placement.gpus_per_pod:
        return min(spec.placement.gpus_per_pod, world)
    match spec.placement.strategy:
        case Strategy.STRICT_PACK:
            return world
        case Strategy.SPREAD | Strategy.STRICT_SPREAD:
            return 1
        case Strategy.PACK:
            return min(world, usable[0].gpus) if usable else world


def _groups(world: int, per_pod: int) -> tuple[PodShape, ...]:
    whole, rest = divmod(world, per_pod)
    groups = [PodShape(name=LEAD_GROUP, pods=1, gpus=per_pod)]
    if whole > 1:
        groups.append(PodShape(name=f"gpu{per_pod}", pods=whole - 1, gpus=per_pod))
    if rest:
        groups.append(PodShape(name=f"gpu{rest}", pods=1, gpus=rest))
    return tuple(groups)


def _prove(shape: Shape, usable: Sequence[GpuNode]) -> None:
    largest = max(shape.sizes)
    if not usable or usable[0].gpus < largest:
        there = f"the largest node, {usable[0].name}, has {usable[0].gpus}" if usable else "no usable node has a GPU"
        raise NoSuchGPUsError(
            f"{shape.strategy} needs a pod of {_gpus(largest)}: {there}; "
            "add nodes, set placement.gpusPerPod, or lower parallelism"
        )
    if shape.strategy is Strategy.STRICT_SPREAD and len(usable) < shape.pods:
        raise NoSuchGPUsError(
            f"STRICT_SPREAD needs {shape.pods} nodes with a GPU: there are {len(usable)} "
            f"({_describe(usable)}); add nodes or use SPREAD"
        )
    if shape.strategy is not Strategy.STRICT_SPREAD and not _fits(shape.sizes, [node.gpus for node in usable]):
        raise NoSuchGPUsError(
            f"{shape.pods} pods ({' + '.join(map(str, shape.sizes))} GPUs) do not fit on the nodes: "
            f"{_describe(usable)}; add nodes, set placement.gpusPerPod, or lower parallelism"
        )


def _fits(sizes: Sequence[int], nodes: Sequence[int]) -> bool:
    """Say whether pods fit on empty nodes; exact, because all pods but the last are of one size."""
    free = list(nodes)
    for size in sizes:
        best = max(range(len(free)), key=lambda index: free[index])
        if free[best] < size:
            return False
        free[best] -= size
    return True


def _describe(nodes: Sequence[GpuNode]) -> str:
    shown = ", ".join(f"{node.name} {node.gpus}" for node in nodes[:8])
    return shown + (f" and {len(nodes) - 8} more" if len(nodes) > 8 else "")


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
