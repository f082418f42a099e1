"""Data parallel by vLLM's Ray backend, on placement groups that we made.

vLLM makes such groups by itself, out of what is free at that instant, and removes them when it ends: what an engine
reserved would be lost with each attempt.  It takes others from a caller, but its own caller has none.  So a subclass
of what makes its engine cores takes that one's place.

Ray shows the environment of an actor to everybody who may read its tables.  So secret variables go another way: with
vLLM's configuration, which is an argument, into the process of the engine core, which hands its environment on to its
ranks.  That is what our code is needed for there.
"""

from __future__ import annotations

import multiprocessing.connection
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from vllm.ray.ray_env import RAY_NON_CARRY_OVER_ENV_VARS
from vllm.v1.engine import utils
from vllm.v1.engine.coordinator import DPCoordinator
from vllm.v1.engine.utils import CoreEngineActorManager
from vllm.v1.executor.ray_executor_v2 import RayExecutorV2

import vllm_bootstrap
from vllm_bootstrap.contract import RAY_NAMESPACE, FailureReason
from vllm_bootstrap.launching.order import LaunchOrder
from vllm_bootstrap.vllm_adapter.executors import AllReplies

SECRETS = "vllm_operator_secrets"
"""Attribute of vLLM's configuration; it is no field, so it is in no hash and in no log."""


class SecretsExecutor(AllReplies, RayExecutorV2):  # type: ignore[misc]
    """vLLM's Ray executor, in step, and in a process whose environment has become that of the launcher."""

    def _init_executor(self) -> None:
        for name, value in getattr(self.vllm_config, SECRETS, {}).items():
            os.environ.setdefault(name, value)
        super()._init_executor()


Fail = Callable[[FailureReason, str], None]


def prepare(order: LaunchOrder, groups: list[Any], fail: Fail) -> None:
    """Join Ray, and let vLLM make its engine cores in these placement groups.

    Parameters
    ----------
    fail
        Told why the launcher ends, when it ends because of the coordinator.
    """
    ray.init(
        address=os.environ["RAY_ADDRESS"],
        namespace=RAY_NAMESPACE,
        runtime_env={"py_modules": [str(Path(vllm_bootstrap.__file__).parent)]},
    )
    secrets = {name: os.environ[name] for name in order.secrets if name in os.environ}
    RAY_NON_CARRY_OVER_ENV_VARS.update(secrets)

    class OwnGroupsManager(CoreEngineActorManager):  # type: ignore[misc]
        """Makes engine cores in groups that are not its own, and so are not its to remove."""

        def __init__(self, vllm_config: Any, addresses: Any, executor_class: Any, log_stats: bool) -> None:
            setattr(vllm_config, SECRETS, secrets)
            super().__init__(
                vllm_config,
                addresses,
                SecretsExecutor if executor_class is RayExecutorV2 else executor_class,
                log_stats,
                placement_groups=groups,
                local_dp_ranks=list(order.local_ranks),
            )

    class WatchedCoordinator(DPCoordinator):  # type: ignore[misc]
        """Between server and engine cores; vLLM goes on without it, and requests hang or pile up on one of them."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            threading.Thread(target=self._watch, name="coordinator-watch", daemon=True).start()

        def _watch(self) -> None:
            multiprocessing.connection.wait([self.proc.sentinel])
            if self._finalizer.alive:  # it was not asked to end
                words = f"vLLM's data parallel coordinator, process {self.proc.pid} on the lead pod, died"
                fail(FailureReason.LAUNCHER_EXITED, words)
                print(words, file=sys.stderr, flush=True)  # noqa: T201
                os._exit(1)

    utils.CoreEngineActorManager = OwnGroupsManager
    utils.DPCoordinator = WatchedCoordinator
