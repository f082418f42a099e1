"""What is known of kinds of GPUs that no label tells: price, interconnect, and the words by which people ask for them.

It comes out of a ConfigMap of the chart, and users extend it: a price is theirs, not ours.
"""

from __future__ import annotations

import enum
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from vllm_operator.planning.devices import card_of, is_mig, is_shared, mig_gib
from vllm_operator.planning.inventory import GIB


class Interconnect(enum.StrEnum):
    """How the GPUs of a node reach each other."""

    NVLINK = "nvlink"
    PCIE = "pcie"


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """A kind of GPU.

    Attributes
    ----------
    product
        Pattern (``*`` and ``?``) for the name that the feature discovery gives, compared without regard to case.  A
        pattern for a card means its slices and shares, too, unless one that names them comes first.
    memory_gib
        Memory of one GPU, used where no label says it.  Of a slice or share only when the pattern names it
        (``*MIG-1g*``, ``*SHARED``).
    price
        For one GPU and hour, of what ``memory_gib`` is of; only the relation of prices counts.
    classes
        Words for ``accelerators[].class``.
    """

    product: str
    memory_gib: float
    price: float
    interconnect: Interconnect = Interconnect.PCIE
    classes: tuple[str, ...] = ()

    def matches(self, product: str) -> bool:
        """Say whether a product is of this kind."""
        return is_product(self.product, product)

    def means(self, product: str) -> bool:
        """Say whether memory and price are of a product itself; a pattern for a card says nothing of a part of it."""
        pattern = self.product
        return is_mig(pattern) >= is_mig(product) and is_shared(pattern) >= is_shared(product)


def is_product(pattern: str, product: str) -> bool:
    """Say whether a pattern means a product."""
    return fnmatch.fnmatchcase(product.lower(), pattern.lower())


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """All kinds that are known, the more special patterns before the general ones."""

    accelerators: Sequence[Accelerator] = ()

    def find(self, product: str) -> Accelerator | None:
        """Give the first kind that a product is of; a part of a card is of the card's."""
        for name in (product, card_of(product)):
            if kind := next((kind for kind in self.accelerators if kind.matches(name)), None):
                return kind
        return None

    def price(self, product: str, memory: int) -> float:
        """Give the price of a GPU; a part of one costs as much as its memory is of the whole one's.

        What is not in the catalogue costs as much a GiB as the dearest that is.
        """
        kind = self.find(product)
        if kind and (kind.means(product) or not memory):
            return kind.price
        if kind:
            return kind.price * min(1.0, memory / (kind.memory_gib * GIB))
        dearest = max((item.price / item.memory_gib for item in self.accelerators), default=1.0)
        return dearest * max(1.0, memory / GIB)

    def memory(self, product: str, labelled: int, replicas: int = 1) -> int:
        """Give the bytes that a pod gets with a GPU: by its label, else by its kind; 0 when neither says.

        Parameters
        ----------
        replicas
            Pods that share the GPU; 0 when it is shared and their number is not known.
        """
        if labelled or not replicas:
            return labelled
        kind = self.find(product)
        sliced = is_mig(product) and not (kind and is_mig(kind.product))
        gib = mig_gib(product) if sliced else kind.memory_gib if kind else 0.0
        of_share = kind and kind.means(product) and is_shared(kind.product)
        return round(gib * GIB / (1 if of_share else replicas))


BUILT_IN = Catalogue(
    accelerators=tuple(
        Accelerator(product=product, memory_gib=memory, price=price, interconnect=interconnect, classes=classes)
        for product, memory, price, interconnect, classes in (
            ("*B300*", 270, 6.5, Interconnect.NVLINK, ("blackwell", "datacenter")),
            ("*B200*", 180, 5.5, Interconnect.NVLINK, ("blackwell", "datacenter")),
            ("*H200*", 141, 3.8, Interconnect.NVLINK, ("hopper", "datacenter")),
            ("*H100*NVL*", 94, 2.8, Interconnect.PCIE, ("hopper", "datacenter")),
            ("*H100*", 80, 2.9, Interconnect.NVLINK, ("hopper", "datacenter")),
            ("*A100*40GB*", 40, 1.3, Interconnect.NVLINK, ("ampere", "datacenter")),
            ("*A100*", 80, 1.8, Interconnect.NVLINK, ("ampere", "datacenter")),
            ("*L40S*", 48, 1.0, Interconnect.PCIE, ("ada", "inference")),
            ("*L40*", 48, 0.9, Interconnect.PCIE, ("ada", "inference")),
            ("*L4*", 24, 0.6, Interconnect.PCIE, ("ada", "inference")),
            ("*A40*", 48, 0.6, Interconnect.PCIE, ("ampere", "inference")),
            ("*A10*", 24, 0.6, Interconnect.PCIE, ("ampere", "inference")),
            ("*RTX-5090*", 32, 0.5, Interconnect.PCIE, ("blackwell", "workstation")),
            ("*RTX-4090*", 24, 0.4, Interconnect.PCIE, ("ada", "workstation")),
            ("*RTX-3090*", 24, 0.25, Interconnect.PCIE, ("ampere", "workstation")),
            ("*T4*", 16, 0.3, Interconnect.PCIE, ("turing", "inference")),
            ("*V100*32GB*", 32, 0.6, Interconnect.NVLINK, ("volta", "datacenter")),
            ("*V100*", 16, 0.5, Interconnect.NVLINK, ("volta", "datacenter")),
            ("*MI355X*", 288, 4.5, Interconnect.NVLINK, ("cdna", "datacenter")),
            ("*MI300X*", 192, 2.6, Interconnect.NVLINK, ("cdna", "datacenter")),
            ("*Max*1550*", 128, 2.0, Interconnect.PCIE, ("xe", "datacenter")),
        )
    )
)
"""The chart's own catalogue, for those who plan without one."""
