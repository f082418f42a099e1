"""What the supervisor and its launcher say to each other: an order on the way in, a file of events on the way out.

Files, not pipes: what the launcher wrote before it died stays readable, whoever reads it and when.  And the order may
come late: the launcher is started while the engine is still being placed, and imports vLLM (ten seconds) meanwhile.
"""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vllm_bootstrap.contract import EnginePlan, FailureReason

LISTEN_HOST = "0.0.0.0"  # noqa: S104 - the Service and the kubelet's probe come from outside the pod


ORDER_FILE = "order.json"
EVENTS_FILE = "events.jsonl"
BUNDLES_VARIABLE = "VLLM_RAY_BUNDLE_INDICES"


class Stage(enum.StrEnum):
    """How far a launch has come; the words stand in messages."""

    STARTING = "starting the launcher"
    IMPORTING = "importing vLLM"
    WAITING = "waiting for the placement"
    ARGUMENTS = "reading the arguments"
    CONFIG = "building vLLM's configuration"
    ENGINE = "starting the engine and loading the model"
    SERVER = "starting the HTTP server"
    WARM_UP = "generating the first token"
    ADAPTERS = "loading the LoRA adapters"


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Where an engine was placed in Ray.

    Attributes
    ----------
    groups
        Id of the placement group of each data parallel rank.
    bundles
        Bundle of each rank of one data parallel rank.
    local_ranks, beside
        As in :class:`LaunchOrder`; of data parallel engines only.
    """

    groups: tuple[str, ...] = ()
    bundles: tuple[int, ...] = ()
    local_ranks: tuple[int, ...] = ()
    beside: int = 0


@dataclass(frozen=True, kw_only=True)
class LaunchOrder:
    """What the launcher is to start: the plan's part that concerns vLLM, and the placement group made for it.

    Attributes
    ----------
    executor
        ``distributed_executor_backend``: ray, mp or uni.
    placement_groups, bundles
        One group for each data parallel rank, by id, and the bundle of each rank of one.  Empty without Ray.
    api_key_file
        Holds the key that the API asks for; empty where it asks for none of ours.
    gate_token
        Of this attempt: with it the supervisor asks how many requests are in flight.
    data, expert
        Data parallel size, and expert parallel.
    local_ranks
        Number of each data parallel rank among those that begin on its node.
    beside
        How many of them begin on the launcher's node; they are the first ones.
    address
        Of the launcher's pod, where the data parallel ranks find it.
    secrets
        Names of variables whose values must not stand in Ray's tables.
    """

    executor: str
    model: str
    served_name: str
    tensor: int
    pipeline: int
    port: int
    instance_id: str
    placement_groups: tuple[str, ...]
    bundles: tuple[int, ...]
    arguments: tuple[str, ...]
    api_key_file: str = ""
    gate_token: str = ""
    data: int = 1
    expert: bool = False
    local_ranks: tuple[int, ...] = ()
    beside: int = 0
    address: str = ""
    secrets: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        """Write it where the launcher waits for it, in one step."""
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(path)

    @classmethod
    def read(cls, path: Path) -> LaunchOrder | None:
        """Read it in the launcher, once it is there; both sides come out of the same package, so of one version."""
        try:
            value = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        lists = {name: tuple(item) for name, item in value.items() if isinstance(item, list)}
        return cls(**(value | lists))


@dataclass(frozen=True, kw_only=True)
class LaunchEvents:
    """What the launcher has said so far."""

    stage: Stage = Stage.STARTING
    reason: FailureReason | None = None
    message: str = ""


def make_order(plan: EnginePlan, placed: Placed | None = None, *, model: str = "") -> LaunchOrder:
    """Write the order for a plan, and for where it was placed, when it is for Ray.

    Parameters
    ----------
    model
        Folder of a model that was downloaded; empty: the plan names what vLLM is given.
    """
    placed = placed or Placed()
    return LaunchOrder(
        executor=plan.executor,
        model=model or plan.model,
        served_name=plan.served_name,
        tensor=plan.tensor,
        pipeline=plan.pipeline,
        port=plan.http_port,
        instance_id=plan.instance_id,
        placement_groups=placed.groups,
        bundles=placed.bundles,
        arguments=plan.arguments,
        api_key_file=plan.api_key_file,
        data=plan.data,
        expert=plan.expert,
        local_ranks=placed.local_ranks,
        beside=placed.beside,
    )


class EventLog:
    """The launcher's side: one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def stage(self, stage: Stage) -> None:
        """Say how far it has come."""
        self._append({"stage": stage})

    def failure(self, reason: FailureReason, message: str) -> None:
        """Say why it ends."""
        self._append({"reason": reason, "message": message})

    def _append(self, event: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(event) + "\n")


def read_events(path: Path) -> LaunchEvents:
    """Read what was written so far; a half-written last line is left out."""
    try:
        text = path.read_text()
    except OSError:
        return LaunchEvents()
    seen = LaunchEvents()
    for line in text.split("\n")[:-1]:
        event = json.loads(line)
        seen = LaunchEvents(
            stage=Stage(event.get("stage", seen.stage)),
            reason=FailureReason(event["reason"]) if "reason" in event else seen.reason,
            message=event.get("message", seen.message),
        )
    return seen
