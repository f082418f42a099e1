"""What a bed is asked to be: its nodes and whether KubeRay is on it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from .errors import BedError

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?")
MAX_NODES = 14
"""Each node has a /24 of the pods' /20 of its own; the first is for the nodes themselves."""


@dataclass(frozen=True)
class NodeSpec:
    """One node with fake GPUs.

    Parameters
    ----------
    name
        Node name, a DNS label.
    gpus
        How many ``nvidia.com/gpu`` it has; 0 makes a CPU node without GPU labels.
    product
        Value of the label ``nvidia.com/gpu.product``.
    memory_mib
        Value of the label ``nvidia.com/gpu.memory``.
    """

    name: str
    gpus: int
    product: str = "NVIDIA-H100-80GB-HBM3"
    memory_mib: int = 81559

    @classmethod
    def parse(cls, text: str) -> NodeSpec:
        """Read ``name:gpus[:product[:memoryMiB]]``."""
        name, *rest = text.split(":")
        if not _NAME.fullmatch(name):
            raise BedError(f"node {text!r}: the name must be a DNS label of at most 30 characters")
        if not 1 <= len(rest) <= 3:
            raise BedError(f"node {text!r}: write name:gpus[:product[:memoryMiB]]")
        if not rest[0].isdigit() or (len(rest) == 3 and not rest[2].isdigit()):
            raise BedError(f"node {text!r}: gpus and memoryMiB are whole numbers")
        product = rest[1] if len(rest) > 1 and rest[1] else cls.product
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", product):
            raise BedError(f"node {text!r}: the product must be a label value")
        return cls(name, int(rest[0]), product, int(rest[2]) if len(rest) == 3 else cls.memory_mib)

    @property
    def labels(self) -> dict[str, str]:
        """The labels that NVIDIA's GPU feature discovery would set."""
        if not self.gpus:
            return {}
        return {
            "nvidia.com/gpu.count": str(self.gpus),
            "nvidia.com/gpu.memory": str(self.memory_mib),
            "nvidia.com/gpu.product": self.product,
        }


DEFAULT_NODES = (NodeSpec("gpu-a", 4), NodeSpec("gpu-b", 4))


@dataclass(frozen=True)
class BedSpec:
    """A whole bed.

    Parameters
    ----------
    nodes
        The nodes, in the order of their addresses.
    kuberay
        Whether KubeRay is installed when the bed comes up.
    """

    nodes: tuple[NodeSpec, ...] = DEFAULT_NODES
    kuberay: bool = True

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        if not 1 <= len(names) <= MAX_NODES:
            raise BedError(f"a bed has 1 to {MAX_NODES} nodes, not {len(names)}")
        if len(set(names)) != len(names):
            raise BedError(f"node names must differ: {', '.join(names)}")

    def index(self, name: str) -> int:
        """Give the place of a node, which decides its addresses."""
        for index, node in enumerate(self.nodes):
            if node.name == name:
                return index
        raise BedError(f"no node {name!r} in this bed; it has {', '.join(node.name for node in self.nodes)}")

    def dump(self) -> str:
        """Write the record that ``down`` and the next ``up`` read."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def load(cls, text: str) -> BedSpec:
        """Read what :meth:`dump` wrote."""
        raw = json.loads(text)
        return cls(nodes=tuple(NodeSpec(**node) for node in raw["nodes"]), kuberay=raw["kuberay"])


def parse_nodes(texts: Sequence[str]) -> tuple[NodeSpec, ...]:
    """Read the words of ``--nodes``; none means the default."""
    return tuple(NodeSpec.parse(text) for text in texts) or DEFAULT_NODES
