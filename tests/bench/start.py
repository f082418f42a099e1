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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from tests.bench.results import record
from tests.product.ask import complete
from tests.product.deployment import Deployment
from tests.product.install import REPOSITORY, install
from tests.testbed.bed import Bed
from tests.testbed.errors import BedError

RUNS = 5
TOKEN = "by-hand-token"
GROUP = "group"
SELECTOR = "ray.io/cluster=by-hand"
PODS = 3
STEPS = ("podsScheduled", "rayNodesJoined", "placed", "loaded", "firstToken")
SCRIPT = "/tmp/launch.py"  # noqa: S108 - inside the pod
NAMESPACE = "bench-start"
HERE = Path(__file__).parent
COMMAND = "make bench-start"
MANIFEST = yaml.safe_load((REPOSITORY / "examples" / "smollm2-pipeline.yaml").read_text())
NAME = MANIFEST["metadata"]["name"]


@dataclass(frozen=True)
class Rendering:
    """What the operator made of the example: the same goes to the start by hand."""

    cluster: dict[str, Any]
    secret: dict[str, Any]
    arguments: list[str]


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start.

    Attributes
    ----------
    seconds
        From apply to the first token.
    steps
        When each step on the way was done, in seconds; by the cluster's clock for the operator's start.
    """

    seconds: float
    steps: Mapping[str, float]

    def __str__(self) -> str:
        steps = ", ".join(f"{step} {at:.1f}" for step, at in self.steps.items())
        return f"{self.seconds:6.1f} s ({steps})"


def main() -> int:
    """Run the benchmark; gives the exit status."""
    bed = Bed.up()
    install(bed)
    bed.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout=180)
    bed.kubectl("create", "namespace", NAMESPACE)
    rendering = _warm_up(bed)
    pairs = []
    for number in range(1, RUNS + 1):
        ours, hand = _by_operator(bed), _by_hand(bed, rendering)
        pairs.append((ours.seconds, hand.seconds))
        sys.stdout.write(f"run {number}\n  operator {ours}\n  by hand  {hand}\n")
        sys.stdout.flush()
    bed.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    _write(pairs)
    return 0


def _warm_up(bed: Bed) -> Rendering:
    """Bring the example up once, so that every cache is warm, and read what the operator rendered."""
    _by_operator(bed, keep=True)
    deployment = Deployment(bed, NAMESPACE, NAME)
    cluster = bed.api.json("get", "rayclusters", "-n", NAMESPACE)["items"][0]
    name = cluster["metadata"]["name"]
    secret = bed.api.json("get", "secret", f"{name}-token", "-n", NAMESPACE)
    revision = bed.api.json("get", "controllerrevisions", "-n", NAMESPACE)["items"][0]
    engine = revision["data"]["engine"]
    arguments = [
        f"--model={engine['model']}",
        f"--served-model-name={engine['servedName']}",
        f"--tensor-parallel-size={engine['tensor']}",
        f"--pipeline-parallel-size={engine['pipeline']}",
        "--distributed-executor-backend=ray",
        *engine["arguments"],
    ]
    deployment.delete()
    # Under names of its own: an object of another owner would make the operator refuse to start.
    text = json.dumps(cluster["spec"]).replace(f"{name}-token", TOKEN)
    spec = json.loads(text.replace(f'"serviceAccountName": "{name}"', '"serviceAccountName": "default"'))
    return Rendering(
        cluster={"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "by-hand"}, "spec": spec},
        secret={"apiVersion": "v1", "kind": "Secret", "metadata": {"name": TOKEN}, "data": secret["data"]},
        arguments=arguments,
    )


def _by_operator(bed: Bed, *, keep: bool = False) -> Start:
    begin = time.monotonic()
    bed.api.apply(MANIFEST, namespace=NAMESPACE)
    deployment = Deployment(bed, NAMESPACE, NAME)
    body = deployment.await_ready(deadline=300)
    spent = time.monotonic() - begin
    if not keep:
        deployment.delete()
    instants = body["status"]["engineReplicas"][0]["timings"]
    created = datetime.fromisoformat(body["metadata"]["creationTimestamp"])
    steps = {step: (datetime.fromisoformat(instants[step]) - created).total_seconds() for step in STEPS}
    return Start(seconds=spent, steps=steps)


def _by_hand(bed: Bed, rendering: Rendering) -> Start:
    bed.api.apply(rendering.secret, namespace=NAMESPACE)
    begin = time.monotonic()
    bed.api.apply(rendering.cluster, namespace=NAMESPACE)
    steps = {}
    pods = _running(bed)
    head, lead = pods["head"], pods["lead"]
    steps["podsRunning"] = time.monotonic() - begin
    inside = ("exec", "-i", "-n", NAMESPACE)
    group = ("python", "-", GROUP, "PACK", "2")
    bed.kubectl(*inside, head, "--", *group, stdin=(HERE / "group_by_hand.py").read_text())
    steps["placed"] = time.monotonic() - begin
    bed.kubectl(*inside, lead, "--", "tee", SCRIPT, stdin=(HERE / "launch_by_hand.py").read_text())
    launcher = _start(bed, lead, rendering.arguments)
    try:
        ip = bed.api.json("get", "pod", lead, "-n", NAMESPACE)["status"]["podIP"]
        bed.wait_for("vLLM by hand", lambda: _answers(f"http://{ip}:8000"), 240)
        return Start(seconds=time.monotonic() - begin, steps=steps)
    finally:
        launcher.kill()
        bed.kubectl("delete", "raycluster", "by-hand", "-n", NAMESPACE)
        gone = ("wait", "--for=delete", "pod", "-l", SELECTOR, "-n", NAMESPACE, "--timeout=120s")
        bed.kubectl(*gone, timeout=130)


def _running(bed: Bed) -> dict[str, str]:
    """Wait until the three pods run; give their names by component."""
    found: dict[str, str] = {}
    for pod in bed.api.follow("pods", "-l", SELECTOR, "-n", NAMESPACE, deadline=120):
        if pod["status"].get("phase") == "Running":
            found[pod["metadata"]["name"]] = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        if len(found) == PODS:
            return {component: name for name, component in found.items()}
    raise BedError(f"the pods by hand do not run within 120 s: {sorted(found)} do")


def _start(bed: Bed, lead: str, arguments: list[str]) -> subprocess.Popen[bytes]:
    command = [str(bed.bin / "kubectl"), f"--kubeconfig={bed.kubeconfig}", "exec", "-n", NAMESPACE, lead, "--"]
    launch = ["python", SCRIPT, GROUP, *arguments]
    return subprocess.Popen([*command, *launch], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603


def _answers(url: str) -> bool:
    try:
        return bool(complete(url, NAME, "Hello"))
    except (OSError, AssertionError):
        return False


def _write(pairs: Sequence[tuple[float, float]]) -> None:
    """Write the medians over the runs: the two of a run stand beside each other, so the machine's moods cancel."""
    ratio = statistics.median(ours / hand for ours, hand in pairs)
    share = statistics.median(ours - hand for ours, hand in pairs)
    record(
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
    )
    sys.stdout.write(f"median of {len(pairs)} runs: ratio {ratio:.3f} (goal <= 1.10), ")
    sys.stdout.write(f"own share {share:+.1f} s (goal <= 3)\n")


if __name__ == "__main__":
    sys.exit(main())
