"""Bring the demo up: every step says what it does and, when it fails, what failed and where the log is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from tests.product.ask import chat, service_url
from tests.product.deployment import RESOURCE, Deployment
from tests.product.install import NAMESPACE, REPOSITORY, install
from tests.testbed import components
from tests.testbed.bed import Bed
from tests.testbed.errors import BedError
from tests.testbed.layout import Layout

EXAMPLE = REPOSITORY / "examples" / "smollm2-pipeline.yaml"
QUESTION = "What is the capital of France?"
COLUMNS = ("rank", "tp", "pp", "bundle", "pod", "node", "gpuIndex", "actor", "driver", "output")


def main() -> int:
    """Run the demo; gives the exit status."""
    begin = time.monotonic()

    def say(text: str) -> None:
        sys.stdout.write(f"[{time.monotonic() - begin:6.1f} s] {text}\n")
        sys.stdout.flush()

    try:
        _demo(say)
    except BedError as error:
        say(f"FAILED: {error}")
        log = getattr(error, "log", None)
        say(f"log: {log}" if log else f"logs: {Layout.from_environment().logs}")
        return 1
    return 0


def _demo(say: Callable[[str], None]) -> None:
    say("1/5 building or finding the programs of the test bed")
    components.build(Layout.from_environment())
    say("2/5 starting Kubernetes with two GPU nodes, KubeRay and the CPU runtime")
    bed = Bed.up()
    bed.runtime()
    say("3/5 building the operator's image and installing it with its chart")
    install(bed)
    say(f"4/5 kubectl apply -f {EXAMPLE.relative_to(REPOSITORY)}")
    bed.kubectl("apply", "-f", str(EXAMPLE))
    name = yaml.safe_load(EXAMPLE.read_text())["metadata"]["name"]
    deployment = Deployment(bed, "default", name)
    deployment.await_ready(deadline=300, tell=lambda line: say(f"    {line}"))
    bed.kubectl("wait", "--for=condition=Ready", f"{RESOURCE}/{name}", "--timeout=10s")
    say("5/5 asking the model through its Service")
    _show(bed, deployment)
    _hints(bed, name)


def _show(bed: Bed, deployment: Deployment) -> None:
    out = sys.stdout.write
    out("\n" + bed.kubectl("get", "vllm", "-o", "wide") + "\n")
    for engine in deployment.engines:
        out(_table([COLUMNS, *([_cell(rank, column) for column in COLUMNS] for rank in engine["ranks"])]) + "\n")
    answer = chat(service_url(bed, deployment.namespace, deployment.name), deployment.name, QUESTION)
    out(f"  user:  {QUESTION}\n  model: {answer.strip()}\n\n")


def _cell(rank: dict[str, Any], column: str) -> str:
    return str(rank.get(column, "")).replace("True", "yes").replace("False", "")


def _table(rows: list[Any]) -> str:
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _hints(bed: Bed, name: str) -> None:
    sys.stdout.write(
        'It is left running.  Look around:  eval "$(make -s testbed-env)"\n'
        f"  kubectl describe vllm {name}\n"
        f"  kubectl get pods,rayclusters,services -l vllm-operator.io/deployment={name}\n"
        f"  kubectl logs -n {NAMESPACE} deployment/vllm-operator\n"
        f"Logs of the cluster: {Path(bed.logs)}\n"
        "Stop it:  make demo-down\n"
    )


if __name__ == "__main__":
    sys.exit(main())
