"""Look at shared RayClusters: the pods that users made, the tenancies on them, and where it matters their heads."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from vllm_operator.api import identity
from vllm_operator.api.status import Reason
from vllm_operator.clients.kubernetes import KubernetesClient, NotFoundError
from vllm_operator.clients.ray import RayError, RayTokenError
from vllm_operator.lifecycle.conditions import Blocker
from vllm_operator.reconcile.inventory import POD, RAY_CLUSTER
from vllm_operator.reconcile.observe import CONFIG_MAP, Observation
from vllm_operator.reconcile.ray_side import RaySide
from vllm_operator.reconcile.shared import SharedCluster, find_fault, find_joining, find_unfit, read_member, token_fault
from vllm_operator.resources.tenancy import Auth, Tenancy, auth_of, read_tenancy

log = logging.getLogger(__name__)


class SharedSide:
    """Reads shared RayClusters.

    Parameters
    ----------
    now
        Gives the present instant, UTC.
    """

    def __init__(self, api: KubernetesClient, ray_side: RaySide, now: Callable[[], datetime.datetime]) -> None:
        self._api = api
        self._ray_side = ray_side
        self._now = now

    async def look(self, seen: Observation, *, ask: bool = False) -> Observation:
        """Add the shared RayClusters that a deployment names or has engines on.

        Parameters
        ----------
        ask
            Ask the head of the cluster that the spec names what Ray counts.

        Raises
        ------
        ApiError
            Something could not be read: nothing may be decided.
        """
        reference = seen.spec.ray_cluster_ref if seen.spec else None
        names = {item.cluster for item in seen.tenancies.values()} | ({reference.name} if reference else set())
        found = {name: await self._cluster(name, seen) for name in sorted(names)}
        if not reference or seen.is_deleted:
            return replace(seen, shared=found)
        cluster = found[reference.name]
        fault = find_fault(cluster, seen.owner.namespace)
        if ask:
            fault = fault or find_unfit(cluster)
        if ask and not fault and not seen.blocker:
            cluster = await self._asked(cluster, seen.owner.namespace, auth_of(reference))
            fault = cluster.trouble
        return replace(seen, shared={**found, reference.name: cluster}, blocker=seen.blocker or fault)

    async def _cluster(self, name: str, seen: Observation) -> SharedCluster:
        namespace = seen.owner.namespace
        try:
            body = await self._api.find(RAY_CLUSTER, namespace, name)
        except NotFoundError:
            body = None
        labels = (body["metadata"].get("labels") or {}) if body else {}
        pods = await self._api.list(POD, namespace, {"ray.io/cluster": name})
        return SharedCluster(
            name=name,
            found=body is not None and "deletionTimestamp" not in body["metadata"],
            owner=str(labels.get(identity.LABEL_DEPLOYMENT, "")),
            members=tuple(read_member(pod) for pod in pods),
            tenancies=await self._tenancies(namespace, name),
        )

    async def _asked(self, cluster: SharedCluster, namespace: str, auth: Auth) -> SharedCluster:
        assert cluster.head is not None  # noqa: S101 - a cluster without one has a fault
        try:
            nodes, groups = await self._ray_side.members(namespace, cluster.head.ip, auth)
        except RayTokenError:
            return replace(cluster, trouble=token_fault(cluster.name, given=bool(auth.name)))
        except (RayError, NotFoundError) as error:
            text = f"the Ray head of RayCluster {cluster.name} does not answer: {error}"
            return replace(cluster, trouble=Blocker(reason=Reason.RAY_UNREACHABLE, message=text, lasting=False))
        # After the groups: what is promised since then must not look like an orphan.
        tenancies = await self._tenancies(namespace, cluster.name)
        asked = replace(cluster, nodes=nodes, groups=groups, tenancies=tenancies, auth=auth)
        return replace(asked, trouble=find_joining(asked, self._now()))

    async def _tenancies(self, namespace: str, cluster: str) -> dict[str, Tenancy]:
        labels = {identity.LABEL_MANAGED_BY: identity.MANAGER, identity.LABEL_RAY_CLUSTER: cluster}
        return dict(_read(await self._api.list(CONFIG_MAP, namespace, labels)))


def _read(bodies: Iterable[dict[str, object]]) -> Iterable[tuple[str, Tenancy]]:
    for body in bodies:
        metadata = body["metadata"]
        assert isinstance(metadata, dict)  # noqa: S101 - of an API object
        tenancy = read_tenancy(body)
        if tenancy:
            yield str(metadata["name"]), tenancy
        else:
            log.warning("%s holds something of a shared RayCluster, and cannot be read", metadata["name"])
