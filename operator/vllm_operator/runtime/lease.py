"""The Lease: of several replicas, all of which watch, one works.

On loss the process ends, so that no half-finished round goes on beside the new leader's.  On an orderly stop the
Lease is given back, so that the next leader need not wait for it to run out.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock

from vllm_operator.clients.kubernetes import Kind, KubernetesClient
from vllm_operator.runtime.settings import LeaderElection as LeaseSettings

log = logging.getLogger(__name__)

LEASE = Kind(api_version="coordination.k8s.io/v1", kind="Lease")
_NETWORK = (aiohttp.ClientError, TimeoutError, OSError)


class LeaseLostError(Exception):
    """Another replica leads now, or the API server did not answer in time."""


class _Lock(LeaseLock):
    """A LeaseLock for which an API server that does not answer is a failed try, not the end of the process."""

    async def get(self, name: str, namespace: str) -> Any:
        try:
            return await super().get(name, namespace)
        except _NETWORK as error:
            return False, ApiException(status=0, reason=str(error) or type(error).__name__)

    async def create(self, name: str, namespace: str, election_record: Any) -> bool:
        try:
            return bool(await super().create(name, namespace, election_record))
        except _NETWORK:
            return False

    async def update(self, name: str, namespace: str, updated_record: Any) -> bool:
        try:
            return bool(await super().update(name, namespace, updated_record))
        except _NETWORK:
            return False


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
        The Lease could not be renewed.
    """

    async def started() -> None:
        log.info("%s leads", identity)
        await work()

    async def stopped() -> None:
        log.error("%s lost the Lease %s/%s", identity, namespace, settings.lease_name)

    config = Config(
        lock=_Lock(settings.lease_name, namespace, identity, api.api),
        # Whole seconds: the record is read back with int().
        lease_duration=int(settings.lease_duration_seconds),
        renew_deadline=settings.renew_deadline_seconds,
        retry_period=settings.retry_period_seconds,
        onstarted_leading=started,
        onstopped_leading=stopped,
    )
    log.info("%s waits for the Lease %s/%s", identity, namespace, settings.lease_name)
    await LeaderElection(config).run()
    raise LeaseLostError(f"{identity} lost the Lease {namespace}/{settings.lease_name}")


async def give_back(*, api: KubernetesClient, settings: LeaseSettings, namespace: str, identity: str) -> None:
    """Give the Lease back if it is ours."""
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
