"""vLLM's CPU platform with what Ray needs to place its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.platforms.cpu import CpuPlatform

if TYPE_CHECKING:
    from vllm.config import VllmConfig

STOCK_WORKER = "vllm.v1.worker.cpu_worker.CPUWorker"


class CpuRayPlatform(CpuPlatform):
    """CPU ranks that hold one of Ray's fake GPUs each."""

    # "CPU" cannot be the key: Ray refuses it as a custom resource and names no CPU among an actor's accelerator ids.
    ray_device_key = "GPU"
    ray_noset_device_env_vars = ("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",)
    # vLLM compiles a few small functions whatever the engine is told: with a C++ compiler, in each rank, at the first
    # token.  A tiny model spends more time on that than on its weights.
    simple_compile_backend = "eager"

    @classmethod
    def device_control_id_to_physical_device_id(cls, device_id: str) -> int:
        """Take Ray's GPU id as it is: there is no driver that would know another."""
        return int(device_id)

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Name the communicator that also works between pods."""
        return "vllm_cpu_ray.communicator.PodCommunicator"

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Put our worker in the place of the stock CPU worker; one chosen by the user stays."""
        super().check_and_update_config(vllm_config)
        if vllm_config.parallel_config.worker_cls == STOCK_WORKER:
            vllm_config.parallel_config.worker_cls = "vllm_cpu_ray.worker.ReportingWorker"
