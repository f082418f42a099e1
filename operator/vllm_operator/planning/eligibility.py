"""Whether the scheduler would put a GPU pod on a node at all: selectors, required node affinity, taints, cordons.

The same rules as kube-scheduler's NodeAffinity, TaintToleration and NodeUnschedulable, read out of the same objects.  A
reason that goes away by itself (a cordon, a node that is not ready) is told apart from one that somebody must change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_operator.planning.free_form import entries
from vllm_operator.planning.inventory import GpuNode, Taint
from vllm_operator.planning.volumes import Volume

REPELLING = ("NoSchedule", "NoExecute")
PASSING_TAINTS = (
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/pid-pressure",
    "node.kubernetes.io/network-unavailable",
    "node.cloudprovider.kubernetes.io/uninitialized",
)
"""Taints that Kubernetes sets and takes away by itself."""
_CORDON = Taint(key="node.kubernetes.io/unschedulable")
"""What a cordon counts as: the scheduler puts pods that tolerate it on cordoned nodes."""
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")


@dataclass(frozen=True, kw_only=True)
class PodRules:
    """What GPU pods say of their nodes, in the form of a pod's spec."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    affinity: Mapping[str, Any] | None = None
    node_name: str = ""
    volume: Volume | None = None


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """Why a node is out of the question.

    Attributes
    ----------
    passing
        It may go away without anybody changing the CR or the node's labels and taints.
    """

    reason: str
    passing: bool = False


def read_rules(pod: object) -> PodRules:
    """Read a pod's ``spec``; parts of a wrong form say nothing, the API server refuses them when they are used."""
    said = pod if isinstance(pod, Mapping) else {}
    return PodRules(
        node_selector={str(key): str(value) for key, value in _part(said, "nodeSelector").items()},
        tolerations=entries(said, "tolerations"),
        affinity=_part(said, "affinity"),
        node_name=str(said.get("nodeName") or ""),
    )


def obstacle(node: GpuNode, rules: PodRules) -> Obstacle | None:
    """Say what keeps a GPU pod from a node; ``None`` when nothing does."""
    if mismatch := _mismatch(node, rules):
        return Obstacle(reason=mismatch)
    # A pod with a nodeName never meets the scheduler, who heeds NoSchedule and cordons.
    repelling = ("NoExecute",) if rules.node_name else REPELLING
    for taint in node.taints:
        if taint.effect in repelling and not _tolerated(taint, rules):
            passing = taint.key in PASSING_TAINTS
            return Obstacle(reason=f"taint {taint} is not tolerated", passing=passing)
    if not node.schedulable and not rules.node_name and not _tolerated(_CORDON, rules):
        return Obstacle(reason="the node is cordoned", passing=True)
    return None


def _mismatch(node: GpuNode, rules: PodRules) -> str:
    """Say what of a pod does not match a node's name and labels."""
    if rules.node_name and node.name != rules.node_name:
        return f"nodeName {rules.node_name} does not match"
    for key, value in sorted(rules.node_selector.items()):
        if node.labels.get(key) != value:
            return f"nodeSelector {key}={value} does not match"
    if not _affinity_matches(node, rules.affinity):
        return "the required node affinity does not match"
    if rules.volume and not _selector_matches(node, rules.volume.required):
        return f"the volume of claim {rules.volume.claim} cannot be reached"
    return ""


def _tolerated(taint: Taint, rules: PodRules) -> bool:
    return any(tolerates(item, taint) for item in rules.tolerations)


def tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    """Say whether a toleration covers a taint."""
    if toleration.get("effect") not in (None, "", taint.effect):
        return False
    operator, key = toleration.get("operator") or "Equal", toleration.get("key") or ""
    if not key:
        return operator == "Exists"
    if key != taint.key:
        return False
    return operator == "Exists" or (operator == "Equal" and (toleration.get("value") or "") == taint.value)


def _affinity_matches(node: GpuNode, affinity: Mapping[str, Any] | None) -> bool:
    return _selector_matches(
        node, _part(_part(affinity, "nodeAffinity"), "requiredDuringSchedulingIgnoredDuringExecution")
    )


def _selector_matches(node: GpuNode, required: Mapping[str, Any] | None) -> bool:
    if not required:
        return True
    # Terms are alternatives; a term without expressions matches nothing.
    return any(_term_matches(node, term) for term in entries(required, "nodeSelectorTerms"))


def _term_matches(node: GpuNode, term: Mapping[str, Any]) -> bool:
    expressions = [(item, node.labels) for item in entries(term, "matchExpressions")]
    expressions += [(item, {"metadata.name": node.name}) for item in entries(term, "matchFields")]
    return bool(expressions) and all(_expression_matches(item, values) for item, values in expressions)


def _expression_matches(expression: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    found = values.get(str(expression.get("key")))
    values_ = expression.get("values")
    wanted = [str(value) for value in values_] if isinstance(values_, list) else []
    answers = {
        "In": found in wanted,
        "NotIn": found not in wanted,
        "Exists": found is not None,
        "DoesNotExist": found is None,
        "Gt": _difference(found, wanted) > 0,
        "Lt": _difference(found, wanted) < 0,
    }
    return answers.get(str(expression.get("operator")), False)


def _part(value: object, key: str) -> Mapping[str, Any]:
    """Give a part of a free-form object; what has a wrong form is the API server's to refuse, when it is used."""
    found = value.get(key) if isinstance(value, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _difference(found: str | None, wanted: Sequence[str]) -> int:
    """Compare two whole numbers; what is none matches neither Gt nor Lt."""
    # Not by trying: Python takes 1_000 and blanks for numbers, the scheduler does not.
    if not (found and wanted and _WHOLE_NUMBER.fullmatch(found) and _WHOLE_NUMBER.fullmatch(wanted[0])):
        return 0
    return int(found) - int(wanted[0])
