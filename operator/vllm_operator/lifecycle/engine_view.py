"""What was seen of one engine: what holds its pods, the pods, Ray and its report."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from vllm_bootstrap import contract
from vllm_operator.api.status import EngineReplica
from vllm_operator.lifecycle.pods import PodView
from vllm_operator.resources.tenancy import Tenancy


@dataclass(frozen=True, kw_only=True)
class ClusterView:
    """What holds the pods of the engine: a RayCluster, or without Ray a Deployment.

    Attributes
    ----------
    kind
        RayCluster or Deployment; ConfigMap of an engine that holds no pods of its own.
    tenancy
        What an engine holds of a RayCluster that is not ours.
    trouble
        Why KubeRay cannot make its pods (a quota, an admission policy, an invalid template), in the API server's words.
    """

    name: str
    uid: str
    revision: str
    created_at: str
    deleting: bool = False
    trouble: str = ""
    kind: str = "RayCluster"
    tenancy: Tenancy | None = None

    @property
    def with_ray(self) -> bool:
        """Whether Ray runs the engine."""
        return self.kind != "Deployment"

    @property
    def ray_cluster(self) -> str:
        """The RayCluster that runs the engine; empty without Ray."""
        if self.tenancy:
            return self.tenancy.cluster
        return self.name if self.with_ray else ""

    @property
    def deployment(self) -> str:
        """The Deployment that runs the engine; empty with Ray."""
        return "" if self.with_ray else self.name

    @property
    def ports(self) -> dict[str, int]:
        """Ports of the engine."""
        if self.tenancy:
            return {"http": self.tenancy.http_port, "supervisor": self.tenancy.supervisor_port}
        return {"http": contract.HTTP_PORT, "supervisor": contract.SUPERVISOR_PORT}


@dataclass(frozen=True, kw_only=True)
class JobView:
    """The bootstrap job of the present attempt, as Ray's Jobs API has it.

    Attributes
    ----------
    ended_at
        When it ended, ``None`` while it has not.
    """

    status: str
    message: str = ""
    ended_at: datetime.datetime | None = None


@dataclass(frozen=True, kw_only=True)
class RayView:
    """What takes the plans says: the Ray head, or without Ray the process in the engine's pod.

    Attributes
    ----------
    session
        Ray's ``session_name``, or the process's own; empty when there is no answer.
    gpus
        GPUs of each alive GPU node, by Ray node id.
    job
        The job of the present attempt, ``None`` when it was not submitted yet.
    error
        Why the head does not answer.
    """

    session: str = ""
    gpus: tuple[tuple[str, int], ...] = ()
    job: JobView | None = None
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class EngineView:
    """All that was seen of one engine whose RayCluster is of the wanted revision.

    Attributes
    ----------
    sizes
        GPUs that each GPU pod should have, largest first.
    report
        The engine's report, of whatever attempt.
    previous
        The engine's entry in the CR's status, when it speaks of this RayCluster.
    retry_requested_at
        Value of the retry annotation of the CR, an RFC 3339 instant.
    hindrance
        Why its pods cannot all have a node, as the planner sees it; empty when it knows of nothing.
    """

    name: str
    uid: str
    revision: str
    cluster: ClusterView
    sizes: tuple[int, ...]
    pods: tuple[PodView, ...]
    report: contract.EngineReport | None = None
    ray: RayView | None = None
    previous: EngineReplica | None = None
    retry_requested_at: str = ""
    hindrance: str = ""

    @property
    def head(self) -> PodView | None:
        """The Ray head pod."""
        return next((pod for pod in self.pods if pod.head and not pod.deleting), None)

    @property
    def lead(self) -> PodView | None:
        """The pod that holds rank 0 and the HTTP server."""
        return next((pod for pod in self.pods if pod.lead and not pod.deleting), None)

    @property
    def gpu_pods(self) -> list[PodView]:
        """The pods that hold ranks."""
        return [pod for pod in self.pods if not pod.head and not pod.deleting]

    @property
    def all_running(self) -> bool:
        """Head and every GPU pod run."""
        pods = self.gpu_pods
        complete = len(pods) == len(self.sizes) and all(pod.running for pod in pods)
        return complete and (not self.cluster.with_ray or bool(self.head and self.head.running))

    @property
    def front(self) -> PodView | None:
        """The pod that takes the plans."""
        return self.head if self.cluster.with_ray else self.lead

    @property
    def pod_count(self) -> int:
        """Pods that it should have."""
        return len(self.sizes) + (1 if self.cluster.with_ray else 0)


def current_report(view: EngineView, attempt: int) -> contract.EngineReport | None:
    """Give the engine's report when it speaks of this CR, revision and attempt."""
    report = own_report(view)
    return report if report and report.attempt == attempt else None


def own_report(view: EngineView) -> contract.EngineReport | None:
    """Give the engine's report when it speaks of this CR and revision, of whatever attempt."""
    report = view.report
    if report and (report.uid, report.engine, report.revision) == (view.uid, view.name, view.revision):
        return report
    return None


def last_attempt(view: EngineView) -> int:
    """Give the last attempt that status or report knows of; 1 before the first."""
    report = own_report(view)
    return max(view.previous.attempt if view.previous else 0, report.attempt if report else 0, 1)
