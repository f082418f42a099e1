"""The Ray actor around an engine's host: detached, so that it outlives the bootstrap job, and on the lead pod.

It is made before the engine is placed, so that its launcher imports vLLM meanwhile.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import ray

from vllm_bootstrap import contract
from vllm_bootstrap.clock import Clock, poll
from vllm_bootstrap.contract import EnginePlan, EngineReport
from vllm_bootstrap.download.actor import ray_sites
from vllm_bootstrap.launching.environment import base_environment, parse_environ
from vllm_bootstrap.launching.order import Placed, make_order
from vllm_bootstrap.supervising.api_server import ApiServer
from vllm_bootstrap.supervising.control import ControlServer
from vllm_bootstrap.supervising.given import Fetcher, control_token, read_files
from vllm_bootstrap.supervising.host import EngineHost, Surroundings
from vllm_bootstrap.supervising.rank_watch import RayRankWatch
from vllm_bootstrap.vllm_adapter.facts import actor_name

LOG = logging.getLogger(__name__)

LOG_FOLDER = Path("/tmp/ray/session_latest/logs")  # noqa: S108 - Ray's default

PORT_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What the bootstrap job hands over once everything is placed and looked at.

    Attributes
    ----------
    model
        Folder of the model in each pod, where it was downloaded.
    """

    report: str
    placed: Placed
    model: str = ""


class SupervisorActor:
    """Holds the control server and a waiting launcher from its first moment, and an engine from ``start`` on."""

    def __init__(self, plan: str) -> None:
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
        self._clock = Clock()
        self._plan = contract.loads(EnginePlan, plan)
        self._accepted = threading.Lock()
        LOG.info("supervisor of %s, pid %d", self._plan.instance_id, os.getpid())
        # Ray's context belongs to this thread.
        gcs = str(ray.get_runtime_context().gcs_address)
        surroundings = Surroundings(
            environment=base_environment(os.environ, raylet_environment()),
            host_ip=ray.util.get_node_ip_address(),
            log=log_path(self._plan),
            ray_address=gcs,
        )
        names = rank_names(self._plan)
        shared = bool(self._plan.seats)
        fetcher = Fetcher(self._plan, ApiServer.of(os.environ))
        self._token = control_token(self._plan, fetcher)
        self._groups: tuple[str, ...] = ()
        self._host = EngineHost(
            self._plan,
            surroundings,
            watch=lambda inbox, _: RayRankWatch(names, self._groups, gcs, inbox),
            sites=lambda report: ray_sites(pods_of(report), stall=self._plan.deadlines.stall),
            clock=self._clock,
            given=(lambda _: fetcher.fetch()) if shared else read_files,
        )
        self._server = self._listen(self._plan.supervisor_port)
        self._host.prepare()

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
        return self._host.stop(seconds) if self._accepted.locked() else True

    def _listen(self, port: int) -> ControlServer:
        """Bind the port; the supervisor of the attempt before may hold it for another moment."""

        def bind() -> ControlServer | None:
            try:
                return ControlServer(
                    port,
                    view=self._host.view,
                    command=self._host.command,
                    requests=self._host.requests,
                    token_file=self._token,
                    now=self._clock.monotonic,
                )
            except OSError as error:
                LOG.info("port %d: %s", port, error)
                return None

        server = poll(bind, seconds=PORT_SECONDS, clock=self._clock)
        if server is None:
            raise OSError(f"port {port} of the lead pod is taken")
        return server

    def _run(self, assignment: Assignment) -> None:
        self._groups = assignment.placed.groups
        order = make_order(self._plan, assignment.placed, model=assignment.model)
        self._host.run(contract.loads(EngineReport, assignment.report), order)


def rank_names(plan: EnginePlan) -> dict[str, int]:
    """Give the actor name of each rank."""
    return {
        actor_name(plan.instance_id, rank, tensor=plan.tensor, pipeline=plan.pipeline, data=plan.data): rank
        for rank in range(plan.total_ranks)
    }


def pods_of(report: EngineReport) -> list[tuple[str, str]]:
    """Give the pods that hold ranks, each with its Ray node id; the lead's is that of rank 0."""
    return list(dict.fromkeys((rank.pod, rank.ray_node) for rank in report.ranks))


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
