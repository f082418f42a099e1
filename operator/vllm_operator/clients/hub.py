"""The Hugging Face hub: what a model is made of, remembered for a while.

Many deployments ask for one model, and each asks again while it waits for something else; a hub that is down must not
be asked by all of them every few seconds.  So answers are kept, also the bad ones, and equal questions share a request.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from vllm_operator.clients import hub_trouble
from vllm_operator.clients.cache import TimedCache
from vllm_operator.clients.hub_fetch import Outcome, fetch, is_commit, prepare
from vllm_operator.clients.hub_trouble import Wanted
from vllm_operator.planning.known import HubAnswer, HubFacts, HubTrouble, Trouble

log = logging.getLogger(__name__)

COMMIT_SECONDS, BRANCH_SECONDS = 86400.0, 600.0
"""How long facts are kept: what a commit holds never changes, a branch moves."""

REFUSED_SECONDS, DOWN_SECONDS = 60.0, 30.0
"""How long no is taken for an answer."""

_KEPT = 256
_THREADS = 4


@dataclass(frozen=True)
class _Key:
    """What an answer depends on; of the token only a digest is kept."""

    repository: str
    revision: str
    token: str


class Hub:
    """Asks one hub.

    Parameters
    ----------
    endpoint
        Its address; tokens go there and nowhere else.
    clock
        Gives an instant in seconds that never goes back.
    seconds
        Time for an answer, waiting for others included.
    named_by
        What names the token, for messages.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        clock: Callable[[], float],
        seconds: float = 15.0,
        named_by: str = "spec.model.hfTokenSecret",
    ) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._seconds = seconds
        self._named_by = named_by
        self._facts: TimedCache[_Key, HubFacts] = TimedCache(_KEPT)
        self._troubles: TimedCache[_Key, HubTrouble] = TimedCache(_KEPT)
        self._down_until = clock()
        self._down: HubTrouble | None = None
        self._running: dict[_Key, asyncio.Future[Outcome]] = {}
        self._threads = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="hub")
        prepare()

    def close(self) -> None:
        """Ask no more; what is under way ends by its own deadline."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def ask(self, repository: str, *, revision: str = "", token: str = "") -> HubAnswer:
        """Ask for a model; whatever goes wrong is an answer, too.

        Facts that have ended are better than none: they are given while the hub is not available.
        """
        key = _Key(repository, revision, hashlib.sha256(token.encode()).hexdigest())
        if facts := self._facts.fresh(key, self._clock()):
            return facts
        answer: HubAnswer | None = self._trouble(key)
        if answer is None:
            wanted = Wanted(
                endpoint=self._endpoint,
                repository=repository,
                revision=revision,
                token=token,
                named_by=self._named_by,
            )
            answer = await self._look(key, wanted)
        if isinstance(answer, HubTrouble) and answer.trouble is Trouble.UNAVAILABLE:
            return self._facts.last(key) or answer
        return answer

    def _trouble(self, key: _Key) -> HubTrouble | None:
        if self._down and self._clock() < self._down_until:
            return self._down
        return self._troubles.fresh(key, self._clock())

    async def _look(self, key: _Key, wanted: Wanted) -> HubAnswer:
        look = self._running.get(key) or self._start(key, wanted)
        done, _ = await asyncio.wait({look}, timeout=self._seconds)
        if done:
            return look.result().answer
        late = Outcome(answer=hub_trouble.timed_out(wanted, self._seconds))
        self._keep(key, late)
        return late.answer

    def _start(self, key: _Key, wanted: Wanted) -> asyncio.Future[Outcome]:
        deadline = self._clock() + self._seconds

        def work() -> Outcome:
            return fetch(wanted, seconds=self._seconds, deadline=deadline, clock=self._clock)

        def ended(future: asyncio.Future[Outcome]) -> None:
            del self._running[key]
            if not future.cancelled() and future.exception() is None:
                self._keep(key, future.result())

        look = asyncio.get_running_loop().run_in_executor(self._threads, work)
        self._running[key] = look
        look.add_done_callback(ended)
        return look

    def _keep(self, key: _Key, outcome: Outcome) -> None:
        now = self._clock()
        match outcome.answer:
            case HubFacts() as facts:
                seconds = COMMIT_SECONDS if is_commit(key.revision) else BRANCH_SECONDS
                self._facts.put(key, facts, until=now + seconds)
            case HubTrouble() as trouble:
                log.info("%s", trouble.message)
                if outcome.is_down:
                    self._down, self._down_until = trouble, now + DOWN_SECONDS
                    return
                seconds = DOWN_SECONDS if trouble.trouble is Trouble.UNAVAILABLE else REFUSED_SECONDS
                self._troubles.put(key, trouble, until=now + seconds)
