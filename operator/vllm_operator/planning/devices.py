"""GPU resources by name, and what a device of each is: a whole GPU, a slice of one, or one that several pods share.

Device plugins offer GPUs under names of their own, and a pod must ask for exactly that name.  What a name and its
labels say decides how much memory a pod gets, and whether several devices can work together at all.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

GPU_RESOURCE = "nvidia.com/gpu"
_VENDORS = ("nvidia.com", "amd.com", "gpu.intel.com")
_RESOURCE = re.compile(
    r"nvidia\.com/(gpu|mig-(\d+c\.)?\d+g\.\d+gb[\w.-]*)(\.shared)?|amd\.com/gpu|gpu\.intel\.com/(i915|xe)"
)
_MIG = re.compile(r"(?:^|[-/*])MIG-(?:(?:\d+c\.)?\d+g\.(\d+)gb)?", re.IGNORECASE)
_PART = re.compile(r"-(MIG-.*|SHARED)$", re.IGNORECASE)
_GIB_OF_MIG_GB = 0.88
"""Least GiB for a GB of a profile's name: 1g.18gb of an H200 has 16 GiB."""


class Sharing(enum.StrEnum):
    """What a device is: a whole GPU, or how a GPU is divided."""

    NONE = "none"
    MIG = "MIG"
    MPS = "MPS"
    TIME_SLICING = "time-slicing"

    @property
    def is_isolated(self) -> bool:
        """Whether hardware keeps the pods of one GPU apart."""
        return self in (Sharing.NONE, Sharing.MIG)


@dataclass(frozen=True, kw_only=True)
class Usage:
    """How much of a device vLLM takes.

    Attributes
    ----------
    utilization
        Share of the memory that is planned for a device.
    told
        ``--gpu-memory-utilization`` that vLLM must be given for it; ``None`` when its own, or the user's, is right.
    warning
        What may go wrong.
    """

    utilization: float
    told: float | None = None
    warning: str = ""


def is_gpu(resource: str) -> bool:
    """Say whether a resource of a node or pod is one of GPUs."""
    return _RESOURCE.fullmatch(resource) is not None


def vendor_rank(resource: str) -> int:
    """Give the place of a GPU resource's vendor: runtime images are made for the first one, unless somebody cares."""
    return _VENDORS.index(resource.partition("/")[0])


def product_label(resource: str) -> str:
    """Give the node label that says what the devices of a resource are."""
    if resource.startswith("amd.com/"):
        return "amd.com/gpu.product-name"
    if resource.startswith("gpu.intel.com/"):
        return "gpu.intel.com/product"
    return f"{_labelled(resource)}.product"


def memory_label(resource: str) -> str:
    """Give the node label that says the memory of one device, before it is shared."""
    if resource.startswith("amd.com/"):
        return "amd.com/gpu.vram"
    if resource.startswith("gpu.intel.com/"):
        return "gpu.intel.com/memory"
    return f"{_labelled(resource)}.memory"


def product_of(resource: str, labels: Mapping[str, str]) -> str:
    """Give the name of a resource's devices; slices and shared GPUs never have the name of the whole ones."""
    product = labels.get(product_label(resource), "")
    if resource.endswith(".shared") and product and not is_shared(product):
        # The feature discovery marks shared GPUs in the product only where the resource keeps its name.
        return f"{product}-SHARED"
    profile = _labelled(resource).partition("/mig-")[2]
    return product or (f"MIG-{profile}" if profile else "")


def card_of(product: str) -> str:
    """Give the product without what says that only a part of it is meant."""
    while (shorter := _PART.sub("", product)) != product:
        product = shorter
    return product


def is_mig(name: str) -> bool:
    """Say whether a resource or product names a slice of a GPU."""
    return _MIG.search(name) is not None


def is_shared(product: str) -> bool:
    """Say whether a product names a GPU that several pods share."""
    return "SHARED" in product.upper()


def mig_gib(name: str) -> float:
    """Give the GiB that a slice has at least, by its name; 0 when the name does not tell."""
    found = _MIG.search(name)
    return int(found[1]) * _GIB_OF_MIG_GB if found and found[1] else 0.0


def physical_gpus(labels: Mapping[str, str]) -> int:
    """Give the Intel GPUs of a node, however many pods share each; 0 when no label says it."""
    return whole_number(labels.get("gpu.intel.com/device.count", "0"))


def replicas_of(resource: str, product: str, labels: Mapping[str, str], gpus: int) -> int:
    """Give the pods that share a device: 1 when it is nobody else's, 0 when it is shared and no label says by how many.

    Parameters
    ----------
    gpus
        Devices that the node offers.
    """
    if resource.startswith("amd.com/"):
        return 1
    if resource.startswith("gpu.intel.com/"):
        physical = physical_gpus(labels)
        return math.ceil(gpus / physical) if 0 < physical < gpus else 1
    told = whole_number(labels.get(f"{_labelled(resource)}.replicas", "0"))
    if told > 1:
        return told
    return 0 if resource.endswith(".shared") or is_shared(product) else 1


def sharing_of(resource: str, product: str, labels: Mapping[str, str], gpus: int) -> Sharing:
    """Say what the devices of a resource are; parameters as for :func:`replicas_of`."""
    if replicas_of(resource, product, labels, gpus) != 1:
        mps = labels.get("nvidia.com/gpu.sharing-strategy") == "mps"
        return Sharing.MPS if mps and resource.startswith("nvidia.com/") else Sharing.TIME_SLICING
    return Sharing.MIG if is_mig(resource) or is_mig(product) else Sharing.NONE


def usage_of(sharing: Sharing, replicas: int, *, asked: float | None, usual: float) -> Usage:
    """Say how much of a device vLLM takes: it reckons with the whole memory that it sees, not with its share.

    Parameters
    ----------
    asked
        ``gpuMemoryUtilization`` of the user.
    usual
        What vLLM takes when it is told nothing.
    """
    if sharing.is_isolated or not replicas:
        return Usage(utilization=asked or usual)
    most = math.floor(usual / replicas * 1000) / 1000
    if sharing is Sharing.MPS:
        told = (
            f"MPS limits a pod to its share; set gpuMemoryUtilization to {most:g} if vLLM sees the whole GPU's memory"
        )
        return Usage(utilization=asked or usual, warning=told)
    open_ = f"memory is not isolated between the {replicas} pods of a time-sliced GPU"
    if asked is None:
        return Usage(utilization=usual, told=most, warning=f"{open_}: vLLM is told to take {most:g} of it")
    if asked * replicas > 1:
        return Usage(
            utilization=1.0, warning=f"{open_}: gpuMemoryUtilization {asked:g} leaves too little, use {most:g}"
        )
    return Usage(utilization=asked * replicas, warning=open_)


def whole_number(text: object) -> int:
    """Read a count out of an object or label; 0 when it is none."""
    try:
        return max(0, int(str(text)))
    except ValueError:
        return 0


def _labelled(resource: str) -> str:
    return resource.removesuffix(".shared")
