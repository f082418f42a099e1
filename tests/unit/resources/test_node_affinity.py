"""What a plan adds to a user's node affinity holds in each of its alternatives."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_operator.resources.node_affinity import away_from

LABEL = "nvidia.com/gpu.product"
ABSENT = {"key": LABEL, "operator": "DoesNotExist"}
ZONE = {"key": "zone", "operator": "In", "values": ["z1"]}
NAME = {"key": "metadata.name", "operator": "In", "values": ["n"]}


@pytest.mark.parametrize(
    ("given", "terms"),
    [
        ([{"matchExpressions": [ZONE]}], [{"matchExpressions": [ZONE, ABSENT]}]),
        (
            [{"matchExpressions": [ZONE]}, {"matchFields": [NAME]}],
            [{"matchExpressions": [ZONE, ABSENT]}, {"matchFields": [NAME], "matchExpressions": [ABSENT]}],
        ),
        ([{}, {"matchExpressions": []}], [{}, {"matchExpressions": []}]),
    ],
)
def test_every_alternative_says_it(given: list[dict[str, Any]], terms: list[dict[str, Any]]) -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": given}}
    made = away_from(LABEL, {"nodeAffinity": required})
    assert made["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] == terms


@pytest.mark.parametrize("given", [None, {}, "free form", {"nodeAffinity": {}}, {"nodeAffinity": []}])
def test_it_is_said_where_nothing_was(given: object) -> None:
    required = {"nodeSelectorTerms": [{"matchExpressions": [ABSENT]}]}
    assert away_from(LABEL, given) == {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def test_the_rest_of_the_affinity_stays() -> None:
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}
    made = away_from(LABEL, {"podAffinity": preferred, "nodeAffinity": preferred})
    assert made["podAffinity"] == preferred
    assert preferred.items() <= made["nodeAffinity"].items()
