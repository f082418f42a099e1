"""The executor for Ray; apart from the others, because an image for engines without Ray cannot import it."""

from __future__ import annotations

from vllm.v1.executor.ray_executor_v2 import RayExecutorV2

from vllm_bootstrap.vllm_adapter.executors import AllReplies


class RayExecutor(AllReplies, RayExecutorV2):  # type: ignore[misc]
    """``ray``."""


__all__ = ["RayExecutor", "RayExecutorV2"]
