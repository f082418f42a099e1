"""Whether a namespace's ResourceQuotas let an engine's pods in, asked before any of them is made.

The API server refuses a pod that would exceed a quota, or that leaves out what a quota limits; KubeRay then makes half
an engine and repeats itself.  Counted is as the API server's own evaluator of pods does.  LimitRanges are read for the
requests that they add to containers that state none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_operator.planning.free_form import entries, items, mapping
from vllm_operator.planning.quantity import CPU, MEMORY, STORAGE, Amounts, add, amounts, show_amount
from vllm_operator.planning.requests import ENDED, container_amounts, pod_requests

CLUSTERS = "count/rayclusters.ray.io"
DEPLOYMENTS = "count/deployments.apps"
_NATIVE = (CPU, MEMORY, STORAGE)
_MUST_STATE = (CPU, MEMORY, "requests.cpu", "requests.memory", "limits.cpu", "limits.memory")
"""A quota of these refuses pods with a container that says nothing of them."""


class QuotaError(Exception):
    """A quota keeps the pods out; the message names it."""


class QuotaExceededError(QuotaError):
    """It has no room for the pods now."""


class UnstatedResourcesError(QuotaError):
    """It demands that the pods say what they ask for; the message names the field."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Which pods a quota counts."""

    name: str
    operator: str = "Exists"
    values: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Quota:
    """A ResourceQuota: what is allowed, and what all pods that it counts hold of it."""

    name: str
    hard: Amounts
    used: Amounts = field(default_factory=dict)
    scopes: tuple[Scope, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What LimitRanges give to containers that state nothing, as quantities."""

    requests: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)

    def applied(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Give a pod's ``spec`` as admission completes it."""
        lists = {key: spec[key] for key in ("containers", "initContainers") if isinstance(spec.get(key), list)}
        return {**spec, **{key: [self._completed(item) for item in items] for key, items in lists.items()}}

    def _completed(self, container: Any) -> Any:
        if not isinstance(container, Mapping):
            return container
        own = mapping(container.get("resources"))
        requests, limits = mapping(own.get("requests")), mapping(own.get("limits"))
        given = {"requests": {**self.requests, **limits, **requests}, "limits": {**self.limits, **limits}}
        return {**container, "resources": {**own, **given}}


@dataclass(frozen=True, kw_only=True)
class NamespaceRules:
    """What a namespace says of the pods in it.

    Attributes
    ----------
    ours
        ``spec`` of the pods of the planned deployment that are there: they make room.
    clusters
        Its RayClusters that are there.
    """

    quotas: tuple[Quota, ...] = ()
    defaults: Defaults = field(default_factory=Defaults)
    ours: tuple[Mapping[str, Any], ...] = ()
    clusters: int = 0

    @property
    def kept(self) -> NamespaceRules:
        """The same where nothing of the deployment makes room."""
        return replace(self, ours=(), clusters=0)


NO_RULES = NamespaceRules()


@dataclass(frozen=True, kw_only=True)
class Pods:
    """Pods that will be made, all alike.

    Attributes
    ----------
    container, field
        The main container, and the field of the CR that says what it asks for.
    """

    spec: Mapping[str, Any]
    number: int
    container: str
    field: str


def read_rules(
    objects: Iterable[Mapping[str, Any]], ours: Iterable[Mapping[str, Any]] = (), clusters: int = 0
) -> NamespaceRules:
    """Read the ResourceQuotas and LimitRanges of a namespace.

    Parameters
    ----------
    objects
        Both kinds, and others, which are passed over.
    ours
        Pods of the planned deployment, with those that have ended.
    clusters
        RayClusters of the planned deployment.
    """
    there = list(objects)
    limits = [
        item
        for body in there
        if body.get("kind") == "LimitRange"
        for item in entries(mapping(body.get("spec")), "limits")
        if item.get("type") == "Container"
    ]
    return NamespaceRules(
        quotas=tuple(_quota(body) for body in there if body.get("kind") == "ResourceQuota"),
        defaults=Defaults(
            requests={name: text for item in limits for name, text in mapping(item.get("defaultRequest")).items()},
            limits={name: text for item in limits for name, text in mapping(item.get("default")).items()},
        ),
        ours=tuple(pod["spec"] for pod in ours if (pod.get("status") or {}).get("phase") not in ENDED),
        clusters=clusters,
    )


def check_quotas(
    rules: NamespaceRules, pods: Sequence[Pods], engines: int = 1, *, with_ray: bool = True
) -> tuple[str, ...]:
    """Say whether the quotas let the pods in.

    Parameters
    ----------
    pods
        The pods of an engine.
    engines
        So many engines, all alike.
    with_ray
        Each is a RayCluster; else a Deployment.

    Returns
    -------
    What could not be judged, for a warning.

    Raises
    ------
    UnstatedResourcesError
        The pods must say what they ask for.
    QuotaExceededError
        There is no room for them.
    """
    whole = [replace(item, spec=rules.defaults.applied(item.spec), number=item.number * engines) for item in pods]
    notes, full = [], []
    for quota in rules.quotas:
        counted = {id(item): _counts(quota, item.spec) for item in whole}
        if None in counted.values():
            scopes = ", ".join(scope.name for scope in quota.scopes)
            notes.append(f"ResourceQuota {quota.name} is not looked at: which pods {scopes} means is not known here")
            continue
        mine = [item for item in whole if counted[id(item)]]
        _must_state(quota, mine)
        full += _exceeded(quota, mine, rules, {CLUSTERS if with_ray else DEPLOYMENTS: engines})
    if full:
        raise QuotaExceededError("; ".join(full))
    return tuple(notes)


def usage(spec: Mapping[str, Any]) -> dict[str, int]:
    """Give what a pod uses of a quota, by the names that quotas have for it."""
    requests, limits = pod_requests(spec), pod_requests(spec, "limits")
    plain = {name: value for name, value in requests.items() if name in _NATIVE or name.startswith("hugepages-")}
    return {
        "pods": 1,
        "count/pods": 1,
        **plain,
        **{f"requests.{name}": value for name, value in requests.items()},
        **{f"limits.{name}": value for name, value in limits.items() if name in _NATIVE},
    }


def _quota(body: Mapping[str, Any]) -> Quota:
    spec, status = mapping(body.get("spec")), mapping(body.get("status"))
    chosen = entries(mapping(spec.get("scopeSelector")), "matchExpressions")
    return Quota(
        name=str(mapping(body.get("metadata")).get("name", "")),
        # What is enforced is what the status says; a new quota has none yet.
        hard=amounts(status.get("hard") or spec.get("hard")),
        used=amounts(status.get("used")),
        scopes=(
            *(Scope(name=str(name)) for name in items(spec.get("scopes"))),
            *(
                Scope(
                    name=str(item.get("scopeName")),
                    operator=str(item.get("operator")),
                    values=tuple(map(str, items(item.get("values")))),
                )
                for item in chosen
            ),
        ),
    )


def _must_state(quota: Quota, pods: Sequence[Pods]) -> None:
    wanted = [name for name in _MUST_STATE if name in quota.hard]
    for item in pods:
        for container in (*entries(item.spec, "containers"), *entries(item.spec, "initContainers")):
            missing = [name for name in wanted if not _states(container, name)]
            if missing:
                name = str(container.get("name") or "")
                raise UnstatedResourcesError(
                    f"ResourceQuota {quota.name} limits {', '.join(missing)}: the API server refuses pods with a "
                    f"container that does not state it, as {name} does not; state it in "
                    f"{item.field if name == item.container else 'pod.template'}"
                )


def _states(container: Mapping[str, Any], name: str) -> bool:
    kind, _, resource = name.rpartition(".")
    return resource in container_amounts(container, kind or "requests")


def _exceeded(quota: Quota, pods: Sequence[Pods], rules: NamespaceRules, engines: Mapping[str, int]) -> list[str]:
    asked: dict[str, int] = {} if quota.scopes else dict(engines)
    for item in pods:
        asked = add(asked, {name: value * item.number for name, value in usage(item.spec).items()})
    given_back: dict[str, int] = {} if quota.scopes else {CLUSTERS: rules.clusters}
    for spec in rules.ours:
        if _counts(quota, spec):
            given_back = add(given_back, usage(spec))
    number = sum(engines.values())
    who = "the engine asks" if number == 1 else f"{number} engines ask"
    told = []
    for name, hard in quota.hard.items():
        used = max(0, quota.used.get(name, 0) - given_back.get(name, 0))
        if asked.get(name, 0) > 0 and used + asked[name] > hard:
            told.append(
                f"ResourceQuota {quota.name} allows {show_amount(name, hard)} of {name}, others use "
                f"{show_amount(name, used)}, {who} for {show_amount(name, asked[name])}"
            )
    return told


def _counts(quota: Quota, spec: Mapping[str, Any]) -> bool | None:
    """Say whether a quota counts a pod; ``None`` when one of its scopes is not known."""
    answers = [_in_scope(scope, spec) for scope in quota.scopes]
    if False in answers:
        return False
    return None if None in answers else True


def _in_scope(scope: Scope, spec: Mapping[str, Any]) -> bool | None:
    match scope.name:
        case "Terminating":
            return spec.get("activeDeadlineSeconds") is not None
        case "NotTerminating":
            return spec.get("activeDeadlineSeconds") is None
        case "BestEffort":
            return not _has_quality(spec)
        case "NotBestEffort":
            return _has_quality(spec)
        case "PriorityClass":
            return _selects(scope, str(spec.get("priorityClassName") or ""))
        case _:
            return None


def _has_quality(spec: Mapping[str, Any]) -> bool:
    """Say whether a pod asks for any CPU or memory."""
    stated = add(pod_requests(spec), pod_requests(spec, "limits"))
    return any(stated.get(name) for name in (CPU, MEMORY))


def _selects(scope: Scope, found: str) -> bool:
    answers = {
        "In": found in scope.values,
        "NotIn": found not in scope.values,
        "Exists": bool(found),
        "DoesNotExist": not found,
    }
    return answers.get(scope.operator, False)
