"""Look at everything that belongs to a deployment.

A list that fails is unknown, not empty: the error goes up, nothing is decided on it, and the key comes back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError

from vllm_bootstrap import contract
from vllm_operator.api import identity
from vllm_operator.api.spec import VLLMDeploymentSpec, explain
from vllm_operator.api.status import Reason, VLLMDeploymentStatus
from vllm_operator.clients.kubernetes import ApiError, Kind, KubernetesClient, NotFoundError
from vllm_operator.lifecycle.conditions import Blocker
from vllm_operator.lifecycle.pods import PodView, read_pod
from vllm_operator.planning.known import HubAnswer
from vllm_operator.planning.quota import NamespaceRules, read_rules
from vllm_operator.planning.volumes import Volume, read_volume, volume_name
from vllm_operator.reconcile.inventory import DEPLOYMENT as WORKLOAD
from vllm_operator.reconcile.inventory import POD, RAY_CLUSTER, Inventory
from vllm_operator.reconcile.shared import SharedCluster
from vllm_operator.resources import endpoint_slice, lora
from vllm_operator.resources.model import locate
from vllm_operator.resources.names import Owner
from vllm_operator.resources.tenancy import Tenancy, read_tenancy

log = logging.getLogger(__name__)

DEPLOYMENT = Kind(api_version=identity.API_VERSION, kind=identity.KIND)
SERVICE = Kind(api_version="v1", kind="Service")
CONFIG_MAP = Kind(api_version="v1", kind="ConfigMap")
SECRET = Kind(api_version="v1", kind="Secret")
CLAIM = Kind(api_version="v1", kind="PersistentVolumeClaim")
VOLUME = Kind(api_version="v1", kind="PersistentVolume")
REVISION = Kind(api_version="apps/v1", kind="ControllerRevision")
ENDPOINT_SLICE = Kind(api_version=endpoint_slice.API_VERSION, kind=endpoint_slice.KIND)
QUOTA = Kind(api_version="v1", kind="ResourceQuota")
LIMIT_RANGE = Kind(api_version="v1", kind="LimitRange")


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What was seen in Kubernetes.

    Attributes
    ----------
    spec
        ``None`` when it does not obey the API's rules; ``blocker`` then says why.
    volume
        What the claim of the model says of nodes; ``None`` when there is none, or it was not looked for.
    inventory
        ``None`` when it was not needed: nothing has to be placed.
    told
        What the hub says of the model; ``None`` when it was not asked.
    rules
        Quotas and limits of the namespace; none when they were not looked for.
    clusters
        RayClusters of this CR by name; ``None`` when the API server does not know the kind.
    deployments
        Deployments of this CR by name, of engines without Ray.
    reports
        What each engine says of itself, by RayCluster.
    config_maps
        Names of the ConfigMaps of this CR.
    blocker
        What the user must mend before anything is made.
    requests
        In flight, by RayCluster or Deployment, of the engines that were asked.
    holdings
        ConfigMaps of what engines hold of shared RayClusters, by name.
    slices
        EndpointSlices of these engines, by name.
    shared
        The RayClusters that others made and that engines run on, or are to run on.
    """

    body: Mapping[str, Any]
    owner: Owner
    spec: VLLMDeploymentSpec | None
    status: VLLMDeploymentStatus
    revisions: tuple[Mapping[str, Any], ...]
    clusters: Mapping[str, Mapping[str, Any]] | None
    pods: tuple[PodView, ...]
    reports: Mapping[str, contract.EngineReport]
    config_maps: frozenset[str]
    service: Mapping[str, Any] | None
    blocker: Blocker | None
    inventory: Inventory | None = None
    volume: Volume | None = None
    told: HubAnswer | None = None
    rules: NamespaceRules = field(default_factory=NamespaceRules)
    deployments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    requests: Mapping[str, int] = field(default_factory=dict)
    holdings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    slices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    shared: Mapping[str, SharedCluster] = field(default_factory=dict)

    @cached_property
    def tenancies(self) -> Mapping[str, Tenancy]:
        """What engines hold of shared RayClusters, by ConfigMap."""
        read = ((name, read_tenancy(body)) for name, body in self.holdings.items())
        return {name: tenancy for name, tenancy in read if tenancy}

    @property
    def workloads(self) -> Mapping[str, Mapping[str, Any]]:
        """What holds the pods of engines, by name."""
        return {**(self.clusters or {}), **self.deployments, **self.holdings}

    @property
    def is_deleted(self) -> bool:
        """Whether it is to go, and waits for its finalizers."""
        return "deletionTimestamp" in self.body["metadata"]

    @property
    def wanted(self) -> int:
        """Engines that should be there."""
        return self.spec.wanted if self.spec and not self.is_deleted else 0

    @property
    def plan_only(self) -> bool:
        """Whether nothing is to be made, changed or removed."""
        return bool(self.spec and self.spec.plan_only) and not self.is_deleted

    @property
    def generation(self) -> int:
        """Generation of the spec that was seen."""
        return int(self.body["metadata"].get("generation", 0))


def is_ours(body: Mapping[str, Any], owner: Owner) -> bool:
    """Say whether an object's controller is this CR."""
    references = body["metadata"].get("ownerReferences") or []
    return any(item.get("controller") and item.get("uid") == owner.uid for item in references)


class Observer:
    """Reads Kubernetes for one deployment at a time."""

    def __init__(self, api: KubernetesClient) -> None:
        self._api = api

    async def look(self, body: Mapping[str, Any]) -> Observation:
        """Look at everything that belongs to a deployment.

        Raises
        ------
        ApiError
            Something could not be read: nothing may be decided.
        """
        meta = body["metadata"]
        owner = Owner(name=meta["name"], namespace=meta["namespace"], uid=meta["uid"])
        tags = {identity.LABEL_DEPLOYMENT: owner.name, identity.LABEL_MANAGED_BY: identity.MANAGER}
        spec, blocker = _read_spec(body)
        revisions = self._ours(await self._api.list(REVISION, owner.namespace, tags), owner)
        maps = self._ours(await self._api.list(CONFIG_MAP, owner.namespace, tags), owner)
        clusters = await self._clusters(owner, tags)
        holdings = {item["metadata"]["name"]: item for item in maps if _is_holding(item)}
        deployments = self._ours(await self._api.list(WORKLOAD, owner.namespace, tags), owner)
        service = await self._api.find(SERVICE, owner.namespace, owner.name)
        if not blocker and service and not is_ours(service, owner):
            blocker = name_conflict("Service", owner.name)
        if not blocker and spec:
            blocker = await self._missing_reference(owner, spec)
        return Observation(
            body=body,
            owner=owner,
            spec=spec,
            status=_read_status(body),
            revisions=tuple(revisions),
            clusters=clusters,
            deployments={item["metadata"]["name"]: item for item in deployments},
            pods=tuple(read_pod(item) for item in await self._api.list(POD, owner.namespace, tags)),
            reports=dict(_read_reports(maps)),
            config_maps=frozenset(item["metadata"]["name"] for item in maps),
            holdings=holdings,
            slices=await self._slices(owner, tags) if holdings else {},
            service=service,
            blocker=blocker,
        )

    async def volume(self, owner: Owner, spec: VLLMDeploymentSpec | None) -> Volume | None:
        """Look at the claim of a model, and at its volume if that may be read.

        Raises
        ------
        ApiError
            Something could not be read: nothing may be decided.
        """
        name = locate(spec.model).claim if spec else ""
        claim = await self._api.find(CLAIM, owner.namespace, name) if name else None
        if claim is None:
            return None
        bound = volume_name(claim)
        try:
            return read_volume(claim, await self._api.find(VOLUME, "", bound) if bound else None)
        except ApiError as error:
            if error.code != HTTPStatus.FORBIDDEN:
                raise
            log.warning("volume %s may not be read, it counts as reachable from every node: %s", bound, error.message)
            return read_volume(claim, None)

    async def rules(self, owner: Owner, clusters: int) -> NamespaceRules:
        """Look at the quotas and limits of a namespace, and at the pods that will make room.

        Raises
        ------
        ApiError
            Something could not be read: nothing may be decided.
        """
        # Items of a list carry no kind.
        found = [
            {**body, "kind": kind.kind}
            for kind in (QUOTA, LIMIT_RANGE)
            for body in await self._api.list(kind, owner.namespace)
        ]
        ours = await self._api.list(POD, owner.namespace, {identity.LABEL_DEPLOYMENT: owner.name}) if found else ()
        return read_rules(found, ours, clusters)

    async def is_foreign(self, kind: Kind, owner: Owner, name: str) -> bool:
        """Say whether an object of that name exists and is not ours."""
        found = await self._api.find(kind, owner.namespace, name)
        return bool(found) and not is_ours(found or {}, owner)

    @staticmethod
    def _ours(items: Iterable[dict[str, Any]], owner: Owner) -> list[dict[str, Any]]:
        return [item for item in items if is_ours(item, owner)]

    async def _slices(self, owner: Owner, tags: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        found = self._ours(await self._api.list(ENDPOINT_SLICE, owner.namespace, tags), owner)
        return {item["metadata"]["name"]: item for item in found}

    async def _clusters(self, owner: Owner, tags: Mapping[str, str]) -> dict[str, dict[str, Any]] | None:
        try:
            found = await self._api.list(RAY_CLUSTER, owner.namespace, tags)
        except NotFoundError:
            return None
        return {item["metadata"]["name"]: item for item in self._ours(found, owner)}

    async def _missing_reference(self, owner: Owner, spec: VLLMDeploymentSpec) -> Blocker | None:
        for kind, name, key, place in _references(spec):
            found = await self._api.find(kind, owner.namespace, name)
            reason = {SECRET: Reason.SECRET_NOT_FOUND, CONFIG_MAP: Reason.CONFIG_MAP_NOT_FOUND}.get(
                kind, Reason.CLAIM_NOT_FOUND
            )
            if found is None:
                text = f"{place}: {kind.kind} {name} does not exist in namespace {owner.namespace}; create it"
                return Blocker(reason=reason, message=text)
            if key and key not in (found.get("data") or {}):
                keys = ", ".join(sorted(found.get("data") or {})) or "none"
                return Blocker(
                    reason=reason, message=f"{place}: {kind.kind} {name} has no key {key} (its keys: {keys})"
                )
        return None


def _is_holding(body: Mapping[str, Any]) -> bool:
    return identity.LABEL_RAY_CLUSTER in body["metadata"]["labels"] and read_tenancy(body) is not None


def _references(spec: VLLMDeploymentSpec) -> list[tuple[Kind, str, str, str]]:
    """Give what the spec refers to and cannot do without: kind, name, key, field."""
    found: list[tuple[Kind, str, str, str]] = []
    if token := spec.model.hf_token_secret:
        found.append((SECRET, token.name, token.key, "spec.model.hfTokenSecret"))
    if secret := spec.ray_cluster_ref and spec.ray_cluster_ref.auth_secret:
        found.append((SECRET, secret.name, secret.key, "spec.rayClusterRef.authSecret"))
    if key := spec.api_key_secret:
        found.append((SECRET, key.name, key.key, "spec.apiKeySecret"))
    if claim := locate(spec.model).claim:
        found.append((CLAIM, claim, "", "spec.model.cache" if spec.model.cache else "spec.model.uri"))
    found += [(CLAIM, name, "", "spec.lora.persistentVolumeClaims") for name in lora.claims(spec)]
    for variable in spec.env:
        source = variable.value_from
        if source and source.secret_key_ref and not source.secret_key_ref.optional:
            found.append((SECRET, source.secret_key_ref.name, source.secret_key_ref.key, f"spec.env {variable.name}"))
        if source and source.config_map_key_ref and not source.config_map_key_ref.optional:
            reference = source.config_map_key_ref
            found.append((CONFIG_MAP, reference.name, reference.key, f"spec.env {variable.name}"))
    for index, item in enumerate(spec.env_from):
        if item.secret_ref and not item.secret_ref.optional:
            found.append((SECRET, item.secret_ref.name, "", f"spec.envFrom[{index}]"))
        if item.config_map_ref and not item.config_map_ref.optional:
            found.append((CONFIG_MAP, item.config_map_ref.name, "", f"spec.envFrom[{index}]"))
    return found


def name_conflict(kind: str, name: str) -> Blocker:
    """Say that an object of a name that we need belongs to somebody else."""
    return Blocker(
        reason=Reason.NAME_CONFLICT,
        message=(
            f"{kind} {name} exists and does not belong to this {identity.KIND}; it is left as it is: "
            "rename or remove one of the two"
        ),
    )


def _read_spec(body: Mapping[str, Any]) -> tuple[VLLMDeploymentSpec | None, Blocker | None]:
    try:
        return VLLMDeploymentSpec.model_validate(body.get("spec") or {}), None
    except ValidationError as error:
        return None, Blocker(reason=Reason.INVALID_SPEC, message=explain(error))


def _read_status(body: Mapping[str, Any]) -> VLLMDeploymentStatus:
    try:
        return VLLMDeploymentStatus.model_validate(body.get("status") or {})
    except ValidationError:
        log.warning("the status of %s is unreadable and is made anew", body["metadata"]["name"])
        return VLLMDeploymentStatus()


def _read_reports(maps: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, contract.EngineReport]]:
    for item in maps:
        name = item["metadata"]["name"]
        text = (item.get("data") or {}).get(contract.REPORT_KEY)
        if not text or not name.endswith("-report"):
            continue
        try:
            yield name.removesuffix("-report"), contract.loads(contract.EngineReport, text)
        except contract.ContractError as error:
            log.warning("report %s is ignored: %s", name, error)
