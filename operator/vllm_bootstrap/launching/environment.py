"""The launcher's environment: what the pod gave, less what Ray added, plus what the plan says.

What the launcher has, every rank gets (vLLM copies the driver's environment to its ranks, where a variable that the
pod already has wins).  So this is the one place where ``spec.env`` and ``spec.envFrom`` enter an engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from vllm_bootstrap import contract
from vllm_bootstrap.contract import EnginePlan, EnvironmentSource, FailureReason
from vllm_bootstrap.failure import EngineFailure

# Ray sets these in a worker process by itself.  In a launcher they would slow it down (one thread), tie it to the
# bootstrap's job, or make its own ray.init() fail ("Failed to merge the Job's runtime env").
SET_BY_RAY = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
        "ONEAPI_DEVICE_SELECTOR",
        "PYTHONBREAKPOINT",
        "PYTHONPATH",
        "RAY_ADDRESS",
        "RAY_CLIENT_MODE",
        "RAY_JOB_CONFIG_JSON_ENV_VAR",
        "RAY_JOB_ID",
        "RAY_NODE_ID",
        "RAY_RAYLET_PID",
        "RAY_RUNTIME_ENV_HOOK",
        "RAY_WORKER_ID",
        "ROCR_VISIBLE_DEVICES",
        "ZE_AFFINITY_MASK",
    }
)

OUR_PREFIX = "VLLM_OPERATOR_"
"""Our own variables are for our own processes: vLLM warns of each name of its prefix that it does not know."""

INSTANCE_VARIABLE = "ENGINE_INSTANCE_ID"
"""Marks every process of an engine, so that a sweep finds what a lost guard could not kill."""

VLLM_KEY_VARIABLE = "VLLM_API_KEY"
"""vLLM's own key, which it asks for under some paths only."""

EXTRA_VARIABLE = "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"
"""Names of variables that vLLM gives to its engine core actors beside those of its own prefixes."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SECRET_NAME = re.compile(r"(?:TOKEN|KEY|SECRET|PASSWORD|PASSPHRASE|CREDENTIALS?)$", re.IGNORECASE)


def base_environment(own: Mapping[str, str], raylet: Mapping[str, str]) -> dict[str, str]:
    """Give the environment that the pod gave.

    Parameters
    ----------
    own
        Of this (Ray worker) process.
    raylet
        Of the process that Ray's node manager was started with: a variable that Ray may set is taken from here, because
        the pod may have set it too.
    """
    kept = {name: value for name, value in own.items() if name not in SET_BY_RAY and not name.startswith(OUR_PREFIX)}
    return kept | {name: value for name, value in raylet.items() if name in SET_BY_RAY}


def plan_environment(plan: EnginePlan, *, files: Path = Path(contract.ENV_DIR)) -> tuple[dict[str, str], list[str]]:
    """Read the plan's variables, Secret and ConfigMap files included, as they are now.

    Precedence is Kubernetes': ``env`` before ``envFrom``, a later ``envFrom`` before an earlier one.

    Returns
    -------
    tuple
        The variables, and warnings about keys that cannot be names.

    Raises
    ------
    EngineFailure
        A reserved name, or a file that is not there.
    """
    variables: dict[str, str] = {}
    warnings: list[str] = []
    for source in plan.environment_sources:
        variables |= _read_source(source, warnings)
    variables |= plan.environment
    for name in plan.environment_files:
        variables[name] = _read_file(files / name, name)
    check_variables(variables)
    return variables, warnings


def check_variables(variables: Mapping[str, str]) -> None:
    """Refuse variables that the operator sets itself.

    Raises
    ------
    EngineFailure
        There is one.
    """
    for name in sorted(variables):
        _refuse_reserved(name)


def source_variables(keys: Mapping[str, str], prefix: str, warnings: list[str]) -> dict[str, str]:
    """Give the variables of one item of ``envFrom``; what cannot be a name is left out, and added to the warnings."""
    found: dict[str, str] = {}
    for key in sorted(keys):
        name = prefix + key
        if NAME.fullmatch(name):
            found[name] = keys[key]
        else:
            warnings.append(f"envFrom: the key {key!r} gives no valid variable name ({name!r}) and is left out")
    return found


def read_api_key(path: str) -> str:
    """Read the key that the engine's API asks for, as it is now; empty where no file is named.

    Raises
    ------
    EngineFailure
        It is not there, or is no key that a header can carry.
    """
    return check_api_key(_read_file(Path(path), "apiKeySecret")) if path else ""


def check_api_key(text: str) -> str:
    """Give a key without the line's end behind it.

    Raises
    ------
    EngineFailure
        It is no key that a header can carry.
    """
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise EngineFailure(
            FailureReason.INVALID_ENVIRONMENT,
            "apiKeySecret: the key is empty, or has characters other than printable ASCII without spaces; "
            "put another into the Secret",
        )
    return key


def refuse_second_key(plan: EnginePlan, environment: Mapping[str, str]) -> None:
    """Refuse a key of vLLM's own beside ours: a request can bear only one.

    Raises
    ------
    EngineFailure
        Both are there.
    """
    if (plan.api_key_file or plan.references.api_key.name) and environment.get(VLLM_KEY_VARIABLE):
        raise EngineFailure(
            FailureReason.INVALID_ENVIRONMENT,
            f"apiKeySecret and {VLLM_KEY_VARIABLE} (in env, envFrom, pod.template or the image) exclude each other: "
            "remove one",
        )


def launcher_environment(
    base: Mapping[str, str],
    variables: Mapping[str, str],
    *,
    ray_address: str,
    host_ip: str,
    instance_id: str,
    package: str,
    offline: bool = False,
) -> dict[str, str]:
    """Put the launcher's environment together; ours comes last, because a launch without it would not come up.

    Parameters
    ----------
    offline
        The model was downloaded, and vLLM is not to ask a hub; ``spec.env`` may let it, for a second model.
    """
    ours = {
        **({"RAY_ADDRESS": ray_address} if ray_address else {}),
        # vLLM's default is fork, and a process that has Ray in it must not be forked.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_HOST_IP": base.get("VLLM_HOST_IP") or host_ip,
        "PYTHONUNBUFFERED": "1",
        INSTANCE_VARIABLE: instance_id,
    }
    quiet = {"HF_HUB_OFFLINE": "1"} if offline else {}
    merged = {**base, **quiet, **variables, **ours}
    merged["PYTHONPATH"] = ":".join(filter(None, (package, variables.get("PYTHONPATH", base.get("PYTHONPATH", "")))))
    return merged


def secret_names(plan: EnginePlan, variables: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """Name the variables whose values may be secret: those that came as files, and those that are called so.

    Ray shows the environment of an actor to everybody who may read its tables.

    Parameters
    ----------
    variables
        Of the plan, files included.
    environment
        Of the launcher, the pod's own variables included.
    """
    from_files = variables.keys() - (plan.environment.keys() - set(plan.environment_files))
    return sorted(from_files | {name for name in environment if SECRET_NAME.search(name)})


def data_parallel_environment(plan: EnginePlan, environment: Mapping[str, str]) -> dict[str, str]:
    """Give what makes vLLM pass the plan's plain variables on to its engine core actors.

    The mark of the engine goes with them, so that a sweep finds these, too.
    """
    asked = environment.get(EXTRA_VARIABLE, "").split(",")
    names = {name.strip() for name in asked} | plan.environment.keys() | {INSTANCE_VARIABLE}
    # The launcher's own: it names folders of this pod.
    return {EXTRA_VARIABLE: ",".join(sorted(names - {"", "PYTHONPATH", EXTRA_VARIABLE}))}


def parse_environ(data: bytes) -> dict[str, str]:
    """Read the form of ``/proc/<pid>/environ``."""
    pairs = (entry.decode(errors="surrogateescape").partition("=") for entry in data.split(b"\0") if b"=" in entry)
    return {name: value for name, _, value in pairs}


def _read_source(source: EnvironmentSource, warnings: list[str]) -> dict[str, str]:
    folder = Path(source.directory)
    if not folder.is_dir():
        raise EngineFailure(
            FailureReason.INVALID_ENVIRONMENT, f"envFrom: the folder {folder} of its Secret or ConfigMap is not mounted"
        )
    # A projected volume is made of links into a hidden folder `..data`, which is no key.
    files = (entry for entry in folder.iterdir() if not entry.name.startswith("..") and entry.is_file())
    keys = {path.name: _read_file(path, path.name) for path in files if NAME.fullmatch(source.prefix + path.name)}
    others = (path.name for path in folder.iterdir() if path.name not in keys and not path.name.startswith(".."))
    return source_variables({**dict.fromkeys(others, ""), **keys}, source.prefix, warnings)


def _read_file(path: Path, name: str) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise EngineFailure(FailureReason.INVALID_ENVIRONMENT, f"the value of {name} is no UTF-8 text") from error
    except OSError as error:
        raise EngineFailure(
            FailureReason.INVALID_ENVIRONMENT, f"the value of {name} could not be read from {path}: {error.strerror}"
        ) from error


def _refuse_reserved(name: str) -> None:
    if name in contract.RESERVED_ENVIRONMENT:
        raise EngineFailure(
            FailureReason.INVALID_ENVIRONMENT,
            f"{name} is set by the operator and cannot be given in env or envFrom: remove it",
        )
