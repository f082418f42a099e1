"""What is known of a model, and from whom: the spec says it, the hub told it, or nobody did.

A plan without facts is a guess.  It is made where nothing was left to guess (both sizes are the user's) or where there
is nothing to be had; where the facts could be had, they are waited or asked for.  Which of it holds is decided here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from vllm_operator.planning.facts import ModelFacts

HUB = "hf://"
REMEDY = "or set parallelism.tensor and parallelism.pipeline, or model.facts"


class Trouble(enum.StrEnum):
    """Why the hub gave no facts.

    MISSING is a model or revision that is not there for us, DENIED one that is there and may not be read, UNREADABLE
    one that holds nothing that the planner understands.  UNAVAILABLE may pass by itself.
    """

    MISSING = "missing"
    DENIED = "denied"
    UNREADABLE = "unreadable"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, kw_only=True)
class HubFacts:
    """What the hub told.

    Attributes
    ----------
    facts
        The model as its checkpoint is stored.
    commit
        Commit that it was read at; empty when the hub named none.
    """

    facts: ModelFacts
    commit: str


@dataclass(frozen=True, kw_only=True)
class HubTrouble:
    """Why the hub told nothing; the message names the field or the address and says what to do."""

    trouble: Trouble
    message: str


HubAnswer = HubFacts | HubTrouble


class ModelUnknownError(Exception):
    """Sizes were left out, and what they depend on is not known; the message says why and what to do."""

    def __init__(self, trouble: HubTrouble) -> None:
        super().__init__(f"{trouble.message}; {REMEDY}")
        self.trouble = trouble.trouble


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a plan is made from.

    Attributes
    ----------
    facts
        ``None`` when nothing is known.
    source
        Who said it: ``spec``, ``hub`` with the commit, or nobody (empty).
    doubt
        Why nothing is known and what follows; empty when something is.
    """

    facts: ModelFacts | None = None
    source: str = ""
    doubt: str = ""


def known(uri: str, stated: ModelFacts | None, told: HubAnswer | None, *, is_explicit: bool) -> Known:
    """Say what is known of a model: by the spec, else by the hub.

    Parameters
    ----------
    uri
        ``model.uri``.
    stated
        What the spec says.
    told
        What the hub said, ``None`` when it was not asked.
    is_explicit
        Both sizes are the user's: nothing depends on facts but the check of memory.

    Raises
    ------
    ModelUnknownError
        Sizes depend on facts that could be had, and are not there.
    """
    if stated:
        return Known(facts=stated, source="spec")
    if isinstance(told, HubFacts):
        return Known(facts=told.facts, source=f"hub, commit {told.commit}" if told.commit else "hub")
    if told and not is_explicit and told.trouble is not Trouble.UNREADABLE:
        raise ModelUnknownError(told)
    follows = "memory was not checked" + ("" if is_explicit else " and sizes that are left out are 1")
    return Known(doubt=f"{follows}: {told.message if told else _unasked(uri)}")


def _unasked(uri: str) -> str:
    if uri.startswith(HUB):
        return "no hub was asked for the model, and spec.model.facts is empty"
    return f"nothing is known of {uri}: set spec.model.facts"
