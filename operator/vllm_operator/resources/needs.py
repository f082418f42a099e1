"""What the pods that are rendered for a spec will ask of a node beside GPUs.

Read out of the rendering itself, so that the user's template, the chart's and the defaults of this operator count as
they do in the pods that come of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vllm_operator.api.placement import Executor, Strategy
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.planning.devices import is_gpu
from vllm_operator.planning.eligibility import read_rules
from vllm_operator.planning.free_form import items, mapping
from vllm_operator.planning.hosts import HostNeeds, by_kind
from vllm_operator.planning.quantity import MEMORY, PODS, Amounts, amount, amounts
from vllm_operator.planning.quota import Defaults, Pods
from vllm_operator.planning.requests import container_amounts, pod_requests
from vllm_operator.planning.shapes import LEAD_GROUP, PodShape, Shape
from vllm_operator.resources.defaults import RuntimeDefaults
from vllm_operator.resources.deployment import deployment_spec
from vllm_operator.resources.names import EngineNames, Owner
from vllm_operator.resources.pod import CONTAINER, SHM_VOLUME
from vllm_operator.resources.ray_cluster import ray_cluster_spec

HEAD_GROUP = "headGroupSpec"
KUBERAY_WAITS = {"requests": {"cpu": "200m", "memory": "256Mi"}, "limits": {"cpu": "200m", "memory": "256Mi"}}
"""Of the init container that KubeRay adds to every worker (``wait-gcs-ready``), the same in all its versions so far."""

_ONE = Shape(tensor=1, pipeline=1, strategy=Strategy.PACK, groups=(PodShape(name=LEAD_GROUP, pods=1, gpus=1),))
_ONE_WITHOUT_RAY = replace(_ONE, executor=Executor.UNI)
_NOBODY = Owner(name="", namespace="", uid="")


def host_needs(
    spec: VLLMDeploymentSpec, defaults: RuntimeDefaults, given: Defaults | None = None, *, with_ray: bool = True
) -> HostNeeds:
    """Give what the pods of a spec ask for beside GPUs: the same however many they are.

    Parameters
    ----------
    given
        What their namespace adds.
    with_ray
        Whether there is a Ray head, and KubeRay makes the pods.
    """
    return needs_of(rendered(spec, _ONE if with_ray else _ONE_WITHOUT_RAY, defaults), spec, given)


def rendered(spec: VLLMDeploymentSpec, shape: Shape, defaults: RuntimeDefaults) -> dict[str, Any]:
    """Give the ``spec`` of a RayCluster or Deployment that is nobody's, for what its pods ask for."""
    names = EngineNames.placeholder()
    return (ray_cluster_spec if shape.with_ray else deployment_spec)(
        spec=spec, shape=shape, owner=_NOBODY, names=names, defaults=defaults
    )


def needs_of(
    cluster_spec: Mapping[str, Any],
    spec: VLLMDeploymentSpec | None = None,
    given: Defaults | None = None,
    *,
    head: bool = True,
) -> HostNeeds:
    """Read what the pods ask for out of a RayCluster's or Deployment's ``spec``.

    Parameters
    ----------
    spec
        What it was rendered from, to name the fields in reasons.
    given
        What their namespace adds.
    head
        Whether the head still needs a place.
    """
    complete = (given or Defaults()).applied
    pods = [complete(item.spec) for item in engine_pods(cluster_spec)]
    first, *workers = pods if HEAD_GROUP in cluster_spec else [{}, *pods]
    need = _with_slot(pod_requests(workers[0] if workers else {}))
    return HostNeeds(
        pod=need,
        head=_with_slot(pod_requests(first)) if head and first else {},
        head_rules=read_rules(first),
        sources={resource: _source(spec, resource, value) for resource, value in need.items()} if spec else {},
        memory_limit=_memory_limit(workers[0]) if workers else 0,
        shm=_shm(workers[0]) if workers else 0,
    )


def engine_pods(cluster_spec: Mapping[str, Any]) -> tuple[Pods, ...]:
    """Give the pods of a RayCluster as KubeRay will make them, the head first, or the pod of a Deployment."""
    if HEAD_GROUP not in cluster_spec:
        pod, number = _pod(cluster_spec), int(cluster_spec.get("replicas") or 0)
        return (Pods(spec=pod, number=number, container=CONTAINER, field="pod.resources"),)
    groups = [mapping(item) for item in items(cluster_spec.get("workerGroupSpecs"))]
    waits = {"name": "wait-gcs-ready", "resources": KUBERAY_WAITS}
    head = _pod(mapping(cluster_spec[HEAD_GROUP]))
    workers = [(_pod(group), int(group.get("replicas") or 0)) for group in groups]
    return (
        Pods(spec=head, number=1, container=CONTAINER, field="rayHead.resources"),
        *(
            Pods(
                spec={**pod, "initContainers": [*items(pod.get("initContainers")), waits]},
                number=number,
                container=CONTAINER,
                field="pod.resources",
            )
            for pod, number in workers
        ),
    )


def _pod(group: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(mapping(group.get("template")).get("spec"))


def _with_slot(asked: Amounts) -> dict[str, int]:
    beside = {name: value for name, value in asked.items() if not is_gpu(name) and value > 0}
    return dict(sorted({**beside, PODS: 1}.items(), key=lambda item: by_kind(item[0])))


def _source(spec: VLLMDeploymentSpec, resource: str, need: int) -> str:
    """Say who asks for so much."""
    own = spec.pod.resources
    stated = amounts({**own.limits, **own.requests}).get(resource, 0) if own else 0
    if resource == PODS:
        return "every pod"
    if need <= stated:
        return "pod.resources"
    if need <= amounts(KUBERAY_WAITS["requests"]).get(resource, 0):
        return "KubeRay's init container"
    return "pod.resources with pod.template" if stated else "pod.template"


def _memory_limit(pod: Mapping[str, Any]) -> int:
    main = [item for item in items(pod.get("containers")) if mapping(item).get("name") == CONTAINER]
    return max((container_amounts(item, "limits").get(MEMORY, 0) for item in main), default=0)


def _shm(pod: Mapping[str, Any]) -> int:
    volumes = [mapping(item) for item in items(pod.get("volumes"))]
    sizes = [mapping(item.get("emptyDir")).get("sizeLimit", 0) for item in volumes if item.get("name") == SHM_VOLUME]
    return max((amount(MEMORY, size) for size in sizes), default=0)
