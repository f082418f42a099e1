"""How well planned memory meets what recipes say, and how long a plan takes on a large fleet.  Needs no cluster."""

from __future__ import annotations

import statistics
import sys
import time

from tests.bench import replan
from tests.bench.results import record
from tests.unit.planning import models
from tests.unit.planning.test_recipes import compared, excluded, recipes

from vllm_operator.planning.catalogue import BUILT_IN
from vllm_operator.planning.choose import choose
from vllm_operator.planning.facts import read_config
from vllm_operator.planning.inventory import GIB, GpuNode
from vllm_operator.planning.sizing import Load
from vllm_operator.planning.wish import Wish

COMMAND = "make bench-planning"
NODES = 1000
REPEATS = 20


def main() -> int:
    """Measure, print and record; gives the exit status."""
    record(_recipes(), _fleet(), *_event())
    return 0


def _recipes() -> dict[str, object]:
    for recipe in recipes():
        if why := excluded(recipe):
            sys.stdout.write(f"not compared: {recipe['model']} ({recipe['variant']}): {why}\n")
    rows = compared()
    inside = [row for row in rows if 0.9 <= row.ratio <= 2]
    for row in sorted(set(rows) - set(inside), key=lambda row: row.ratio):
        told = f"planned {row.planned:.0f} GB, recipe {row.figure:g} GB, weights {row.weights:.0f} GB"
        sys.stdout.write(f"outside: {row.ratio:.2f} {row.name} {row.precision}: {told}\n")
    share = len(inside) / len(rows)
    sys.stdout.write(f"{len(inside)} of {len(rows)} recipes within [0.9, 2]: {share:.1%} (goal >= 90 %)\n")
    return {
        "name": "planning: recipes within [0.9, 2] of the authors' memory",
        "ratio": round(share, 3),
        "unit": "share",
        "goal": ">= 0.90",
        "command": COMMAND,
    }


def _fleet() -> dict[str, object]:
    product = "NVIDIA-H100-80GB-HBM3"
    nodes = [
        GpuNode(name=f"node-{index}", gpus=8, used=index % 9 % 8, product=product, memory=80 * GIB)
        for index in range(NODES)
    ]
    facts = read_config(models.DEEPSEEK_V3)
    spent = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        choose(Wish(), facts, Load(max_model_len=8192), nodes, BUILT_IN)
        spent.append((time.perf_counter() - begin) * 1000)
    median = statistics.median(spent)
    sys.stdout.write(f"one plan over {NODES} nodes of 8 GPUs: {median:.1f} ms, median of {REPEATS} (goal <= 50)\n")
    return {
        "name": "planning: one plan over 1000 nodes of 8 GPUs",
        "value": round(median, 2),
        "unit": "ms",
        "goal": "<= 50",
        "command": COMMAND,
    }


def _event() -> tuple[dict[str, object], dict[str, object]]:
    seconds, (look, plans), growth = replan.replanned(), replan.parts(), replan.growth()
    what = f"{replan.DEPLOYMENTS} deployments looked at again after an event of one of {replan.NODES} nodes"
    told = f"one look at nodes and pods takes {look:.2f} s, the plans alone {plans:.2f} s"
    sys.stdout.write(f"{what}: {seconds:.2f} s (goal < 1); {told}\n")
    sys.stdout.write(f"memory after {replan.MANY} such events by {replan.FEW}: {growth:.3f} x (goal <= 1.05)\n")
    return (
        {
            "name": "planning: 100 deployments looked at again after one node event",
            "value": round(seconds, 3),
            "unit": "s",
            "goal": "< 1",
            "command": COMMAND,
        },
        {
            "name": f"planning: memory after {replan.MANY} node events, by {replan.FEW}",
            "ratio": round(growth, 3),
            "unit": "x",
            "goal": "<= 1.05",
            "command": COMMAND,
        },
    )


if __name__ == "__main__":
    sys.exit(main())
