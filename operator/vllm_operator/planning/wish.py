"""What the user said of sizes, GPUs and placement."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm_operator.api.placement import Strategy
from vllm_operator.planning.eligibility import PodRules
from vllm_operator.planning.hosts import HostNeeds


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
