"""A CPU worker that says who it is, in a file that only a test reads.

The rank map of a serving engine is put together from Ray's tables.  A test that compared it with the same tables would
prove nothing; so each rank process writes down what it sees of itself: its own environment (variables set after the
start do not show in ``/proc``), its accelerator ids, its place in the parallel groups.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import ray
from vllm.distributed import parallel_state
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
from vllm.model_executor.model_loader import base_loader
from vllm.v1.worker.cpu_worker import CPUWorker

DUMP_VARIABLE = "VLLM_CPU_RAY_RANK_DUMP"
SPIN_SECONDS = 0.002
"""vLLM's ranks spin for a second after each step: with a request now and then, for ever."""


class ReportingWorker(CPUWorker):
    """vLLM's CPU worker; with ``VLLM_CPU_RAY_RANK_DUMP=<dir>`` it writes ``<dir>/rank-<rank>.json``."""

    weight_bytes = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        # Before the rank's queues are made.  A test bed has more ranks than cores: one that spins holds up all others.
        SpinCondition.__init__.__defaults__ = (SPIN_SECONDS,)
        super().__init__(*args, **options)

    def load_model(self, **options: Any) -> None:
        """Load as ever, and count the weights meanwhile."""
        with _counting(self):
            super().load_model(**options)

    def compile_or_warm_up_model(self) -> Any:
        """Warm up as ever; by then everything that a rank will ever know of itself is known."""
        times = super().compile_or_warm_up_model()
        folder = os.environ.get(DUMP_VARIABLE)
        if folder:
            _write(Path(folder) / f"rank-{self.rank}.json", self._describe())
        return times

    def _describe(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "local_rank": self.local_rank,
            "tensor_rank": parallel_state.get_tensor_model_parallel_rank(),
            "pipeline_rank": parallel_state.get_pp_group().rank_in_group,
            "is_driver_worker": self.is_driver_worker,
            "assigned_gpus": self.parallel_config.assigned_physical_gpu_ids,
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "weight_bytes": self.weight_bytes,
            "ray": _describe_actor(),
            "environment": dict(os.environ),
        }


@contextmanager
def _counting(worker: ReportingWorker) -> Iterator[None]:
    """Count the weights between loading and packing: what the CPU's kernels pack is no parameter any more."""
    pack = base_loader.process_weights_after_loading

    def count(model: Any, *rest: Any) -> None:
        worker.weight_bytes = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        pack(model, *rest)

    with mock.patch.object(base_loader, "process_weights_after_loading", count):
        yield


def _describe_actor() -> dict[str, Any]:
    if not ray.is_initialized():
        return {}
    context = ray.get_runtime_context()
    return {
        "actor_id": context.get_actor_id(),
        "actor_name": context.get_actor_name(),
        "node_id": context.get_node_id(),
        "accelerator_ids": context.get_accelerator_ids(),
        "namespace": context.namespace,
    }


def _write(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written beside and renamed: a reader that polls must never see half a file.
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(value, indent=1, sort_keys=True))
    draft.replace(path)
