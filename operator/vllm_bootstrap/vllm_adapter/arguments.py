"""Arguments for vLLM's parser: ours, the check that the user's do not undo them, and vLLM's refusals in plain words."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm_bootstrap.contract import FailureReason
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.launching.order import LISTEN_HOST, LaunchOrder

DATA_BACKEND = "ray"
"""Data parallel ranks are Ray actors; another executor beside it would take GPUs past Ray."""

# By name, because importing huggingface_hub for three classes costs a second.
NOT_ON_HUB = frozenset({"RepositoryNotFoundError", "RevisionNotFoundError", "GatedRepoError", "EntryNotFoundError"})


def own_arguments(order: LaunchOrder) -> list[str]:
    """Give the arguments that follow from the plan; the plan's own come after them."""
    return [
        f"--model={order.model}",
        f"--served-model-name={order.served_name}",
        f"--tensor-parallel-size={order.tensor}",
        f"--pipeline-parallel-size={order.pipeline}",
        f"--distributed-executor-backend={order.executor}",
        f"--host={LISTEN_HOST}",
        f"--port={order.port}",
        *(["--enable-expert-parallel"] if order.expert else []),
        *(_data_arguments(order) if order.data > 1 else []),
    ]


def _data_arguments(order: LaunchOrder) -> list[str]:
    return [
        f"--data-parallel-size={order.data}",
        f"--data-parallel-size-local={order.beside}",
        f"--data-parallel-backend={DATA_BACKEND}",
        f"--data-parallel-address={order.address}",
    ]


def refuse_overrides(order: LaunchOrder, parsed: argparse.Namespace) -> None:
    """Refuse an argument that took the place of one of ours, however it was spelt."""
    path_b = order.data > 1
    fixed: dict[str, tuple[Any, tuple[str, ...]]] = {
        "model": (order.model, ("--model",)),
        "served_model_name": ([order.served_name], ("--served-model-name",)),
        "tensor_parallel_size": (order.tensor, ("--tensor-parallel-size", "-tp")),
        "pipeline_parallel_size": (order.pipeline, ("--pipeline-parallel-size", "-pp")),
        "data_parallel_size": (order.data, ("--data-parallel-size", "-dp")),
        "data_parallel_size_local": (order.beside if path_b else None, ("--data-parallel-size-local", "-dpl")),
        "data_parallel_backend": (DATA_BACKEND if path_b else "mp", ("--data-parallel-backend", "-dpb")),
        "data_parallel_address": (order.address if path_b else None, ("--data-parallel-address", "-dpa")),
        "data_parallel_rank": (None, ("--data-parallel-rank", "-dpn")),
        "data_parallel_start_rank": (None, ("--data-parallel-start-rank", "-dpr")),
        "data_parallel_hybrid_lb": (False, ("--data-parallel-hybrid-lb", "-dph")),
        "data_parallel_external_lb": (False, ("--data-parallel-external-lb", "-dpe")),
        "data_parallel_multi_port_external_lb": (False, ("--data-parallel-multi-port-external-lb", "-dpm")),
        "enable_elastic_ep": (False, ("--enable-elastic-ep",)),
        "prefill_context_parallel_size": (1, ("--prefill-context-parallel-size", "-pcp")),
        "nnodes": (1, ("--nnodes", "-n")),
        "distributed_executor_backend": (order.executor, ("--distributed-executor-backend",)),
        "host": (LISTEN_HOST, ("--host",)),
        "port": (order.port, ("--port",)),
        "uds": (None, ("--uds",)),
        "ssl_certfile": (None, ("--ssl-certfile",)),
        "ssl_keyfile": (None, ("--ssl-keyfile",)),
        "headless": (False, ("--headless",)),
        "grpc": (False, ("--grpc",)),
    }
    if order.expert:
        fixed["enable_expert_parallel"] = (True, ("--enable-expert-parallel", "--no-enable-expert-parallel", "-ep"))
    for destination, (value, options) in fixed.items():
        given = getattr(parsed, destination, value)
        if given != value:
            raise EngineFailure(
                FailureReason.ARGUMENTS_REFUSED,
                f"{find_culprit(order.arguments, options)} sets {options[0]} to {given!r}; "
                f"the operator sets it to {value!r} and places the engine for that: remove the argument",
            )


def find_culprit(arguments: Sequence[str], options: Sequence[str]) -> str:
    """Find the argument that means one of ``options``; argparse takes abbreviations, and vLLM takes ``_`` for ``-``."""
    for argument in reversed(arguments):
        stem = argument.partition("=")[0].replace("_", "-")
        if stem in options or (len(stem) > 3 and stem.startswith("--") and options[0].startswith(stem)):
            return argument
    return "an argument (or the file that --config names)"


def find_api_key(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Find a key with which the engine's API can be asked; empty when it asks for none."""
    for position, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name.replace("_", "-") == "--api-key":
            return value or next(iter(arguments[position + 1 :]), "")
    return environment.get("VLLM_API_KEY", "")


def classify(error: BaseException) -> FailureReason:
    """Tell a refused configuration, which only a changed spec mends, from a hub that did not answer."""
    causes = list(_causes(error))
    if any(type(cause).__name__ in NOT_ON_HUB for cause in causes):
        return FailureReason.MODEL_NOT_FOUND
    if any(isinstance(cause, OSError) for cause in causes):
        return FailureReason.LOAD_FAILED
    return FailureReason.CONFIG_REFUSED


def plain(error: BaseException) -> str:
    """Give an error's own words; pydantic's report frames them with input dumps and links."""
    details = getattr(error, "errors", None)
    if callable(details):
        return "; ".join(_plain_detail(detail) for detail in details())
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return " ".join(text.split()) or type(error).__name__


def _plain_detail(detail: dict[str, Any]) -> str:
    message = str(detail.get("msg", "")).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    place = ".".join(str(part) for part in detail.get("loc", ()))
    return " ".join(f"{place}: {message}".split()) if place else " ".join(message.split())


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__
