"""What is to be done, as data: decided by pure code, carried out by ``reconcile.act``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_bootstrap.contract import SUPERVISOR_PORT, Adapter, EnginePlan, ReleasePlan
from vllm_operator.resources.tenancy import Auth


@dataclass(frozen=True, kw_only=True)
class Create:
    """Make an object; one that exists already is left as it is when it is ours, else it is a conflict of names."""

    body: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Patch:
    """Bring fields of an object of ours back to what they should be."""

    body: Mapping[str, Any]
    uid: str
    resource_version: str


@dataclass(frozen=True, kw_only=True)
class Delete:
    """Remove an object of ours; one that is gone already is fine."""

    api_version: str
    kind: str
    name: str
    uid: str = ""


@dataclass(frozen=True, kw_only=True)
class CreateTokens:
    """Make the Secret of an engine's tokens, whose values only the moment of making knows.

    Attributes
    ----------
    with_ray
        Ray's token is among them; a shared cluster has its own.
    """

    body: Mapping[str, Any]
    with_ray: bool = True


@dataclass(frozen=True, kw_only=True)
class CreateCode:
    """Make the ConfigMap of the code that an engine without Ray runs."""

    body: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Submit:
    """Bring a plan to what takes it: the Ray head as a job, or without Ray the process in the engine's pod.

    Attributes
    ----------
    ip
        Address of its pod.
    auth
        Where the token of a shared Ray cluster is; ``None`` for the engine's own.
    """

    plan: EnginePlan
    ip: str
    secret: str
    auth: Auth | None = None


@dataclass(frozen=True, kw_only=True)
class Release:
    """Free what engines hold of a shared Ray cluster, by a job on its head.

    Attributes
    ----------
    ip
        Address of the head.
    job_id
        The same job is submitted once.
    """

    plan: ReleasePlan
    cluster: str
    ip: str
    auth: Auth
    job_id: str


@dataclass(frozen=True, kw_only=True)
class Drain:
    """Ask a supervisor to let its engine finish what it answers, and to end it then.

    Attributes
    ----------
    ip
        Address of its pod.
    secret
        Holds its control token.
    seconds
        After which the engine is ended, whatever it answers.
    """

    engine: str
    ip: str
    secret: str
    seconds: float
    port: int = SUPERVISOR_PORT


@dataclass(frozen=True, kw_only=True)
class Adapt:
    """Tell a supervisor which LoRA adapters its engine is to serve.

    Attributes
    ----------
    ip
        Address of its pod.
    secret
        Holds its control token.
    """

    engine: str
    ip: str
    secret: str
    adapters: tuple[Adapter, ...]
    port: int = SUPERVISOR_PORT


Action = Create | CreateCode | CreateTokens | Patch | Delete | Submit | Release | Drain | Adapt
