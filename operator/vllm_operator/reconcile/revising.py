"""From the spec to the revision of its engines: the one that is known, or one that is planned now.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vllm_operator.api import identity
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.api.status import Reason
from vllm_operator.lifecycle.actions import Action, Create, Delete
from vllm_operator.lifecycle.conditions import Blocker
from vllm_operator.planning.demand import prove_demand
from vllm_operator.planning.eligibility import PodRules
from vllm_operator.planning.facts import FactsError
from vllm_operator.planning.known import ModelUnknownError, Trouble
from vllm_operator.planning.plan import GPUsTakenError, NoSuchGPUsError, describe, plan
from vllm_operator.planning.proof import Verdict
from vllm_operator.planning.quota import QuotaError, UnstatedResourcesError, check_quotas
from vllm_operator.reconcile.inventory import of_deployment
from vllm_operator.reconcile.observe import Observation
from vllm_operator.reconcile.room import demand_of, room_of
from vllm_operator.reconcile.settings import Settings
from vllm_operator.resources.deployment import deployment_spec
from vllm_operator.resources.engine import engine_part
from vllm_operator.resources.names import EngineNames
from vllm_operator.resources.needs import engine_pods, host_needs
from vllm_operator.resources.pod import node_rules
from vllm_operator.resources.ray_cluster import ray_cluster_spec
from vllm_operator.resources.revision import Revision, controller_revision, hashes, revision_name

HISTORY = 10

_UNKNOWN = {Trouble.MISSING: Reason.MODEL_NOT_FOUND, Trouble.UNAVAILABLE: Reason.MODEL_FACTS_UNAVAILABLE}


def revise(
    seen: Observation, settings: Settings, known: Mapping[str, Revision]
) -> tuple[Revision | None, Blocker | None, list[Action]]:
    """Give the revision of the present spec, or what stands in its way; and what is to be made or removed for it.

    Parameters
    ----------
    known
        Revisions that are there, by name.
    """
    if seen.blocker or not seen.spec:
        return None, seen.blocker, []
    wanted = revision_name(*hashes(seen.spec))
    if wanted in known and not seen.plan_only and not _is_homeless(seen, known[wanted]):
        return known[wanted], None, []
    image = seen.spec.image or settings.defaults.image
    if seen.spec.ray_cluster_ref:
        image = _shared_image(seen, seen.spec.ray_cluster_ref.name)
    elif not image:
        message = "spec.image is empty and the chart sets no runtime.image: name an image with Ray and vLLM"
        return None, Blocker(reason=Reason.IMAGE_MISSING, message=message), []
    try:
        revision = render(seen.spec, seen, settings, image)
    except (FactsError, ModelUnknownError, NoSuchGPUsError, GPUsTakenError, QuotaError) as error:
        return None, blocker_of(error), []
    if wanted in known and (revision.cluster_spec, revision.engine) == (
        known[wanted].cluster_spec,
        known[wanted].engine,
    ):
        return known[wanted], None, []
    forget = (
        [Delete(api_version="apps/v1", kind="ControllerRevision", name=f"{seen.owner.name}-{wanted}")]
        if wanted in known
        else []
    )
    number = max((int(item.get("revision", 0)) for item in seen.revisions), default=0) + 1
    body = controller_revision(seen.owner, revision, number=number)
    return revision, None, [*forget, Create(body=body), *_old_history(seen)]


def _is_homeless(seen: Observation, revision: Revision) -> bool:
    """Say whether nothing of a deployment is there, and what was planned for it fits no more: it is planned anew."""
    if not seen.inventory or not seen.wanted or seen.workloads or seen.pods:
        return False
    room = room_of(seen, revision.shared_cluster)
    return prove_demand(room, demand_of(seen, revision, "")).verdict is not Verdict.FITS


def _shared_image(seen: Observation, name: str) -> str:
    """Give the image that a shared RayCluster runs; its pods are there, so it is only told."""
    cluster = seen.shared.get(name)
    return next((item.image for item in cluster.members if item.view.head), "") if cluster else ""


def blocker_of(error: FactsError | ModelUnknownError | NoSuchGPUsError | GPUsTakenError | QuotaError) -> Blocker:
    """Say in a condition why there is no plan."""
    match error:
        case ModelUnknownError(trouble=trouble):
            reason = _UNKNOWN.get(trouble, Reason.MODEL_NOT_READABLE)
            return Blocker(reason=reason, message=str(error), lasting=trouble is not Trouble.UNAVAILABLE)
        case FactsError():
            return Blocker(reason=Reason.INVALID_SPEC, message=f"spec.model.facts: {error}")
        case NoSuchGPUsError():
            return Blocker(reason=Reason.NO_SUCH_GPUS, message=str(error))
        case GPUsTakenError():
            return Blocker(reason=Reason.WAITING_FOR_GPUS, message=str(error), lasting=False)
        case UnstatedResourcesError():
            return Blocker(reason=Reason.RESOURCES_NOT_STATED, message=str(error))
        case QuotaError():
            return Blocker(reason=Reason.QUOTA_EXCEEDED, message=str(error), lasting=False)


def render(spec: VLLMDeploymentSpec, seen: Observation, settings: Settings, image: str) -> Revision:
    """Render a spec to a revision.

    Raises
    ------
    FactsError
        What the spec says of the model cannot be read.
    ModelUnknownError
        Sizes were left out, and the hub did not tell what they depend on.
    NoSuchGPUsError
        No nodes could hold it.
    GPUsTakenError
        No nodes can hold it now.
    QuotaError
        A quota of its namespace keeps it out.
    """
    if spec.ray_cluster_ref:
        return _render_shared(spec, spec.ray_cluster_ref.name, seen, settings, image)
    nodes = seen.inventory.room(but=of_deployment(seen.owner)) if seen.inventory else ()
    rules = replace(node_rules(spec, settings.defaults), volume=seen.volume)
    needs, bare = (
        host_needs(spec, settings.defaults, seen.rules.defaults, with_ray=with_ray) for with_ray in (True, False)
    )
    planned = plan(spec, nodes, settings.catalogue, rules=rules, told=seen.told, needs=needs, bare=bare)
    shape = planned.shape
    cluster_spec = (ray_cluster_spec if shape.with_ray else deployment_spec)(
        spec=spec, shape=shape, owner=seen.owner, names=EngineNames.placeholder(), defaults=settings.defaults
    )
    notes = check_quotas(seen.rules, engine_pods(cluster_spec), with_ray=shape.with_ray)
    engine8, pods8 = hashes(spec)
    return Revision(
        engine8=engine8,
        pods8=pods8,
        image=image,
        cluster_spec=cluster_spec,
        engine=engine_part(
            spec=spec,
            shape=shape,
            owner=seen.owner,
            checkpoint_bytes=planned.survey.checkpoint_bytes,
            pod=engine_pods(cluster_spec)[-1].spec,
        ),
        plan=describe(planned, notes),
    )


def _render_shared(spec: VLLMDeploymentSpec, name: str, seen: Observation, settings: Settings, image: str) -> Revision:
    """Render a spec for a shared RayCluster: its pods are there, and only what vLLM is told is ours."""
    nodes = room_of(seen, name, but=of_deployment(seen.owner))
    planned = plan(spec, nodes, settings.catalogue, rules=PodRules(), told=seen.told)
    engine8, pods8 = hashes(spec)
    checkpoint = planned.survey.checkpoint_bytes
    return Revision(
        engine8=engine8,
        pods8=pods8,
        image=image,
        cluster_spec={},
        engine=engine_part(spec=spec, shape=planned.shape, owner=seen.owner, checkpoint_bytes=checkpoint),
        plan=describe(planned),
    )


def _old_history(seen: Observation) -> list[Action]:
    used = {body["metadata"].get("labels", {}).get(identity.LABEL_REVISION) for body in seen.workloads.values()}
    idle = sorted(
        (item for item in seen.revisions if item["metadata"]["labels"][identity.LABEL_REVISION] not in used),
        key=lambda item: int(item.get("revision", 0)),
    )
    surplus = idle[: max(0, len(idle) - HISTORY + 1)]
    return [Delete(api_version="apps/v1", kind="ControllerRevision", name=item["metadata"]["name"]) for item in surplus]
