"""Whole objects against files that a reviewer can read: any change of a rendering shows as a diff.

``UPDATE_GOLDEN=1`` writes the files anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.resources import samples

from vllm_operator.planning.inventory import GpuNode
from vllm_operator.resources import access
from vllm_operator.resources.deployment import code_config_map, deployment, deployment_spec, with_code
from vllm_operator.resources.names import EngineNames
from vllm_operator.resources.ray_cluster import ray_cluster
from vllm_operator.resources.service import service

GOLDEN = Path(__file__).parent / "golden"


def check(name: str, *objects: Any) -> None:
    file = GOLDEN / f"{name}.yaml"
    # A round trip through JSON-like YAML without anchors: what is shared in memory is written twice.
    dumper = type("Plain", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})
    text = yaml.dump_all(objects, Dumper=dumper, sort_keys=False, width=120)
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text)
    assert list(yaml.safe_load_all(text)) == list(yaml.safe_load_all(file.read_text()))


@pytest.mark.parametrize(
    ("name", "spec"),
    [("pipeline-two-pods", samples.TYPICAL), ("strict-spread-everything", samples.EVERYTHING)],
)
def test_ray_cluster(name: str, spec: samples.Object) -> None:
    parsed = samples.spec_of(spec)
    nodes = [type(node)(name=node.name, gpus=node.gpus, labels=parsed.pod.node_selector) for node in samples.NODES]
    revision = samples.revision_of(parsed, nodes=nodes)
    names = EngineNames(index="0", ray_cluster="demo-0-aaaaaaaa")
    body = ray_cluster(
        owner=samples.OWNER, names=names, revision="eeeeeeee-aaaaaaaa", cluster_spec=names.fill(revision.cluster_spec)
    )
    check(name, body)


def test_a_slice_of_a_gpu() -> None:
    spec = samples.spec_of({"pod": samples.TYPICAL["pod"]})
    sliced = GpuNode(name="gpu-a", gpus=7, product="A100-MIG-1g.10gb", resource="nvidia.com/mig-1g.10gb")
    check("mig-slice", *samples.rendered(spec, nodes=[sliced])["workerGroupSpecs"])


def test_deployment() -> None:
    spec = samples.spec_of(
        {**samples.TYPICAL, "parallelism": {"tensor": 2}, "placement": {}, "distributedExecutorBackend": "mp"}
    )
    names = EngineNames(index="0", ray_cluster="demo-0-aaaaaaaa")
    shape = samples.shape_of(spec, samples.NODES)
    rendering = deployment_spec(
        spec=spec, shape=shape, owner=samples.OWNER, names=EngineNames.placeholder(), defaults=samples.DEFAULTS
    )
    body = deployment(owner=samples.OWNER, names=names, revision="eeeeeeee-aaaaaaaa", rendering=names.fill(rendering))
    check("mp-one-pod", body, with_code(code_config_map(samples.OWNER, names), "UEsD"))


def test_objects_beside_the_ray_cluster() -> None:
    owner, names = samples.OWNER, EngineNames(index="0", ray_cluster="demo-0-aaaaaaaa")
    check(
        "beside",
        service(owner),
        access.token_secret(owner, names, auth_token="ray", control_token="control"),
        access.report_config_map(owner, names),
        access.service_account(owner, names),
        access.report_role(owner, names),
        access.report_role_binding(owner, names, accounts=[names.service_account]),
    )
