"""No death leaves orphans: real processes, killed for real."""

# ruff: noqa: S603

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import vllm_bootstrap
from vllm_bootstrap.launching import guard
from vllm_bootstrap.launching.guard import Orders
from vllm_bootstrap.launching.sweep import sweep

PACKAGE = Path(vllm_bootstrap.__file__).parent.parent

# A launcher with a child in its group and one that left it, as vLLM's engine process might.
FAMILY = """
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(300)"]
child = subprocess.Popen(sleep)
escaped = subprocess.Popen(sleep, start_new_session=True)
open(sys.argv[1] + ".new", "w").write(f"{os.getpid()} {child.pid} {escaped.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
print("family is up", flush=True)
if len(sys.argv) > 2:
    sys.exit(int(sys.argv[2]))
time.sleep(300)
"""

# A supervisor: it starts the guard as the real one does, and lives until it is killed.
SUPERVISOR = """
import subprocess, sys, time
command = [sys.executable, "-m", "vllm_bootstrap.launching.guard", sys.argv[1]]
guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
guard.stdout.readline()
time.sleep(300)
"""


def orders(tmp_path: Path, *command: str) -> Orders:
    return Orders(command=command, log=str(tmp_path / "log" / "launcher.log"))


def family(tmp_path: Path, *arguments: str) -> Orders:
    return orders(tmp_path, sys.executable, "-c", FAMILY, str(tmp_path / "pids"), *arguments)


def start(given: Orders) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "vllm_bootstrap.launching.guard", given.to_argument()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=PACKAGE,
    )


def wait_for(check, seconds: float = 10.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := check():
            return answer
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {check}")


def pids_of(tmp_path: Path) -> list[int]:
    path = tmp_path / "pids"
    return [int(pid) for pid in wait_for(lambda: path.exists() and path.read_text()).split()]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def all_dead(pids: list[int]) -> bool:
    return not any(map(is_alive, pids))


def events(process: subprocess.Popen[bytes]) -> list[dict[str, object]]:
    assert process.stdout
    return [json.loads(line) for line in process.stdout]


def guards_of(given: Orders) -> list[int]:
    wanted = given.to_argument().encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


@pytest.fixture(autouse=True)
def clean(tmp_path: Path) -> Iterator[None]:
    yield
    path = tmp_path / "pids"
    for pid in path.read_text().split() if path.exists() else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize("code", [0, 3])
def test_the_launchers_end_ends_its_whole_family_and_its_code_is_told(tmp_path: Path, code: int):
    process = start(family(tmp_path, str(code)))
    pids = pids_of(tmp_path)
    assert events(process)[-1] == {"event": "exited", "code": code}
    assert all_dead(pids), "before the guard says so"
    process.communicate()


def test_a_signal_is_a_negative_code(tmp_path: Path):
    process = start(family(tmp_path))
    pids = pids_of(tmp_path)
    os.kill(pids[0], signal.SIGKILL)
    assert events(process)[-1] == {"event": "exited", "code": -9}
    assert all_dead(pids)
    process.communicate()


def test_kill_9_of_the_supervisor_leaves_no_process(tmp_path: Path):
    given = family(tmp_path)
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISOR, given.to_argument()], cwd=PACKAGE)
    pids = pids_of(tmp_path)
    assert len(guards_of(given)) == 2, "the guard and the supervisor that has it in its arguments"
    supervisor.kill()
    supervisor.wait()
    wait_for(lambda: all_dead(pids) and not guards_of(given))


def test_kill_9_of_supervisor_and_launcher_together_leaves_no_process(tmp_path: Path):
    given = family(tmp_path)
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISOR, given.to_argument()], cwd=PACKAGE)
    pids = pids_of(tmp_path)
    os.kill(pids[0], signal.SIGKILL)
    supervisor.kill()
    supervisor.wait()
    wait_for(lambda: all_dead(pids) and not guards_of(given))


def test_the_guard_is_no_child_of_its_supervisor(tmp_path: Path):
    """Ray kills the children of a worker process that it kills."""
    process = start(family(tmp_path))
    pids_of(tmp_path)
    process.wait(10)
    assert process.stdin
    process.stdin.close()
    assert events(process)[-1]["event"] == "exited"


def test_a_killed_guard_takes_the_launcher_with_it(tmp_path: Path):
    given = family(tmp_path)
    process = start(given)
    pids = pids_of(tmp_path)
    os.kill(guards_of(given)[0], signal.SIGKILL)
    wait_for(lambda: not is_alive(pids[0]))
    assert [event["event"] for event in events(process)] == ["started"], "the pipe ends without a code"
    process.communicate()
    for pid in pids[1:]:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("command", "code"), [(guard.TERMINATE, 7), (guard.KILL, -9)])
def test_commands(tmp_path: Path, command: bytes, code: int):
    program = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        f"open({str(tmp_path / 'pids')!r}, 'w').write(str(os.getpid()))\n"
        "time.sleep(300)"
    )
    process = start(orders(tmp_path, sys.executable, "-c", program))
    pids_of(tmp_path)
    assert process.stdin
    process.stdin.write(command)
    process.stdin.flush()
    assert events(process)[-1] == {"event": "exited", "code": code}
    process.communicate()


def test_the_output_is_kept_to_its_last_line(tmp_path: Path):
    program = "import sys\nfor i in range(20000): print('line', i)\nsys.stderr.write('the end')"
    given = orders(tmp_path, sys.executable, "-c", program)
    process = start(given)
    assert events(process)[-1] == {"event": "exited", "code": 0}
    lines = Path(given.log).read_text().splitlines()
    assert len(lines) == 20001
    assert lines[0] == "line 0"
    assert lines[-1] == "the end"
    process.communicate()


def test_the_log_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guard, "LOG_LIMIT", 1000)
    output = guard.Output(tmp_path / "log", echo=False)
    for _ in range(50):
        output.write(b"x" * 100)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == {"log", "log.1"}
    assert max(sizes.values()) <= 1100


def test_a_log_of_an_earlier_run_is_put_aside(tmp_path: Path):
    (tmp_path / "log").write_text("old")
    guard.Output(tmp_path / "log", echo=False).write(b"new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"log": "new", "log.1": "old"}


def test_a_program_that_does_not_exist_is_told(tmp_path: Path):
    process = start(orders(tmp_path, "/no/such/program"))
    told = events(process)
    assert told[-1]["event"] == "failed"
    assert "No such file" in str(told[-1]["message"])
    process.communicate()


def test_a_sweep_finds_what_a_lost_guard_left(tmp_path: Path):
    command = [sys.executable, "-c", "import time; time.sleep(300)"]
    marked = subprocess.Popen(command, env={"MARK": "demo-engine-1-7"})
    other = subprocess.Popen(command, env={"MARK": "demo-engine-11-7"})
    try:
        wait_for(lambda: b"MARK" in Path(f"/proc/{other.pid}/environ").read_bytes())
        assert sweep("MARK", "demo-engine-1-") == [marked.pid]
        assert marked.wait(5) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
