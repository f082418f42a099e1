"""Leave nothing of an engine alive in Ray: before its next attempt, and when it gives a shared cluster back."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from vllm_bootstrap import contract
from vllm_bootstrap.clock import Clock, poll
from vllm_bootstrap.contract import FailureReason
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.launching.environment import INSTANCE_VARIABLE
from vllm_bootstrap.launching.sweep import sweep
from vllm_bootstrap.placing import ray_cluster
from vllm_bootstrap.placing.ray_cluster import NamedActor, last_line
from vllm_bootstrap.vllm_adapter.facts import actor_prefix

LOG = logging.getLogger(__name__)

END_SECONDS = 20.0
GUARD_SECONDS = 8.0
SWEEP_SECONDS = 20.0


class Clearing:
    """Ends the supervisor, the launcher and the rank actors of all attempts of an engine.

    Parameters
    ----------
    supervisor
        Name of its supervisor actor.
    instance_prefix
        What the instance ids of all its attempts begin with.
    groups
        Ids of its placement groups; with several, vLLM's engine cores are in them, which have no names.
    gcs
        Address of the GCS.
    seconds
        Until its actors must be dead.
    """

    def __init__(
        self,
        supervisor: str,
        instance_prefix: str,
        *,
        groups: Sequence[str],
        gcs: str,
        seconds: float,
        clock: Clock,
    ) -> None:
        self._supervisor = supervisor
        self._instances = instance_prefix
        self._actors = actor_prefix(instance_prefix)
        self._groups = tuple(groups)
        self._gcs = gcs
        self._seconds = seconds
        self._clock = clock

    def run(self, *, silent: bool = False) -> None:
        """Leave no actor alive.

        Parameters
        ----------
        silent
            The supervisor did not answer, and is not asked again.

        Raises
        ------
        EngineFailure
            Some are alive still.
        """
        if not silent:
            self._end_supervisor()
        for actor in self._left_over():
            if actor.name == self._supervisor:
                LOG.info("kill %s, left by an earlier attempt", actor.name)
                ray_cluster.kill_actor(actor)
        # The guard ends the launcher now, and with vLLM's engine process, which owns them, the rank actors end.
        if not self._await_end(GUARD_SECONDS):
            self._sweep()
        if not self._await_end(self._seconds):
            names = ", ".join(sorted(actor.name for actor in self._left_over()))
            raise EngineFailure(
                FailureReason.ACTORS_LEFT_OVER,
                f"actors of an earlier attempt are still alive after {self._seconds:g} s: {names}",
            )

    def _left_over(self) -> list[NamedActor]:
        found = ray_cluster.engine_actors((self._supervisor, self._actors))
        actors = [actor for actor in found if actor.name == self._supervisor or actor.name.startswith(self._actors)]
        if actors or len(self._groups) < 2:
            return actors
        return ray_cluster.engine_cores(self._groups, self._gcs)

    def _await_end(self, seconds: float) -> bool:
        return bool(poll(lambda: None if self._left_over() else True, seconds=seconds, clock=self._clock))

    def _end_supervisor(self) -> None:
        """Let the old supervisor take its launcher with it; its guard does that too, but a moment later."""
        try:
            supervisor = ray.get_actor(self._supervisor, namespace=contract.RAY_NAMESPACE)
            ray.get(supervisor.end.remote(END_SECONDS), timeout=END_SECONDS + 5)
        except (ValueError, TypeError, ray.exceptions.RayError) as error:
            # A TypeError comes of a supervisor from before an upgrade: where our package has its class no more, Ray
            # makes one up, whose methods take no argument.  It is killed all the same.
            LOG.debug("no supervisor to end: %s", error)

    def _sweep(self) -> None:
        """Kill engine processes that outlived their guard, in each pod.

        The rank actors themselves cannot be killed from here: for a handle Ray would import their class, and vLLM does
        not come up on a head without GPUs.
        """
        task = ray.remote(num_cpus=0, max_retries=0)(sweep)
        references = {
            node.address: task.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node.id, soft=False)
            ).remote(INSTANCE_VARIABLE, self._instances)
            for node in ray_cluster.alive_nodes()
            if node.gpus > 0
        }
        for address, reference in references.items():
            try:
                LOG.info("killed on %s: %s", address, ray.get(reference, timeout=SWEEP_SECONDS))
            except ray.exceptions.RayError as error:
                LOG.warning("no sweep on %s: %s", address, last_line(error))
