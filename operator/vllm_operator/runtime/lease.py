"""The Lease: of several replicas, all of which watch, one works.

On loss the process ends, so that no half-finished round goes on beside the new leader's.  On an orderly stop the
Lease is given back, so that the next leader need not wait for it to run out.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.aio.leaderelection.resourcelock.baselock import BaseLock

from vllm_operator.clients.kubernetes import ApiError, Kind, KubernetesClient, NotFoundError
from vllm_operator.runtime.settings import LeaderElection as LeaseSettings

log = logging.getLogger(__name__)

LEASE = Kind(api_version="coordination.k8s.io/v1", kind="Lease")


class LeaseLostError(Exception):
    """Another replica leads now, or the API server did not answer in time."""


class _Lock(BaseLock):
    """The client library's election over our own calls of the API server.

    The library's LeaseLock 37.0 cannot create a Lease (it sends ``pretty=True`` where its own models demand a string),
    and ends the process when the API server does not answer once.
    """

    def __init__(self, api: KubernetesClient, settings: LeaseSettings, namespace: str, identity: str) -> None:
        super().__init__(settings.lease_name, namespace, identity)
        self._api = api
        self._seconds = int(settings.lease_duration_seconds)
        self._seen: dict[str, Any] = {}
        self.renewed_at = -math.inf
        """When the last write that went well was sent, by the loop's clock."""

    async def get(self, name: str, namespace: str) -> Any:
        try:
            self._seen = await self._api.get(LEASE, namespace, name)
        except NotFoundError as error:
            return False, ApiException(status=404, reason=error.message, body=json.dumps({"code": 404}))
        except ApiError as error:
            return False, ApiException(status=error.code, reason=error.message)
        spec = self._seen.get("spec") or {}
        # A Lease that was given back has no holder: the election takes a record without one at once.
        return True, LeaderElectionRecord(
            spec.get("holderIdentity") or None,
            str(spec.get("leaseDurationSeconds") or ""),
            str(spec.get("acquireTime") or ""),
            str(spec.get("renewTime") or ""),
        )

    async def create(self, name: str, namespace: str, election_record: LeaderElectionRecord) -> bool:
        sent = asyncio.get_running_loop().time()
        try:
            self._seen = await self._api.create(self._body({}))
        except ApiError as error:
            log.warning("the Lease %s/%s cannot be made: %s", namespace, name, error)
            return False
        self.renewed_at = sent
        return True

    async def update(self, name: str, namespace: str, updated_record: LeaderElectionRecord) -> bool:
        meta = self._seen["metadata"]
        body = self._body(self._seen.get("spec") or {})
        sent = asyncio.get_running_loop().time()
        try:
            self._seen = await self._api.patch(body, uid=meta["uid"], resource_version=meta["resourceVersion"])
        except ApiError as error:
            log.warning("the Lease %s/%s cannot be renewed: %s", namespace, name, error)
            return False
        self.renewed_at = sent
        return True

    def _body(self, before: dict[str, Any]) -> dict[str, Any]:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        same = before.get("holderIdentity") == self.identity
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": self._seconds,
                "acquireTime": before.get("acquireTime", now) if same else now,
                "renewTime": now,
            },
        }


async def lead(
    *,
    api: KubernetesClient,
    settings: LeaseSettings,
    namespace: str,
    identity: str,
    work: Callable[[], Awaitable[None]],
) -> None:
    """Wait for the Lease and work while it is held.

    Raises
    ------
    LeaseLostError
        The Lease could not be renewed; in a group, as whatever ``work`` raises.
    """
    leading = asyncio.Event()

    async def started() -> None:
        leading.set()

    async def stopped() -> None:
        log.error("%s lost the Lease %s/%s", identity, namespace, settings.lease_name)

    lock = _Lock(api, settings, namespace, identity)
    lost = LeaseLostError(f"{identity} lost the Lease {namespace}/{settings.lease_name}")
    config = Config(
        lock=lock,
        lease_duration=settings.lease_duration_seconds,
        renew_deadline=settings.renew_deadline_seconds,
        retry_period=settings.retry_period_seconds,
        onstarted_leading=started,
        onstopped_leading=stopped,
    )
    log.info("%s waits for the Lease %s/%s", identity, namespace, settings.lease_name)

    async def hold() -> None:
        await LeaderElection(config).run()
        raise lost

    async def watch() -> None:
        # The election looks at its deadline only between calls, and one that hangs takes longer than the Lease lasts.
        loop = asyncio.get_running_loop()
        while True:
            left = lock.renewed_at + settings.renew_deadline_seconds - loop.time()
            if left <= 0:
                raise lost
            await asyncio.sleep(left)

    # Not as the election's own callback: that would go on working when this is cancelled, and fail unheard.
    async with asyncio.TaskGroup() as group:
        holding = group.create_task(hold())
        await leading.wait()
        log.info("%s leads", identity)
        watching = group.create_task(watch())
        await work()
        holding.cancel()
        watching.cancel()


async def give_back(*, api: KubernetesClient, settings: LeaseSettings, namespace: str, identity: str) -> None:
    """Give the Lease back if it is ours; when that fails it runs out by itself."""
    try:
        await _give_back(api, settings, namespace, identity)
    except ApiError as error:
        log.warning("the Lease %s/%s is not given back: %s", namespace, settings.lease_name, error)


async def _give_back(api: KubernetesClient, settings: LeaseSettings, namespace: str, identity: str) -> None:
    body = await api.find(LEASE, namespace, settings.lease_name)
    if not body or body.get("spec", {}).get("holderIdentity") != identity:
        return
    meta = body["metadata"]
    released = {
        "apiVersion": LEASE.api_version,
        "kind": LEASE.kind,
        "metadata": {"name": meta["name"], "namespace": namespace},
        "spec": {"holderIdentity": "", "leaseDurationSeconds": 1},
    }
    await api.patch(released, uid=meta["uid"], resource_version=meta["resourceVersion"])
