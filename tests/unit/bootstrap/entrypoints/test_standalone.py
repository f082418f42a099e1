"""The process of an engine without Ray: it takes plans, one attempt after the other."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.hub.server import ELSEWHERE, HubServer, Repository, serving_hub

import vllm_bootstrap
from vllm_bootstrap import contract
from vllm_bootstrap.clock import Clock, poll
from vllm_bootstrap.contract import EnginePlan, EngineReport, HubSource, Phase
from vllm_bootstrap.entrypoints import standalone
from vllm_bootstrap.entrypoints.standalone import Standalone
from vllm_bootstrap.supervising.report import FOLDER_VARIABLE
from vllm_operator.resources.pod import UNPACK

DEADLINE = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def taker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standalone:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "reports"))
    monkeypatch.setattr(standalone, "LOG_FOLDER", tmp_path)
    return Standalone(Clock())


@pytest.fixture
def next_plan(taker: Standalone, make_plan: Callable[..., EnginePlan]) -> Callable[..., EnginePlan]:
    port = free_port()

    def make(attempt: int = 1, **changes: object) -> EnginePlan:
        given = {"executor": "mp", "ray_session": taker.view().session, "http_port": port}
        return make_plan(attempt=attempt, instance_id=f"demo-{attempt}", **{**given, **changes})

    return make


def failed(taker: Standalone, attempt: int) -> EngineReport:
    """Wait for the failure of an attempt."""

    def look() -> EngineReport | None:
        report = taker.view().report
        return report if report and report.attempt == attempt and report.phase is Phase.FAILED else None

    found = poll(look, seconds=DEADLINE, clock=Clock())
    assert found, f"no failure of attempt {attempt}: {taker.view()}"
    return found


def test_what_stands_in_the_way_is_reported(taker: Standalone, next_plan: Callable[..., EnginePlan]):
    plan = next_plan()
    assert taker.start(contract.dumps(plan)) == contract.job_id(plan) == taker.view().job
    report = failed(taker, 1)
    assert (report.uid, report.revision, report.ray_session) == (plan.uid, plan.revision, plan.ray_session)
    assert report.reason == "RuntimeIncompatible", "there is no vLLM here"
    written = Path(os.environ[FOLDER_VARIABLE]) / f"{plan.report.config_map}.json"
    assert poll(lambda: True if "RuntimeIncompatible" in written.read_text() else None, seconds=DEADLINE, clock=Clock())


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Give a hub; there is no vLLM here, and without that nothing would be downloaded."""
    monkeypatch.setattr(standalone, "judge", lambda *_: [])
    with serving_hub() as server:
        server.repositories["org/name"] = Repository(files={"config.json": b"{}", "model.safetensors": b"x" * 1000})
        yield server


def source(hub: HubServer, tmp_path: Path, **changes: str) -> HubSource:
    return replace(HubSource(repository="org/name", endpoint=hub.url, folder=str(tmp_path / "cache")), **changes)


def test_the_model_is_downloaded_before_the_engine_starts(
    taker: Standalone, next_plan: Callable[..., EnginePlan], hub: HubServer, tmp_path: Path
):
    taker.start(contract.dumps(next_plan(model="org/name", source=source(hub, tmp_path))))
    report = failed(taker, 1)
    assert (report.reason, report.downloads) == ("RuntimeIncompatible", ()), "it came as far as vLLM, which is not here"
    [folder] = (tmp_path / "cache").glob("models--org--name/snapshots/*")
    assert {item.name for item in folder.iterdir()} == {"config.json", "model.safetensors"}


def test_what_the_hub_refuses_is_reported(
    taker: Standalone, next_plan: Callable[..., EnginePlan], hub: HubServer, tmp_path: Path
):
    taker.start(contract.dumps(next_plan(model="org/name", source=source(hub, tmp_path, revision="v9"))))
    report = failed(taker, 1)
    assert report.reason == "ModelNotOnHub"
    assert "spec.model.revision: hf://org/name has no revision v9" in report.message


def test_a_download_gives_way_to_the_next_attempt(
    taker: Standalone, next_plan: Callable[..., EnginePlan], hub: HubServer, tmp_path: Path
):
    hub.held.set()
    try:
        first, second = (
            next_plan(attempt=attempt, model="org/name", source=source(hub, tmp_path)) for attempt in (1, 2)
        )
        taker.start(contract.dumps(first))
        asked = poll(lambda: [path for path in hub.paths if ELSEWHERE in path] or None, seconds=DEADLINE, clock=Clock())
        assert asked, "nothing is downloaded"
        taker.start(contract.dumps(second))
        again = poll(
            lambda: True if hub.paths.count("/api/models/org/name") == 2 else None, seconds=DEADLINE, clock=Clock()
        )
        assert again, "the second attempt waits for the first"
    finally:
        hub.held.clear()
    assert failed(taker, 2).reason == "RuntimeIncompatible"


def test_the_next_attempt_takes_the_place(taker: Standalone, next_plan: Callable[..., EnginePlan]):
    first, second = next_plan(), next_plan(attempt=2)
    taker.start(contract.dumps(first))
    taker.start(contract.dumps(first))
    failed(taker, 1)
    assert taker.start(contract.dumps(second)) == contract.job_id(second)
    assert failed(taker, 2).attempt == 2


@pytest.mark.parametrize(
    ("changes", "words"), [({"ray_session": "another"}, "earlier session"), ({"ray_session": ""}, "earlier session")]
)
def test_a_plan_for_a_process_that_is_gone_is_refused(
    taker: Standalone, next_plan: Callable[..., EnginePlan], changes: dict[str, object], words: str
):
    with pytest.raises(ValueError, match=words):
        taker.start(contract.dumps(next_plan(**changes)))
    assert taker.view().job == ""


@pytest.mark.parametrize(("told", "seconds"), [({}, 0.0), ({contract.DRAIN_VARIABLE: "60"}, 60.0)])
def test_how_long_it_drains_is_the_pods_to_say(told: dict[str, str], seconds: float):
    assert standalone.drain_seconds(told) == seconds


def test_an_engine_that_has_failed_is_not_drained(taker: Standalone, next_plan: Callable[..., EnginePlan]):
    taker.stop(600.0)
    taker.start(contract.dumps(next_plan()))
    failed(taker, 1)
    taker.stop(600.0)


def test_it_starts_from_an_archive_and_ends_on_sigterm(tmp_path: Path):
    archive = tmp_path / "bootstrap.zip"
    package = Path(vllm_bootstrap.__file__).parent
    with zipfile.ZipFile(archive, "w") as zipped:
        for file in package.rglob("*.py"):
            zipped.write(file, file.relative_to(package.parent))
    port = str(free_port())
    command = [sys.executable, "-c", UNPACK, str(archive), port]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # noqa: S603
    assert process.stderr
    line = next((line for line in process.stderr if "waiting for the operator's plan" in line), "")
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE) == 0
    process.stderr.close()
    assert f"port {port}" in line
