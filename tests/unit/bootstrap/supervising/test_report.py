"""Reports: the newest one arrives, and nothing that goes wrong on the way reaches the engine."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from pathlib import Path

import pytest

from vllm_bootstrap import contract
from vllm_bootstrap.clock import Clock
from vllm_bootstrap.contract import EngineReport, Phase, ReportTarget
from vllm_bootstrap.supervising import api_server as server_of_pods
from vllm_bootstrap.supervising import report
from vllm_bootstrap.supervising.api_server import ApiServer
from vllm_bootstrap.supervising.report import ConfigMapSink, FolderSink, NoSink, ReportWriter, choose_sink, trim

TARGET = ReportTarget(namespace="ns", config_map="cm")


def numbered(sequence: int) -> EngineReport:
    return EngineReport(
        uid="u",
        engine="e",
        revision="r",
        attempt=1,
        ray_session="s",
        sequence=sequence,
        phase=Phase.LOADING,
        time="t",
    )


class SlowSink:
    """Keeps the first write until it is let go."""

    def __init__(self, failures: int = 0) -> None:
        self.entered = threading.Event()
        self.go = threading.Event()
        self.written: list[int] = []
        self.failures = failures
        self.tries = 0

    def write(self, text: str) -> None:
        self.entered.set()
        self.go.wait(5)
        self.tries += 1
        if self.tries <= self.failures:
            raise OSError("no route")
        self.written.append(contract.loads(EngineReport, text).sequence)


def test_only_the_newest_of_those_that_wait_is_written():
    sink = SlowSink()
    writer = ReportWriter(sink, Clock())
    writer.submit(numbered(1))
    assert sink.entered.wait(5)
    for sequence in range(2, 50):
        writer.submit(numbered(sequence))
    sink.go.set()
    assert writer.flush(5)
    assert sink.written == [1, 49]
    writer.close()


def test_flush_says_when_it_did_not_come_to_that():
    sink = SlowSink()
    writer = ReportWriter(sink, Clock())
    writer.submit(numbered(1))
    assert not writer.flush(0.05)
    sink.go.set()
    assert writer.flush(5)


def test_a_failed_write_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report, "FIRST_BACKOFF", 0.01)
    sink = SlowSink(failures=3)
    sink.go.set()
    writer = ReportWriter(sink, Clock())
    writer.submit(numbered(1))
    assert writer.flush(5)
    assert sink.written == [1]
    assert sink.tries == 4


def test_a_newer_report_does_not_wait_for_the_backoff_of_an_older(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report, "FIRST_BACKOFF", 60.0)
    sink = SlowSink(failures=1)
    sink.go.set()
    writer = ReportWriter(sink, Clock())
    writer.submit(numbered(1))
    assert sink.entered.wait(5)
    writer.submit(numbered(2))
    assert writer.flush(5)
    assert sink.written == [2]


def test_a_folder_takes_reports_outside_kubernetes(tmp_path: Path):
    sink = choose_sink(TARGET, {report.FOLDER_VARIABLE: str(tmp_path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert isinstance(sink, FolderSink)
    sink.write("{}")
    assert [path.name for path in tmp_path.iterdir()] == ["cm.json"]


def test_the_sink_is_chosen_by_the_environment():
    assert isinstance(choose_sink(TARGET, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}), ConfigMapSink)
    assert isinstance(choose_sink(TARGET, {}), NoSink)


@pytest.fixture
def api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An API server that keeps what it is asked; TLS is left out, the rest is real."""
    asked: list[tuple[str, str, str, bytes]] = []
    answers = [200]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.path, self.headers["Content-Type"], self.headers["Authorization"], body))
            self.send_response(answers[0])
            self.end_headers()
            self.wfile.write(b"forbidden" if answers[0] != 200 else b"{}")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(ssl, "create_default_context", lambda cafile: None)
    monkeypatch.setattr(
        server_of_pods.http.client,
        "HTTPSConnection",
        lambda host, port, timeout, context: server_of_pods.http.client.HTTPConnection(host, port),
    )
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_text("")
    yield ConfigMapSink(TARGET, ApiServer(host="127.0.0.1", port=server.server_port, account=tmp_path)), asked, answers
    server.shutdown()
    server.server_close()


def test_a_config_map_is_merge_patched_with_the_present_token(api_server, tmp_path: Path):
    sink, asked, _ = api_server
    sink.write('{"a":1}')
    (tmp_path / "token").write_text("second")
    sink.write('{"a":2}')
    path, kind, authorization, body = asked[0]
    assert path == "/api/v1/namespaces/ns/configmaps/cm"
    assert kind == "application/merge-patch+json"
    assert authorization == "Bearer first"
    assert json.loads(body) == {"data": {contract.REPORT_KEY: '{"a":1}'}}
    assert asked[1][2] == "Bearer second"


def test_a_refusal_is_an_error_with_the_answer_in_it(api_server):
    sink, _, answers = api_server
    answers[0] = 403
    with pytest.raises(OSError, match="403 forbidden"):
        sink.write("{}")


def test_trim():
    assert trim("short", 10) == "short"
    assert trim("a" * 50 + "b" * 50, 21) == "aaaaaaaa ... bbbbbbbb"
