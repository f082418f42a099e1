"""What a claim says of the nodes of its pods."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_operator.api.placement import Strategy
from vllm_operator.planning.catalogue import BUILT_IN
from vllm_operator.planning.choose import choose
from vllm_operator.planning.eligibility import Obstacle, PodRules, obstacle
from vllm_operator.planning.inventory import GpuNode
from vllm_operator.planning.proof import Verdict
from vllm_operator.planning.sizing import Load
from vllm_operator.planning.volumes import Volume, read_volume, volume_name
from vllm_operator.planning.wish import Wish

NODES = [GpuNode(name=name, gpus=4, labels={"host": name}) for name in "ab"]
HERE = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "host", "operator": "In", "values": ["a"]}]}]}


def claim(*modes: str, bound: bool = True, granted: tuple[str, ...] = ()) -> dict[str, Any]:
    status = {"phase": "Bound" if bound else "Pending", **({"accessModes": list(granted)} if granted else {})}
    return {"metadata": {"name": "c"}, "spec": {"accessModes": list(modes), "volumeName": "pv"}, "status": status}


@pytest.mark.parametrize(
    ("body", "mode"),
    [
        (claim("ReadWriteOnce"), "ReadWriteOnce"),
        (claim("ReadWriteOncePod"), "ReadWriteOncePod"),
        (claim("ReadWriteOnce", "ReadOnlyMany"), ""),
        (claim("ReadWriteMany"), ""),
        (claim("ReadWriteOnce", granted=("ReadWriteOnce", "ReadWriteMany")), ""),
        ({"metadata": {"name": "c"}}, ""),
    ],
)
def test_how_many_nodes_mount_it(body: dict[str, Any], mode: str) -> None:
    assert read_volume(body, None) == Volume(claim="c", mode=mode)


def test_its_volume_is_where_its_node_affinity_says() -> None:
    assert (volume_name(claim()), volume_name(claim(bound=False)), volume_name({})) == ("pv", "", "")
    found = read_volume(claim("ReadWriteMany"), {"spec": {"nodeAffinity": {"required": HERE}}})
    assert found == Volume(claim="c", required=HERE)
    obstacles = [obstacle(node, PodRules(volume=found)) for node in NODES]
    assert obstacles == [None, Obstacle(reason="the volume of claim c cannot be reached")]
    assert [obstacle(node, PodRules(volume=Volume(claim="c"))) for node in NODES] == [None, None]


@pytest.mark.parametrize(
    ("wish", "verdict", "words"),
    [
        (Wish(tensor=4), Verdict.FITS, "1 pod (1 x 4 GPUs) on 1 node"),
        (Wish(tensor=1, strategy=Strategy.STRICT_SPREAD), Verdict.FITS, "1 pod"),
        (Wish(tensor=8), Verdict.NEVER, "it cannot be mounted by 2 pods on nodes of their own; a ReadWriteMany"),
        (Wish(tensor=2, strategy=Strategy.SPREAD), Verdict.NEVER, "or one pod: STRICT_PACK"),
        (Wish(tensor=4, gpus_per_pod=2), Verdict.NEVER, "PACK without placement.gpusPerPod would fit: 1 pod"),
        (Wish(tensor=8, strategy=Strategy.STRICT_PACK), Verdict.NEVER, "a pod needs 8; add nodes"),
        (Wish(tensor=16), Verdict.NEVER, "add nodes or lower parallelism"),
    ],
)
def test_a_claim_that_one_node_mounts_takes_one_pod(wish: Wish, verdict: Verdict, words: str) -> None:
    rules = PodRules(volume=Volume(claim="c", mode="ReadWriteOnce"))
    asked = Wish(**{**vars(wish), "pod_rules": rules})
    found = choose(asked, None, Load(max_model_len=1), NODES, BUILT_IN)
    assert found.verdict is verdict
    assert words in found.reason
