"""Ranks as processes: which they are, and which of them died first."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from vllm_bootstrap.supervising.events import Inbox
from vllm_bootstrap.supervising.process_watch import ProcessRankWatch
from vllm_bootstrap.vllm_adapter.facts import dead_rank, rank_of_title

GROUP = 100


@pytest.mark.parametrize(
    ("title", "tensor", "world", "rank"),
    [
        ("VLLM::Worker_TP0", 2, 2, 0),
        ("VLLM::Worker_TP1", 2, 2, 1),
        ("VLLM::Worker_PP1", 1, 2, 1),
        ("VLLM::Worker_PP1_TP0", 2, 4, 2),
        ("VLLM::Worker_PP1_TP1_EP3", 2, 4, 3),
        ("VLLM::Worker", 1, 1, 0),
        ("VLLM::EngineCore", 1, 1, 0),
        ("VLLM::EngineCore", 2, 2, None),
        ("VLLM::Worker", 2, 2, None),
        ("VLLM::Worker_TP7", 2, 2, None),
        ("VLLM::APIServer", 1, 1, None),
        ("/usr/bin/python3", 1, 1, None),
        ("", 1, 1, None),
    ],
)
def test_the_rank_of_a_title(title: str, tensor: int, world: int, rank: int | None) -> None:
    assert rank_of_title(title, tensor=tensor, world_size=world) == rank


def test_the_rank_that_vllm_blames() -> None:
    line = (
        "(EngineCore pid=9) ERROR Worker proc VllmWorker-3 died unexpectedly (exit code: -9), shutting down executor."
    )
    assert dead_rank(["INFO something", line]) == 3


def process(proc: Path, pid: int, title: str, *, group: int = GROUP, state: str = "S") -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} (a ) name) {state} 1 {group} {group} 0 -1")
    (folder / "cmdline").write_bytes(title.encode() + b"\0\0")


def gone(proc: Path, pid: int) -> None:
    shutil.rmtree(proc / str(pid))


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    process(tmp_path, 11, "VLLM::EngineCore")
    process(tmp_path, 12, "VLLM::Worker_TP0")
    process(tmp_path, 13, "VLLM::Worker_TP1")
    process(tmp_path, 14, "VLLM::Worker_TP0", group=7)
    (tmp_path / "self").mkdir()
    return tmp_path


def watch(proc: Path, group: int = GROUP) -> ProcessRankWatch:
    return ProcessRankWatch(tensor=2, world_size=2, group=lambda: group, inbox=Inbox(), proc=proc)


def test_processes_of_the_group_are_ranks(proc: Path) -> None:
    assert {rank: (sight.state, sight.pid) for rank, sight in watch(proc).look().sights.items()} == {
        0: ("ALIVE", 12),
        1: ("ALIVE", 13),
    }


def test_before_the_launcher_there_are_none(proc: Path) -> None:
    assert watch(proc, group=0).look().sights == {}


def test_the_first_to_go_died_by_itself(proc: Path) -> None:
    watching = watch(proc)
    watching.look()
    gone(proc, 13)
    seen = watching.look().sights
    assert (seen[1].state, seen[1].own, seen[0].state) == ("DEAD", True, "ALIVE")
    assert "13" in seen[1].cause
    gone(proc, 12)
    seen = watching.look().sights
    assert (seen[0].state, seen[0].own) == ("DEAD", False)
    assert seen[1].own, "what was seen first stays"


def test_all_gone_at_once_blames_none(proc: Path) -> None:
    watching = watch(proc)
    watching.look()
    for pid in (12, 13):
        gone(proc, pid)
    assert [sight.own for sight in watching.look().sights.values()] == [False, False]


def test_a_process_that_was_not_waited_for_is_dead(proc: Path) -> None:
    watching = watch(proc)
    watching.look()
    gone(proc, 13)
    process(proc, 13, "VLLM::Worker_TP1", state="Z")
    assert watching.look().sights[1].state == "DEAD"


def test_this_machine_can_be_read() -> None:
    assert ProcessRankWatch(tensor=1, world_size=1, group=os.getpgrp, inbox=Inbox()).look().sights == {}
