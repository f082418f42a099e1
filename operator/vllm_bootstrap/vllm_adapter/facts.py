"""What we rely on in vLLM, as data: versions, names, signatures and rules; nothing is imported for it."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTED_VERSIONS = ("0.32",)
"""Minor versions with which the tests of the Ray side were run."""

RANK_CLASS = "RayWorkerProc"

CORE_CLASSES = ("EngineCoreActor", "DPMoEEngineCoreActor")
"""Of the actor of a data parallel rank: of a dense model, and of a mixture of experts."""

HEALTH_PATH = "/health"

DATA_RANK_HEADER = "X-data-parallel-rank"
"""Of a request that one data parallel rank is to answer."""

RANK_TITLE = re.compile(r"[^:]*::Worker((?:_[A-Z]+\d+)*)$")
ENGINE_TITLE = re.compile(r"[^:]*::EngineCore$")
"""Titles of the processes of the executors without Ray (``multiproc_executor.py``, ``core.py``)."""

DEAD_RANK = re.compile(rf"(?:{RANK_CLASS} rank=\[?(\d+)[\d, ]*\]?|Worker proc VllmWorker-(\d+)) died unexpectedly")


@dataclass(frozen=True)
class Use:
    """A function or class that ``serve`` uses.

    Attributes
    ----------
    file
        Inside the package.
    name
        ``function``, ``Class`` or ``Class.method``.
    names
        Parameters of the function, or fields of the class, that must exist.
    """

    file: str
    name: str
    names: tuple[str, ...] = ()


USES = (
    Use("config/parallel.py", "ParallelConfig", ("placement_group", "ray_runtime_env", "ray_workers_use_nsight")),
    Use("config/vllm.py", "VllmConfig", ("instance_id", "shutdown_timeout")),
    Use("engine/arg_utils.py", "EngineArgs.create_engine_config", ("usage_context",)),
    Use("engine/arg_utils.py", "EngineArgs.from_cli_args", ("args",)),
    Use("entrypoints/launchers/api_server/entry.py", "build_and_serve", ("engine_client", "listen_address", "sock")),
    Use("entrypoints/launchers/app.py", "build_app", ("args",)),
    Use("entrypoints/launchers/cli_args.py", "make_arg_parser", ("parser",)),
    Use("entrypoints/launchers/cli_args.py", "validate_parsed_serve_args", ("args",)),
    Use("entrypoints/launchers/launcher.py", "setup_server", ("args", "reuse_port")),
    Use("utils/argparse_utils.py", "FlexibleArgumentParser"),
    Use("entrypoints/openai/models/serving.py", "OpenAIServingModels", ("lora_requests", "lora_id_counter")),
    Use("lora/peft_helper.py", "PEFTHelper.from_local_dir", ("lora_path", "max_position_embeddings")),
    Use("lora/peft_helper.py", "PEFTHelper.validate_legal", ("lora_config",)),
    Use("lora/request.py", "LoRARequest", ("lora_name", "lora_int_id", "lora_path", "load_inplace")),
    Use("v1/engine/async_llm.py", "AsyncLLM.__init__", ("vllm_config", "executor_class", "log_stats", "usage_context")),
    Use("v1/engine/async_llm.py", "AsyncLLM.add_lora", ("lora_request",)),
    Use("v1/engine/async_llm.py", "AsyncLLM.remove_lora", ("lora_id",)),
    Use("v1/engine/output_processor.py", "OutputProcessor", ("request_states",)),
    Use("v1/executor/abstract.py", "Executor.get_class", ("vllm_config",)),
    Use("v1/executor/multiproc_executor.py", "FutureWrapper.__init__", ("futures_queue", "get_response")),
    Use("v1/executor/multiproc_executor.py", "MultiprocExecutor", ("response_mqs", "rpc_broadcast_mq")),
    Use("v1/executor/ray_executor_v2.py", RANK_CLASS),
    Use("v1/executor/ray_utils.py", "build_actor_name", ("instance_id", "rank", "tp_size", "pp_size")),
)


DATA_PARALLEL_USES = (
    Use("ray/ray_env.py", "get_env_vars_to_copy", ("exclude_vars", "destination")),
    Use("v1/engine/coordinator.py", "DPCoordinator", ("proc", "_finalizer")),
    Use("v1/engine/core.py", "DPMoEEngineCoreActor.__init__", ("vllm_config", "executor_class", "dp_rank")),
    Use("v1/engine/core.py", "EngineCoreActor.__init__", ("vllm_config", "executor_class", "dp_rank")),
    Use(
        "v1/engine/utils.py",
        "CoreEngineActorManager.__init__",
        ("vllm_config", "addresses", "executor_class", "log_stats", "placement_groups", "local_dp_ranks"),
    ),
    Use("v1/engine/utils.py", "launch_core_engines", ("vllm_config", "executor_class", "log_stats", "addresses")),
    Use("v1/executor/ray_executor_v2.py", "RayExecutorV2._init_executor", ("self",)),
)
"""Used beside the others when vLLM's engine cores are Ray actors: by ``data_parallel``."""


def actor_prefix(instance_id: str) -> str:
    """Give the beginning of the names of an instance's rank actors."""
    return f"vllm_Worker_{instance_id}"


def actor_name(instance_id: str, rank: int, *, tensor: int, pipeline: int, data: int = 1) -> str:
    """Give the name that vLLM gives the actor of a rank; ranks of data parallel rank 0 are the first ones."""
    stage = rank // tensor
    name = actor_prefix(instance_id)
    if data > 1:
        name += f"_dp{stage // pipeline}"
    if tensor > 1:
        name += f"_TP{rank % tensor}"
    if pipeline > 1:
        name += f"_PP{stage % pipeline}"
    return name


def process_name(rank: int, *, executor: str) -> str:
    """Give what vLLM calls the process of a rank without Ray."""
    return f"VllmWorker-{rank}" if executor == "mp" else "EngineCore"


def rank_of_title(title: str, *, tensor: int, world_size: int) -> int | None:
    """Find the rank whose process has this title; ``None`` for one that is no rank's.

    A worker has its final title only once the parallel groups are there; the one rank of ``uni`` lives in the engine's
    process.
    """
    found = RANK_TITLE.match(title)
    if not found:
        return 0 if world_size == 1 and ENGINE_TITLE.match(title) else None
    if world_size == 1:
        return 0
    parts = dict(re.findall(r"_([A-Z]+)(\d+)", found[1]))
    if not parts:
        return None
    rank = int(parts.get("PP", 0)) * tensor + int(parts.get("TP", 0))
    return rank if rank < world_size else None


def dead_rank(lines: Iterable[str]) -> int | None:
    """Find the rank whose end vLLM noticed first, in its log.

    It kills the others before Ray has found out that a whole pod is gone, and Ray's table then says of all of them that
    they were killed on purpose.
    """
    found = next((match for line in lines if (match := DEAD_RANK.search(line))), None)
    return int(found[1] or found[2]) if found else None


def package_folder() -> Path | None:
    """Find the vLLM package without importing it."""
    spec = importlib.util.find_spec("vllm")
    locations = spec.submodule_search_locations if spec else None
    return Path(locations[0]) if locations else None


def installed_version(package: Path) -> str:
    """Read the version from the package: builds under other distribution names have no metadata called ``vllm``."""
    try:
        text = (package / "_version.py").read_text()
    except OSError:
        return ""
    found = re.search(r"^(?:__version__ = )?version = ['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    found = found or re.search(r"__version__ = (?:version = )?['\"]([^'\"]+)['\"]", text)
    return found.group(1) if found else ""


def missing_uses(package: Path, *, data_parallel: bool = False) -> list[str]:
    """List what ``serve`` needs and this vLLM has not; sources are parsed, not imported (that would take seconds)."""
    trees: dict[str, ast.Module | None] = {}
    uses = USES + (DATA_PARALLEL_USES if data_parallel else ())
    return [fault for use in uses if (fault := _missing(package, use, trees))]


def is_tested(version: str) -> bool:
    """Say whether the tests were run with this version."""
    return ".".join(version.split(".")[:2]) in TESTED_VERSIONS


def parallelism_fault(
    config: Mapping[str, Any], *, tensor: int, pipeline: int, data: int = 1, expert: bool = False
) -> str:
    """Say why a model cannot be cut so, in vLLM's terms; empty when it can, or when the config does not tell."""
    text = config.get("text_config")
    shape = {**config, **(text if isinstance(text, dict) else {})}
    heads = _number(shape, "num_attention_heads", "n_head", "num_heads")
    kv_heads = _number(shape, "num_key_value_heads") or heads
    layers = _number(shape, "num_hidden_layers", "n_layer", "num_layers")
    if heads and heads % tensor:
        allowed = ", ".join(str(size) for size in range(1, heads + 1) if heads % size == 0)
        return (
            f"Total number of attention heads ({heads}) must be divisible by tensor parallel size ({tensor}); "
            f"possible sizes: {allowed}"
        )
    if kv_heads and (kv_heads % tensor if tensor < kv_heads else tensor % kv_heads):
        return (
            f"the number of key-value heads ({kv_heads}) and the tensor parallel size ({tensor}) "
            "must divide one another"
        )
    if layers and pipeline > layers:
        return f"pipeline parallel size ({pipeline}) is larger than the number of layers ({layers})"
    return _expert_fault(shape, tensor * data, expert=expert) if expert or data > 1 else ""


def _expert_fault(shape: Mapping[str, Any], ranks: int, *, expert: bool) -> str:
    """Say why the experts cannot be divided among so many ranks, as wholes or in slices."""
    experts = _number(shape, "num_experts", "n_routed_experts", "num_local_experts")
    slices = _number(shape, "moe_intermediate_size")
    if experts and expert and ranks > experts:
        return f"the model has {experts} experts, fewer than the {ranks} expert parallel ranks"
    if experts and slices and not expert and slices % ranks:
        return f"the experts' intermediate size ({slices}) must be divisible by tensor x data parallel size ({ranks})"
    return ""


def _number(shape: Mapping[str, Any], *names: str) -> int:
    return next((shape[name] for name in names if isinstance(shape.get(name), int)), 0)


def _missing(package: Path, use: Use, trees: dict[str, ast.Module | None]) -> str:
    if use.file not in trees:
        trees[use.file] = _parse(package / use.file)
    tree = trees[use.file]
    if tree is None:
        return f"vllm/{use.file}"
    node: ast.AST = tree
    for part in use.name.split("."):
        inner = _definition(node, part)
        if inner is None:
            return f"vllm/{use.file}: {use.name}"
        node = inner
    lacking = sorted(set(use.names) - _names(node))
    return f"vllm/{use.file}: {use.name}({', '.join(lacking)})" if lacking else ""


def _parse(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_text())
    except (OSError, SyntaxError):
        return None


def _definition(node: ast.AST, name: str) -> ast.AST | None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and child.name == name:
            return child
        if isinstance(child, ast.If | ast.Try):
            inner = _definition(child, name)
            if inner is not None:
                return inner
    return None


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = node.args
        return {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    targets = [
        target
        for part in ast.walk(node)
        if isinstance(part, ast.Assign | ast.AnnAssign)
        for target in (part.targets if isinstance(part, ast.Assign) else [part.target])
    ]
    fields = {target.id for target in targets if isinstance(target, ast.Name)}
    return fields | {target.attr for target in targets if isinstance(target, ast.Attribute)}
