"""The ranks' actors, watched through Ray: found by name, waited for by reference.

While the engine loads, Ray's table is read once a second.  Once it serves, nothing is polled: each actor is asked for
something that it can only answer after its work loop, and ``ray.wait`` returns the moment that an actor dies.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

import ray
from ray.util.state import list_actors

from vllm_bootstrap.supervisor import DEAD, Inbox, RankSight, RanksSeen
from vllm_bootstrap.vllm_adapter.facts import RANK_CLASS, RANK_SENTINEL

LOG = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
WAIT_SECONDS = 1.0
STATE_API_SECONDS = 10
STATE_API_LIMIT = 10_000

# Ray's words when it killed an actor because somebody wanted it or its owner ended: an effect, not a cause.
CONSEQUENCES = (
    "ray.kill",
    "owner has died",
    "owner died",
    "job finished",
    "job has finished",
    "ref count",
    "all references",
    "out of scope",
    "exit_actor",
)


class RayRankWatch:
    """Watches the actors of one attempt.

    Parameters
    ----------
    names
        Actor name → rank.
    inbox
        Gets ``RanksSeen``.
    """

    def __init__(self, names: Mapping[str, int], inbox: Inbox) -> None:
        self._names = dict(names)
        self._inbox = inbox
        self._closed = threading.Event()
        self._armed = threading.Event()
        self._last: dict[int, RankSight] = {}
        self._namespaces: dict[int, str] = {}

    def watch(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._run, name="rank-watch", daemon=True).start()

    def arm(self) -> None:
        """Wait for deaths from now on."""
        self._armed.set()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def look(self) -> dict[int, RankSight]:
        """Read Ray's table now."""
        found: dict[int, RankSight] = {}
        for actor in list_actors(
            filters=[("class_name", "=", RANK_CLASS)],
            detail=True,
            limit=STATE_API_LIMIT,
            timeout=STATE_API_SECONDS,
            raise_on_missing_output=False,
        ):
            rank = self._names.get(actor.name)
            if rank is not None:
                found[rank] = sight(actor)
                self._namespaces[rank] = actor.ray_namespace
        return found

    def _run(self) -> None:
        while not self._closed.is_set() and not self._armed.is_set():
            self._look_and_tell()
            self._armed.wait(LOOK_SECONDS)
        while not self._closed.is_set():
            self._wait_for_death()
            self._look_and_tell()

    def _look_and_tell(self) -> None:
        try:
            found = self.look()
        except Exception as error:  # the head may be away; the engine can serve without it
            LOG.warning("Ray's actor table could not be read: %s", error)
            self._closed.wait(LOOK_SECONDS)
            return
        if found != self._last:
            self._last = found
            self._inbox.put(RanksSeen(found))

    def _wait_for_death(self) -> None:
        try:
            references = [self._sentinel(name, rank) for name, rank in self._names.items()]
        except ValueError:  # one is gone already
            self._closed.wait(LOOK_SECONDS)
            return
        while not self._closed.is_set():
            ended, _ = ray.wait(references, num_returns=1, timeout=WAIT_SECONDS)
            if ended:
                return

    def _sentinel(self, name: str, rank: int) -> ray.ObjectRef:
        actor = ray.get_actor(name, namespace=self._namespaces.get(rank, ""))
        return getattr(actor, RANK_SENTINEL).remote()


def sight(actor: Any) -> RankSight:
    """Read one row of Ray's actor table."""
    cause = describe_death(actor.death_cause) if actor.state == DEAD else ""
    return RankSight(
        state=actor.state,
        actor_id=actor.actor_id,
        pid=actor.pid or 0,
        cause=cause,
        own=bool(cause) and not any(words in cause.lower() for words in CONSEQUENCES),
    )


def describe_death(death_cause: Mapping[str, Any] | None) -> str:
    """Give Ray's words for a death, without the fields around them."""
    for context in (death_cause or {}).values():
        if isinstance(context, Mapping):
            for name in ("error_message", "errorMessage", "formatted_exception_string", "formattedExceptionString"):
                if context.get(name):
                    return str(context[name])
    return str(death_cause) if death_cause else ""
