"""The pods of an engine: what the planner gives to those who render them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vllm_operator.api.placement import Executor, Strategy
from vllm_operator.planning.devices import GPU_RESOURCE

LEAD_GROUP = "lead"
STEERED_NODES = 16


@dataclass(frozen=True, kw_only=True)
class PodShape:
    """Pods of one shape; one worker group of the RayCluster.

    Attributes
    ----------
    nodes
        Where the plan seats them, when there are pods of several sizes: a small one that the scheduler puts where only
        a large one fits would keep that one pending for ever.
    """

    name: str
    pods: int
    gpus: int
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The pods of one engine: the lead first, larger pods before smaller.

    Attributes
    ----------
    node_selector
        Nodes whose GPUs are of the chosen product; empty where all under that resource are alike or no label tells.
    without_label
        Label that its nodes must not have: GPUs whose product no label tells are not mixed with those of one that is
        known.  Empty where there are none of these.
    resource
        Name under which the pods ask for GPUs.
    gpu_memory_utilization
        What vLLM is told unless the user says it; ``None`` leaves it to vLLM.
    executor
        ray, mp or uni; without Ray there is one pod.
    data
        Data parallel size: so many times tensor x pipeline GPUs.
    expert
        Experts are divided among ranks as wholes.
    """

    tensor: int
    pipeline: int
    strategy: Strategy
    groups: tuple[PodShape, ...]
    node_selector: Mapping[str, str] = field(default_factory=dict)
    resource: str = GPU_RESOURCE
    gpu_memory_utilization: float | None = None
    without_label: str = ""
    executor: Executor = Executor.RAY
    data: int = 1
    expert: bool = False

    @property
    def with_ray(self) -> bool:
        """Whether its ranks are actors of a Ray cluster."""
        return self.executor is Executor.RAY

    @property
    def pods(self) -> int:
        """Number of GPU pods."""
        return sum(group.pods for group in self.groups)

    @property
    def sizes(self) -> list[int]:
        """GPUs of each pod, largest first."""
        return sorted((group.gpus for group in self.groups for _ in range(group.pods)), reverse=True)


def group_pods(sizes: Sequence[int], seats: Sequence[str]) -> tuple[PodShape, ...]:
    """Make groups of pods of one size each; the lead is one of the largest, alone in its group.

    Parameters
    ----------
    seats
        The planned node of each pod.
    """
    counted = Counter(sizes)
    nodes = {size: _seats_of(size, sizes, seats) if len(counted) > 1 else () for size in counted}
    largest = max(sizes)
    counted[largest] -= 1
    rest = [
        PodShape(name=f"gpu{size}", pods=pods, gpus=size, nodes=nodes[size])
        for size, pods in sorted(counted.items(), reverse=True)
    ]
    lead = PodShape(name=LEAD_GROUP, pods=1, gpus=largest, nodes=nodes[largest])
    return (lead, *(group for group in rest if group.pods))


def _seats_of(size: int, sizes: Sequence[int], seats: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({seat for gpus, seat in zip(sizes, seats, strict=True) if gpus == size})[:STEERED_NODES])
