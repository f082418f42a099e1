"""Entry point of the operator: ``vllm-operator run``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import functools
import json
import logging
import os
import random
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import kopf

from vllm_operator.clients.kubernetes import ApiError, KubernetesClient
from vllm_operator.clients.ray import RayClient
from vllm_operator.clients.supervisor import SupervisorClient
from vllm_operator.reconcile.act import Actor
from vllm_operator.reconcile.hub_side import HubSide
from vllm_operator.reconcile.inventory import InventoryReader
from vllm_operator.reconcile.observe import DEPLOYMENT, Observer
from vllm_operator.reconcile.queue import WorkQueue
from vllm_operator.reconcile.ray_side import RaySide
from vllm_operator.reconcile.reconciler import Key, Reconciler
from vllm_operator.runtime.handlers import operator_settings, register
from vllm_operator.runtime.lease import LeaseLostError, give_back, lead
from vllm_operator.runtime.metrics import Metrics
from vllm_operator.runtime.settings import ProcessSettings, SettingsError, read_settings
from vllm_operator.runtime.web import serve
from vllm_operator.runtime.workers import Workers

if TYPE_CHECKING:
    from vllm_operator.clients.hub import Hub

log = logging.getLogger(__name__)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        data = {
            "time": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            data["exception"] = self.formatException(record.exc_info)
        return json.dumps(data)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the operator; gives the exit status."""
    parser = argparse.ArgumentParser(prog="vllm-operator", description="Runs vLLM on Ray in Kubernetes.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run the operator")
    run.add_argument("--config", type=Path, default=None, help="settings file, as the chart writes it")
    options = parser.parse_args(argv)
    try:
        settings = read_settings(options.config)
    except SettingsError as error:
        sys.stderr.write(f"vllm-operator: {error}\n")
        return 2
    _set_up_logging(settings)
    return asyncio.run(_guarded(settings))


async def _guarded(settings: ProcessSettings) -> int:
    failures: list[Exception] = []
    try:
        await _run(settings)
    except* (LeaseLostError, ApiError, OSError) as group:
        failures = _leaves(group)
    for failure in failures:
        log.error("%s", failure)
    return 1 if failures else 0


def _leaves(group: BaseExceptionGroup[Exception]) -> list[Exception]:
    """Give what failed: one task group in another gives one exception group in another."""
    found: list[Exception] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def _set_up_logging(settings: ProcessSettings) -> None:
    handler = logging.StreamHandler(sys.stdout)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(_JsonFormatter() if settings.logging.format == "json" else plain)
    logging.basicConfig(level=settings.logging.level.upper(), handlers=[handler], force=True)
    for name in ("httpx2", "httpcore2"):
        # They log addresses, and those that a hub redirects to are signed: who has one may read a private file.
        logging.getLogger(name).setLevel(logging.WARNING)


async def _run(settings: ProcessSettings) -> None:
    namespace = os.environ.get("POD_NAMESPACE", "default")
    identity = os.environ.get("POD_NAME") or socket.gethostname()
    metrics = Metrics()
    queue: WorkQueue[Key] = WorkQueue(random.Random())  # noqa: S311 - jitter
    api = await KubernetesClient.connect()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(api.close)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        hub = _hub(settings)
        if hub:
            stack.callback(hub.close)
        reconciler = _reconciler(api, session, hub, settings)
        workers = Workers(
            queue=queue,
            reconcile=reconciler.reconcile,
            count=settings.concurrency,
            resync_seconds=settings.resync_seconds,
            jitter=random.Random(),  # noqa: S311 - jitter
            metrics=metrics,
        )
        registry = kopf.OperatorRegistry()
        _register_login(registry)
        all_asked = asyncio.Event()
        register(
            registry,
            enqueue=queue.add,
            enqueue_all=all_asked.set,
            enqueue_waiting=lambda: queue.add_all(reconciler.waiting),
        )
        sweep = functools.partial(_enqueue_all, all_asked, api, queue, settings.watch_namespaces)
        await _operate(
            settings,
            api,
            registry,
            sweep=sweep,
            workers=workers,
            metrics=metrics,
            namespace=namespace,
            identity=identity,
        )


def utc_now() -> datetime.datetime:
    """Give the present instant."""
    return datetime.datetime.now(datetime.UTC)


def _hub(settings: ProcessSettings) -> Hub | None:
    if not settings.hub.enabled:
        return None
    # Only here: its library takes an eighth of a second and six MiB, which who asks no hub need not pay.
    from vllm_operator.clients.hub import Hub  # noqa: PLC0415

    return Hub(settings.hub.endpoint, clock=time.monotonic)


def _reconciler(
    api: KubernetesClient, session: aiohttp.ClientSession, hub: Hub | None, settings: ProcessSettings
) -> Reconciler:
    observer = Observer(api)
    ray_side = RaySide(api, RayClient(session), SupervisorClient(session))
    return Reconciler(
        api=api,
        observer=observer,
        inventory=InventoryReader(api, settings.watch_namespaces, now=utc_now),
        hub=HubSide(api, hub) if hub else None,
        ray_side=ray_side,
        actor=Actor(api, observer, ray_side, lambda: secrets.token_hex(32)),
        settings=settings.decisions(),
        now=utc_now,
    )


async def _operate(
    settings: ProcessSettings,
    api: KubernetesClient,
    registry: kopf.OperatorRegistry,
    *,
    sweep: Callable[[], Coroutine[Any, Any, None]],
    workers: Workers,
    metrics: Metrics,
    namespace: str,
    identity: str,
) -> None:
    stop, ready = asyncio.Event(), asyncio.Event()
    runners = await serve(
        probes_port=settings.probes.port,
        metrics_port=settings.metrics.port,
        metrics=metrics,
        problem=lambda: "",
        ready=ready.is_set,
    )
    try:
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(sweep()),
                group.create_task(_watch(registry, settings, identity, ready, stop)),
                group.create_task(_lead(settings, api, workers, namespace=namespace, identity=identity)),
                group.create_task(_take_signals(ready, stop)),
            ]
            await stop.wait()
            log.info("stopping")
            for task in background:
                task.cancel()
    finally:
        for runner in runners:
            await runner.cleanup()
    if settings.leader_election.enabled:
        await give_back(api=api, settings=settings.leader_election, namespace=namespace, identity=identity)


async def _take_signals(ready: asyncio.Event, stop: asyncio.Event) -> None:
    # Only now: kopf takes the signals as it starts, and on one it waits five seconds for tasks that are ours.
    await ready.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


async def _lead(
    settings: ProcessSettings, api: KubernetesClient, workers: Workers, *, namespace: str, identity: str
) -> None:
    if not settings.leader_election.enabled:
        await workers.run()
        return
    await lead(api=api, settings=settings.leader_election, namespace=namespace, identity=identity, work=workers.run)


async def _watch(
    registry: kopf.OperatorRegistry,
    settings: ProcessSettings,
    identity: str,
    ready: asyncio.Event,
    stop: asyncio.Event,
) -> None:
    # It raises when a watch ends by itself, and returns on a signal that comes before ours are taken.
    await kopf.operator(
        registry=registry,
        settings=operator_settings(),
        # Given, because kopf would ask for the user's name, and the image's user has none.
        identity=identity,  # type: ignore[arg-type]  # a str; kopf does not export its own name for it
        standalone=True,
        clusterwide=not settings.watch_namespaces,
        namespaces=settings.watch_namespaces,
        ready_flag=ready,
    )
    stop.set()


async def _enqueue_all(
    asked: asyncio.Event, api: KubernetesClient, queue: WorkQueue[Key], namespaces: Sequence[str]
) -> None:
    """Put all deployments into the queue when asked to, at most once a second: nodes come in swarms."""
    while True:
        await asked.wait()
        asked.clear()
        try:
            for namespace in namespaces or ("",):
                for body in await api.list(DEPLOYMENT, namespace):
                    queue.add(Key(body["metadata"]["namespace"], body["metadata"]["name"]))
        except ApiError as error:
            log.warning("the deployments cannot be listed: %s; they are looked at again at the next resync", error)
        await asyncio.sleep(1.0)


def _register_login(registry: kopf.OperatorRegistry) -> None:
    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


if __name__ == "__main__":
    sys.exit(main())
