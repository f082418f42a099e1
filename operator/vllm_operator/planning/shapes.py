"""The pods of an engine: what the planner gives to those who render them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vllm_operator.api.spec import Strategy

LEAD_GROUP = "lead"


@dataclass(frozen=True, kw_only=True)
class PodShape:
    """Pods of one shape; one worker group of the RayCluster."""

    name: str
    pods: int
    gpus: int


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The pods of one engine: the lead first, larger pods before smaller.

    Attributes
    ----------
    node_selector
        Nodes whose GPUs are of the chosen product; empty where all are alike or no label tells.
    """

    tensor: int
    pipeline: int
    strategy: Strategy
    groups: tuple[PodShape, ...]
    node_selector: Mapping[str, str] = field(default_factory=dict)

    @property
    def pods(self) -> int:
        """Number of GPU pods."""
        return sum(group.pods for group in self.groups)

    @property
    def sizes(self) -> list[int]:
        """GPUs of each pod, largest first."""
        return sorted((group.gpus for group in self.groups for _ in range(group.pods)), reverse=True)


def group_pods(sizes: Sequence[int]) -> tuple[PodShape, ...]:
    """Make groups of pods of one size each; the lead is one of the largest, alone in its group."""
    counted = Counter(sizes)
    largest = max(sizes)
    counted[largest] -= 1
    rest = [PodShape(name=f"gpu{size}", pods=pods, gpus=size) for size, pods in sorted(counted.items(), reverse=True)]
    return (PodShape(name=LEAD_GROUP, pods=1, gpus=largest), *(group for group in rest if group.pods))
