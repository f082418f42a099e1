"""The ranks' actors, watched through Ray's tables, without a handle to any of them.

A handle would let ``ray.wait`` tell of a death a moment earlier.  But ``ray.get_actor`` loads the actor's class, and
that imports vLLM and torch into the supervisor: seconds of its one interpreter just when the engine begins to serve,
and most of a gigabyte for ever.  The GCS' list of living actors costs a millisecond instead.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import ray.util

from vllm_bootstrap.clock import Clock, poll
from vllm_bootstrap.supervising.actor_table import STATE_API_SECONDS, rows, sight
from vllm_bootstrap.supervising.events import Inbox, RanksSeen
from vllm_bootstrap.vllm_adapter.facts import CORE_CLASSES, RANK_CLASS

LOG = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
ALIVE_SECONDS = 0.25
QUICK_LOOKS = 20
"""One look in so many reads the whole table where there are actors without a name."""


class RayRankWatch:
    """Watches the actors of one attempt.

    Parameters
    ----------
    names
        Actor name → rank.
    groups
        Id of the placement group of each data parallel rank.  With several, vLLM's engine cores are actors, too; they
        have no names, and are known by their group.
    address
        Of the GCS.  Without it Ray looks for clusters on this machine, and may find another's.
    inbox
        Gets ``RanksSeen``.
    """

    def __init__(self, names: Mapping[str, int], groups: Sequence[str], address: str, inbox: Inbox) -> None:
        self._names = dict(names)
        self._data_ranks = {group: rank for rank, group in enumerate(groups)} if len(groups) > 1 else {}
        self._address = address
        self._inbox = inbox
        self._closed = threading.Event()
        self._armed = threading.Event()
        self._last = RanksSeen({})
        self._old: set[str] = set()
        self._trouble = ""

    def watch(self) -> None:
        """Begin to look; an attempt that is run again gives its actors the names of those that died before."""
        poll(self._note_old_actors, seconds=STATE_API_SECONDS, clock=Clock())
        threading.Thread(target=self._run, name="rank-watch", daemon=True).start()

    def arm(self) -> None:
        """All ranks are up: from now on one that is missing is dead."""
        self._armed.set()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()
        self._armed.set()

    def look(self) -> RanksSeen:
        """Read Ray's table now."""
        ranks = [row for row in self._ranks() if row.actor_id not in self._old]
        cores = [row for row in self._cores() if row.actor_id not in self._old]
        return RanksSeen(
            {self._names[row.name]: sight(row) for row in ranks},
            {self._data_ranks[row.placement_group_id]: sight(row) for row in cores},
        )

    def _note_old_actors(self) -> bool | None:
        try:
            self._old = {row.actor_id for row in (*self._ranks(), *self._cores())}
        except Exception as error:  # as below
            self._complain(error)
            return None
        return True

    def _ranks(self) -> list[Any]:
        return [row for row in rows(RANK_CLASS, self._address) if row.name in self._names]

    def _cores(self) -> list[Any]:
        if not self._data_ranks:
            return []
        found = [row for kind in CORE_CLASSES for row in rows(kind, self._address)]
        return [row for row in found if row.placement_group_id in self._data_ranks]

    def _run(self) -> None:
        while not self._armed.wait(LOOK_SECONDS):
            self._look_and_tell()
        for look in itertools.count():
            if self._closed.is_set():
                return
            if not self._is_whole(look) and self._all_alive():
                self._closed.wait(ALIVE_SECONDS)
            else:
                self._look_and_tell()
                self._closed.wait(LOOK_SECONDS)

    def _is_whole(self, look: int) -> bool:
        """Say whether those without a name are looked for, too: the ranks of an engine core end with it, so rarely."""
        return bool(self._data_ranks) and look % QUICK_LOOKS == QUICK_LOOKS - 1

    def _all_alive(self) -> bool:
        try:
            alive = {entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)}
        except Exception as error:  # the head may be away; the engine can serve without it
            self._complain(error)
            return True
        return alive.issuperset(self._names)

    def _look_and_tell(self) -> None:
        try:
            found = self.look()
        except Exception as error:  # as above
            self._complain(error)
            return
        if found != self._last:
            self._last = found
            self._inbox.put(found)

    def _complain(self, error: Exception) -> None:
        if str(error) != self._trouble:
            LOG.warning("Ray's actor table could not be read: %s", error)
        self._trouble = str(error)
