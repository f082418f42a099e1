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


class RayTokenError(RayError):
    """The Ray head wants a token, or another one."""


@dataclass(frozen=True, kw_only=True)
class RayNode:
    """An alive Ray node."""

    id: str
    gpus: int
    address: str = ""


@dataclass(frozen=True, kw_only=True)
class PlacementGroup:
    """A placement group that is not removed."""

    id: str
    name: str


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
    """Address and token of a Ray head; an empty token where it asks for none."""

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
        return tuple(node for node in await self.nodes(head) if node.gpus)

    async def nodes(self, head: RayHead) -> tuple[RayNode, ...]:
        """Give the alive nodes, the head's among them, by the GCS, ordered by id.

        Raises
        ------
        RayError
            No answer.
        """
        rows = await self._rows(head, "nodes")
        nodes = [
            RayNode(
                id=row["node_id"],
                gpus=int((row.get("resources_total") or {}).get("GPU", 0)),
                address=str(row.get("node_ip") or ""),
            )
            for row in rows
            if row.get("state") == "ALIVE"
        ]
        return tuple(sorted(nodes, key=lambda node: node.id))

    async def placement_groups(self, head: RayHead) -> tuple[PlacementGroup, ...]:
        """Give the placement groups of all namespaces.

        Raises
        ------
        RayError
            No answer.
        """
        return tuple(
            PlacementGroup(id=str(row["placement_group_id"]), name=str(row.get("name") or ""))
            for row in await self._rows(head, "placement_groups")
            if row.get("state") != "REMOVED"
        )

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
        job_id = contract.job_id(plan)
        tags = {"deployment": f"{plan.namespace}/{plan.deployment}", "engine": plan.engine}
        await self._run(head, job_id, contract.JOB_ENTRYPOINT, bootstrap_package(plan), tags)
        return job_id

    async def release(self, head: RayHead, plan: contract.ReleasePlan, job_id: str) -> None:
        """Submit the job that frees what engines hold; one that exists already is left as it is.

        Raises
        ------
        RayError
            No answer, or refused.
        """
        tags = {"release": ", ".join(tenancy.stem for tenancy in plan.tenancies)}
        await self._run(head, job_id, contract.RELEASE_ENTRYPOINT, bootstrap_package(plan), tags)

    async def _run(self, head: RayHead, job_id: str, entrypoint: str, package: bytes, tags: Mapping[str, str]) -> None:
        name = f"_ray_pkg_{hashlib.sha256(package).hexdigest()[:32]}.zip"
        # Always PUT: a package that no job refers to is removed by Ray after ten minutes.
        await self._json("PUT", head, f"/api/packages/gcs/{name}", data=package)
        request = {
            "entrypoint": entrypoint,
            "submission_id": job_id,
            "runtime_env": {"working_dir": f"gcs://{name}"},
            "metadata": dict(tags),
        }
        try:
            await self._json("POST", head, "/api/jobs/", json=request)
        except RayError:
            # Refused, because it is there already: an earlier round submitted it and did not hear the answer.
            if await self.job(head, job_id) is None:
                raise

    async def _rows(self, head: RayHead, kind: str) -> list[Mapping[str, Any]]:
        answer = await self._json("GET", head, f"/api/v0/{kind}?detail=1&limit=10000")
        return list(((answer.get("data") or {}).get("result") or {}).get("result") or [])

    async def _json(
        self, method: str, head: RayHead, path: str, *, absent_ok: bool = False, **body: Any
    ) -> Mapping[str, Any]:
        headers = {"Authorization": f"Bearer {head.token}"} if head.token else {}
        try:
            async with self._session.request(
                method, head.url + path, headers=headers, timeout=_TIMEOUT, **body
            ) as response:
                if response.status == 404 and absent_ok:
                    return {}
                if response.status >= 400:
                    kind = RayTokenError if response.status in (401, 403) else RayError
                    raise kind(f"{method} {path}: HTTP {response.status}: {(await response.text())[:500]}")
                if response.content_type != "application/json":
                    return {}
                data = await response.json()
                return data if isinstance(data, dict) else {}
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise RayError(f"{head.url}: {error or type(error).__name__}") from error
        except ValueError as error:
            raise RayError(f"{method} {path}: no JSON: {error}") from error
