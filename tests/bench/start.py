"""How long from apply to Ready, beside the same RayCluster and vLLM started by hand.

Both ways use the rendering of the same revision (image, probes, volumes, arguments), alternate on one warm test bed,
and end with the first token.  What the operator adds is the difference.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.product.ask import complete
from tests.product.deployment import Deployment
from tests.product.install import REPOSITORY, install
from tests.testbed.bed import Bed

RUNS = 5
TOKEN = "by-hand-token"
SCRIPT = "/tmp/launch.py"  # noqa: S108 - inside the pod
NAMESPACE = "bench-start"
HERE = Path(__file__).parent
RESULTS = REPOSITORY / "docs" / "benchmarks.json"
COMMAND = "make bench-start"
MANIFEST = yaml.safe_load((REPOSITORY / "examples" / "smollm2-pipeline.yaml").read_text())
NAME = MANIFEST["metadata"]["name"]


@dataclass(frozen=True)
class Rendering:
    """What the operator made of the example: the same goes to the start by hand."""

    cluster: dict[str, Any]
    secret: dict[str, Any]
    arguments: list[str]


def main() -> int:
    """Run the benchmark; gives the exit status."""
    bed = Bed.up()
    install(bed)
    bed.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout=180)
    bed.kubectl("create", "namespace", NAMESPACE)
    rendering = _warm_up(bed)
    ours, hand = [], []
    for number in range(1, RUNS + 1):
        ours.append(_by_operator(bed))
        hand.append(_by_hand(bed, rendering))
        sys.stdout.write(f"run {number}: operator {ours[-1]:6.1f} s, by hand {hand[-1]:6.1f} s\n")
        sys.stdout.flush()
    bed.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    _write(ours, hand)
    return 0


def _warm_up(bed: Bed) -> Rendering:
    """Bring the example up once, so that every cache is warm, and read what the operator rendered."""
    _by_operator(bed, keep=True)
    deployment = Deployment(bed, NAMESPACE, NAME)
    cluster = bed.api.json("get", "rayclusters", "-n", NAMESPACE)["items"][0]
    name = cluster["metadata"]["name"]
    secret = bed.api.json("get", "secret", f"{name}-token", "-n", NAMESPACE)
    revision = bed.api.json("get", "controllerrevisions", "-n", NAMESPACE)["items"][0]
    arguments = list(revision["data"]["engine"]["arguments"])
    deployment.delete()
    # Under names of its own: an object of another owner would make the operator refuse to start.
    text = json.dumps(cluster["spec"]).replace(f"{name}-token", TOKEN)
    spec = json.loads(text.replace(f'"serviceAccountName": "{name}"', '"serviceAccountName": "default"'))
    return Rendering(
        cluster={"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "by-hand"}, "spec": spec},
        secret={"apiVersion": "v1", "kind": "Secret", "metadata": {"name": TOKEN}, "data": secret["data"]},
        arguments=arguments,
    )


def _by_operator(bed: Bed, *, keep: bool = False) -> float:
    begin = time.monotonic()
    bed.api.apply(MANIFEST, namespace=NAMESPACE)
    deployment = Deployment(bed, NAMESPACE, NAME)
    deployment.await_ready(deadline=300)
    spent = time.monotonic() - begin
    if not keep:
        deployment.delete()
    return spent


def _by_hand(bed: Bed, rendering: Rendering) -> float:
    bed.api.apply(rendering.secret, namespace=NAMESPACE)
    begin = time.monotonic()
    bed.api.apply(rendering.cluster, namespace=NAMESPACE)
    head = _running(bed, "head")
    lead = _running(bed, "lead")
    bed.wait_for("Ray's nodes", lambda: _gpus(bed, head) == 2, 120)
    group = ("python", "-", "group", "2", "PACK")
    bed.kubectl("exec", "-i", "-n", NAMESPACE, head, "--", *group, stdin=(HERE / "group_by_hand.py").read_text())
    bed.kubectl(
        "exec",
        "-i",
        "-n",
        NAMESPACE,
        lead,
        "--",
        "tee",
        SCRIPT,
        stdin=(HERE / "launch_by_hand.py").read_text(),
    )
    launcher = _start(bed, lead, rendering.arguments)
    try:
        ip = bed.api.json("get", "pod", lead, "-n", NAMESPACE)["status"]["podIP"]
        bed.wait_for("vLLM by hand", lambda: _answers(f"http://{ip}:8000"), 240)
        return time.monotonic() - begin
    finally:
        launcher.kill()
        bed.kubectl("delete", "raycluster", "by-hand", "-n", NAMESPACE)
        gone = ("wait", "--for=delete", "pod", "-l", "ray.io/cluster=by-hand", "-n", NAMESPACE, "--timeout=120s")
        bed.kubectl(*gone, timeout=130)


def _running(bed: Bed, component: str) -> str:
    selector = f"ray.io/cluster=by-hand,app.kubernetes.io/component={component}"

    def probe() -> str | None:
        pods = bed.api.json("get", "pods", "-n", NAMESPACE, "-l", selector)["items"]
        states = [item.get("state", {}) for pod in pods for item in pod["status"].get("containerStatuses", [])]
        return str(pods[0]["metadata"]["name"]) if states and all("running" in state for state in states) else None

    return bed.wait_for(f"the {component} pod", probe, 120) or ""


def _gpus(bed: Bed, head: str) -> int:
    script = (
        "import logging,ray; ray.init(address='auto', log_to_driver=False, logging_level=logging.ERROR);"
        "print(int(ray.cluster_resources().get('GPU', 0)))"
    )
    return int(bed.kubectl("exec", "-n", NAMESPACE, head, "--", "python", "-c", script).split()[-1])


def _start(bed: Bed, lead: str, arguments: list[str]) -> subprocess.Popen[bytes]:
    command = [str(bed.bin / "kubectl"), f"--kubeconfig={bed.kubeconfig}", "exec", "-n", NAMESPACE, lead, "--"]
    launch = ["python", SCRIPT, "group", *arguments]
    return subprocess.Popen([*command, *launch], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603


def _answers(url: str) -> bool:
    try:
        return bool(complete(url, NAME, "Hello"))
    except (OSError, AssertionError):
        return False


def _write(ours: list[float], hand: list[float]) -> None:
    ratio = statistics.median(ours) / statistics.median(hand)
    share = statistics.median(ours) - statistics.median(hand)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    mine = [
        {
            "name": "start: apply to Ready, beside by hand",
            "ratio": round(ratio, 3),
            "unit": "x",
            "goal": "<= 1.10",
            "command": COMMAND,
        },
        {
            "name": "start: the operator's own share",
            "value": round(share, 2),
            "unit": "s",
            "goal": "<= 3",
            "command": COMMAND,
        },
    ]
    kept = [entry for entry in known if entry["name"] not in {entry["name"] for entry in mine}]
    RESULTS.write_text(json.dumps([*kept, *mine], indent=1) + "\n")
    sys.stdout.write(f"median: operator {statistics.median(ours):.1f} s, by hand {statistics.median(hand):.1f} s; ")
    sys.stdout.write(f"ratio {ratio:.3f} (goal <= 1.10), own share {share:+.1f} s (goal <= 3)\n")


if __name__ == "__main__":
    sys.exit(main())
