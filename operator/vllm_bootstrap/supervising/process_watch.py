"""The ranks of an engine without Ray: processes of one pod, known by the title that vLLM gives them.

vLLM ends its engine when one of them dies, and says so only in its log.  Which rank it was, and that it died first, is
seen here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from vllm_bootstrap.supervising.events import DEAD, Inbox, RankSight, RanksSeen
from vllm_bootstrap.vllm_adapter.facts import rank_of_title

LOG = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
ALIVE = "ALIVE"


class ProcessRankWatch:
    """Looks through the launcher's process group.

    Parameters
    ----------
    tensor, world_size
        Tensor parallel size and number of ranks.
    group
        Gives the launcher's process group; 0 before its start.
    inbox
        Gets ``RanksSeen``.
    """

    def __init__(
        self,
        *,
        tensor: int,
        world_size: int,
        group: Callable[[], int],
        inbox: Inbox,
        proc: Path = Path("/proc"),
    ) -> None:
        self._tensor = tensor
        self._world_size = world_size
        self._group = group
        self._inbox = inbox
        self._proc = proc
        self._closed = threading.Event()
        self._known: dict[int, RankSight] = {}
        self._lock = threading.Lock()

    def watch(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._run, name="process-watch", daemon=True).start()

    def arm(self) -> None:
        """Nothing changes: a process that was seen and is gone is dead at any time."""

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def look(self) -> RanksSeen:
        """Look now; a rank that was seen before and is gone is dead."""
        with self._lock:
            found = self._processes()
            gone = {rank: sight for rank, sight in self._known.items() if rank not in found}
            for rank, sight in gone.items():
                # With all the others gone too the engine has ended, and none of them was the first.
                self._known[rank] = sight if sight.state == DEAD else _dead(sight, own=bool(found))
            self._known |= found
            return RanksSeen(dict(self._known))

    def _run(self) -> None:
        last = RanksSeen({})
        while not self._closed.wait(LOOK_SECONDS):
            try:
                found = self.look()
            except OSError as error:
                LOG.warning("the processes could not be read: %s", error)
                continue
            if found != last:
                last = found
                self._inbox.put(found)

    def _processes(self) -> dict[int, RankSight]:
        group = self._group()
        found: dict[int, RankSight] = {}
        for entry in self._proc.iterdir():
            if not group or not entry.name.isdigit() or _group_of(entry) != group:
                continue
            rank = rank_of_title(_title(entry), tensor=self._tensor, world_size=self._world_size)
            if rank is not None:
                found[rank] = RankSight(state=ALIVE, pid=int(entry.name))
        return found


def _dead(sight: RankSight, *, own: bool) -> RankSight:
    return RankSight(state=DEAD, pid=sight.pid, cause=f"its process {sight.pid} is gone", own=own)


def _group_of(entry: Path) -> int:
    """Read a process's group; 0 for one that is gone or has ended and was not waited for."""
    try:
        # After the name, which may hold anything, in brackets: state, parent, group.
        state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
    except (OSError, ValueError):
        return 0
    return 0 if state in ("Z", "X") else int(group)


def _title(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
    except OSError:
        return ""
