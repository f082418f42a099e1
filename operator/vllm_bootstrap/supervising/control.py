"""Port 8001 of the lead pod: readiness for the kubelet, and the operator's only command channel.

``/readyz`` is what keeps traffic away from a dead engine, also while the operator is away; so it depends on nothing but
this process.  It is open: the kubelet has no token.  The rest needs the control token.
"""

from __future__ import annotations

import hmac
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from vllm_bootstrap.contract import AdapterList, ContractError, EngineReport, Phase, loads
from vllm_bootstrap.launching.order import LISTEN_HOST
from vllm_bootstrap.supervising.engine_http import Pulse
from vllm_bootstrap.supervising.events import STOP_SECONDS, AdaptersAsked, DrainAsked, Event, StopAsked

LOG = logging.getLogger(__name__)

REQUEST_SECONDS = 10.0
BODY_LIMIT = 65536
PLAN_LIMIT = 4 * 1024 * 1024
LONGEST_SECONDS = 7 * 86400.0
PATHS = "there are /readyz, /status, /drain, /stop and /adapters"


@dataclass(frozen=True, kw_only=True)
class View:
    """What the server shows at one instant.

    Attributes
    ----------
    report
        ``None`` until the supervisor has accepted a plan.
    broken
        Something of the engine died.
    session
        Of the process that takes plans, where there is no Ray to take them; a new one has lost all that was before.
    job
        Job id of the plan that it has taken last.
    """

    report: EngineReport | None = None
    pulse: Pulse | None = None
    broken: bool = False
    session: str = ""
    job: str = ""


def readiness(view: View, now: float) -> tuple[bool, str]:
    """Decide whether this engine may have traffic, and say why not."""
    if view.report is None:
        return False, "placing: no engine has been started yet"
    if view.report.phase is not Phase.SERVING:
        detail = f": {view.report.reason}: {view.report.message}" if view.report.reason else ""
        return False, f"{view.report.phase}{detail}"
    if view.broken:
        return False, "a process of the engine has died"
    if view.pulse is None or not view.pulse.is_alive(now):
        return False, "the engine does not answer on /health"
    return True, "serving"


class TokenSource(Protocol):
    """Where the control token is read for each request; a file, or what was fetched."""

    def read_bytes(self) -> bytes:
        """Give it; raises ``OSError`` when it is not there."""


class ControlServer:
    """The HTTP server; each request in a thread of its own.

    Parameters
    ----------
    port
        Where to listen; 0 takes a free one.
    view
        Gives what is to be shown.
    command
        Takes what the operator asks.
    requests
        Says how many requests are in flight; ``None`` when that is not known.
    start
        Takes the text of a plan and gives its job id; ``None`` where Ray's jobs bring the plans.
    token_file
        Holds the control token.
    now
        A monotonic clock.
    """

    def __init__(
        self,
        port: int,
        *,
        view: Callable[[], View],
        command: Callable[[Event], bool],
        token_file: TokenSource,
        now: Callable[[], float],
        requests: Callable[[], int | None],
        start: Callable[[str], str] | None = None,
    ) -> None:
        handler = type("Handler", (_Handler,), {"token_file": token_file})
        # As plain functions of a class they would become methods.
        functions: dict[str, Callable[..., Any]] = {
            "view": view,
            "order": command,
            "now": now,
            "requests": requests,
            "launch": start or _no_launch,
        }
        for name, function in functions.items():
            setattr(handler, name, staticmethod(function))
        self._server = _Server((LISTEN_HOST, port), handler)
        threading.Thread(target=self._server.serve_forever, name="control-server", daemon=True).start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64


class _Handler(BaseHTTPRequestHandler):
    view: Callable[[], View]
    order: Callable[[Event], bool]  # not `command`: the base class keeps the HTTP method there
    launch: Callable[[str], str]
    token_file: TokenSource
    now: Callable[[], float]
    requests: Callable[[], int | None]

    protocol_version = "HTTP/1.1"
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        """Answer the probe and the operator's question."""
        if self.path == "/readyz":
            ready, why = readiness(self.view(), self.now())
            self._answer(HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE, why)
        elif self.path == "/status":
            if self._is_allowed():
                self._answer(HTTPStatus.OK, self._status())
        else:
            self._answer(HTTPStatus.NOT_FOUND, PATHS)

    def do_POST(self) -> None:
        """Take a command."""
        if self.path == "/start":
            self._start()
            return
        if self.path == "/adapters":
            self._take_adapters()
            return
        body = self._body()
        if self.path not in ("/drain", "/stop"):
            self._answer(HTTPStatus.NOT_FOUND, PATHS)
        elif body is None:
            self._answer(HTTPStatus.BAD_REQUEST, "the body is no JSON object")
        elif self._is_allowed():
            self._pass_on((DrainAsked if self.path == "/drain" else StopAsked)(_seconds(body)))

    def _pass_on(self, event: Event) -> None:
        if self.order(event):
            self._answer(HTTPStatus.ACCEPTED, "accepted")
        else:
            self._answer(HTTPStatus.CONFLICT, "no engine has been started yet")

    def _take_adapters(self) -> None:
        text = self._text(PLAN_LIMIT)
        if not self._is_allowed():
            return
        try:
            wanted = loads(AdapterList, (text or b"").decode())
        except (ContractError, UnicodeDecodeError) as error:
            self._answer(HTTPStatus.BAD_REQUEST, f"the list of adapters cannot be read: {error}")
        else:
            self._pass_on(AdaptersAsked(wanted.adapters))

    def _start(self) -> None:
        text = self._text(PLAN_LIMIT)
        if not self._is_allowed():
            return
        try:
            self._answer(HTTPStatus.ACCEPTED, {"job": self.launch((text or b"").decode())})
        except NotImplementedError as error:
            self._answer(HTTPStatus.NOT_FOUND, str(error))
        except ValueError as error:
            self._answer(HTTPStatus.BAD_REQUEST, f"the plan cannot be read: {error}")

    def _status(self) -> dict[str, Any]:
        view = self.view()
        ready, why = readiness(view, self.now())
        report = asdict(view.report) if view.report else None
        return {
            "ready": ready,
            "why": why,
            "session": view.session,
            "job": view.job,
            "requests": self.requests(),
            "report": report,
        }

    def _is_allowed(self) -> bool:
        try:
            token = self.token_file.read_bytes().strip()
        except OSError:
            token = b""
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        # An empty token would let everybody in.
        if token and scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token):
            return True
        self._answer(HTTPStatus.UNAUTHORIZED, "the control token is needed: Authorization: Bearer …")
        return False

    def _body(self) -> dict[str, Any] | None:
        text = self._text(BODY_LIMIT)
        if text is None:
            return None
        try:
            value = json.loads(text) if text else {}
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    def _text(self, limit: int) -> bytes | None:
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > limit:
            self.close_connection = True
            return None
        return self.rfile.read(int(length))

    def _answer(self, status: HTTPStatus, value: object) -> None:
        if isinstance(value, str):
            data, kind = (value + "\n").encode(), "text/plain; charset=utf-8"
        else:
            data, kind = json.dumps(value).encode(), "application/json"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Log nothing: the kubelet asks every second."""
        LOG.debug(format, *args)


def _no_launch(_: str) -> str:
    raise NotImplementedError("plans come as Ray jobs here")


def _seconds(body: dict[str, Any]) -> float:
    value = body.get("timeoutSeconds", STOP_SECONDS)
    return max(0.0, min(float(value), LONGEST_SECONDS)) if isinstance(value, int | float) else STOP_SECONDS
