"""The Ray head's HTTP API: which nodes it has, and the bootstrap job that we give it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from vllm_bootstrap import contract
from vllm_operator.clients.address import pod_url
from vllm_operator.clients.package import bootstrap_package

DASHBOARD_PORT = 8265
_TIMEOUT = aiohttp.ClientTimeout(total=5)


class RayError(Exception):
    """The Ray head did not answer, or refused."""


@dataclass(frozen=True, kw_only=True)
class RayNode:
    """An alive Ray node."""

    id: str
    gpus: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """A Ray job: ``PENDING``, ``RUNNING``, ``SUCCEEDED``, ``FAILED`` or ``STOPPED``.

    Attributes
    ----------
    ended_at
        Seconds since the epoch, ``None`` while it has not ended.
    """

    status: str
    message: str
    ended_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class RayHead:
    """Address and token of a Ray head."""

    ip: str
    token: str

    @property
    def url(self) -> str:
        """Base address of the dashboard."""
        return pod_url(self.ip, DASHBOARD_PORT)


class RayClient:
    """Calls of Ray heads."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def session_name(self, head: RayHead) -> str:
        """Identity of the Ray cluster's state: a restart of the head container keeps the pod but loses the state.

        Raises
        ------
        RayError
            No answer.
        """
        return str((await self._json("GET", head, "/api/version")).get("session_name", ""))

    async def gpu_nodes(self, head: RayHead) -> tuple[RayNode, ...]:
        """Give the alive nodes that have GPUs, by the GCS, ordered by id.

        Raises
        ------
        RayError
            No answer.
        """
        answer = await self._json("GET", head, "/api/v0/nodes?detail=1&limit=10000")
        rows = ((answer.get("data") or {}).get("result") or {}).get("result") or []
        nodes = [
            RayNode(id=row["node_id"], gpus=int((row.get("resources_total") or {}).get("GPU", 0)))
            for row in rows
            if row.get("state") == "ALIVE"
        ]
        return tuple(sorted((node for node in nodes if node.gpus), key=lambda node: node.id))

    async def job(self, head: RayHead, job_id: str) -> Job | None:
        """Read a job, ``None`` when the head does not know it.

        Raises
        ------
        RayError
            No answer.
        """
        answer = await self._json("GET", head, f"/api/jobs/{job_id}", absent_ok=True)
        if not answer:
            return None
        ended = answer.get("end_time")
        return Job(
            status=str(answer.get("status", "")),
            message=str(answer.get("message") or ""),
            ended_at=ended / 1000 if isinstance(ended, int | float) else None,
        )

    async def job_logs(self, head: RayHead, job_id: str) -> str:
        """Read what a job printed.

        Raises
        ------
        RayError
            No answer.
        """
        return str((await self._json("GET", head, f"/api/jobs/{job_id}/logs", absent_ok=True)).get("logs", ""))

    async def submit(self, head: RayHead, plan: contract.EnginePlan) -> str:
        """Upload the bootstrap with its plan and submit the job; one that exists already is left as it is.

        Raises
        ------
        RayError
            No answer, or refused.
        """
        package = bootstrap_package(plan)
        name = f"_ray_pkg_{hashlib.sha256(package).hexdigest()[:32]}.zip"
        # Always PUT: a package that no job refers to is removed by Ray after ten minutes.
        await self._json("PUT", head, f"/api/packages/gcs/{name}", data=package)
        job_id = contract.job_id(plan)
        request = {
            "entrypoint": contract.JOB_ENTRYPOINT,
            "submission_id": job_id,
            "runtime_env": {"working_dir": f"gcs://{name}"},
            "metadata": {"deployment": f"{plan.namespace}/{plan.deployment}", "engine": plan.engine},
        }
        try:
            await self._json("POST", head, "/api/jobs/", json=request)
        except RayError:
            # Refused, because it is there already: an earlier round submitted it and did not hear the answer.
            if await self.job(head, job_id) is None:
                raise
        return job_id

    async def _json(
        self, method: str, head: RayHead, path: str, *, absent_ok: bool = False, **body: Any
    ) -> Mapping[str, Any]:
        headers = {"Authorization": f"Bearer {head.token}"}
        try:
            async with self._session.request(
                method, head.url + path, headers=headers, timeout=_TIMEOUT, **body
            ) as response:
                if response.status == 404 and absent_ok:
                    return {}
                if response.status >= 400:
                    text = (await response.text())[:500]
                    raise RayError(f"{method} {path}: HTTP {response.status}: {text}")
                if response.content_type != "application/json":
                    return {}
                data = await response.json()
                return data if isinstance(data, dict) else {}
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise RayError(f"{head.url}: {error or type(error).__name__}") from error
        except ValueError as error:
            raise RayError(f"{method} {path}: no JSON: {error}") from error
