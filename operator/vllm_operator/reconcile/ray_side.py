"""Ask the Ray heads of engines that are being brought up.

An engine that serves is not asked: the kubelet's probe and the engine's report say all.  What is remembered here
(how often the same nodes were seen in a row, an engine's token) is a convenience: losing it costs a second.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable
from dataclasses import dataclass

from vllm_bootstrap import contract
from vllm_operator.clients.kubernetes import KubernetesClient, NotFoundError
from vllm_operator.clients.ray import Job, RayClient, RayError, RayHead, RayNode
from vllm_operator.lifecycle.engine import READ_INTERVAL, STABLE_READS, EngineView, JobView, RayView
from vllm_operator.reconcile.observe import SECRET


@dataclass(frozen=True, kw_only=True)
class _Streak:
    nodes: tuple[RayNode, ...]
    reads: int
    at: float


class RaySide:
    """Reads Ray heads.

    Parameters
    ----------
    clock
        Monotonic seconds.
    """

    def __init__(self, api: KubernetesClient, ray: RayClient, clock: Callable[[], float]) -> None:
        self._api = api
        self._ray = ray
        self._clock = clock
        self._streaks: dict[str, _Streak] = {}

    def forget(self, cluster_uid: str) -> None:
        """Forget a Ray cluster."""
        self._streaks.pop(cluster_uid, None)

    async def token(self, namespace: str, secret: str) -> str:
        """Read the Ray token of an engine."""
        body = await self._api.get(SECRET, namespace, secret)
        return base64.b64decode(body["data"]["auth_token"]).decode()

    async def look(self, view: EngineView, *, namespace: str, secret: str, job_id: Callable[[str], str]) -> RayView:
        """Ask an engine's Ray head for its session, its GPU nodes and the job of the present attempt.

        Parameters
        ----------
        job_id
            Gives the job's id from Ray's session name.
        """
        if not view.head:
            return RayView(error="there is no head pod")
        try:
            head = RayHead(ip=view.head.ip, token=await self.token(namespace, secret))
            session = await self._ray.session_name(head)
            nodes = await self._ray.gpu_nodes(head)
            job = await self._ray.job(head, job_id(session))
        except NotFoundError as error:
            return RayView(error=f"its token cannot be read: {error}")
        except RayError as error:
            self.forget(view.cluster.uid)
            return RayView(error=str(error))
        gpus = tuple((node.id, node.gpus) for node in nodes)
        if job:
            self.forget(view.cluster.uid)
            return RayView(session=session, gpus=gpus, job=JobView(status=job.status, message=_last_line(job.message)))
        return RayView(session=session, gpus=gpus, stable_reads=self._count(view.cluster.uid, nodes))

    async def submit(self, plan: contract.EnginePlan, head_ip: str, secret: str) -> str:
        """Submit the bootstrap job of a plan.

        Raises
        ------
        RayError
            The head does not answer, or refused.
        """
        head = RayHead(ip=head_ip, token=await self.token(plan.namespace, secret))
        return await self._ray.submit(head, plan)

    def _count(self, uid: str, nodes: tuple[RayNode, ...]) -> int:
        now = self._clock()
        known = self._streaks.get(uid)
        if known is None or known.nodes != nodes:
            known = _Streak(nodes=nodes, reads=1, at=now)
        elif now - known.at >= READ_INTERVAL * 0.9:
            known = _Streak(nodes=nodes, reads=min(known.reads + 1, STABLE_READS), at=now)
        self._streaks[uid] = known
        return known.reads


def _job_view(job: Job) -> JobView:
    ended = None if job.ended_at is None else datetime.datetime.fromtimestamp(job.ended_at, datetime.UTC)
    return JobView(status=job.status, message=_last_line(job.message), ended_at=ended)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][-1000:] if lines else ""
