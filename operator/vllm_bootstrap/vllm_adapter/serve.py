"""Start vLLM by its own parts: its parser, its configuration, its engine, its HTTP server.

Four things are put between them that no argument can set: the placement group that we made, the name of the instance
(so that actors get names that can be foretold), no runtime environment for the ranks (the bootstrap job's would reach
them otherwise, and conflict with their own), and the gate around the HTTP server (``--middleware`` puts one inside of
those that plugins add).

Written for the versions in ``facts.TESTED_VERSIONS``; each function used here stands in ``facts.USES``.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from typing import Any, NoReturn

import uvloop
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server import entry
from vllm.entrypoints.launchers.api_server.entry import build_and_serve, build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.entrypoints.launchers.launcher import setup_server
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM

from vllm_bootstrap.contract import FailureReason
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.launching.environment import read_api_key
from vllm_bootstrap.launching.gate import ADAPTERS_PATH, FLIGHT_PATH, Gate
from vllm_bootstrap.launching.order import EventLog, LaunchOrder, Stage
from vllm_bootstrap.vllm_adapter.adapters import Adapters
from vllm_bootstrap.vllm_adapter.arguments import classify, own_arguments, plain, refuse_overrides
from vllm_bootstrap.vllm_adapter.executors import executor_class
from vllm_bootstrap.vllm_adapter.facts import HEALTH_PATH

# With these vLLM refuses arguments or a configuration.
REFUSALS = (ValueError, NotImplementedError, AssertionError, KeyError)

Tell = Callable[[Stage], None]


class Parser(FlexibleArgumentParser):  # type: ignore[misc]
    """vLLM's parser; it raises where the original prints its usage, all 300 lines of it, and exits."""

    def error(self, message: str) -> NoReturn:
        """Refuse, in vLLM's words."""
        raise _refused(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Refuse what prints something and ends, like ``--help``."""
        raise _refused(message or "they ask for help, not for a server")


def serve(order: LaunchOrder, log: EventLog) -> None:
    """Run the engine and its HTTP server until a signal or the engine's death ends them.

    Parameters
    ----------
    log
        Told how far it has come.

    Raises
    ------
    EngineFailure
        vLLM refuses the arguments or the configuration made of them, or the API key cannot be read.
    """
    log.stage(Stage.ARGUMENTS)
    put_gate(order)
    arguments = parse(order)
    log.stage(Stage.CONFIG)
    config, engine_arguments = configure(order, arguments)
    put_groups(order, config, log)
    uvloop.run(_serve(config, engine_arguments, arguments, log.stage))


def parse(order: LaunchOrder) -> argparse.Namespace:
    """Read the arguments with vLLM's own parser, and make sure that none of them changes what was placed."""
    parser = make_arg_parser(Parser(prog="vllm serve"))
    try:
        arguments: argparse.Namespace = parser.parse_args([*own_arguments(order), *order.arguments])
        if arguments.model_tag is not None:
            arguments.model = arguments.model_tag
        validate_parsed_serve_args(arguments)
    except (*REFUSALS, TypeError) as error:
        raise _refused(plain(error)) from error
    refuse_overrides(order, arguments)
    if not arguments.disable_access_log_for_endpoints:
        arguments.disable_access_log_for_endpoints = f"{HEALTH_PATH},{FLIGHT_PATH}"  # we ask twice a second
    return arguments


def put_gate(order: LaunchOrder) -> None:
    """Let vLLM build its HTTP application with our gate around it; the supervisor asks the gate before it serves."""
    key = read_api_key(order.api_key_file)

    def build(*args: Any, **kwargs: Any) -> Any:
        application = build_app(*args, **kwargs)
        build_stack = application.build_middleware_stack
        orders = {ADAPTERS_PATH: Adapters(application.state).order}
        application.build_middleware_stack = lambda: Gate(build_stack(), token=order.gate_token, key=key, orders=orders)
        # What a plugin has built already would stay without it; the first request builds it anew.
        application.middleware_stack = None
        return application

    entry.build_app = build


def configure(order: LaunchOrder, arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Build vLLM's configuration and put our things into it."""
    try:
        engine_arguments = AsyncEngineArgs.from_cli_args(arguments)
        config = engine_arguments.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    except (*REFUSALS, OSError) as error:
        raise EngineFailure(classify(error), f"vLLM refuses the configuration: {plain(error)}") from error
    config.parallel_config.ray_runtime_env = None
    config.instance_id = order.instance_id
    return config, engine_arguments


def put_groups(order: LaunchOrder, config: Any, log: EventLog) -> None:
    """Let vLLM place its ranks in the placement groups that were made for them."""
    groups = [_placement_group(number) for number in order.placement_groups]
    if order.data > 1:
        from vllm_bootstrap.vllm_adapter import data_parallel  # noqa: PLC0415 - an image without Ray has none

        data_parallel.prepare(order, groups, log.failure)
    elif groups:
        config.parallel_config.placement_group = groups[0]


def _placement_group(number: str) -> Any:
    """Make a handle from the id: a lookup by name would make the launcher a second Ray driver beside vLLM's engine."""
    import ray  # noqa: PLC0415 - an image for engines without Ray has none
    from ray.util.placement_group import PlacementGroup  # noqa: PLC0415

    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(number)))


async def _serve(config: Any, engine_arguments: Any, arguments: argparse.Namespace, tell: Tell) -> None:
    # Until the server has handlers of its own: a load takes minutes and must be interruptible in order.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        address, socket = setup_server(arguments, reuse_port=False)
    except REFUSALS as error:
        raise _refused(plain(error)) from error
    tell(Stage.ENGINE)
    engine = AsyncLLM(
        vllm_config=config,
        executor_class=executor_class(config),
        usage_context=UsageContext.OPENAI_API_SERVER,
        log_requests=engine_arguments.enable_log_requests,
        aggregate_engine_logging=engine_arguments.aggregate_engine_logging,
        log_stats=not engine_arguments.disable_log_stats,
    )
    try:
        await engine.reset_mm_cache()
        tell(Stage.SERVER)
        # Returns when the server has been told to end; what it returns is the rest of its shutdown.
        shutdown = await build_and_serve(engine, address, socket, arguments)
    finally:
        engine.shutdown(timeout=config.shutdown_timeout)
    # Only after the engine: until then the HTTP server gives back what the engine still finishes.
    try:
        await shutdown
    finally:
        socket.close()


def _refused(message: str) -> EngineFailure:
    return EngineFailure(FailureReason.ARGUMENTS_REFUSED, f"vLLM refuses the arguments: {message}")


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt("asked to end while loading")
