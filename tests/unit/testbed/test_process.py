"""A process is never mistaken for another, and none is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.testbed.errors import BedError
from tests.testbed.layout import Layout
from tests.testbed.process import Daemons, ProcessId, alive, end, identify, marked, parse_stat, run, run_logged, send
from tests.testbed.waiting import wait_for


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    layout = Layout(cache=tmp_path / "cache", state=tmp_path / "state")
    yield layout
    end(list(marked(layout)), grace=0.0)


@pytest.mark.parametrize("command", ["sh", "a b", "tricky) S 1 2", "((("])
def test_the_stat_line_is_read_whatever_the_command_is_called(command: str) -> None:
    fields = " ".join(["S", "1", "42", *["0"] * 16, "987654", "0", "0"])
    assert parse_stat(f"42 ({command}) {fields}\n") == (ProcessId(42, 987654), "S")


@pytest.mark.parametrize("text", ["", "42", "42 (sh)", "42 (sh) S 1 2"])
def test_half_a_stat_line_is_no_process(text: str) -> None:
    assert parse_stat(text) is None


def test_a_recycled_number_is_another_process() -> None:
    own = identify(os.getpid())
    assert own is not None
    earlier = ProcessId(own.pid, own.started - 1)
    assert alive(own)
    assert not alive(earlier)
    send(earlier, signal.SIGKILL)  # would end the tests, if numbers alone counted


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    wait_for("the child to end", lambda: identify(child.pid) is None, 20.0)
    child.wait()


def test_a_daemon_is_started_found_and_stopped(layout: Layout) -> None:
    daemons = Daemons(layout)
    daemons.start("sleeper", ["/bin/sh", "-c", "echo started; exec sleep 600"])
    process = daemons.get("sleeper")
    assert process is not None
    assert daemons.names() == ["sleeper"]
    assert process in set(marked(layout))
    wait_for("its output", lambda: "started" in layout.log("sleeper").read_text(encoding="utf-8"), 10.0)
    # It must not die with the terminal of the one who started it, nor become a child that nobody waits for.
    assert os.getsid(process.pid) != os.getsid(0)
    daemons.start("sleeper", ["/bin/false"])
    assert daemons.get("sleeper") == process
    daemons.stop("sleeper")
    assert not alive(process)
    assert daemons.names() == []


def test_a_daemon_that_ignores_the_request_to_end_is_killed(layout: Layout) -> None:
    daemons = Daemons(layout)
    daemons.start("stubborn", ["/bin/sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done"])
    wait_for("it to be deaf", lambda: "deaf" in layout.log("stubborn").read_text(encoding="utf-8"), 10.0)
    process = daemons.get("stubborn")
    daemons.stop("stubborn", grace=0.2)
    assert process is not None
    assert not alive(process)


def test_a_daemon_that_dies_is_reported_at_once_with_its_log(layout: Layout) -> None:
    daemons = Daemons(layout)
    daemons.start("broken", ["/bin/sh", "-c", "echo no such flag; exit 1"])
    with pytest.raises(BedError, match=r"broken ended while it was to become ready \(log: .*broken.log\)"):
        daemons.await_ready("broken", "it to be ready", lambda: False, 60.0)


def test_an_orphan_of_a_daemon_is_found_by_its_marker(layout: Layout) -> None:
    daemons = Daemons(layout)
    daemons.start("parent", ["/bin/sh", "-c", "sleep 600 & echo $!; wait"])
    child = wait_for("the child", lambda: layout.log("parent").read_text(encoding="utf-8").strip(), 10.0)
    daemons.stop("parent", grace=0.0)
    assert [process.pid for process in marked(layout)] == [int(child)]


def test_a_failed_command_says_what_it_printed() -> None:
    with pytest.raises(BedError, match="exit 3: because"):
        run(["sh", "-c", "echo because >&2; exit 3"])
    with pytest.raises(BedError, match="no-such-program: not found"):
        run(["no-such-program"])


def test_a_failed_long_command_names_its_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "build.log"
    with pytest.raises(BedError, match=r"exit 1 \(log: .*build.log\)") as caught:
        run_logged(["sh", "-c", "echo reason; exit 1"], log)
    assert caught.value.log == log
    assert "reason" in log.read_text(encoding="utf-8")


def test_waiting_gives_the_first_true_result_and_forgives_errors() -> None:
    answers = iter([None, BedError("not yet"), "there"])

    def probe() -> str | None:
        answer = next(answers)
        if isinstance(answer, BedError):
            raise answer
        return answer

    assert wait_for("it", probe, 5.0, interval=0.0) == "there"


def test_waiting_ends_with_what_was_seen_last() -> None:
    def probe() -> None:
        raise BedError("still loading")

    with pytest.raises(BedError, match="after 0 s still waiting for the model; last seen: still loading"):
        wait_for("the model", probe, 0.01, interval=0.0)
