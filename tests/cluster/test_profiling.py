"""Tensor parallel over two pods, profiled: nsight is a launch argument of vLLM's, and every rank runs under ``nsys``.

There is no GPU to profile here: a stand-in for ``nsys`` writes down how it was called and runs the rest.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.checker.ranks import disagreements, gather
from tests.product.ask import complete, service_url
from tests.product.deployment import Deployment
from tests.product.install import Installation
from tests.product.manifests import dummy
from tests.testbed.bed import Bed

pytestmark = [pytest.mark.cluster, pytest.mark.engine, pytest.mark.extended]

RECORD = "/tmp/nsys.calls"  # noqa: S108 - inside the pods
STAND_IN = f"""#!/bin/bash
echo "$*" >> {RECORD}
# Ray tries it out once, and removes the report that it expects.
for word in "$@"; do [ "$previous" = -o ] && touch "$word.nsys-rep"; previous=$word; done
while [ $# -gt 0 ]; do case "$1" in *python*) exec "$@" ;; esac; shift; done
"""


@pytest.fixture(scope="module")
def profiled(operator: Installation, bed: Bed, namespace: str) -> Iterator[Deployment]:
    """Give a deployment whose ranks run under the stand-in."""
    script = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "nsys"},
        "data": {"nsys": STAND_IN},
    }
    manifest = dummy("profiled", "dummy-tp", tensor=2, gpus_per_pod=1, arguments=("--ray-workers-use-nsight",))
    path = {"name": "PATH", "value": f"/opt/nsight:{bed.runtime().env['PATH']}"}
    mount = {"name": "nsight", "mountPath": "/opt/nsight"}
    manifest["spec"]["pod"]["template"] = {
        "spec": {
            "containers": [{"name": "vllm", "env": [path], "volumeMounts": [mount]}],
            "volumes": [{"name": "nsight", "configMap": {"name": "nsys", "defaultMode": 0o755}}],
        }
    }
    bed.api.apply(script, manifest, namespace=namespace)
    deployment = Deployment(bed, namespace, "profiled")
    try:
        deployment.await_ready()
        yield deployment
    finally:
        deployment.delete()


def test_every_rank_runs_under_nsys(profiled: Deployment, bed: Bed) -> None:
    (engine,) = profiled.engines
    for rank in engine["ranks"]:
        calls = bed.kubectl("exec", "-n", profiled.namespace, rank["pod"], "--", "cat", RECORD).splitlines()
        workers = [call for call in calls if call.startswith("profile ") and "default_worker.py" in call]
        assert workers, calls


def test_it_answers(profiled: Deployment, bed: Bed) -> None:
    assert complete(service_url(bed, profiled.namespace, profiled.name), profiled.name, "Hello", tokens=4)


def test_the_rank_map_is_as_true_as_without(profiled: Deployment, bed: Bed) -> None:
    (engine,) = profiled.engines
    evidence = gather(bed, profiled.namespace, engine["rayCluster"])
    assert disagreements(engine, evidence, tensor=2, pipeline=1) == []
    assert len({rank["pod"] for rank in engine["ranks"]}) == 2
