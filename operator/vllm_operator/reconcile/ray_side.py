"""Ask what takes the plans of engines that are being brought up, and supervisors whose reports are lost.

An engine that serves is not asked: the kubelet's probe and the engine's report say all.
"""

from __future__ import annotations

import base64
import datetime
import logging
from collections.abc import Callable
from dataclasses import replace

from vllm_bootstrap import contract
from vllm_operator.clients.kubernetes import KubernetesClient, NotFoundError
from vllm_operator.clients.ray import Job, PlacementGroup, RayClient, RayError, RayHead, RayNode
from vllm_operator.clients.supervisor import SupervisorClient, SupervisorError
from vllm_operator.lifecycle.actions import Release
from vllm_operator.lifecycle.engine_view import EngineView, JobView, RayView
from vllm_operator.reconcile.observe import SECRET
from vllm_operator.resources.tenancy import Auth

log = logging.getLogger(__name__)


class RaySide:
    """Reads Ray heads, and gives them jobs."""

    def __init__(self, api: KubernetesClient, ray: RayClient, supervisors: SupervisorClient) -> None:
        self._api = api
        self._ray = ray
        self._supervisors = supervisors

    async def token(self, namespace: str, secret: str, key: str = "auth_token") -> str:
        """Read a token of an engine: Ray's, or the supervisor's ``control_token``."""
        body = await self._api.get(SECRET, namespace, secret)
        return base64.b64decode(body["data"][key]).decode()

    async def recall(self, view: EngineView, *, namespace: str, secret: str) -> contract.EngineReport | None:
        """Ask a supervisor for the report that is lost; ``None`` when it cannot give it."""
        if not view.lead:
            return None
        try:
            token = await self.token(namespace, secret, "control_token")
            return (await self._supervisors.look(view.lead.ip, token, view.cluster.ports["supervisor"])).report
        except (NotFoundError, SupervisorError) as error:
            log.warning("%s/%s: the report of %s is lost: %s", namespace, view.cluster.name, view.name, error)
            return None

    async def requests(self, namespace: str, ip: str, secret: str, port: int) -> int | None:
        """Ask a supervisor how many requests are in flight; ``None`` when it cannot say."""
        try:
            return (await self._supervisors.look(ip, await self._control_token(namespace, secret), port)).requests
        except SupervisorError as error:
            log.warning("%s: the requests of the engine at %s are not known: %s", namespace, ip, error)
            return None

    async def look(self, view: EngineView, *, namespace: str, secret: str, job_id: Callable[[str], str]) -> RayView:
        """Ask what takes an engine's plans: its Ray head, or without Ray the process in its pod.

        Parameters
        ----------
        job_id
            Gives the job's id from the session.
        """
        if not view.cluster.with_ray:
            return await self._look_at_pod(view, namespace=namespace, secret=secret, job_id=job_id)
        if not view.head:
            return RayView(error="there is no head pod")
        try:
            head = await self._head(namespace, view.head.ip, secret, _auth(view))
            session = await self._ray.session_name(head)
            nodes = await self._ray.gpu_nodes(head)
            job = await self._ray.job(head, job_id(session))
        except NotFoundError as error:
            return RayView(error=f"its token cannot be read: {error}")
        except RayError as error:
            return RayView(error=str(error))
        if tenancy := view.cluster.tenancy:
            # The other nodes of a shared cluster are no concern of this engine, and of its pods it has some GPUs.
            held = {pod.ip: tenancy.gpus[pod.name] for pod in view.gpu_pods}
            nodes = tuple(replace(node, gpus=held[node.address]) for node in nodes if node.address in held)
        gpus = tuple((node.id, node.gpus) for node in nodes)
        return RayView(session=session, gpus=gpus, job=_job_view(job) if job else None)

    async def _look_at_pod(
        self, view: EngineView, *, namespace: str, secret: str, job_id: Callable[[str], str]
    ) -> RayView:
        if not view.lead:
            return RayView(error="there is no pod")
        try:
            token = await self.token(namespace, secret, "control_token")
            told = await self._supervisors.look(view.lead.ip, token)
        except (NotFoundError, SupervisorError) as error:
            return RayView(error=str(error))
        taken = told.session and told.job == job_id(told.session)
        return RayView(session=told.session, job=JobView(status="RUNNING") if taken else None)

    async def drain(self, namespace: str, ip: str, secret: str, seconds: float, port: int) -> None:
        """Ask a supervisor to let its engine finish what it answers, and to end it then.

        Raises
        ------
        SupervisorError
            There is no answer, or it is refused.
        """
        await self._supervisors.drain(ip, await self._control_token(namespace, secret), seconds, port)

    async def adapt(
        self, namespace: str, ip: str, secret: str, adapters: tuple[contract.Adapter, ...], port: int
    ) -> None:
        """Tell a supervisor which LoRA adapters its engine is to serve.

        Raises
        ------
        SupervisorError
            There is no answer, or it is refused.
        """
        await self._supervisors.adapt(ip, await self._control_token(namespace, secret), adapters, port)

    async def _control_token(self, namespace: str, secret: str) -> str:
        try:
            return await self.token(namespace, secret, "control_token")
        except NotFoundError as error:
            raise SupervisorError(f"its token cannot be read: {error}") from error

    async def look_at_release(self, namespace: str, ip: str, auth: Auth, job_id: Callable[[str], str]) -> RayView:
        """Ask a shared cluster's head how the release of what an engine holds there goes."""
        try:
            head = await self._head(namespace, ip, "", auth)
            session = await self._ray.session_name(head)
            job = await self._ray.job(head, job_id(session))
        except (NotFoundError, RayError) as error:
            return RayView(error=str(error))
        return RayView(session=session, job=_job_view(job) if job else None)

    async def release(self, namespace: str, action: Release) -> None:
        """Submit the job that frees what engines hold of a shared cluster.

        Raises
        ------
        RayError
            There is no answer, or it is refused.
        """
        head = await self._head(namespace, action.ip, "", action.auth)
        await self._ray.release(head, action.plan, action.job_id)

    async def members(
        self, namespace: str, ip: str, auth: Auth
    ) -> tuple[tuple[RayNode, ...], tuple[PlacementGroup, ...]]:
        """Give the alive nodes and the placement groups of a shared cluster.

        Raises
        ------
        RayError
            There is no answer, or the token is not the right one.
        """
        head = await self._head(namespace, ip, "", auth)
        return await self._ray.nodes(head), await self._ray.placement_groups(head)

    async def _head(self, namespace: str, ip: str, secret: str, auth: Auth | None) -> RayHead:
        """Give a head with its token: the engine's own, or that of a shared cluster, which may have none."""
        if auth is None:
            return RayHead(ip=ip, token=await self.token(namespace, secret))
        token = await self.token(namespace, auth.name, auth.key) if auth.name else ""
        return RayHead(ip=ip, token=token.strip())

    async def submit(self, plan: contract.EnginePlan, ip: str, secret: str, auth: Auth | None = None) -> str:
        """Bring a plan to what takes it, as a bootstrap job where there is Ray.

        Raises
        ------
        RayError, SupervisorError
            There is no answer, or it is refused.
        """
        if plan.executor != "ray":
            token = await self.token(plan.namespace, secret, "control_token")
            return await self._supervisors.start(ip, token, plan)
        head = await self._head(plan.namespace, ip, secret, auth)
        return await self._ray.submit(head, plan)


def _auth(view: EngineView) -> Auth | None:
    return view.cluster.tenancy.auth if view.cluster.tenancy else None


def _job_view(job: Job) -> JobView:
    ended = None if job.ended_at is None else datetime.datetime.fromtimestamp(job.ended_at, datetime.UTC)
    return JobView(status=job.status, message=_last_line(job.message), ended_at=ended)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][-1000:] if lines else ""
