"""What is, or should be, in the place of one engine.  Pure data."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_operator.api.status import Reason
from vllm_operator.lifecycle.actions import Action
from vllm_operator.lifecycle.engine import needs_ray
from vllm_operator.lifecycle.engine_view import EngineView
from vllm_operator.lifecycle.entry import Turn
from vllm_operator.lifecycle.leaving import Leave
from vllm_operator.resources.names import EngineNames
from vllm_operator.resources.revision import Revision
from vllm_operator.resources.tenancy import Tenancy


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine whose RayCluster is there: what was seen, the attempt that is due, and its revision."""

    view: EngineView
    turn: Turn
    names: EngineNames
    revision: Revision

    @property
    def asks_ray(self) -> bool:
        """Whether the Ray head must be asked before anything is decided."""
        return needs_ray(self.view, self.turn)


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """An engine that goes, and finishes first what it answers."""

    view: EngineView
    names: EngineNames
    leave: Leave


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Why an engine is not made yet.

    Attributes
    ----------
    lasting
        Somebody must change something; otherwise it may pass.
    seconds
        After which to look again; ``None`` when something will be heard.
    """

    reason: Reason
    message: str
    lasting: bool = False
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Seat:
    """What should be in the place of one engine: the engine that is there, a new one, or nothing yet."""

    name: str
    engine: Engine | None = None
    missing: EngineNames | None = None
    holding: Tenancy | None = None
    waiting: Wait | None = None
    leaving: Leaving | None = None
    actions: tuple[Action, ...] = ()
