"""One attempt of an engine on its lead pod: the launcher at once, the supervisor when all has been looked at.

Importing vLLM takes ten seconds, in which the engine is placed and its pods are looked at.  Nothing here knows Ray: an
actor holds a host where there is a Ray cluster, a process where there is none.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import vllm_bootstrap
from vllm_bootstrap.clock import Clock
from vllm_bootstrap.contract import EnginePlan, EngineReport, FailureReason, Phase
from vllm_bootstrap.download.fetch import Site
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.launching import guard
from vllm_bootstrap.launching.environment import (
    INSTANCE_VARIABLE,
    data_parallel_environment,
    launcher_environment,
    refuse_second_key,
    secret_names,
)
from vllm_bootstrap.launching.order import EVENTS_FILE, ORDER_FILE, LaunchOrder
from vllm_bootstrap.launching.sweep import sweep
from vllm_bootstrap.supervising.adapter_fetch import AdapterFetcher
from vllm_bootstrap.supervising.control import View, readiness
from vllm_bootstrap.supervising.engine_http import HttpEngine
from vllm_bootstrap.supervising.events import Event, Inbox, StopAsked
from vllm_bootstrap.supervising.given import Given, read_files
from vllm_bootstrap.supervising.heartbeat import Heartbeat
from vllm_bootstrap.supervising.launcher_process import GuardedLauncher
from vllm_bootstrap.supervising.report import ReportWriter, choose_sink, failed_report
from vllm_bootstrap.supervising.supervisor import Paths, RankWatch, Supervisor
from vllm_bootstrap.vllm_adapter.arguments import find_api_key

LOG = logging.getLogger(__name__)

KEY_FILE = "api-key"
PACKAGE = Path(vllm_bootstrap.__file__).parent.parent


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the pod gives to an engine.

    Attributes
    ----------
    environment
        As the pod was given it.
    host_ip
        Address of the pod.
    log
        File of the launcher's output.
    ray_address
        Of the Ray cluster; empty where there is none.
    """

    environment: Mapping[str, str]
    host_ip: str
    log: Path
    ray_address: str = ""


class EngineHost:
    """Holds a waiting launcher from its first moment, and an engine from ``run`` on.

    Parameters
    ----------
    watch
        Makes what watches the ranks, from where it tells them and the launcher's process group (0 before its start).
    sites
        Makes a site in each pod that holds ranks, from the report that names them; the lead's first.
    given
        Reads what the user gave in Secrets and ConfigMaps; the files that are mounted by default.
    """

    def __init__(
        self,
        plan: EnginePlan,
        surroundings: Surroundings,
        *,
        watch: Callable[[Inbox, Callable[[], int]], RankWatch],
        sites: Callable[[EngineReport], Sequence[Site]],
        clock: Clock,
        given: Callable[[EnginePlan], Given] = read_files,
    ) -> None:
        self.plan = plan
        self._surroundings = surroundings
        self._watch = watch
        self._sites = sites
        self._read_given = given
        self._key_file = plan.api_key_file
        self._clock = clock
        self._work = Path(tempfile.mkdtemp(prefix=f"{plan.instance_id}-"))
        self._inbox = Inbox()
        self._gate_token = secrets.token_hex(32)
        self._secrets: list[str] = []
        self._launcher: GuardedLauncher | None = None
        self._http: HttpEngine | None = None
        self._supervisor: Supervisor | None = None
        self._refused: EngineReport | None = None
        self._fault: EngineFailure | None = None
        self._ended = threading.Event()
        self._stopping = threading.Event()
        self._preparation = threading.Thread(target=self._prepare, name="prepare", daemon=True)

    def prepare(self) -> None:
        """Start the launcher, in the background."""
        self._preparation.start()

    def view(self) -> View:
        """Give what the control server shows."""
        return View(
            report=self._supervisor.report if self._supervisor else self._refused,
            pulse=self._http.pulse if self._http else None,
            broken=self._inbox.broken.is_set(),
        )

    def requests(self) -> int | None:
        """Say how many requests are in flight; ``None`` while the engine does not tell."""
        # Before it serves its port may be bound and nobody behind it: who asks would wait.
        told = self._supervisor and self._supervisor.report.phase in (Phase.SERVING, Phase.DRAINING)
        return self._http.requests() if told and self._http else None

    def command(self, event: Event) -> bool:
        """Take what the operator asks; say whether there is an engine to ask."""
        if self._supervisor is None:
            return False
        if not self._ended.is_set():
            self._inbox.put(event)
        return True

    def stop(self, seconds: float) -> bool:
        """End the engine for good, because another attempt takes its place; say whether it came to that in time."""
        self._stopping.set()
        self._inbox.put(StopAsked(0.0))
        return self._ended.wait(seconds)

    def check_wanted(self) -> None:
        """See that nobody has asked for its end, before there is an engine that would hear it.

        Raises
        ------
        EngineFailure
            It is to end.
        """
        if self._stopping.is_set():
            raise EngineFailure(FailureReason.BOOTSTRAP_ERROR, "another attempt has taken its place")

    def await_end(self, seconds: float) -> bool:
        """Wait for the engine's end; say whether it came in time."""
        return self._ended.wait(seconds)

    def refuse(self, report: EngineReport, failure: EngineFailure) -> None:
        """Report that the engine cannot be started, and end the waiting launcher."""
        self._preparation.join()
        writer = ReportWriter(choose_sink(self.plan.report, os.environ), self._clock)
        self._refused = failed_report(report, failure, self._clock)
        writer.submit(self._refused)
        if self._launcher:
            self._launcher.kill()
        self._ended.set()

    def run(self, report: EngineReport, order: LaunchOrder) -> None:
        """Let the engine live through its attempt."""
        plan = self.plan
        self._preparation.join()
        if self._launcher is None or self._http is None:
            fault = self._fault or EngineFailure(FailureReason.BOOTSTRAP_ERROR, "the launcher was not started")
            self.refuse(report, fault)
            return
        writer = ReportWriter(choose_sink(plan.report, os.environ), self._clock)
        launcher = self._launcher
        launcher.assign(
            replace(
                order,
                gate_token=self._gate_token,
                api_key_file=self._key_file,
                address=self._surroundings.host_ip,
                secrets=tuple(self._secrets),
            )
        )
        self._supervisor = Supervisor(
            plan,
            report,
            launcher=launcher,
            engine=self._http,
            ranks=self._watch(self._inbox, lambda: launcher.group),
            fetcher=AdapterFetcher(plan, sites=lambda: self._sites(report), inbox=self._inbox, clock=self._clock),
            inbox=self._inbox,
            paths=Paths(log=self._surroundings.log, events=self._work / EVENTS_FILE),
            publish=writer.submit,
            clock=self._clock,
        )
        heartbeat = Heartbeat(plan.heartbeat, look=self._sign, publish=writer.submit, clock=self._clock)
        if plan.heartbeat:
            heartbeat.start()
        self._supervisor.run()
        heartbeat.stop()
        self._ended.set()

    def _sign(self) -> tuple[EngineReport | None, bool, str]:
        view = self.view()
        ready, why = readiness(view, self._clock.monotonic())
        return view.report, ready, why

    def _prepare(self) -> None:
        """Start the launcher; what stands in its way is told when the engine would start."""
        plan = self.plan
        try:
            killed = sweep(INSTANCE_VARIABLE, instance_prefix(plan))
            if killed:
                LOG.warning("killed processes that an earlier attempt left: %s", killed)
            given = self._read_given(plan)
            environment = self._environment(given)
            self._hand_key(given.api_key)
            self._http = HttpEngine(
                port=plan.http_port,
                model=plan.served_name,
                key=given.api_key or find_api_key(plan.arguments, environment),
                gate_token=self._gate_token,
                data=plan.data,
                inbox=self._inbox,
                clock=self._clock,
            )
            launcher = GuardedLauncher(
                guard.Orders(
                    command=(sys.executable, "-m", "vllm_bootstrap.entrypoints.launcher", str(self._work)),
                    log=str(self._surroundings.log),
                    echo="KUBERNETES_SERVICE_HOST" in os.environ,
                ),
                order_file=self._work / ORDER_FILE,
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

    def _hand_key(self, key: str) -> None:
        """Give the launcher the key in a file, where it has none that is mounted; only this user can read it."""
        if key and not self.plan.api_key_file:
            path = self._work / KEY_FILE
            path.touch(mode=0o600)
            path.write_text(key)
            self._key_file = str(path)

    def _environment(self, given: Given) -> dict[str, str]:
        for warning in given.warnings:
            LOG.warning(warning)
        environment = launcher_environment(
            self._surroundings.environment,
            given.variables,
            ray_address=self._surroundings.ray_address,
            host_ip=self._surroundings.host_ip,
            instance_id=self.plan.instance_id,
            package=str(PACKAGE),
            offline=bool(self.plan.source.repository),
        )
        refuse_second_key(self.plan, environment)
        if self.plan.data > 1:
            self._secrets = secret_names(self.plan, given.variables, environment)
            environment |= data_parallel_environment(self.plan, environment)
        return environment


def instance_prefix(plan: EnginePlan) -> str:
    """Give what the instance ids of all attempts of an engine begin with."""
    return plan.instance_id.rpartition("-")[0] + "-"
