"""Entry point of the plugin: kept free of imports, because vLLM loads it before it knows its platform."""


def register() -> str:
    """Name the platform class, as vLLM's group ``vllm.platform_plugins`` asks for."""
    return "vllm_cpu_ray.platform.CpuRayPlatform"
