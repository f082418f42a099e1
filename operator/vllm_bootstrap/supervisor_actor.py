"""The Ray actor around the supervisor: detached, so that it outlives the bootstrap job, and on the lead pod.

It is made before the engine is placed, and starts the launcher at once: importing vLLM takes ten seconds, in which the
placement group is made and the pods are looked at.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import ray

import vllm_bootstrap
from vllm_bootstrap import contract, guard, launch
from vllm_bootstrap.clock import Clock, poll
from vllm_bootstrap.contract import EnginePlan, EngineReport, FailureReason
from vllm_bootstrap.control import ControlServer, View
from vllm_bootstrap.engine_http import HttpEngine
from vllm_bootstrap.environment import (
    INSTANCE_VARIABLE,
    base_environment,
    launcher_environment,
    parse_environ,
    plan_environment,
)
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.launcher_process import GuardedLauncher
from vllm_bootstrap.rank_watch import RayRankWatch
from vllm_bootstrap.report import ReportWriter, choose_sink, failed_report
from vllm_bootstrap.supervisor import Event, Inbox, Paths, StopAsked, Supervisor
from vllm_bootstrap.sweep import sweep
from vllm_bootstrap.vllm_adapter.arguments import find_api_key
from vllm_bootstrap.vllm_adapter.facts import actor_name

LOG = logging.getLogger(__name__)

LOG_FOLDER = Path("/tmp/ray/session_latest/logs")  # noqa: S108 - Ray's default

PORT_SECONDS = 30.0


PACKAGE = Path(vllm_bootstrap.__file__).parent.parent


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What the bootstrap job hands over once everything is placed and looked at."""

    report: str
    placement_group: str
    bundles: tuple[int, ...]


class SupervisorActor:
    """Holds the control server and a waiting launcher from its first moment, and an engine from ``start`` on."""

    def __init__(self, plan: str) -> None:
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
        self._clock = Clock()
        self._plan = contract.loads(EnginePlan, plan)
        self._work = Path(tempfile.mkdtemp(prefix=f"{self._plan.instance_id}-"))
        self._inbox = Inbox()
        self._launcher: GuardedLauncher | None = None
        self._http: HttpEngine | None = None
        self._supervisor: Supervisor | None = None
        self._refused: EngineReport | None = None
        self._fault: EngineFailure | None = None
        self._accepted = threading.Lock()
        self._ended = threading.Event()
        LOG.info("supervisor of %s, pid %d", self._plan.instance_id, os.getpid())
        self._server = self._listen(self._plan.supervisor_port)
        # Ray's context belongs to this thread.
        self._gcs, self._host = str(ray.get_runtime_context().gcs_address), ray.util.get_node_ip_address()
        self._preparation = threading.Thread(target=self._prepare, name="prepare", daemon=True)
        self._preparation.start()

    def describe(self) -> str:
        """Give the job id of the plan that it has taken over; empty until then."""
        return contract.job_id(self._plan) if self._accepted.locked() else ""

    def start(self, assignment: Assignment) -> str:
        """Take over; the launch itself goes on after the answer."""
        if self._accepted.acquire(blocking=False):
            threading.Thread(target=self._run, args=(assignment,), name="supervisor", daemon=True).start()
        return self.describe()

    def end(self, seconds: float) -> bool:
        """End the engine for good, because another attempt takes its place; say whether it came to that in time."""
        if not self._accepted.locked():
            return True
        self._inbox.put(StopAsked(0.0))
        return self._ended.wait(seconds)

    def _listen(self, port: int) -> ControlServer:
        """Bind the port; the supervisor of the attempt before may hold it for another moment."""

        def bind() -> ControlServer | None:
            try:
                return ControlServer(
                    port,
                    view=self._view,
                    command=self._command,
                    token_file=Path(contract.CONTROL_TOKEN_FILE),
                    now=self._clock.monotonic,
                )
            except OSError as error:
                LOG.info("port %d: %s", port, error)
                return None

        server = poll(bind, seconds=PORT_SECONDS, clock=self._clock)
        if server is None:
            raise OSError(f"port {port} of the lead pod is taken")
        return server

    def _view(self) -> View:
        return View(
            report=self._supervisor.report if self._supervisor else self._refused,
            pulse=self._http.pulse if self._http else None,
            broken=self._inbox.broken.is_set(),
        )

    def _command(self, event: Event) -> bool:
        if self._supervisor is None:
            return False
        if not self._ended.is_set():
            self._inbox.put(event)
        return True

    def _prepare(self) -> None:
        """Start the launcher; what stands in its way is told when the engine would start."""
        plan = self._plan
        try:
            killed = sweep(INSTANCE_VARIABLE, instance_prefix(plan))
            if killed:
                LOG.warning("killed processes that an earlier attempt left: %s", killed)
            environment = self._environment()
            self._http = HttpEngine(
                port=plan.http_port,
                model=plan.served_name,
                key=find_api_key(plan.arguments, environment),
                inbox=self._inbox,
                clock=self._clock,
            )
            launcher = GuardedLauncher(
                guard.Orders(
                    command=(sys.executable, "-m", "vllm_bootstrap.launcher", str(self._work)),
                    log=str(log_path(plan)),
                    echo="KUBERNETES_SERVICE_HOST" in os.environ,
                ),
                order_file=self._work / launch.ORDER_FILE,
                environment=environment,
                package=PACKAGE,
                port=plan.http_port,
                cleanup_seconds=plan.deadlines.cleanup,
                inbox=self._inbox,
                clock=self._clock,
            )
            launcher.prepare()
            self._launcher = launcher
        except EngineFailure as failure:
            self._fault = failure
        except Exception as error:
            LOG.exception("the launcher could not be started")
            self._fault = EngineFailure(FailureReason.BOOTSTRAP_ERROR, f"the launcher could not be started: {error!r}")

    def _environment(self) -> dict[str, str]:
        variables, warnings = plan_environment(self._plan)
        for warning in warnings:
            LOG.warning(warning)
        return launcher_environment(
            base_environment(os.environ, raylet_environment()),
            variables,
            ray_address=self._gcs,
            host_ip=self._host,
            instance_id=self._plan.instance_id,
            package=str(PACKAGE),
        )

    def _run(self, assignment: Assignment) -> None:
        plan = self._plan
        report = contract.loads(EngineReport, assignment.report)
        writer = ReportWriter(choose_sink(plan.report, os.environ), self._clock)
        self._preparation.join()
        if self._launcher is None or self._http is None:
            fault = self._fault or EngineFailure(FailureReason.BOOTSTRAP_ERROR, "the launcher was not started")
            self._refused = failed_report(report, fault, self._clock)
            writer.submit(self._refused)
        else:
            self._launcher.assign(
                launch.make_order(plan, placement_group=assignment.placement_group, bundles=assignment.bundles)
            )
            self._supervisor = Supervisor(
                plan,
                report,
                launcher=self._launcher,
                engine=self._http,
                ranks=RayRankWatch(rank_names(plan), self._gcs, self._inbox),
                inbox=self._inbox,
                paths=Paths(log=log_path(plan), events=self._work / launch.EVENTS_FILE),
                publish=writer.submit,
                clock=self._clock,
            )
            self._supervisor.run()
        self._ended.set()


def instance_prefix(plan: EnginePlan) -> str:
    """Give what the instance ids of all attempts of an engine begin with."""
    return plan.instance_id.rpartition("-")[0] + "-"


def rank_names(plan: EnginePlan) -> dict[str, int]:
    """Give the actor name of each rank."""
    return {
        actor_name(plan.instance_id, rank, tensor=plan.tensor, pipeline=plan.pipeline): rank
        for rank in range(plan.world_size)
    }


def log_path(plan: EnginePlan) -> Path:
    """Give the file of the launcher's output: beside Ray's own logs, where Ray's dashboard shows it."""
    own_output = Path("/proc/self/fd/1").resolve()
    folder = own_output.parent if own_output.is_file() else LOG_FOLDER
    return folder / f"vllm-{plan.instance_id}.log"


def raylet_environment() -> dict[str, str]:
    """Read the environment with which Ray's node manager, our parent, was started; empty when it cannot be read."""
    try:
        return parse_environ(Path(f"/proc/{os.getppid()}/environ").read_bytes())
    except OSError:
        return {}
