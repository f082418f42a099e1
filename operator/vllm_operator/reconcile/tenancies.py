"""What is done for engines on shared RayClusters: made, led traffic to, released, and orphans collected.  Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from vllm_bootstrap import contract
from vllm_operator.lifecycle.actions import Action, Create, CreateTokens, Delete, Patch, Release
from vllm_operator.lifecycle.engine_view import EngineView, RayView
from vllm_operator.reconcile.compare import contains
from vllm_operator.reconcile.departing import remove_engine
from vllm_operator.reconcile.intent import Intent
from vllm_operator.reconcile.observe import Observation
from vllm_operator.reconcile.seat import Leaving
from vllm_operator.reconcile.shared import orphans, release_id, stale_in
from vllm_operator.resources import access
from vllm_operator.resources.endpoint_slice import API_VERSION as SLICE_VERSION
from vllm_operator.resources.endpoint_slice import KIND as SLICE
from vllm_operator.resources.endpoint_slice import Backend, endpoint_slice
from vllm_operator.resources.engine import read_references, shared_plan
from vllm_operator.resources.names import EngineNames
from vllm_operator.resources.revision import Revision
from vllm_operator.resources.tenancy import Tenancy, tenancy_config_map


def create_tenant(seen: Observation, names: EngineNames, revision: Revision, tenancy: Tenancy) -> list[Action]:
    """Make what an engine on a shared RayCluster needs."""
    owner, references = seen.owner, read_references(revision.engine)
    named = [references.api_key, *references.environment.values(), *references.sources]
    role = access.report_role(
        owner,
        names,
        secrets=[names.secret, *(item.name for item in named if item.kind == "Secret")],
        config_maps=[item.name for item in named if item.kind == "ConfigMap"],
    )
    # An engine of this name was there before and is gone: what it said does not speak of the new one.
    stale: list[Action] = (
        [Delete(api_version="v1", kind="ConfigMap", name=names.report)] if names.ray_cluster in seen.reports else []
    )
    return [
        *stale,
        CreateTokens(body=access.token_secret(owner, names, control_token=""), with_ray=False),
        Create(body=access.report_config_map(owner, names)),
        Create(body=role),
        Create(body=access.report_role_binding(owner, names, accounts=tenancy.accounts)),
        # The last, so that an interrupted making is seen and taken up again.
        Create(body=tenancy_config_map(owner, names, revision.name, tenancy)),
    ]


def plan_on_seats(
    plan: contract.EnginePlan, view: EngineView, revision: Revision, names: EngineNames
) -> contract.EnginePlan:
    """Complete the plan of an engine with the pods that it is seated on, as they are now."""
    tenancy = view.cluster.tenancy
    assert tenancy is not None  # noqa: S101 - only engines with one are seated
    seats = tuple(
        contract.Seat(pod=pod.name, address=pod.ip, gpus=tenancy.gpus[pod.name], node=pod.node) for pod in view.gpu_pods
    )
    return shared_plan(plan, tenancy, seats, names=names, part=revision.engine)


def endpoint_slices(seen: Observation, intent: Intent, serving: frozenset[str]) -> list[Action]:
    """Lead traffic to the engines that serve, and to no other.

    Parameters
    ----------
    serving
        Names of the engines that may have traffic.
    """
    actions: list[Action] = []
    views = [(engine.view, engine.names) for engine in intent.engines.values()]
    views += [(item.view, item.names) for item in intent.leaving.values()]
    for view, names in views:
        if view.cluster.tenancy:
            actions += _slice(seen, view, names, ready=view.name in serving)
    # Of an engine that cannot even be looked at, nobody says that it serves.
    told = {names.endpoint_slice for _, names in views}
    lost = (name for name in seen.slices if name not in told)
    return [*actions, *(Delete(api_version=SLICE_VERSION, kind=SLICE, name=name) for name in sorted(lost))]


def _slice(seen: Observation, view: EngineView, names: EngineNames, *, ready: bool) -> list[Action]:
    lead = view.lead
    backend = Backend(pod=lead.name, uid=lead.uid, ip=lead.ip, node=lead.node) if lead and lead.ip else None
    port = view.cluster.ports["http"]
    wanted = endpoint_slice(seen.owner, names, backend=backend, port=port, ready=ready)
    live = seen.slices.get(names.endpoint_slice)
    if live is None:
        return [Create(body=wanted)]
    if contains(live, {key: wanted[key] for key in ("endpoints", "ports")}):
        return []
    meta = live["metadata"]
    return [Patch(body=wanted, uid=meta["uid"], resource_version=meta["resourceVersion"])]


def release_seed(leaving: Leaving) -> str:
    """Give what tells one engine's release from all others, also from that of its successor."""
    return leaving.view.cluster.uid


def releases(intent: Intent, rays: Mapping[str, RayView]) -> list[Action]:
    """Free what engines that go hold in Ray, and remove those that are free."""
    actions: list[Action] = []
    for name, item in intent.leaving.items():
        tenancy, head = item.view.cluster.tenancy, item.view.head
        if not item.leave.release or not tenancy or not head:
            continue
        told = rays.get(name, RayView())
        if told.job and told.job.status == "SUCCEEDED":
            actions += remove_engine(int(item.names.index), item.view.cluster)
        elif told.session and not told.job:
            job = release_id(release_seed(item), told.session)
            plan = contract.ReleasePlan(tenancies=(contract.Tenancy(stem=tenancy.stem),))
            actions.append(Release(plan=plan, cluster=tenancy.cluster, ip=head.ip, auth=tenancy.auth, job_id=job))
    return actions


def collections(seen: Observation) -> list[Action]:
    """Free what deployments that are gone left in Ray on the cluster that this one is to be put on."""
    actions: list[Action] = []
    for cluster in () if seen.plan_only else seen.shared.values():
        found, head = orphans(cluster), cluster.head
        if found and head and cluster.auth:
            seed = "/".join(group for tenancy in found for group in tenancy.groups)
            job = release_id(seed, cluster.name)
            plan = contract.ReleasePlan(tenancies=found)
            actions.append(Release(plan=plan, cluster=cluster.name, ip=head.ip, auth=cluster.auth, job_id=job))
    return actions


def next_sign(intent: Intent, now: datetime.datetime) -> list[float]:
    """Give the seconds after which engines that are silent until then lose their traffic."""
    reports = (engine.view.report for engine in intent.engines.values() if engine.view.cluster.tenancy)
    left = (stale_in(report, now) for report in reports if report and report.phase is contract.Phase.SERVING)
    return [seconds + 0.5 for seconds in left if seconds is not None and seconds > 0]
