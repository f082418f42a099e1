"""What an engine holds of a RayCluster that is not ours: a ConfigMap, the engine's only sign in Kubernetes.

An engine with a RayCluster or Deployment of its own is seen by that.  On a shared RayCluster nothing is made for it, so
what was promised to it (pods, GPUs, ports) is written down here, for us and for those who are planned beside it.  The
engine cannot change it: its only right is its report.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_bootstrap import contract
from vllm_operator.api import identity
from vllm_operator.api.references import RayClusterRef
from vllm_operator.resources.names import EngineNames, Owner, engine_labels, metadata

KIND = "ConfigMap"
API_VERSION = "v1"
DATA_KEY = "tenancy.json"

FIRST_PORT, LAST_PORT = 20000, 24999
"""Below the node ports and those that the kernel gives away, above Ray's (10002 to 19999 for its workers)."""


@dataclass(frozen=True, kw_only=True)
class Auth:
    """Where the token of a Ray cluster is; no name where it asks for none."""

    name: str = ""
    key: str = ""


@dataclass(frozen=True, kw_only=True)
class PodSeat:
    """GPUs of one pod; the first of an engine's seats is its lead."""

    pod: str
    uid: str
    gpus: int
    node: str = ""


@dataclass(frozen=True, kw_only=True)
class Tenancy:
    """What one engine holds.

    Attributes
    ----------
    cluster
        Name of the RayCluster.
    holder
        Namespace and name of the deployment, and the engine, for people.
    owner
        uid of the deployment.
    stem
        What the names of its actors and placement groups begin with.
    accounts
        ServiceAccounts that report for it.
    """

    cluster: str
    holder: str
    owner: str
    stem: str
    seats: tuple[PodSeat, ...]
    http_port: int
    supervisor_port: int
    auth: Auth = field(default_factory=Auth)
    accounts: tuple[str, ...] = ()

    @property
    def gpus(self) -> dict[str, int]:
        """GPUs by pod."""
        return {seat.pod: seat.gpus for seat in self.seats}


def auth_of(reference: RayClusterRef) -> Auth:
    """Give where the token of a referenced cluster is."""
    secret = reference.auth_secret
    return Auth(name=secret.name, key=secret.key) if secret else Auth()


def tenancy_config_map(owner: Owner, names: EngineNames, revision: str, tenancy: Tenancy) -> dict[str, Any]:
    """Build the ConfigMap."""
    tags = {
        **engine_labels(owner, names.index),
        identity.LABEL_REVISION: revision,
        identity.LABEL_RAY_CLUSTER: tenancy.cluster,
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata(owner, names.ray_cluster, tags),
        "immutable": True,
        "data": {DATA_KEY: json.dumps(dataclasses.asdict(tenancy), sort_keys=True)},
    }


def read_tenancy(body: Mapping[str, Any]) -> Tenancy | None:
    """Read what ``tenancy_config_map`` wrote; ``None`` when it is another ConfigMap, or cannot be read."""
    try:
        data = json.loads((body.get("data") or {})[DATA_KEY])
        return Tenancy(
            **{
                **data,
                "seats": tuple(PodSeat(**seat) for seat in data["seats"]),
                "auth": Auth(**data["auth"]),
                "accounts": tuple(data["accounts"]),
            }
        )
    except (KeyError, TypeError, ValueError):
        return None


def free_ports(taken: set[int]) -> tuple[int, int]:
    """Give two ports, of HTTP and supervisor, that no engine of the cluster has.

    Raises
    ------
    LookupError
        There are none.
    """
    for port in range(FIRST_PORT, LAST_PORT, 2):
        if taken.isdisjoint((port, port + 1)):
            return port, port + 1
    raise LookupError("every port of the range is taken")


def stem_of(owner: Owner, names: EngineNames) -> str:
    """Give what the names of an engine's actors and placement groups begin with."""
    return contract.engine_stem(owner.name, owner.uid, names.engine)
