"""The lead pod of an engine without Ray: it takes plans from the operator, one attempt after the other.

Where there is Ray, a job brings the plan and an actor keeps the engine.  Here this process is both.  It is the pod's
first process, so the kubelet's SIGTERM reaches it, and it buries what its children leave.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from vllm_bootstrap import contract
from vllm_bootstrap.clock import Clock
from vllm_bootstrap.contract import DownloadReport, EnginePlan, EngineReport, FailureReason
from vllm_bootstrap.download.checkpoint import look_at_model
from vllm_bootstrap.download.downloader import Downloader
from vllm_bootstrap.download.fetch import fetch, model_order
from vllm_bootstrap.download.model_files import load_format
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.launching.environment import base_environment
from vllm_bootstrap.launching.order import make_order
from vllm_bootstrap.placing.placement import order_ranks
from vllm_bootstrap.placing.preflight import BundleFacts, judge, judge_model, look_around
from vllm_bootstrap.placing.rank_map import describe_ranks
from vllm_bootstrap.supervising.control import ControlServer, View
from vllm_bootstrap.supervising.events import STOP_SECONDS, DrainAsked, Event, StopAsked
from vllm_bootstrap.supervising.host import EngineHost, Surroundings
from vllm_bootstrap.supervising.process_watch import ProcessRankWatch
from vllm_bootstrap.supervising.report import ReportWriter, choose_sink, first_report
from vllm_bootstrap.vllm_adapter.facts import process_name

LOG = logging.getLogger(__name__)

LOG_FOLDER = Path("/tmp/vllm-operator")  # noqa: S108 - inside the container
END_SECONDS = 60.0
END_SLACK_SECONDS = 10.0


class Standalone:
    """Takes plans; the engine of the attempt before is ended first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._session = secrets.token_hex(8)
        self._host: EngineHost | None = None
        self._job = ""
        self._lock = threading.Lock()

    def view(self) -> View:
        """Give what the control server shows."""
        shown = self._host.view() if self._host else View()
        return replace(shown, session=self._session, job=self._job)

    def requests(self) -> int | None:
        """Say how many requests are in flight; ``None`` while there is no engine that tells."""
        return self._host.requests() if self._host else None

    def command(self, event: Event) -> bool:
        """Take what the operator asks; say whether there is an engine to ask."""
        return self._host.command(event) if self._host else False

    def start(self, text: str) -> str:
        """Take a plan; the launch itself goes on after the answer.

        Raises
        ------
        ContractError
            The text is no plan.
        ValueError
            The plan is for another process of this pod, which is gone.
        """
        plan = contract.loads(EnginePlan, text)
        if plan.ray_session != self._session:
            raise ValueError("it is of an earlier session")
        job = contract.job_id(plan)
        with self._lock:
            if job == self._job:
                return job
            before, self._job = self._host, job
            self._host = self._new_host(plan)
        threading.Thread(target=self._run, args=(plan, self._host, before), name="attempt", daemon=True).start()
        return job

    def stop(self, drain_seconds: float) -> None:
        """End the engine in order: let what is in flight be answered for so long, where it is more than nothing."""
        event = DrainAsked(drain_seconds) if drain_seconds else StopAsked(STOP_SECONDS)
        if self._host and self._host.command(event):
            self._host.await_end(drain_seconds + STOP_SECONDS + END_SLACK_SECONDS)

    def _new_host(self, plan: EnginePlan) -> EngineHost:
        surroundings = Surroundings(
            environment=base_environment(os.environ, {}),
            host_ip=os.environ.get("VLLM_HOST_IP", "127.0.0.1"),
            log=LOG_FOLDER / f"vllm-{plan.instance_id}.log",
        )
        return EngineHost(
            plan,
            surroundings,
            watch=lambda inbox, group: ProcessRankWatch(
                tensor=plan.tensor, world_size=plan.world_size, group=group, inbox=inbox
            ),
            sites=lambda _: [self._site(plan)],
            clock=self._clock,
        )

    def _site(self, plan: EnginePlan) -> Downloader:
        pod = os.environ.get(contract.POD_NAME_VARIABLE, "")
        return Downloader(pod, stall=plan.deadlines.stall, clock=self._clock)

    def _run(self, plan: EnginePlan, host: EngineHost, before: EngineHost | None) -> None:
        report = first_report(plan, self._clock)
        if before and not before.stop(END_SECONDS):
            LOG.warning("the engine of the attempt before has not ended within %g s", END_SECONDS)
        host.prepare()
        writer = ReportWriter(choose_sink(plan.report, os.environ), self._clock)
        writer.submit(report)
        try:
            report = self._looked(plan, report)
            model = ""
            if plan.source.repository:
                report, model = self._downloaded(plan, report, host, writer)
        except EngineFailure as failure:
            host.refuse(report, failure)
        except Exception as error:
            LOG.exception("the preflight failed")
            host.refuse(report, EngineFailure(FailureReason.PREFLIGHT_FAILED, f"the preflight failed: {error!r}"))
        else:
            host.run(report, make_order(plan, model=model))
        finally:
            writer.close()

    def _looked(self, plan: EnginePlan, report: EngineReport) -> EngineReport:
        """Look before the launch, and map the ranks: GPU i of the pod is rank i's."""
        machine = look_around(plan.model, form=load_format(plan.arguments))
        node = "pod"
        found = [
            BundleFacts(
                bundle=rank,
                ray_node=node,
                address=os.environ.get("VLLM_HOST_IP", ""),
                gpu=rank,
                pod=os.environ.get(contract.POD_NAME_VARIABLE, ""),
                node=os.environ.get(contract.NODE_NAME_VARIABLE, ""),
                machine=machine if rank == 0 else None,
            )
            for rank in range(plan.world_size)
        ]
        warnings = tuple(judge(plan, found))
        for warning in warnings:
            LOG.warning(warning)
        places = order_ranks(
            dict.fromkeys(range(plan.world_size), node), lead=node, tensor=plan.tensor, pipeline=plan.pipeline
        )
        ranks = tuple(
            replace(rank, ray_node="", actor=process_name(rank.rank, executor=plan.executor))
            for rank in describe_ranks(plan, places, found)
        )
        return self._next(
            report,
            ranks=ranks,
            versions={name: version for name, version in machine.versions.items() if version},
            warnings=warnings,
        )

    def _downloaded(
        self, plan: EnginePlan, report: EngineReport, host: EngineHost, writer: ReportWriter
    ) -> tuple[EngineReport, str]:
        """Bring the model to this pod; give the report that follows, and the model's folder."""
        newest = report

        def tell(downloads: tuple[DownloadReport, ...], message: str) -> None:
            nonlocal newest
            newest = self._next(newest, downloads=downloads, message=message)
            writer.submit(newest)

        site = self._site(plan)
        try:
            path = fetch([site], model_order(plan), tell=tell, check=host.check_wanted, clock=self._clock)
        finally:
            site.close()
        sight = look_at_model(path, form=load_format(plan.arguments))
        warnings = judge_model(plan, path, [(site.pod, sight)])
        return self._next(newest, downloads=(), message="", warnings=(*report.warnings, *warnings)), path

    def _next(self, report: EngineReport, **changes: Any) -> EngineReport:
        return replace(report, sequence=report.sequence + 1, time=self._clock.timestamp(), **changes)


def serve(port: int) -> int:
    """Take plans until a signal comes; then end the engine in order."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    clock = Clock()
    standalone = Standalone(clock)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    server = ControlServer(
        port,
        view=standalone.view,
        command=standalone.command,
        requests=standalone.requests,
        start=standalone.start,
        token_file=Path(contract.CONTROL_TOKEN_FILE),
        now=clock.monotonic,
    )
    LOG.info("waiting for the operator's plan on port %d", server.port)
    ended.wait()
    LOG.info("asked to end")
    standalone.stop(drain_seconds(os.environ))
    return 0


def drain_seconds(environment: Mapping[str, str]) -> float:
    """Read how long to drain when the pod is asked to end; 0 when it is not said."""
    told = environment.get(contract.DRAIN_VARIABLE, "")
    return float(told) if told.isdigit() else 0.0


def main(arguments: Sequence[str]) -> int:
    """Serve; as the pod's first process in a child, because the first must bury orphans and passes signals on.

    Parameters
    ----------
    arguments
        The control port, where it is not the contract's.
    """
    port = int(arguments[0]) if arguments else contract.SUPERVISOR_PORT
    if os.getpid() != 1:
        return serve(port)
    child = os.fork()
    if child == 0:
        return serve(port)

    def pass_on(number: int, _: FrameType | None) -> None:
        os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    while True:
        pid, status = os.wait()
        if pid == child:
            return max(0, os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
