"""The Ray actor around the supervisor: detached, so that it outlives the bootstrap job, and on the lead pod."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

import vllm_bootstrap
from vllm_bootstrap import contract, guard, launch
from vllm_bootstrap.clock import Clock, poll
from vllm_bootstrap.contract import EnginePlan, EngineReport, Phase
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
from vllm_bootstrap.report import ReportWriter, choose_sink
from vllm_bootstrap.supervisor import Event, Inbox, Paths, StopAsked, Supervisor
from vllm_bootstrap.sweep import sweep
from vllm_bootstrap.vllm_adapter.facts import actor_name

LOG = logging.getLogger(__name__)

LOG_FOLDER = Path("/tmp/ray/session_latest/logs")  # noqa: S108 - Ray's default

PORT_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What the bootstrap job hands over once everything is placed and looked at."""

    plan: str
    report: str
    placement_group: str
    bundles: tuple[int, ...]


class SupervisorActor:
    """Holds the control server from its first moment, and one engine from ``start`` on."""

    def __init__(self, engine: str, port: int) -> None:
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
        self._clock = Clock()
        self._plan: EnginePlan | None = None
        self._supervisor: Supervisor | None = None
        self._refused: EngineReport | None = None
        self._http: HttpEngine | None = None
        self._inbox = Inbox()
        self._ended = threading.Event()
        LOG.info("supervisor of %s, pid %d", engine, os.getpid())
        self._server = self._listen(port)

    def describe(self) -> str:
        """Give the job id of the plan that it runs; empty until it has one."""
        return contract.job_id(self._plan) if self._plan else ""

    def start(self, assignment: Assignment) -> str:
        """Take over; the launch itself goes on after the answer."""
        if self._plan is None:
            self._plan = contract.loads(EnginePlan, assignment.plan)
            report = contract.loads(EngineReport, assignment.report)
            gcs, host = str(ray.get_runtime_context().gcs_address), ray.util.get_node_ip_address()
            thread = threading.Thread(
                target=self._run, args=(self._plan, report, assignment, gcs, host), name="supervisor", daemon=True
            )
            thread.start()
        return self.describe()

    def end(self, seconds: float) -> bool:
        """End the engine for good, because another attempt takes its place; say whether it came to that in time."""
        if self._supervisor is None:
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
        if self._supervisor is None or self._ended.is_set():
            return False
        self._inbox.put(event)
        return True

    def _run(self, plan: EnginePlan, report: EngineReport, assignment: Assignment, gcs: str, host: str) -> None:
        writer = ReportWriter(choose_sink(plan.report, os.environ), self._clock)
        try:
            self._supervisor = self._assemble(plan, report, assignment, writer, gcs=gcs, host=host)
        except EngineFailure as failure:
            self._refused = failed_report(report, failure, self._clock)
            writer.submit(self._refused)
            LOG.warning("%s", failure)
        else:
            self._supervisor.run()
        self._ended.set()

    def _assemble(
        self,
        plan: EnginePlan,
        report: EngineReport,
        assignment: Assignment,
        writer: ReportWriter,
        *,
        gcs: str,
        host: str,
    ) -> Supervisor:
        package = Path(vllm_bootstrap.__file__).parent.parent
        work = Path(tempfile.mkdtemp(prefix=f"{plan.instance_id}-"))
        paths = Paths(log=log_path(plan), events=work / "events.jsonl")
        killed = sweep(INSTANCE_VARIABLE, instance_prefix(plan))
        if killed:
            LOG.warning("killed processes that an earlier attempt left: %s", killed)
        order = launch.make_order(plan, placement_group=assignment.placement_group, events=paths.events)
        order.write(work / "order.json")
        variables, warnings = plan_environment(plan)
        for warning in warnings:
            LOG.warning(warning)
        environment = launcher_environment(
            base_environment(os.environ, raylet_environment()),
            variables,
            ray_address=gcs,
            bundle_indices=assignment.bundles,
            host_ip=host,
            instance_id=plan.instance_id,
            package=str(package),
        )
        orders = guard.Orders(
            command=(sys.executable, "-m", "vllm_bootstrap.launcher", str(work / "order.json")),
            log=str(paths.log),
            echo="KUBERNETES_SERVICE_HOST" in os.environ,
        )
        self._http = HttpEngine(
            port=plan.http_port,
            model=plan.served_name,
            key=environment.get("VLLM_API_KEY", ""),
            inbox=self._inbox,
            clock=self._clock,
        )
        return Supervisor(
            plan,
            report,
            launcher=GuardedLauncher(
                orders,
                environment=environment,
                package=package,
                port=plan.http_port,
                cleanup_seconds=plan.deadlines.cleanup,
                inbox=self._inbox,
                clock=self._clock,
            ),
            engine=self._http,
            ranks=RayRankWatch(rank_names(plan), gcs, self._inbox),
            inbox=self._inbox,
            paths=paths,
            publish=writer.submit,
            clock=self._clock,
        )


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


def failed_report(report: EngineReport, failure: EngineFailure, clock: Clock, **changes: Any) -> EngineReport:
    """Make the report of a failure that came before there was an engine to watch."""
    return replace(
        report,
        sequence=report.sequence + 1,
        time=clock.timestamp(),
        phase=Phase.FAILED,
        reason=str(failure.reason),
        message=failure.message,
        failed_rank=failure.rank,
        **changes,
    )
