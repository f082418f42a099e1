"""The engine's keeper on the lead pod: it starts, watches and reports; what follows, the operator decides.

The core imports no Ray: an actor wraps it where there is one, and another process can where there is none.  One thread
owns the engine's state.  Everything that happens (the launcher ended, a rank died, the engine answered, the operator
asked) arrives in its queue, in order, so that "what happened first" has an answer, and no lock is needed to have it.
"""

from __future__ import annotations

import logging
import queue
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, Protocol

from vllm_bootstrap.clock import Clock
from vllm_bootstrap.contract import (
    Adapter,
    EngineCoreReport,
    EnginePlan,
    EngineReport,
    FailureReason,
    Phase,
    RankReport,
)
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.launching.order import LaunchEvents, Stage, read_events
from vllm_bootstrap.supervising.adapters import Adapters
from vllm_bootstrap.supervising.drain import Drain
from vllm_bootstrap.supervising.events import (
    DEAD,
    STOP_SECONDS,
    AdapterFetched,
    AdaptersAsked,
    AdaptersSeen,
    Answered,
    DrainAsked,
    Event,
    FlightSeen,
    Inbox,
    LauncherExited,
    RankSight,
    RanksSeen,
    StopAsked,
    WarmedUp,
    deaths,
    own_deaths,
)
from vllm_bootstrap.supervising.launcher_log import SEARCH_LINES, last_line, read_tail, root_cause
from vllm_bootstrap.supervising.report import LINE_LIMIT, MESSAGE_LIMIT, trim
from vllm_bootstrap.vllm_adapter.facts import dead_rank

LOG = logging.getLogger(__name__)

KILL_SECONDS = 15.0
SETTLE_SECONDS = 2.0
LOADING_SETTLE_SECONDS = 15.0
"""How long the launcher is given to end by itself, once ranks were seen dead: what it prints says more than they."""

FINAL_LOOK_SECONDS = 20.0
LINE_IN_MESSAGE = 300
ADAPTER_MESSAGE_LIMIT = 500
RANK_IN_MESSAGE = re.compile(r"\brank (\d+)\b")


class Launcher(Protocol):
    """The launcher under its guard."""

    def start(self) -> None:
        """Start both; ``LauncherStarted`` and ``LauncherExited`` follow as events."""

    def terminate(self) -> None:
        """Ask the launcher to end in order."""

    def kill(self) -> None:
        """Kill the launcher's whole group."""


class Engine(Protocol):
    """The engine's HTTP interface."""

    def watch(self) -> None:
        """Begin to ask for its health; ``Answered`` follows."""

    def warm_up(self, seconds: float) -> None:
        """Ask for one token; ``WarmedUp`` follows."""

    def adapt(self, adapters: tuple[Adapter, ...]) -> None:
        """Let it serve these LoRA adapters; ``AdaptersSeen`` follows."""

    def drain(self) -> None:
        """Let its clients go; ``FlightSeen`` follows, again and again."""

    def close(self) -> None:
        """Ask no more."""


class Fetcher(Protocol):
    """Brings LoRA adapters of the hub to all pods of the engine."""

    def keep(self, adapters: Sequence[Adapter]) -> None:
        """Give up the downloads of all others."""

    def fetch(self, adapter: Adapter) -> None:
        """Begin with one of them; ``AdapterFetched`` follows, again and again until it has ended."""

    def close(self) -> None:
        """Give up all of them."""


class RankWatch(Protocol):
    """The ranks' actors; ``RanksSeen`` follows whenever something changed."""

    def watch(self) -> None:
        """Begin to look for the actors; those that are there already are not the ones."""

    def arm(self) -> None:
        """All ranks are in their work loop: wait for their deaths."""

    def look(self) -> RanksSeen:
        """Look now."""

    def close(self) -> None:
        """Look no more."""


@dataclass(frozen=True, kw_only=True)
class Paths:
    """Where the launcher's traces are."""

    log: Path
    events: Path


class StopRequested(Exception):  # noqa: N818 - it ends the engine, and is no error
    """The operator wants the engine to end."""

    def __init__(self, seconds: float, message: str = "") -> None:
        super().__init__(f"stop within {seconds:g} s")
        self.seconds = seconds
        self.message = message


class Supervisor:
    """One attempt of one engine, from the launcher's start to its end.

    Parameters
    ----------
    plan
        What runs.
    report
        The bootstrap job's last report: ranks placed, timings and versions so far.
    publish
        Takes each new report.
    """

    def __init__(
        self,
        plan: EnginePlan,
        report: EngineReport,
        *,
        launcher: Launcher,
        engine: Engine,
        ranks: RankWatch,
        fetcher: Fetcher,
        inbox: Inbox,
        paths: Paths,
        publish: Callable[[EngineReport], None],
        clock: Clock,
    ) -> None:
        self._plan = plan
        self._report = report
        self._launcher = launcher
        self._engine = engine
        self._ranks = ranks
        self._fetcher = fetcher
        self._inbox = inbox
        self._paths = paths
        self._publish = publish
        self._clock = clock
        self._exit: LauncherExited | None = None
        self._started = False
        self._reading = Stage.STARTING
        self._adapters = Adapters(plan.adapters, clock)

    @property
    def report(self) -> EngineReport:
        """The newest report."""
        return self._report

    def run(self) -> None:
        """Live through one attempt; afterwards the state stays readable until the next attempt replaces it."""
        try:
            self._load()
            self._serve()
        except EngineFailure as failure:
            self._fail(failure)
        except StopRequested as request:
            self._stop(request.seconds, request.message)
        except Exception as error:
            LOG.exception("the supervisor failed")
            self._fail(EngineFailure(FailureReason.BOOTSTRAP_ERROR, f"the supervisor failed: {error!r}"))

    # The attempt.

    def _load(self) -> None:
        deadline = self._clock.monotonic() + self._plan.deadlines.load
        self._change(phase=Phase.LOADING)
        self._ranks.watch()
        self._launcher.start()
        self._started = True
        self._fetch_adapters()  # meanwhile
        self._engine.watch()
        self._await(Answered, deadline)
        self._change(timings=replace(self._report.timings, loaded=self._clock.timestamp()))
        self._reading = Stage.WARM_UP
        self._engine.warm_up(max(0.0, deadline - self._clock.monotonic()))
        warmed = self._await(WarmedUp, deadline)
        if isinstance(warmed, WarmedUp) and warmed.fault:
            raise EngineFailure(FailureReason.WARMUP_FAILED, f"the first request failed: {warmed.fault}")
        self._reading = Stage.ADAPTERS
        while self._adapt():
            self._await(AdaptersSeen, deadline)
        self._ranks.arm()
        # The report of Serving must hold every rank's actor, and the table may have been read before the last came up.
        self._see(self._look())
        self._change(phase=Phase.SERVING, timings=replace(self._report.timings, first_token=self._clock.timestamp()))

    def _serve(self) -> None:
        while True:
            event = self._inbox.events.get()
            self._handle(event)
            if isinstance(event, DrainAsked):
                self._drain(event.seconds)

    def _drain(self, seconds: float) -> NoReturn:
        """Serve those who are there, and end when nobody comes any more."""
        drain = Drain.begin(seconds, self._clock.monotonic())
        self._change(phase=Phase.DRAINING, message=drain.words(drain.begun))
        self._engine.drain()
        while not drain.is_over(now := self._clock.monotonic()):
            if drain.has_news(now):
                self._change(message=drain.words(now))
                drain = drain.reported(now)
            try:
                event = self._inbox.events.get(timeout=drain.left(now))
            except queue.Empty:
                break
            self._handle(event)
            if isinstance(event, FlightSeen):
                drain = drain.seen(event.requests, event.quiet)
            elif isinstance(event, DrainAsked):
                drain = drain.within(event.seconds, self._clock.monotonic())
        result = drain.result(self._clock.monotonic())
        LOG.info(result)
        raise StopRequested(STOP_SECONDS, result)

    def _await(self, kind: type[Event], deadline: float) -> Event:
        while True:
            try:
                event = self._inbox.events.get(timeout=max(0.0, deadline - self._clock.monotonic()))
            except queue.Empty:
                raise self._too_late() from None
            self._handle(event)
            if isinstance(event, kind):
                return event

    def _adapt(self, *, again: bool = False) -> bool:
        """Ask for the adapters that are wanted and there; say whether an answer is to come.

        Parameters
        ----------
        again
            Ask also for what has failed: what was wrong with it may be mended.
        """
        question = self._adapters.next_question(again=again)
        if question is not None:
            self._engine.adapt(question)
        return self._adapters.is_asked

    def _fetch_adapters(self) -> None:
        """Begin the downloads that are due, and end those that nobody wants."""
        self._fetcher.keep(self._adapters.wanted)
        for adapter in self._adapters.next_downloads():
            self._fetcher.fetch(adapter)
        self._tell_adapters()

    def _tell_adapters(self) -> None:
        told = tuple(replace(item, message=self._placed(item.message)) for item in self._adapters.reports())
        if told != self._report.adapters:
            self._change(adapters=told)

    def _placed(self, message: str) -> str:
        """Name the pod of a rank that a message speaks of."""
        # Each data parallel rank counts its own from 0.
        found = RANK_IN_MESSAGE.search(message) if self._plan.data == 1 else None
        if not found or int(found[1]) >= len(self._report.ranks):
            return trim(message, ADAPTER_MESSAGE_LIMIT)
        place = self._report.ranks[int(found[1])]
        named = f"{found[0]} on pod {place.pod or place.ray_node}"
        return trim(message.replace(found[0], named, 1), ADAPTER_MESSAGE_LIMIT)

    def _handle(self, event: Event) -> None:
        if isinstance(event, AdaptersAsked | AdaptersSeen | AdapterFetched):
            self._handle_adapters(event)
        if isinstance(event, StopAsked):
            raise StopRequested(event.seconds)
        if isinstance(event, DrainAsked) and self._report.phase is Phase.LOADING:
            raise StopRequested(STOP_SECONDS)
        if isinstance(event, LauncherExited):
            self._exit = event
            raise self._first_cause(RanksSeen({}))
        if isinstance(event, RanksSeen):
            self._see(event)
            if event.is_broken:
                raise self._first_cause(event)

    def _handle_adapters(self, event: AdaptersAsked | AdaptersSeen | AdapterFetched) -> None:
        match event:
            case AdaptersAsked(adapters=adapters):
                self._adapters.want(adapters)
                self._fetch_adapters()
            case AdaptersSeen():
                self._adapters.answered(event)
            case AdapterFetched():
                self._adapters.take(event)
        self._tell_adapters()
        if self._report.phase is Phase.SERVING:
            self._adapt(again=isinstance(event, AdaptersAsked))

    # Why it ended.

    def _first_cause(self, seen: RanksSeen) -> EngineFailure:
        """Find what died first: the launcher ends because a rank died, and ranks die because the launcher ended."""
        if self._report.phase is Phase.LOADING:
            self._wait_for_exit(LOADING_SETTLE_SECONDS)
        elif not seen.has_own_death:
            self._wait_for_exit(SETTLE_SECONDS)
        told = read_events(self._paths.events)
        if told.reason is not None:
            return EngineFailure(told.reason, told.message)
        tail = read_tail(self._paths.log, SEARCH_LINES)
        now = seen if seen.has_own_death else self._look()
        if ranks := own_deaths(now.sights):
            return self._rank_died(ranks, tail)
        if cores := own_deaths(now.cores):
            return self._core_died(cores, tail)
        return self._blame_the_rest(seen, told, tail)

    def _blame_the_rest(self, seen: RanksSeen, told: LaunchEvents, tail: tuple[str, ...]) -> EngineFailure:
        rank = dead_rank(tail) if self._plan.data == 1 else None  # several have the number that vLLM says
        if rank is not None and rank < len(self._report.ranks):
            unknown = ", and Ray knows no cause: is its pod or node gone?" if self._plan.executor == "ray" else ""
            lost = RankSight(state=DEAD, cause=f"vLLM lost it{unknown}")
            return self._rank_died({rank: lost}, tail)
        if self._exit is None:
            return self._engine_ended(deaths(seen.sights) or deaths(seen.cores), told, tail)
        return self._launcher_ended(self._exit, told, tail)

    def _wait_for_exit(self, seconds: float) -> None:
        deadline = self._clock.monotonic() + seconds
        while self._exit is None and (left := deadline - self._clock.monotonic()) > 0:
            try:
                event = self._inbox.events.get(timeout=left)
            except queue.Empty:
                return
            if isinstance(event, LauncherExited):
                self._exit = event
            elif isinstance(event, RanksSeen):
                self._see(event)

    def _rank_died(self, dead: Mapping[int, RankSight], tail: tuple[str, ...]) -> EngineFailure:
        rank = min(dead)
        place = self._report.ranks[rank]
        cause = dead[rank].cause or "no cause is known"
        where = f"rank {rank} on pod {place.pod or place.ray_node}"
        if dead[rank].unborn:
            return EngineFailure(FailureReason.LOAD_FAILED, f"{where} could not be started: {cause}", rank)
        message = f"{where} died: {cause}"
        if self._report.phase is Phase.LOADING and (error := root_cause(tail)):
            message += f"; last error: {error}"
        return EngineFailure(FailureReason.RANK_DIED, message, rank)

    def _core_died(self, dead: Mapping[int, RankSight], tail: tuple[str, ...]) -> EngineFailure:
        """Blame the engine core of a data parallel rank; its ranks were ended by Ray because it owned them."""
        data_rank = min(dead)
        sight = dead[data_rank]
        first = data_rank * self._plan.world_size
        place = self._report.ranks[first]
        where = f"the {sight.kind} of data parallel rank {data_rank} on pod {place.pod or place.ray_node}"
        error = root_cause(tail)
        if sight.unborn or (error and self._report.phase is Phase.LOADING):
            told = error or sight.cause
            return EngineFailure(FailureReason.LOAD_FAILED, f"{where} could not be started: {told}", first)
        return EngineFailure(FailureReason.RANK_DIED, f"{where} died: {sight.cause or 'no cause is known'}", first)

    def _engine_ended(self, dead: Mapping[int, RankSight], told: LaunchEvents, tail: tuple[str, ...]) -> EngineFailure:
        """Blame vLLM's engine process: the ranks were ended by Ray because their owner is gone, and it owns them."""
        cause = dead[min(dead)].cause
        error = root_cause(tail)
        if error and self._report.phase is Phase.LOADING:
            return EngineFailure(FailureReason.LOAD_FAILED, f"{error} (while {self._stage(told)})")
        words = f"; last error: {error}" if error else ""
        return EngineFailure(
            FailureReason.LAUNCHER_EXITED,
            f"vLLM's engine process ended {self._during(told)}, and its ranks with it (Ray: {cause}){words}",
        )

    def _launcher_ended(self, ended: LauncherExited, told: LaunchEvents, tail: tuple[str, ...]) -> EngineFailure:
        error = root_cause(tail)
        how = _describe_exit(ended.code)
        if self._report.phase is Phase.LOADING and error and ended.code is not None and ended.code >= 0:
            return EngineFailure(FailureReason.LOAD_FAILED, f"{error} (while {self._stage(told)})")
        line = trim(last_line(tail), LINE_IN_MESSAGE)
        words = f"; last error: {error}" if error else f"; last line: {line}" if line else ""
        return EngineFailure(FailureReason.LAUNCHER_EXITED, f"the launcher {how} {self._during(told)}{words}")

    def _during(self, told: LaunchEvents) -> str:
        return f"while {self._stage(told)}" if self._report.phase is Phase.LOADING else "while it served"

    def _too_late(self) -> EngineFailure:
        tail = read_tail(self._paths.log)
        stage = self._stage(read_events(self._paths.events))
        return EngineFailure(
            FailureReason.LOAD_TIMEOUT,
            f"not serving within {self._plan.deadlines.load:g} s, still {stage}; "
            f"last line: {trim(last_line(tail), LINE_IN_MESSAGE) or 'none'}",
        )

    def _stage(self, told: LaunchEvents) -> str:
        return self._reading if self._reading in (Stage.WARM_UP, Stage.ADAPTERS) else told.stage

    # The end.

    def _fail(self, failure: EngineFailure) -> None:
        self._inbox.broken.set()
        self._fetcher.close()
        LOG.error("%s: %s", failure.reason, failure.message)
        tail = read_tail(self._paths.log)
        self._change(
            phase=Phase.FAILED,
            reason=str(failure.reason),
            message=trim(failure.message, MESSAGE_LIMIT),
            failed_rank=failure.rank,
            log_tail=tuple(trim(line, LINE_LIMIT) for line in tail),
        )
        self._end()

    def _stop(self, seconds: float, message: str) -> None:
        self._inbox.broken.set()
        self._fetcher.close()
        self._engine.close()
        if self._started and self._exit is None:
            self._launcher.terminate()
            self._wait_for_exit(seconds)
        self._end()
        self._change(phase=Phase.STOPPED, message=message)

    def _end(self) -> None:
        """Leave nothing behind, and say so of every rank."""
        self._engine.close()
        if self._started and self._exit is None:
            self._launcher.kill()
            self._wait_for_exit(KILL_SECONDS)
        deadline = self._clock.monotonic() + FINAL_LOOK_SECONDS
        while self._started and not self._all_dead() and self._clock.monotonic() < deadline:
            self._see(self._look())
            if not self._all_dead():
                self._clock.sleep(0.5)
        self._ranks.close()

    def _all_dead(self) -> bool:
        states = [rank.state for rank in self._report.ranks] + [core.state for core in self._report.engine_cores]
        return all(state in (DEAD, "PENDING") for state in states)

    # The report.

    def _look(self) -> RanksSeen:
        try:
            return self._ranks.look()
        except Exception as error:  # Ray's tables may be gone with its head; that is not this engine's failure
            LOG.warning("Ray's actor table could not be read: %s", error)
            return RanksSeen({})

    def _see(self, seen: RanksSeen) -> None:
        ranks = tuple(_with_sight(rank, seen.sights.get(rank.rank)) for rank in self._report.ranks)
        cores = tuple(_core_with_sight(core, seen.cores.get(core.dp)) for core in self._report.engine_cores)
        if (ranks, cores) != (self._report.ranks, self._report.engine_cores):
            self._change(ranks=ranks, engine_cores=cores)

    def _change(self, **changes: object) -> None:
        # A failure keeps its instant: who counts failures must not take the news of its ranks for another one.
        failed = self._report.phase is Phase.FAILED
        numbered = {
            "sequence": self._report.sequence + 1,
            "time": self._report.time if failed else self._clock.timestamp(),
        }
        self._report = replace(self._report, **numbered, **changes)  # type: ignore[arg-type]
        LOG.info("report %d: %s %s", self._report.sequence, self._report.phase, self._report.reason)
        self._publish(self._report)


def _with_sight(rank: RankReport, sight: RankSight | None) -> RankReport:
    if sight is None:
        return rank
    return replace(rank, state=sight.state, actor_id=sight.actor_id or rank.actor_id, pid=sight.pid or rank.pid)


def _core_with_sight(core: EngineCoreReport, sight: RankSight | None) -> EngineCoreReport:
    if sight is None:
        return core
    return replace(
        core,
        kind=sight.kind or core.kind,
        state=sight.state,
        actor_id=sight.actor_id or core.actor_id,
        pid=sight.pid or core.pid,
    )


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "was lost with its guard"
    if code < 0:
        return f"was ended by signal {-code}"
    return f"ended with exit code {code}"
