"""HTTP of the process: liveness, readiness and metrics."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import generate_latest

from vllm_operator.runtime.metrics import Metrics


async def serve(
    *, probes_port: int, metrics_port: int, metrics: Metrics, problem: Callable[[], str], ready: Callable[[], bool]
) -> list[web.AppRunner]:
    """Start the servers; a port of 0 means that one is not wanted.

    Parameters
    ----------
    problem
        Says what is wrong with the process, empty when nothing is.
    ready
        Says whether the watches have begun.
    """

    async def healthz(_: web.Request) -> web.Response:
        told = problem()
        return web.Response(status=503 if told else 200, text=told or "ok")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(status=200 if ready() else 503, text="ok" if ready() else "starting")

    async def metrics_(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), content_type="text/plain")

    probes = web.Application()
    probes.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz)])
    scrape = web.Application()
    scrape.add_routes([web.get("/metrics", metrics_)])
    wanted = [(probes, probes_port), (scrape, metrics_port)]
    return [await _start(application, port) for application, port in wanted if port]


async def _start(application: web.Application, port: int) -> web.AppRunner:
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner
