"""Where the volume of a claim lets pods be: on the nodes that reach it, and on how many of them at a time.

The scheduler knows the first, pod by pod.  Nobody knows the second in time: the second node's pod waits for its volume
for ever, after it was scheduled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MANY_NODES = {"ReadWriteMany", "ReadOnlyMany"}


@dataclass(frozen=True, kw_only=True)
class Volume:
    """What a claim and its volume say of pods.

    Attributes
    ----------
    claim
        Name of the claim.
    required
        NodeSelector of the nodes that reach the volume; ``None`` when all do, or it does not exist yet.
    mode
        The access mode, where it allows one node or pod only; else empty.
    """

    claim: str
    required: Mapping[str, Any] | None = None
    mode: str = ""


def read_volume(claim: Mapping[str, Any], volume: Mapping[str, Any] | None) -> Volume:
    """Read a PersistentVolumeClaim and the PersistentVolume that it is bound to, if it is."""
    spec, status = claim.get("spec") or {}, claim.get("status") or {}
    modes = status.get("accessModes") or spec.get("accessModes") or []
    affinity = ((volume or {}).get("spec") or {}).get("nodeAffinity") or {}
    return Volume(
        claim=claim["metadata"]["name"],
        required=affinity.get("required"),
        mode="" if _MANY_NODES.intersection(modes) else next(iter(modes), ""),
    )


def volume_name(claim: Mapping[str, Any]) -> str:
    """Give the PersistentVolume that a claim is bound to; empty while it is not."""
    bound = (claim.get("status") or {}).get("phase") == "Bound"
    return str((claim.get("spec") or {}).get("volumeName") or "") if bound else ""
