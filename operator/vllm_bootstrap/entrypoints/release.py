"""The release job: an engine that is gone gives back what it holds of a shared Ray cluster; the others serve on.

It runs on the head as the entrypoint of a Ray job, for seconds, and may be run again.  What it frees it finds by name:
a name holds the uid of its deployment.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from vllm_bootstrap import contract
from vllm_bootstrap.clock import Clock, poll
from vllm_bootstrap.contract import FailureReason, ReleasePlan, Tenancy
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.placing import ray_cluster
from vllm_bootstrap.placing.clearing import Clearing
from vllm_bootstrap.placing.placement import Group

LOG = logging.getLogger("vllm_bootstrap")

ACTOR_SECONDS = 15.0
REMOVAL_SECONDS = 15.0


def release(tenancy: Tenancy, gcs: str, clock: Clock) -> None:
    """Free what one engine holds.

    Raises
    ------
    EngineFailure
        Something of it is still there.
    """
    groups = groups_of(tenancy)
    if tenancy.groups and {group.id for group in groups} != set(tenancy.groups):
        LOG.info("%s: its placement groups are others by now: left alone", tenancy.stem)
        return
    fault: EngineFailure | None = None
    clearing = Clearing(
        f"{tenancy.stem}-supervisor",
        f"{tenancy.stem}-",
        groups=[group.id for group in groups],
        gcs=gcs,
        seconds=ACTOR_SECONDS,
        clock=clock,
    )
    try:
        clearing.run()
    except EngineFailure as failure:
        # Ray kills what runs in a placement group that is removed.
        fault = failure
    for group in groups:
        LOG.info("remove placement group %s (%s)", group.name, group.id)
        ray_cluster.remove_group(group.id)
    if not poll(lambda: None if groups_of(tenancy) else True, seconds=REMOVAL_SECONDS, clock=clock):
        names = ", ".join(group.name for group in groups_of(tenancy))
        raise EngineFailure(FailureReason.BOOTSTRAP_ERROR, f"placement groups are still there: {names}")
    if fault:
        LOG.warning("%s: %s", tenancy.stem, fault)


def groups_of(tenancy: Tenancy) -> list[Group]:
    """List the placement groups of an engine that are not removed."""
    mine = re.compile(rf"{re.escape(tenancy.stem)}-dp\d+")
    return ray_cluster.find_groups(lambda name: bool(mine.fullmatch(name)))


def release_all(tenancies: Sequence[Tenancy], gcs: str, clock: Clock) -> list[str]:
    """Free what engines hold, each whatever became of the others; gives what could not be freed."""
    faults = []
    for tenancy in tenancies:
        try:
            release(tenancy, gcs, clock)
        except EngineFailure as failure:
            faults.append(f"{tenancy.stem}: {failure.message}")
    return faults


def main() -> int:
    """Run the job; whatever fails is a sentence."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(levelname)s %(message)s")
    try:
        plan = contract.loads(ReleasePlan, Path(contract.PLAN_FILE).read_text())
        faults = release_all(plan.tenancies, ray_cluster.connect(), Clock())
    except Exception as error:  # a bare traceback is no answer
        traceback.print_exc(file=sys.stdout)
        faults = [f"the release failed: {error!r}"]
    for fault in faults:
        print(f"vllm_bootstrap: {fault}", flush=True)  # noqa: T201 - the operator reads the job's last line
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
