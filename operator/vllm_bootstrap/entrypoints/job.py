"""The bootstrap job: place the engine, look before the launch, hand over to the supervisor, and end.

It runs on the CPU-only head as the entrypoint of a Ray job, for seconds and as long as a model is downloaded, and may
be run again at any time: for a plan whose supervisor lives it changes nothing.  What it leaves is a detached placement
group and a detached actor.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from vllm_bootstrap import contract
from vllm_bootstrap.clock import Clock, poll
from vllm_bootstrap.contract import (
    EnginePlan,
    EngineReport,
    FailureReason,
    PlacementGroupReport,
)
from vllm_bootstrap.download.actor import ray_sites
from vllm_bootstrap.download.fetch import fetch, model_order
from vllm_bootstrap.download.model_files import load_format
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.placing import ray_cluster
from vllm_bootstrap.placing.clearing import Clearing
from vllm_bootstrap.placing.groups import (
    GroupRequest,
    describe_placed,
    describe_shortage,
    group_requests,
    is_of_engine,
    place_ranks,
    unfit,
)
from vllm_bootstrap.placing.placement import (
    Group,
    RankPlace,
    RayNode,
    changed_nodes,
    missing_nodes,
    missing_seats,
    seen_nodes,
)
from vllm_bootstrap.placing.preflight import BundleFacts, judge, judge_model, look, name_pod
from vllm_bootstrap.placing.rank_map import describe_cores, describe_ranks
from vllm_bootstrap.placing.ray_cluster import last_line
from vllm_bootstrap.supervising.actor import Assignment, SupervisorActor
from vllm_bootstrap.supervising.host import instance_prefix
from vllm_bootstrap.supervising.report import ReportWriter, choose_sink, failed_report, first_report

LOG = logging.getLogger("vllm_bootstrap")

ANSWER_SECONDS = 15.0
"""For a supervisor to say what it runs; one that does not is replaced."""

HEAD_START_SECONDS = 3.0
PREFLIGHT_SECONDS = 120.0
SUPERVISOR_SECONDS = 90.0
FLUSH_SECONDS = 15.0
REMOVAL_SECONDS = 30.0
NODES_INTERVAL = 0.25


class Attempt:
    """One run of the job."""

    def __init__(self, plan: EnginePlan, writer: ReportWriter, clock: Clock) -> None:
        self._plan = plan
        self._writer = writer
        self._clock = clock
        self._silent = False
        self._gcs = ""
        self.report = first_report(plan, clock)

    def run(self) -> None:
        """Bring the engine to its supervisor."""
        plan = self._plan
        self._gcs = ray_cluster.connect()
        LOG.info("Ray at %s", self._gcs)
        if self._is_running():
            LOG.info("the supervisor %s runs this plan already: nothing to do", plan.supervisor)
            return
        self._see_nodes()
        self._clear()
        nodes = self._await_nodes()
        LOG.info("all Ray nodes are there: %s", ", ".join(f"{node.address} ({node.gpus:g} GPUs)" for node in nodes))
        lead = next(node for node in nodes if node.lead)
        supervisor = self._make_supervisor(lead)  # it comes up while the group is placed and looked at
        try:
            self._bring_up(supervisor, lead, nodes)
        except BaseException:
            # Without a plan it would stand there for ever, and say "placing" of an engine that has failed.
            ray.kill(supervisor, no_restart=True)
            raise

    def _bring_up(self, supervisor: Any, lead: RayNode, nodes: Sequence[RayNode]) -> None:
        plan = self._plan
        requests = self._requests(nodes)
        groups = self._place(requests, nodes)
        self._change(
            timings=replace(self.report.timings, placed=self._clock.timestamp()),
            placement_groups=tuple(_group_report(group) for group in groups),
        )
        ranks = place_ranks(plan, requests, groups, lead.id)
        for place in ranks:
            LOG.info("rank %d in bundle %d of %s", place.rank, place.bundle, groups[place.dp].name)
        # Its launcher imports vLLM, and that is what everything waits for: the preflight's workers start after it.
        ray.wait([supervisor.describe.remote()], timeout=HEAD_START_SECONDS)
        found = self._look(groups, ranks)
        LOG.info("preflight done")
        warnings = tuple(judge(plan, found))
        for warning in warnings:
            LOG.warning(warning)
        self._confirm(nodes)
        described = describe_ranks(plan, ranks, found)
        self._change(
            ranks=described,
            engine_cores=describe_cores(plan, described),
            versions=_versions(found),
            warnings=warnings,
        )
        model = ""
        if plan.source.repository:
            model = self._download(supervisor, lead, found)
            self._confirm(nodes)  # it may have taken an hour
        self._hand_over(supervisor, groups, ranks, model)

    def _is_running(self) -> bool:
        try:
            supervisor = ray.get_actor(self._plan.supervisor, namespace=contract.RAY_NAMESPACE)
            return bool(ray.get(supervisor.describe.remote(), timeout=ANSWER_SECONDS) == contract.job_id(self._plan))
        except ValueError:
            return False
        except ray.exceptions.RayError as error:
            LOG.warning("the supervisor %s does not answer and is replaced: %s", self._plan.supervisor, error)
            self._silent = True
            return False

    def _clear(self) -> None:
        """Leave no actor of an earlier attempt alive."""
        plan = self._plan
        groups = [group.id for group in self._groups()]
        clearing = Clearing(
            plan.supervisor,
            instance_prefix(plan),
            groups=groups,
            gcs=self._gcs,
            seconds=plan.deadlines.cleanup,
            clock=self._clock,
        )
        clearing.run(silent=self._silent)

    def _await_nodes(self) -> list[RayNode]:
        """Wait for exactly the plan's nodes; the operator starts this job as soon as the head answers."""
        seconds = self._plan.deadlines.ray_nodes
        nodes = poll(self._see_nodes, seconds=seconds, clock=self._clock, interval=NODES_INTERVAL)
        if nodes is None:
            raise EngineFailure(
                FailureReason.RAY_NODES_MISSING,
                f"after {seconds:g} s: {self.report.message}; a pod that runs but does not join says why in its log",
            )
        return nodes

    def _see_nodes(self) -> list[RayNode] | None:
        """Read Ray's nodes; report what is missing and, the first time that nothing is, that they have joined."""
        nodes = seen_nodes(self._plan, ray_cluster.alive_nodes())
        missing = missing_nodes(self._plan.groups, nodes) if not self._plan.seats else missing_seats(self._plan, nodes)
        if missing and missing != self.report.message:
            LOG.info("waiting for Ray's nodes: %s", missing)
            self._change(message=missing)
        elif not missing and not self.report.timings.ray_nodes_joined:
            timings = replace(self.report.timings, ray_nodes_joined=self._clock.timestamp())
            self._change(timings=timings, message="")
        return None if missing else nodes

    def _requests(self, nodes: Sequence[RayNode]) -> tuple[GroupRequest, ...]:
        try:
            return group_requests(self._plan, nodes)
        except ValueError as error:
            raise EngineFailure(FailureReason.INVALID_PARALLELISM, str(error)) from error

    def _place(self, requests: Sequence[GroupRequest], nodes: Sequence[RayNode]) -> list[Group]:
        """Have every group: those of an earlier attempt where they will do, else new ones."""
        seconds = self._plan.deadlines.placement
        adopted = self._adopt(requests, nodes)
        groups = [adopted.get(request.name) or ray_cluster.make_group(request) for request in requests]
        deadline = self._clock.monotonic() + seconds
        late = [
            request
            for request, group in zip(requests, groups, strict=True)
            if not ray_cluster.wait_group(group.id, max(0.0, deadline - self._clock.monotonic()))
        ]
        if late:
            shortage = describe_shortage(late, ray_cluster.alive_nodes(), ray_cluster.free_gpus())
            raise EngineFailure(FailureReason.PLACEMENT_TIMEOUT, f"after {seconds:g} s: {shortage}")
        return [ray_cluster.read_group(group.id) for group in groups]

    def _adopt(self, requests: Sequence[GroupRequest], nodes: Sequence[RayNode]) -> dict[str, Group]:
        """Take over groups of an earlier attempt by name; remove those that will not do, or are asked for no more."""
        wanted = {request.name: request for request in requests}
        adopted: dict[str, Group] = {}
        removed: list[str] = []
        for group in self._groups():
            name = group.name
            fault = unfit(wanted[name], group, nodes) if name in wanted else "it is asked for no more"
            if fault:
                LOG.info("remove placement group %s: %s", name, fault)
                ray_cluster.remove_group(group.id)
                removed.append(name)
            else:
                LOG.info("adopt placement group %s (%s)", name, group.id)
                adopted[name] = group
        self._await_removal(removed)
        return adopted

    def _groups(self) -> list[Group]:
        """Give the placement groups of this engine that are there, whatever its sizes were when they were made."""
        return ray_cluster.find_groups(lambda name: is_of_engine(self._plan, name))

    def _await_removal(self, names: Sequence[str]) -> None:
        def left() -> list[str]:
            return [name for name in names if ray_cluster.find_group(name)]

        if not poll(lambda: None if left() else True, seconds=REMOVAL_SECONDS, clock=self._clock):
            raise EngineFailure(
                FailureReason.PLACEMENT_TIMEOUT,
                f"the old placement group {', '.join(left())} is not gone after {REMOVAL_SECONDS:g} s",
            )

    def _look(self, groups: Sequence[Group], ranks: Sequence[RankPlace]) -> list[BundleFacts]:
        """Run one task in each bundle of a rank; the first of each node looks at the whole pod."""
        handles = [ray_cluster.handle(group.id) for group in groups]
        first = {place.node: place.rank for place in reversed(ranks)}
        task = ray.remote(num_cpus=0, num_gpus=1, max_retries=0)(look)
        form = load_format(self._plan.arguments)
        references = [
            task.options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    handles[place.dp], placement_group_bundle_index=place.bundle
                )
            ).remote(
                place.bundle,
                self._plan.model,
                form=form,
                whole=first[place.node] == place.rank,
                dp=place.dp,
                data_parallel=self._plan.data > 1,
            )
            for place in ranks
        ]
        ended, waiting = ray.wait(references, num_returns=len(references), timeout=PREFLIGHT_SECONDS)
        if waiting:
            late = [place for place, reference in zip(ranks, references, strict=True) if reference not in ended]
            raise EngineFailure(
                FailureReason.PREFLIGHT_FAILED,
                f"no answer within {PREFLIGHT_SECONDS:g} s from the preflight task of "
                + ", ".join(f"rank {place.rank} (bundle {place.bundle} of {groups[place.dp].name})" for place in late),
            )
        try:
            found: list[BundleFacts] = [name_pod(self._plan, bundle) for bundle in ray.get(references)]
        except ray.exceptions.RayError as error:
            raise EngineFailure(
                FailureReason.PREFLIGHT_FAILED, f"a preflight task failed: {last_line(error)}"
            ) from error
        return found

    def _download(self, supervisor: Any, lead: RayNode, found: Sequence[BundleFacts]) -> str:
        """Bring the model to each pod; give its folder, the same in all."""
        plan = self._plan
        bundles = sorted((item for item in found if item.machine), key=lambda item: item.ray_node != lead.id)
        sites = ray_sites([(item.where, item.ray_node) for item in bundles], stall=plan.deadlines.stall)
        try:
            path = fetch(
                sites,
                model_order(plan),
                tell=lambda downloads, message: self._change(downloads=downloads, message=message),
                check=lambda: self._check_supervisor(supervisor),
                clock=self._clock,
            )
            sights = [
                (item.place, site.look_at_model(path, form=load_format(plan.arguments)))
                for item, site in zip(bundles, sites, strict=True)
            ]
        finally:
            for site in sites:
                site.close()
        LOG.info("the model is in %s of each pod", path)
        warnings = judge_model(plan, path, sights)
        self._change(downloads=(), message="", warnings=(*self.report.warnings, *warnings))
        return path

    def _check_supervisor(self, supervisor: Any) -> None:
        """See that the supervisor still waits: else another attempt has taken its place, or its pod is gone."""
        try:
            ray.get(supervisor.describe.remote(), timeout=SUPERVISOR_SECONDS)
        except ray.exceptions.RayError as error:
            raise EngineFailure(
                FailureReason.BOOTSTRAP_ERROR,
                f"the supervisor on the lead pod ended while the model was downloaded: {last_line(error)}",
            ) from error

    def _confirm(self, nodes: Sequence[RayNode]) -> None:
        """See the same nodes once more: one that has died is listed alive until Ray notices.

        A list with it is right by chance when as many nodes are new.  Seconds lie between the two looks, with a task on
        each node.
        """
        changed = changed_nodes(nodes, seen_nodes(self._plan, ray_cluster.alive_nodes()))
        if changed:
            raise EngineFailure(FailureReason.RAY_NODES_MISSING, f"while the engine was being placed, {changed}")

    def _make_supervisor(self, lead: RayNode) -> Any:
        plan = self._plan
        return (
            ray.remote(SupervisorActor)
            .options(
                name=plan.supervisor,
                namespace=contract.RAY_NAMESPACE,
                lifetime="detached",
                max_restarts=0,
                max_concurrency=4,
                num_cpus=0,
                num_gpus=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=lead.id, soft=False),
            )
            .remote(contract.dumps(plan))
        )

    def _hand_over(self, supervisor: Any, groups: Sequence[Group], ranks: Sequence[RankPlace], model: str) -> None:
        # The supervisor counts on from here: nothing of ours may be written after its first report.
        if not self._writer.flush(FLUSH_SECONDS):
            LOG.warning("the last report is not written yet; the supervisor's follow")
        assignment = Assignment(
            report=contract.dumps(self.report),
            placed=describe_placed(groups, ranks),
            model=model,
        )
        try:
            accepted = ray.get(supervisor.start.remote(assignment), timeout=SUPERVISOR_SECONDS)
        except ray.exceptions.RayError as error:
            raise EngineFailure(
                FailureReason.BOOTSTRAP_ERROR, f"the supervisor on the lead pod did not start: {last_line(error)}"
            ) from error
        LOG.info("the supervisor %s has taken over %s", self._plan.supervisor, accepted)

    def _change(self, **changes: object) -> None:
        numbered = {"sequence": self.report.sequence + 1, "time": self._clock.timestamp()}
        self.report = replace(self.report, **numbered, **changes)  # type: ignore[arg-type]
        self._writer.submit(self.report)


def read_plan(path: Path) -> EnginePlan:
    """Read the plan that came with the code."""
    return contract.loads(EnginePlan, path.read_text())


def main() -> int:
    """Run the job; whatever fails is a report and a sentence."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(levelname)s %(message)s")
    clock = Clock()
    try:
        plan = read_plan(Path(contract.PLAN_FILE))
    except (OSError, contract.ContractError) as error:
        return _say(f"{contract.PLAN_FILE}: {error}")
    writer = ReportWriter(choose_sink(plan.report, os.environ), clock)
    attempt = Attempt(plan, writer, clock)
    try:
        attempt.run()
    except EngineFailure as failure:
        return _fail(attempt.report, failure, writer, clock)
    except Exception as error:  # a bare traceback is no answer
        traceback.print_exc(file=sys.stdout)
        own = EngineFailure(FailureReason.BOOTSTRAP_ERROR, f"the bootstrap failed: {error!r}")
        return _fail(attempt.report, own, writer, clock)
    return 0


def _fail(report: EngineReport, failure: EngineFailure, writer: ReportWriter, clock: Clock) -> int:
    writer.submit(failed_report(report, failure, clock))
    if not writer.flush(FLUSH_SECONDS):
        LOG.warning("the failure could not be reported")
    return _say(str(failure))


def _say(message: str) -> int:
    print(f"vllm_bootstrap: {message}", flush=True)  # noqa: T201 - the operator reads the job's last line
    return 1


def _versions(found: Sequence[BundleFacts]) -> dict[str, str]:
    return next((dict(bundle.machine.versions) for bundle in found if bundle.machine), {})


def _group_report(group: Group) -> PlacementGroupReport:
    return PlacementGroupReport(name=group.name, id=group.id, strategy=group.strategy, state=group.state)


if __name__ == "__main__":
    sys.exit(main())
