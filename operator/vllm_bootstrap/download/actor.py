"""Downloads on the Ray nodes of an engine: an actor in each pod holds the process, and goes with whoever made it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from vllm_bootstrap.clock import Clock
from vllm_bootstrap.contract import FailureReason
from vllm_bootstrap.download.checkpoint import ModelSight, look_at_model
from vllm_bootstrap.download.downloader import Downloader
from vllm_bootstrap.download.process import Order, Sight
from vllm_bootstrap.failure import EngineFailure

ANSWER_SECONDS = 60.0


class DownloadActor:
    """The download of one pod."""

    def __init__(self, pod: str, stall: float) -> None:
        self._downloader = Downloader(pod, stall=stall, clock=Clock(), environment=os.environ)

    def start(self, order: Order) -> None:
        """Begin."""
        self._downloader.start(order)

    def look(self) -> Sight:
        """Say how far it is."""
        return self._downloader.look()

    def look_at_model(self, path: str, *, form: str) -> ModelSight:
        """Say what lies at a path of the pod."""
        return look_at_model(path, form=form)


class RaySite:
    """A pod of a Ray cluster that downloads; to be closed by who makes it.

    Parameters
    ----------
    node
        Ray node id.
    """

    def __init__(self, pod: str, node: str, *, stall: float) -> None:
        self.pod = pod
        self._actor = (
            ray.remote(DownloadActor)
            .options(
                num_cpus=0,
                num_gpus=0,
                max_restarts=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
            )
            .remote(pod, stall)
        )

    def start(self, order: Order) -> None:
        """Begin."""
        self._ask(self._actor.start.remote(order))

    def look(self) -> Sight:
        """Say how far it is."""
        sight: Sight = self._ask(self._actor.look.remote())
        return sight

    def look_at_model(self, path: str, *, form: str) -> ModelSight:
        """Say what lies at a path of the pod."""
        sight: ModelSight = self._ask(self._actor.look_at_model.remote(path, form=form))
        return sight

    def close(self) -> None:
        """End the actor, and with it the process: its order is a pipe of the actor's."""
        ray.kill(self._actor, no_restart=True)

    def _ask(self, reference: Any) -> Any:
        try:
            return ray.get(reference, timeout=ANSWER_SECONDS)
        except ray.exceptions.RayError as error:
            raise EngineFailure(
                FailureReason.DOWNLOAD_FAILED,
                f"the download in pod {self.pod} does not answer ({type(error).__name__}): is the pod gone?",
            ) from error


def ray_sites(pods: Sequence[tuple[str, str]], *, stall: float) -> list[RaySite]:
    """Make a site in each pod, given with its Ray node id."""
    return [RaySite(pod, node, stall=stall) for pod, node in pods]
