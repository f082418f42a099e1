"""Executors whose ranks stay in step when one of them refuses a LoRA adapter.

vLLM stops reading the ranks' replies at the first refusal.  The replies behind it stay in their queues, and the next
call takes them for its own: with pipeline stages that is the next step of the model, and the engine dies.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.executor import Executor
from vllm.v1.executor.multiproc_executor import FutureWrapper, MultiprocExecutor, WorkerProc


class AllReplies:
    """Reads every rank's reply before it says that one has refused."""

    is_failed: bool
    rpc_broadcast_mq: Any
    response_mqs: Any
    futures_queue: Any

    def add_lora(self, lora_request: Any) -> bool:
        """Load an adapter into every rank.

        Raises
        ------
        RuntimeError
            Ranks have refused it; the first one's words.
        """
        if self.is_failed:
            raise RuntimeError("the ranks are gone")
        self.rpc_broadcast_mq.enqueue(("add_lora", (lora_request,), {}, None))

        def replies() -> bool:
            told = [queue.dequeue() for queue in self.response_mqs]
            for rank, (status, result) in enumerate(told):
                if status != WorkerProc.ResponseStatus.SUCCESS:
                    raise RuntimeError(f"rank {rank}: {result}")
            return all(result for _, result in told)

        return bool(FutureWrapper(self.futures_queue, get_response=replies).result())


class MpExecutor(AllReplies, MultiprocExecutor):  # type: ignore[misc]
    """``mp``."""


def executor_class(config: Any) -> Any:
    """Give the executor's class for a configuration: vLLM's own, or where adapters may come ours of the same kind."""
    chosen = Executor.get_class(config)
    # ``data_parallel`` puts one of ours in its place.
    if config.lora_config is None or config.parallel_config.data_parallel_size > 1:
        return chosen
    if chosen is MultiprocExecutor:
        return MpExecutor
    if config.parallel_config.distributed_executor_backend == "ray":
        from vllm_bootstrap.vllm_adapter.ray_executor import RayExecutor, RayExecutorV2  # noqa: PLC0415 - needs Ray

        return RayExecutor if chosen is RayExecutorV2 else chosen
    return chosen
