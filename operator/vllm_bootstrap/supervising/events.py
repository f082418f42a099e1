"""What happens to an engine, as its keeper is told: one queue, which all who watch the engine write into."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm_bootstrap.contract import Adapter, AdapterReport

DEAD = "DEAD"
STOP_SECONDS = 30.0
"""From SIGTERM to SIGKILL, unless the operator gives more."""


@dataclass(frozen=True)
class LauncherStarted:
    """The guard runs the launcher."""

    pid: int


@dataclass(frozen=True)
class LauncherExited:
    """The launcher and its group are gone; ``code`` is negative for a signal, ``None`` when the guard was lost."""

    code: int | None


@dataclass(frozen=True)
class Answered:
    """The engine's health endpoint answered for the first time."""


@dataclass(frozen=True)
class WarmedUp:
    """The warm-up request ended; ``fault`` is empty when it gave a token."""

    fault: str


@dataclass(frozen=True, kw_only=True)
class RankSight:
    """A rank's actor as Ray's table has it.

    Attributes
    ----------
    cause
        Ray's death cause.
    own
        It died by itself, and was not killed because the engine ended.
    unborn
        It never came to life.
    kind
        Class of the actor.
    """

    state: str
    actor_id: str = ""
    pid: int = 0
    cause: str = ""
    own: bool = False
    unborn: bool = False
    kind: str = ""


@dataclass(frozen=True)
class RanksSeen:
    """Ray's table has changed: rank → actor, and data parallel rank → actor of its engine core, where it is one."""

    sights: Mapping[int, RankSight]
    cores: Mapping[int, RankSight] = field(default_factory=dict)

    @property
    def is_broken(self) -> bool:
        """Whether one of them is dead."""
        return bool(deaths(self.sights) or deaths(self.cores))

    @property
    def has_own_death(self) -> bool:
        """Whether one of them died by itself."""
        return bool(own_deaths(self.sights) or own_deaths(self.cores))


@dataclass(frozen=True, kw_only=True)
class FlightSeen:
    """How many requests are in flight, and for how many seconds nobody has come while there are none."""

    requests: int
    quiet: float


@dataclass(frozen=True)
class AdaptersAsked:
    """These LoRA adapters are to be served, and no others."""

    adapters: tuple[Adapter, ...]


@dataclass(frozen=True)
class AdaptersSeen:
    """What became of the adapters that the engine was asked for; with a ``fault`` it gave no answer."""

    adapters: tuple[AdapterReport, ...] = ()
    fault: str = ""


@dataclass(frozen=True)
class AdapterFetched:
    """How far the download of a LoRA adapter is.

    Attributes
    ----------
    folder, commit
        Where it is in every pod, and what, once all of it is there.
    failed
        It has ended without.
    message
        How far it is, or why it failed.
    """

    adapter: Adapter
    folder: str = ""
    commit: str = ""
    failed: bool = False
    message: str = ""


@dataclass(frozen=True)
class DrainAsked:
    """No further traffic, please; end when all are answered, or when so many seconds have passed."""

    seconds: float = STOP_SECONDS


@dataclass(frozen=True)
class StopAsked:
    """End in order, within so many seconds."""

    seconds: float = STOP_SECONDS


Event = (
    LauncherStarted
    | LauncherExited
    | Answered
    | WarmedUp
    | RanksSeen
    | FlightSeen
    | AdaptersAsked
    | AdaptersSeen
    | AdapterFetched
    | DrainAsked
    | StopAsked
)


@dataclass
class Inbox:
    """The core's queue, and the one flag that must not wait in it."""

    events: queue.Queue[Event] = field(default_factory=queue.Queue)
    broken: threading.Event = field(default_factory=threading.Event)
    """Set the moment that something died: readiness says no before the cause is known."""

    def put(self, event: Event) -> None:
        """Let the core know."""
        if isinstance(event, LauncherExited) or (isinstance(event, RanksSeen) and event.is_broken):
            self.broken.set()
        self.events.put(event)


def deaths(sights: Mapping[int, RankSight]) -> dict[int, RankSight]:
    """Leave those that are dead."""
    return {rank: sight for rank, sight in sights.items() if sight.state == DEAD}


def own_deaths(sights: Mapping[int, RankSight]) -> dict[int, RankSight]:
    """Leave those that died by themselves."""
    return {rank: sight for rank, sight in deaths(sights).items() if sight.own}
