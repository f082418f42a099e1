"""The supervisor's core without Ray, processes or time: events go in, reports come out."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vllm_bootstrap.clock import Clock
from vllm_bootstrap.contract import (
    Adapter,
    AdapterReport,
    AdapterState,
    Deadlines,
    EngineCoreReport,
    EnginePlan,
    EngineReport,
    FailureReason,
    HubSource,
    Phase,
    RankReport,
)
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.supervising import adapters, drain, supervisor
from vllm_bootstrap.supervising.events import (
    AdapterFetched,
    AdaptersAsked,
    AdaptersSeen,
    Answered,
    DrainAsked,
    Event,
    FlightSeen,
    Inbox,
    LauncherExited,
    LauncherStarted,
    RankSight,
    RanksSeen,
    StopAsked,
    WarmedUp,
)
from vllm_bootstrap.supervising.supervisor import Paths, Supervisor

ALIVE = {
    0: RankSight(state="ALIVE", actor_id="a0", pid=10),
    1: RankSight(state="ALIVE", actor_id="a1", pid=11),
}
OWN_DEATH = RankSight(state="DEAD", actor_id="a1", pid=11, cause="worker process has died", own=True)
KILLED = RankSight(state="DEAD", actor_id="a0", pid=10, cause="killed by ray.kill")


SQL, POEMS, OTHER_SQL = Adapter(name="sql", path="/a"), Adapter(name="poems", path="/b"), Adapter(name="sql", path="/c")


def loaded(adapter: Adapter) -> AdapterReport:
    return AdapterReport(name=adapter.name, path=adapter.path, state=AdapterState.LOADED)


def failed(adapter: Adapter, message: str) -> AdapterReport:
    return AdapterReport(name=adapter.name, path=adapter.path, state=AdapterState.FAILED, message=message)


class Rig:
    """A supervisor with its collaborators played by a script.

    Each of ``start``, ``watch``, ``warm_up``, ``terminate`` and ``kill`` gives the events that follow from it.
    """

    def __init__(self, plan: EnginePlan, tmp_path: Path) -> None:
        self.slept = 0.0
        self.inbox = Inbox()
        self.reports: list[EngineReport] = []
        self.calls: list[str] = []
        self.table: Mapping[int, RankSight] = {}
        self.cores: Mapping[int, RankSight] = {}
        self.asked: list[tuple[Adapter, ...]] = []
        self.adapted: list[AdaptersSeen] = []
        self.after_adapters: dict[int, list[Event]] = {}
        self.fetched: list[Adapter] = []
        self.downloads: dict[int, list[Event]] = {}
        self.script: dict[str, list[Event]] = {
            "start": [LauncherStarted(100)],
            "watch": [RanksSeen(ALIVE), Answered()],
            "warm_up": [WarmedUp("")],
            "terminate": [LauncherExited(0)],
            "kill": [LauncherExited(-9)],
        }
        self.paths = Paths(log=tmp_path / "log", events=tmp_path / "events")
        report = EngineReport(
            uid=plan.uid,
            engine=plan.engine,
            revision=plan.revision,
            attempt=plan.attempt,
            ray_session=plan.ray_session,
            sequence=4,
            phase=Phase.PLACING,
            time="",
            ranks=tuple(RankReport(rank=r, tp=0, pp=r, bundle=r, pod=f"pod-{r}") for r in range(2)),
            engine_cores=tuple(EngineCoreReport(dp=r, pod=f"pod-{r}") for r in range(plan.data) if plan.data > 1),
        )
        self.supervisor = Supervisor(
            plan,
            report,
            launcher=self,
            engine=self,
            ranks=self,
            fetcher=self,
            inbox=self.inbox,
            paths=self.paths,
            publish=self.reports.append,
            clock=Clock(wall=time.time, monotonic=lambda: time.monotonic() + self.slept, sleep=self.sleep),
        )

    def sleep(self, seconds: float) -> None:
        self.slept += seconds

    def _do(self, name: str) -> None:
        self.calls.append(name)
        for event in self.script.pop(name, ()):
            self.inbox.put(event)

    def start(self) -> None:
        self._do("start")

    def terminate(self) -> None:
        self._do("terminate")
        self.table = dict.fromkeys(range(2), KILLED)
        self.cores = dict.fromkeys(self.cores, KILLED)

    def kill(self) -> None:
        self._do("kill")
        self.table = dict.fromkeys(range(2), KILLED)
        self.cores = dict.fromkeys(self.cores, KILLED)

    def watch(self) -> None:
        self._do("watch")

    def warm_up(self, seconds: float) -> None:
        self._do("warm_up")

    def drain(self) -> None:
        self._do("drain")

    def adapt(self, adapters: tuple[Adapter, ...]) -> None:
        self.asked.append(adapters)
        told = self.adapted.pop(0) if self.adapted else AdaptersSeen(tuple(map(loaded, adapters)))
        self.inbox.put(told)
        for event in self.after_adapters.pop(len(self.asked), ()):
            self.inbox.put(event)

    def keep(self, adapters: Sequence[Adapter]) -> None:
        self.calls.append("keep")

    def fetch(self, adapter: Adapter) -> None:
        self.fetched.append(adapter)
        for event in self.downloads.pop(len(self.fetched), ()):
            self.inbox.put(event)

    def arm(self) -> None:
        self.calls.append("arm")

    def look(self) -> RanksSeen:
        return RanksSeen(self.table, self.cores)

    def close(self) -> None:
        self.calls.append("close")

    def log(self, *lines: str) -> None:
        self.paths.log.write_text("".join(f"{line}\n" for line in lines))

    def tell(self, **event: Any) -> None:
        with self.paths.events.open("a") as file:
            file.write(json.dumps(event) + "\n")

    def run(self, *after_serving: Event) -> EngineReport:
        """Let it live; the events come once it serves (or as soon as they can, when it does not come to that)."""
        if after_serving:
            self.script["warm_up"] = [*self.script["warm_up"], *after_serving]
        thread = threading.Thread(target=self.supervisor.run, daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive(), f"still running: {self.reports[-1:]}"
        return self.reports[-1]

    @property
    def phases(self) -> list[Phase]:
        return list(dict.fromkeys(report.phase for report in self.reports))


@pytest.fixture
def make_rig(make_plan: Callable[..., EnginePlan], tmp_path: Path) -> Callable[..., Rig]:
    return lambda **changes: Rig(make_plan(**changes), tmp_path)


def test_a_good_life_and_an_orderly_end(make_rig: Callable[..., Rig]):
    rig = make_rig()
    last = rig.run(DrainAsked(), StopAsked())
    assert rig.phases == [Phase.LOADING, Phase.SERVING, Phase.DRAINING, Phase.STOPPED]
    assert "kill" not in rig.calls
    assert [report.sequence for report in rig.reports] == list(range(5, 5 + len(rig.reports)))
    serving = next(report for report in rig.reports if report.phase is Phase.SERVING)
    assert [(rank.state, rank.pid, rank.actor_id) for rank in serving.ranks] == [
        ("ALIVE", 10, "a0"),
        ("ALIVE", 11, "a1"),
    ]
    assert serving.timings.loaded
    assert serving.timings.first_token
    assert last.reason == ""


def test_it_drains_and_ends_by_itself(make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drain, "SETTLE_SECONDS", 0.0)
    rig = make_rig()
    rig.script["drain"] = [
        FlightSeen(requests=2, quiet=0.0),
        FlightSeen(requests=1, quiet=0.0),
        FlightSeen(requests=0, quiet=0.5),
        FlightSeen(requests=0, quiet=1.5),
    ]
    last = rig.run(DrainAsked(60.0))
    assert rig.phases == [Phase.LOADING, Phase.SERVING, Phase.DRAINING, Phase.STOPPED]
    told = [report.message for report in rig.reports if report.phase is Phase.DRAINING and report.message]
    assert list(dict.fromkeys(told)) == [
        "it gets no new requests, at most 60 s left",
        "2 requests in flight, at most 60 s left",
    ], "not each number is told"
    assert last.message == "drained after 0 s"
    assert "terminate" in rig.calls
    assert "kill" not in rig.calls


def test_what_is_in_flight_too_long_is_cut_off(make_rig: Callable[..., Rig]):
    rig = make_rig()
    rig.script["drain"] = [FlightSeen(requests=3, quiet=0.0)]
    last = rig.run(DrainAsked(0.05))
    assert (last.phase, last.message) == (Phase.STOPPED, "3 requests cut off after 0 s")
    assert "terminate" in rig.calls


def test_asked_again_a_drain_is_not_begun_again(make_rig: Callable[..., Rig]):
    rig = make_rig()
    rig.script["drain"] = [FlightSeen(requests=3, quiet=0.0), DrainAsked(600.0), DrainAsked(0.05)]
    assert rig.run(DrainAsked(60.0)).phase is Phase.STOPPED
    assert rig.calls.count("drain") == 1


def test_an_engine_that_dies_while_it_drains_has_failed(make_rig: Callable[..., Rig]):
    rig = make_rig()
    rig.script["drain"] = [FlightSeen(requests=3, quiet=0.0), LauncherExited(1)]
    assert rig.run(DrainAsked(60.0)).phase is Phase.FAILED


def test_adapters_are_there_before_it_serves(make_rig: Callable[..., Rig]):
    rig = make_rig(adapters=(SQL, POEMS))
    rig.after_adapters = {1: [StopAsked()]}
    rig.run()
    assert rig.asked == [(SQL, POEMS)]
    serving = next(report for report in rig.reports if report.phase is Phase.SERVING)
    assert serving.adapters == (loaded(SQL), loaded(POEMS))


def test_without_adapters_nobody_is_asked_for_any(make_rig: Callable[..., Rig]):
    rig = make_rig()
    rig.run(StopAsked())
    assert rig.asked == []


def test_an_adapter_that_fails_keeps_no_engine_from_serving(make_rig: Callable[..., Rig]):
    rig = make_rig(adapters=(SQL, POEMS))
    rig.after_adapters = {1: [StopAsked()]}
    rig.adapted = [AdaptersSeen((failed(SQL, "vLLM refuses it: rank 1: it is not found"), loaded(POEMS)))]
    rig.run()
    assert rig.phases == [Phase.LOADING, Phase.SERVING, Phase.STOPPED]
    assert [item.message for item in rig.reports[-1].adapters] == [
        "vLLM refuses it: rank 1 on pod pod-1: it is not found",
        "",
    ]


def test_an_engine_that_gives_no_answer_about_its_adapters_serves_without_them(make_rig: Callable[..., Rig]):
    rig = make_rig(adapters=(SQL,))
    rig.after_adapters = {1: [StopAsked()]}
    rig.adapted = [AdaptersSeen(fault="timed out")]
    rig.run()
    assert rig.reports[-1].adapters == (failed(SQL, "timed out"),)


@pytest.mark.parametrize(
    ("asked", "questions"),
    [
        ([(SQL, POEMS)], [(SQL,), (SQL, POEMS)]),
        ([()], [(SQL,), ()]),
        ([(OTHER_SQL,)], [(SQL,), (OTHER_SQL,)]),
        ([(SQL,), (SQL,)], [(SQL,)]),
    ],
)
def test_adapters_change_while_it_serves(
    make_rig: Callable[..., Rig], asked: list[tuple[Adapter, ...]], questions: list[tuple[Adapter, ...]]
):
    rig = make_rig(adapters=(SQL,))
    rig.after_adapters = {1: [AdaptersAsked(item) for item in asked], len(questions): [StopAsked()]}
    if len(questions) == 1:
        rig.after_adapters = {1: [*(AdaptersAsked(item) for item in asked), StopAsked()]}
    rig.run()
    assert rig.asked == questions
    assert rig.reports[-1].adapters == tuple(map(loaded, questions[-1]))


def test_what_has_failed_is_tried_again_when_it_is_asked_for_again(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(adapters, "AGAIN_SECONDS", 0.0)
    rig = make_rig(adapters=(SQL,))
    rig.adapted = [AdaptersSeen((failed(SQL, "no such folder"),))]
    rig.after_adapters = {1: [AdaptersAsked((SQL,))], 2: [StopAsked()]}
    rig.run()
    assert rig.asked == [(SQL,), (SQL,)]
    assert rig.reports[-1].adapters == (loaded(SQL),)


def test_what_is_asked_for_meanwhile_comes_next_and_only_the_last_of_it(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
):
    rig = make_rig()
    answers = [AdaptersSeen((loaded(SQL),)), AdaptersSeen((loaded(POEMS),))]

    def adapt(adapters: tuple[Adapter, ...]) -> None:
        rig.asked.append(adapters)
        if len(rig.asked) == 1:
            rig.inbox.put(AdaptersAsked((OTHER_SQL,)))
            rig.inbox.put(AdaptersAsked((POEMS,)))
        rig.inbox.put(answers.pop(0))
        if not answers:
            rig.inbox.put(StopAsked())

    monkeypatch.setattr(rig, "adapt", adapt)
    rig.run(AdaptersAsked((SQL,)))
    assert rig.asked == [(SQL,), (POEMS,)]


HUB = Adapter(name="hub", path="hf://org/a@main", source=HubSource(repository="org/a", revision="main"))
THERE = AdapterFetched(HUB, folder="/cache/abc", commit="abc")


def test_an_adapter_of_the_hub_is_downloaded_while_the_engine_loads(make_rig: Callable[..., Rig]):
    rig = make_rig(adapters=(SQL, HUB))
    rig.downloads = {1: [AdapterFetched(HUB, message="50%"), THERE]}
    rig.after_adapters = {1: [StopAsked()]}
    rig.run()
    assert rig.fetched == [HUB]
    assert rig.asked == [(SQL, Adapter(name="hub", path="/cache/abc"))]
    loading = [item.message for report in rig.reports for item in report.adapters if report.phase is Phase.LOADING]
    assert "50%" in loading
    serving = next(report for report in rig.reports if report.phase is Phase.SERVING)
    assert serving.adapters == (loaded(SQL), replace(loaded(HUB), commit="abc"))


def test_an_engine_serves_before_the_download_has_ended_and_tells_what_is_wrong_with_it(make_rig: Callable[..., Rig]):
    rig = make_rig(adapters=(SQL, HUB))
    rig.after_adapters = {1: [AdapterFetched(HUB, failed=True, message="no such revision"), StopAsked()]}
    rig.run()
    serving = next(report for report in rig.reports if report.phase is Phase.SERVING)
    assert [item.state for item in serving.adapters] == [AdapterState.LOADED, AdapterState.PENDING]
    assert rig.reports[-1].adapters == (loaded(SQL), failed(HUB, "no such revision"))
    assert rig.asked == [(SQL,)]


def test_one_that_is_added_while_it_serves_is_loaded_when_it_is_there(make_rig: Callable[..., Rig]):
    rig = make_rig(adapters=(SQL,))
    rig.downloads = {1: [THERE]}
    rig.after_adapters = {1: [AdaptersAsked((SQL, HUB))], 2: [StopAsked()]}
    rig.run()
    assert rig.asked == [(SQL,), (SQL, Adapter(name="hub", path="/cache/abc"))]
    assert rig.reports[-1].adapters == (loaded(SQL), replace(loaded(HUB), commit="abc"))


def test_an_engine_that_loads_has_nothing_to_drain(make_rig: Callable[..., Rig]):
    rig = make_rig()
    rig.script["watch"] = [DrainAsked(600.0)]
    rig.run()
    assert rig.phases == [Phase.LOADING, Phase.STOPPED]


def test_serving_comes_only_after_the_first_token(make_rig: Callable[..., Rig]):
    rig = make_rig()
    rig.script["warm_up"] = [WarmedUp("POST /v1/completions: 500 boom")]
    last = rig.run()
    assert rig.phases == [Phase.LOADING, Phase.FAILED]
    assert last.reason == FailureReason.WARMUP_FAILED
    assert last.message == "the first request failed: POST /v1/completions: 500 boom"


@pytest.mark.parametrize("code", [0, 1])
def test_any_exit_while_serving_is_a_failure(make_rig: Callable[..., Rig], code: int):
    rig = make_rig()
    rig.log("INFO fine", "(EngineCore pid=7) ERROR 11-29 20:38:01 [core.py:1] RuntimeError: boom")
    last = rig.run(LauncherExited(code))
    assert last.phase is Phase.FAILED
    assert last.reason == FailureReason.LAUNCHER_EXITED
    assert last.message == f"the launcher ended with exit code {code} while it served; last error: RuntimeError: boom"
    assert last.log_tail[0] == "INFO fine"
    assert rig.inbox.broken.is_set()


def test_a_rank_that_died_first_is_named_though_the_launcher_ended_too(make_rig: Callable[..., Rig]):
    rig = make_rig()
    rig.table = {0: KILLED, 1: OWN_DEATH}
    last = rig.run(LauncherExited(0))
    assert (last.reason, last.failed_rank) == (FailureReason.RANK_DIED, 1)
    assert last.message == "rank 1 on pod pod-1 died: worker process has died"


def test_a_rank_that_dies_while_serving_is_reported_at_once(make_rig: Callable[..., Rig]):
    rig = make_rig()
    last = rig.run(RanksSeen({0: ALIVE[0], 1: OWN_DEATH}))
    assert rig.calls.count("kill") == 1
    failed = next(report for report in rig.reports if report.phase is Phase.FAILED)
    assert (failed.reason, failed.failed_rank) == (FailureReason.RANK_DIED, 1)
    assert [rank.state for rank in failed.ranks] == ["ALIVE", "DEAD"]
    assert [rank.state for rank in last.ranks] == ["DEAD", "DEAD"], "the end is told, too"
    assert {report.time for report in rig.reports if report.phase is Phase.FAILED} == {failed.time}, "once"


def test_ranks_that_were_killed_because_the_launcher_ended_are_no_cause(make_rig: Callable[..., Rig]):
    rig = make_rig()
    rig.table = {0: KILLED, 1: KILLED}
    last = rig.run(RanksSeen({0: KILLED, 1: KILLED}), LauncherExited(-9))
    assert (last.reason, last.failed_rank) == (FailureReason.LAUNCHER_EXITED, -1)
    assert "was ended by signal 9" in last.message


def test_ranks_whose_owner_died_are_no_cause_either(make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervisor, "SETTLE_SECONDS", 0.01)
    rig = make_rig()
    last = rig.run(RanksSeen({0: replace(KILLED, cause="its owner has died"), 1: KILLED}))
    assert (last.reason, last.failed_rank) == (FailureReason.LAUNCHER_EXITED, -1)
    assert last.message == (
        "vLLM's engine process ended while it served, and its ranks with it (Ray: its owner has died)"
    )


def test_a_rank_that_only_vllm_saw_dying_is_named(make_rig: Callable[..., Rig]):
    rig = make_rig()
    rig.log("(EngineCore pid=7) ERROR [ray_executor_v2.py:1] RayWorkerProc rank=[1] died unexpectedly, shutting down")
    rig.table = {0: KILLED, 1: KILLED}
    last = rig.run(RanksSeen(rig.table), LauncherExited(0))
    assert (last.reason, last.failed_rank) == (FailureReason.RANK_DIED, 1)
    assert last.message == "rank 1 on pod pod-1 died: vLLM lost it, and Ray knows no cause: is its pod or node gone?"


CORE = RankSight(state="ALIVE", actor_id="c1", pid=21, kind="DPMoEEngineCoreActor")
CORES = {0: replace(CORE, actor_id="c0", pid=20), 1: CORE}
CORE_DEATH = replace(CORE, state="DEAD", cause="worker process has died", own=True)
OWNER_DIED = replace(KILLED, cause="its owner has died")


def data_parallel(rig: Rig) -> Rig:
    rig.cores = CORES
    rig.script["watch"] = [RanksSeen(ALIVE, CORES), Answered()]
    return rig


def test_the_engine_cores_of_data_parallel_ranks_are_told(make_rig: Callable[..., Rig]):
    rig = data_parallel(make_rig(pipeline=1, data=2))
    last = rig.run(StopAsked())
    serving = next(report for report in rig.reports if report.phase is Phase.SERVING)
    assert [(core.dp, core.kind, core.state, core.actor_id, core.pid) for core in serving.engine_cores] == [
        (0, "DPMoEEngineCoreActor", "ALIVE", "c0", 20),
        (1, "DPMoEEngineCoreActor", "ALIVE", "c1", 21),
    ]
    assert [core.state for core in last.engine_cores] == ["DEAD", "DEAD"]


def test_an_engine_core_that_died_is_named_and_not_the_ranks_that_it_owned(make_rig: Callable[..., Rig]):
    rig = data_parallel(make_rig(pipeline=1, data=2))
    last = rig.run(RanksSeen({0: ALIVE[0], 1: OWNER_DIED}, {0: CORES[0], 1: CORE_DEATH}))
    assert (last.phase, last.reason, last.failed_rank) == (Phase.FAILED, FailureReason.RANK_DIED, 1)
    assert last.message == (
        "the DPMoEEngineCoreActor of data parallel rank 1 on pod pod-1 died: worker process has died"
    )
    assert rig.inbox.broken.is_set()


def test_a_rank_that_died_is_named_and_not_the_engine_core_that_went_on(make_rig: Callable[..., Rig]):
    rig = data_parallel(make_rig(pipeline=1, data=2))
    last = rig.run(RanksSeen({0: ALIVE[0], 1: OWN_DEATH}, CORES))
    assert (last.reason, last.failed_rank) == (FailureReason.RANK_DIED, 1)
    assert last.message == "rank 1 on pod pod-1 died: worker process has died"


def test_an_engine_core_that_never_lived_is_a_failed_load_with_its_root_cause(make_rig: Callable[..., Rig]):
    rig = data_parallel(make_rig(pipeline=1, data=2))
    rig.log("(DPMoEEngineCoreActor pid=1) ValueError: no room for the cache", "ray.exceptions.ActorDiedError: gone")
    unborn = replace(CORE_DEATH, cause="the creation task failed: Traceback", unborn=True)
    rig.script["watch"] = [RanksSeen({}, {0: CORES[0], 1: unborn}), LauncherExited(1)]
    last = rig.run()
    assert (last.reason, last.failed_rank) == (FailureReason.LOAD_FAILED, 1)
    assert last.message == (
        "the DPMoEEngineCoreActor of data parallel rank 1 on pod pod-1 could not be started: "
        "ValueError: no room for the cache"
    )


def test_the_rank_that_vllm_names_is_not_taken_for_one_of_another_data_parallel_rank(make_rig: Callable[..., Rig]):
    rig = data_parallel(make_rig(pipeline=1, data=2))
    rig.log("(EngineCoreActor pid=7) ERROR [ray_executor_v2.py:1] RayWorkerProc rank=[0] died unexpectedly")
    rig.table, rig.cores = {0: KILLED, 1: KILLED}, {}
    last = rig.run(RanksSeen(rig.table), LauncherExited(0))
    assert last.failed_rank == -1


def test_vllms_refusal_comes_in_its_own_words(make_rig: Callable[..., Rig]):
    rig = make_rig()
    rig.tell(stage="reading the arguments")
    rig.tell(reason="ArgumentsRefused", message="vLLM refuses the arguments: unrecognized arguments: --x")
    rig.script["watch"] = [LauncherExited(2)]
    last = rig.run()
    assert last.reason == FailureReason.ARGUMENTS_REFUSED
    assert last.message == "vLLM refuses the arguments: unrecognized arguments: --x"


def test_a_failed_load_is_told_by_its_root_cause(make_rig: Callable[..., Rig]):
    rig = make_rig()
    rig.tell(stage="starting the engine and loading the model")
    rig.log(
        "(RayWorkerProc pid=1, ip=10.0.0.1) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
        "Traceback (most recent call last):",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    )
    rig.script["watch"] = [LauncherExited(1)]
    last = rig.run()
    assert last.reason == FailureReason.LOAD_FAILED
    assert last.message == (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB "
        "(while starting the engine and loading the model)"
    )


def test_a_failed_load_that_ray_noticed_first_is_told_by_its_root_cause_too(make_rig: Callable[..., Rig]):
    rig = make_rig()
    rig.tell(stage="starting the engine and loading the model")
    rig.log("RuntimeError: Cannot find any model weights", "ray.exceptions.ActorHandleNotFoundError: not valid")
    rig.script["watch"] = [RanksSeen({0: KILLED, 1: KILLED}), LauncherExited(1)]
    last = rig.run()
    assert last.reason == FailureReason.LOAD_FAILED
    assert last.message.startswith("RuntimeError: Cannot find any model weights (while")


def test_a_rank_that_never_lived_is_a_failed_load(make_rig: Callable[..., Rig]):
    rig = make_rig()
    unborn = replace(OWN_DEATH, cause="Could not create the actor: nsight is not installed", unborn=True)
    rig.script["watch"] = [RanksSeen({1: unborn}), LauncherExited(1)]
    last = rig.run()
    assert (last.reason, last.failed_rank) == (FailureReason.LOAD_FAILED, 1)
    assert last.message.endswith("could not be started: Could not create the actor: nsight is not installed")


def test_a_launcher_killed_while_loading_did_not_fail_to_load(make_rig: Callable[..., Rig]):
    rig = make_rig()
    rig.log("RuntimeError: an old one")
    rig.script["watch"] = [LauncherExited(-9)]
    assert rig.run().reason == FailureReason.LAUNCHER_EXITED


def test_a_load_that_takes_too_long_says_how_far_it_came(make_rig: Callable[..., Rig]):
    rig = make_rig(deadlines=Deadlines(load=0.1))
    rig.tell(stage="starting the engine and loading the model")
    rig.log("Loading shards: 10 %")
    rig.script["watch"] = []
    last = rig.run()
    assert last.reason == FailureReason.LOAD_TIMEOUT
    assert last.message == (
        "not serving within 0.1 s, still starting the engine and loading the model; last line: Loading shards: 10 %"
    )
    assert "kill" in rig.calls


def test_a_stop_while_loading_ends_it(make_rig: Callable[..., Rig]):
    rig = make_rig()
    rig.script["watch"] = [StopAsked(1.0)]
    last = rig.run()
    assert rig.phases == [Phase.LOADING, Phase.STOPPED]
    assert last.reason == ""
    assert "terminate" in rig.calls


def test_a_launcher_that_does_not_stop_is_killed(make_rig: Callable[..., Rig]):
    rig = make_rig()
    rig.script["terminate"] = []
    assert rig.run(StopAsked(0.05)).phase is Phase.STOPPED
    assert "kill" in rig.calls


def test_a_launcher_that_cannot_be_started_is_a_failure(make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch):
    rig = make_rig()

    def refuse() -> None:
        raise EngineFailure(FailureReason.ACTORS_LEFT_OVER, "port 8000 is taken")

    monkeypatch.setattr(rig, "start", refuse)
    last = rig.run()
    assert (last.phase, last.reason) == (Phase.FAILED, FailureReason.ACTORS_LEFT_OVER)


def test_a_fault_of_our_own_is_a_report_too(make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch):
    rig = make_rig()
    monkeypatch.setattr(rig, "watch", lambda: 1 / 0)
    last = rig.run()
    assert last.reason == FailureReason.BOOTSTRAP_ERROR
    assert "division by zero" in last.message


def test_ray_tables_that_cannot_be_read_end_nothing(make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch):
    rig = make_rig()

    def lost() -> RanksSeen:
        raise ConnectionError("no GCS")

    monkeypatch.setattr(rig, "look", lost)
    rig.script["terminate"] = [RanksSeen({0: KILLED, 1: KILLED}), LauncherExited(0)]
    assert rig.run(StopAsked(1.0)).phase is Phase.STOPPED
    assert Phase.SERVING in rig.phases


def test_readiness_breaks_before_the_cause_is_known():
    inbox = Inbox()
    inbox.put(RanksSeen(ALIVE))
    assert not inbox.broken.is_set()
    inbox.put(RanksSeen({**ALIVE, 1: replace(ALIVE[1], state="DEAD")}))
    assert inbox.broken.is_set()
