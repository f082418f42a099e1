"""What the pods of an engine say: whether they run, and if not, what is missing and what would mend it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.api import identity
from vllm_operator.api.status import Reason

_PULL_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_CONFIG_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError"})
_LAST_WORDS = 600
COMMAND_NOT_FOUND = 127
"""A shell's exit status."""

_LASTING_RESTARTS = 3


@dataclass(frozen=True, kw_only=True)
class PodView:
    """A pod as the lifecycle sees it.

    Attributes
    ----------
    running
        Its main container runs.
    ready
        Kubernetes counts it ready.
    ready_changed_at
        RFC 3339 instant of the last change of ``ready``.
    scheduled_at
        RFC 3339 instant at which it got its node, empty before.
    trouble
        What keeps it from running, ``None`` while it only needs time.
    restarts
        Restarts of its main container.
    unscheduled_since
        RFC 3339 instant since which the scheduler finds no node for it, empty when it has one.
    started_at
        RFC 3339 instant at which the main container that runs now was started, empty while none runs.
    """

    name: str
    uid: str
    cluster: str
    head: bool
    lead: bool
    node: str
    ip: str
    phase: str
    running: bool
    ready: bool
    ready_changed_at: str
    deleting: bool
    scheduled_at: str
    restarts: int
    trouble: Trouble | None
    started_at: str = ""
    unscheduled_since: str = ""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Why a pod does not run.

    Attributes
    ----------
    lasting
        It does not mend itself: someone must change the spec, the image or the cluster.
    """

    reason: Reason
    message: str
    lasting: bool


def read_pod(body: Mapping[str, Any]) -> PodView:
    """Read a Pod object of the API server."""
    meta, status = body["metadata"], body.get("status", {})
    tags = meta.get("labels") or {}
    main = _main_container(status)
    conditions = {item["type"]: item for item in status.get("conditions") or []}
    scheduled = conditions.get("PodScheduled", {})
    trouble = _trouble(meta["name"], body, scheduled)
    return PodView(
        name=meta["name"],
        uid=meta["uid"],
        cluster=tags.get("ray.io/cluster") or tags.get(identity.LABEL_WORKLOAD, ""),
        head=tags.get("ray.io/node-type") == "head",
        lead=tags.get(identity.LABEL_LEAD) == "true",
        node=body.get("spec", {}).get("nodeName", ""),
        ip=status.get("podIP", ""),
        phase=status.get("phase", "Pending"),
        running="running" in (main.get("state") or {}) and not (trouble and trouble.lasting),
        ready=conditions.get("Ready", {}).get("status") == "True",
        ready_changed_at=conditions.get("Ready", {}).get("lastTransitionTime", ""),
        deleting="deletionTimestamp" in meta,
        scheduled_at=scheduled.get("lastTransitionTime", "") if scheduled.get("status") == "True" else "",
        restarts=main.get("restartCount", 0),
        trouble=trouble,
        unscheduled_since=scheduled.get("lastTransitionTime", "") if scheduled.get("status") == "False" else "",
        started_at=((main.get("state") or {}).get("running") or {}).get("startedAt") or "",
    )


def first_trouble(pods: Iterable[PodView]) -> Trouble | None:
    """Give the trouble to report: a lasting one before one that may pass, the head's before the others'."""
    troubled = [pod for pod in pods if pod.trouble and not pod.deleting]
    troubled.sort(key=lambda pod: (not (pod.trouble and pod.trouble.lasting), not pod.head, pod.name))
    return troubled[0].trouble if troubled else None


def _main_container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    statuses = status.get("containerStatuses") or []
    return next((item for item in statuses if item.get("name") == "vllm"), statuses[0] if statuses else {})


def _trouble(name: str, body: Mapping[str, Any], scheduled: Mapping[str, Any]) -> Trouble | None:
    if scheduled.get("status") == "False":
        return Trouble(
            reason=Reason.UNSCHEDULABLE,
            message=f"pod {name}: {scheduled.get('message', 'not scheduled')}",
            lasting=False,
        )
    status = body.get("status", {})
    images = {item["name"]: item.get("image", "") for item in body.get("spec", {}).get("containers", [])}
    images |= {item["name"]: item.get("image", "") for item in body.get("spec", {}).get("initContainers", [])}
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        if trouble := _container_trouble(name, container, images.get(container["name"], "")):
            return trouble
    return None


def _container_trouble(pod: str, container: Mapping[str, Any], image: str) -> Trouble | None:
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    if waiting.get("reason") in _PULL_REASONS:
        return Trouble(
            reason=Reason.IMAGE_PULL_FAILED,
            message=(
                f"pod {pod}: image {image} cannot be pulled: {waiting.get('message') or waiting['reason']}; "
                "check spec.image, the registry and pod.imagePullSecrets"
            ),
            # The kubelet tries again by itself; after its first back-off it is for somebody to mend.
            lasting=waiting["reason"] != "ErrImagePull",
        )
    if waiting.get("reason") in _CONFIG_REASONS:
        return Trouble(
            reason=Reason.CONTAINER_CRASHED,
            message=f"pod {pod}: container {container['name']}: {waiting.get('message') or waiting['reason']}",
            lasting=True,
        )
    last = (container.get("lastState") or {}).get("terminated") or {}
    # A command that was not found is not found again: the moment of the next try is no sign of life.
    counts = "waiting" in state or last.get("exitCode") == COMMAND_NOT_FOUND
    ended = state.get("terminated") or (last if counts else {})
    if ended and ended.get("exitCode") != 0:
        return _crash(pod, container["name"], image, ended, restarts=container.get("restartCount", 0))
    return None


def _crash(pod: str, container: str, image: str, ended: Mapping[str, Any], *, restarts: int) -> Trouble:
    words = (ended.get("message") or "").strip()[-_LAST_WORDS:] or f"exit code {ended.get('exitCode')}"
    if ended.get("exitCode") == COMMAND_NOT_FOUND or ("ray: command not found" in words or "ray: not found" in words):
        return Trouble(
            reason=Reason.IMAGE_WITHOUT_RAY,
            message=(
                f"image {image} has no Ray (stock vLLM images have none since v0.19): pod {pod}, "
                f"container {container}: {words}; use an image with ray[default] and vllm, see images/runtime"
            ),
            lasting=True,
        )
    if ended.get("reason") == "OOMKilled":
        words = f"killed for memory (OOMKilled): raise pod.resources.limits.memory; {words}"
    return Trouble(
        reason=Reason.CONTAINER_CRASHED,
        message=f"pod {pod}, container {container} ended: {words}",
        # A node that is short of CPU makes Ray's start run out of time once or twice.
        lasting=restarts >= _LASTING_RESTARTS or ended.get("reason") == "OOMKilled",
    )
