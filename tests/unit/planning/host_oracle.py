"""Every way to seat an engine's pods with all that they ask for, tried one after the other.

Slow, and with nothing in common with the planner: pods are taken one by one, the Ray head first, and each is tried on
each node; what a pod takes is subtracted, resource by resource.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Box:
    """A node: what it has of everything; GPUs under ``gpu``.

    Attributes
    ----------
    takes_gpu_pods, takes_head
        Its rules allow them.
    """

    has: Mapping[str, int]
    takes_gpu_pods: bool = True
    takes_head: bool = True
    used_by_gpu_pod: bool = field(default=False)


def possible(
    sizes: Sequence[int], each: Mapping[str, int], head: Mapping[str, int] | None, boxes: Sequence[Box], *, apart: bool
) -> bool:
    """Say whether pods of these sizes go on these nodes, each with what it asks for, and the head with them."""
    if head is not None:
        return any(
            possible(sizes, each, None, _put(boxes, index, head, gpu_pod=False), apart=apart)
            for index, box in enumerate(boxes)
            if box.takes_head and _holds(box, head)
        )
    if not sizes:
        return True
    need = {**each, "gpu": sizes[0]}
    return any(
        possible(sizes[1:], each, None, _put(boxes, index, need, gpu_pod=True), apart=apart)
        for index, box in enumerate(boxes)
        if box.takes_gpu_pods and _holds(box, need) and not (apart and box.used_by_gpu_pod)
    )


def _holds(box: Box, need: Mapping[str, int]) -> bool:
    return all(box.has.get(name, 0) >= value for name, value in need.items())


def _put(boxes: Sequence[Box], index: int, need: Mapping[str, int], *, gpu_pod: bool) -> list[Box]:
    box = boxes[index]
    left = Box(
        has={name: value - need.get(name, 0) for name, value in box.has.items()},
        takes_gpu_pods=box.takes_gpu_pods,
        takes_head=box.takes_head,
        used_by_gpu_pod=box.used_by_gpu_pod or gpu_pod,
    )
    return [*boxes[:index], left, *boxes[index + 1 :]]
