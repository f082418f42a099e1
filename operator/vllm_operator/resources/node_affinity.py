"""What a plan adds to the node affinity of a pod that may say something itself.

The terms of a required node affinity are alternatives: what must hold has to be said in each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_operator.planning.free_form import mapping

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def away_from(label: str, affinity: object) -> dict[str, Any]:
    """Give an affinity that also keeps to nodes without a label."""
    expression = {"key": label, "operator": "DoesNotExist"}
    whole = mapping(affinity)
    nodes = mapping(whole.get("nodeAffinity"))
    required = mapping(nodes.get(_REQUIRED))
    terms = required.get("nodeSelectorTerms")
    if not required:
        terms = [{"matchExpressions": [expression]}]
    elif isinstance(terms, list):
        terms = [_with(expression, term) for term in terms]
    return {**whole, "nodeAffinity": {**nodes, _REQUIRED: {**required, "nodeSelectorTerms": terms}}}


def _with(expression: Mapping[str, Any], term: Any) -> Any:
    # A term that says nothing matches no node: it must not become one that does.
    if not isinstance(term, Mapping) or not any(term.values()):
        return term
    given = term.get("matchExpressions")
    return {**term, "matchExpressions": [*(given if isinstance(given, list) else []), expression]}
