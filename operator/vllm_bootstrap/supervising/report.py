"""Tell the operator: the engine's report goes whole into the one ConfigMap that this pod may patch.

Nothing here may hurt an engine that serves.  So the writing happens in a thread of its own, only the newest report
counts (an older one that could not be written is dropped, not queued), and a failure is logged, not raised.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from vllm_bootstrap import contract
from vllm_bootstrap.clock import Clock
from vllm_bootstrap.contract import AdapterReport, AdapterState, EnginePlan, EngineReport, Phase, ReportTarget
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.supervising.api_server import ApiServer

LOG = logging.getLogger(__name__)

FOLDER_VARIABLE = "VLLM_OPERATOR_REPORT_DIR"
"""Outside Kubernetes: reports go to files in this folder."""

FIRST_BACKOFF, LAST_BACKOFF = 0.2, 5.0
GIVE_UP_SECONDS = 600.0
MESSAGE_LIMIT = 4096
LINE_LIMIT = 1000


class Sink(Protocol):
    """Where a report goes; raises ``OSError`` when it could not be written."""

    def write(self, text: str) -> None:
        """Replace the report by ``text``."""


class ConfigMapSink:
    """Merge-patch of one key of a ConfigMap, with the pod's own service account."""

    def __init__(self, target: ReportTarget, server: ApiServer) -> None:
        self._path = f"/api/v1/namespaces/{target.namespace}/configmaps/{target.config_map}"
        self._server = server

    def write(self, text: str) -> None:
        """Patch the ConfigMap."""
        self._server.patch(self._path, {"data": {contract.REPORT_KEY: text}})


class FolderSink:
    """A file instead of a ConfigMap, for runs without Kubernetes."""

    def __init__(self, folder: Path, target: ReportTarget) -> None:
        self._path = folder / f"{target.config_map}.json"

    def write(self, text: str) -> None:
        """Replace the file in one step."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(f".{os.getpid()}")
        draft.write_text(text)
        draft.replace(self._path)


class NoSink:
    """Neither Kubernetes nor a folder: the log is all there is."""

    def write(self, text: str) -> None:
        """Log it."""
        LOG.info("report: %s", text)


def choose_sink(target: ReportTarget, environment: Mapping[str, str]) -> Sink:
    """Find where reports go from here."""
    if folder := environment.get(FOLDER_VARIABLE):
        return FolderSink(Path(folder), target)
    if server := ApiServer.of(environment):
        return ConfigMapSink(target, server)
    return NoSink()


def trim(text: str, limit: int) -> str:
    """Shorten a text in its middle: the beginning says what, the end says why."""
    if len(text) <= limit:
        return text
    half = (limit - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


class ReportWriter:
    """Writes the newest report, in the background.

    Parameters
    ----------
    sink
        Where to.
    clock
        Times the retries.
    """

    def __init__(self, sink: Sink, clock: Clock) -> None:
        self._sink = sink
        self._clock = clock
        self._changed = threading.Condition()
        self._newest: EngineReport | None = None
        self._settled = True
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="report-writer", daemon=True)
        self._thread.start()

    def submit(self, report: EngineReport) -> None:
        """Hand over a report; it replaces one that is not yet written, unless that is a later one."""
        with self._changed:
            if self._newest and report.sequence < self._newest.sequence:
                return
            self._newest = report
            self._settled = False
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Wait until the newest report is written, or given up; say whether it came to that in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._settled, timeout=seconds)

    def close(self) -> None:
        """End the thread; what is not written by now is lost (``flush`` first)."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while (report := self._next()) is not None:
            self._write(report)

    def _next(self) -> EngineReport | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._settled)
            return None if self._closed else self._newest

    def _write(self, report: EngineReport) -> None:
        text = contract.dumps(report)
        backoff, deadline = FIRST_BACKOFF, self._clock.monotonic() + GIVE_UP_SECONDS
        while not self._superseded(report):
            try:
                self._sink.write(text)
            except Exception as error:  # noqa: BLE001, RUF100 - a report must never end the engine that it is about
                LOG.warning("report %d (%s) could not be written: %s", report.sequence, report.phase, error)
                if self._clock.monotonic() >= deadline:
                    break
                self._pause(report, backoff)
                backoff = min(backoff * 2, LAST_BACKOFF)
            else:
                break
        self._settle(report)

    def _superseded(self, report: EngineReport) -> bool:
        with self._changed:
            return self._closed or self._newest is not report

    def _pause(self, report: EngineReport, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._newest is not report, timeout=seconds)

    def _settle(self, report: EngineReport) -> None:
        with self._changed:
            if self._newest is report:
                self._settled = True
            self._changed.notify_all()


def first_report(plan: EnginePlan, clock: Clock) -> EngineReport:
    """Make the report from which all others of an attempt follow."""
    return EngineReport(
        uid=plan.uid,
        engine=plan.engine,
        revision=plan.revision,
        attempt=plan.attempt,
        ray_session=plan.ray_session,
        sequence=0,
        phase=Phase.PLACING,
        time=clock.timestamp(),
        adapters=tuple(
            AdapterReport(name=item.name, path=item.path, state=AdapterState.PENDING, commit=item.commit)
            for item in plan.adapters
            if item.source.repository
        ),
        hub_adapters=True,
    )


def failed_report(report: EngineReport, failure: EngineFailure, clock: Clock) -> EngineReport:
    """Make the report of a failure that came before there was an engine to watch."""
    return replace(
        report,
        sequence=report.sequence + 1,
        time=clock.timestamp(),
        phase=Phase.FAILED,
        reason=str(failure.reason),
        message=trim(failure.message, MESSAGE_LIMIT),
        failed_rank=failure.rank,
    )
