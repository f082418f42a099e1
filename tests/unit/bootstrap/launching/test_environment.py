"""What reaches the launcher, and through it every rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_bootstrap.contract import RESERVED_ENVIRONMENT, EnginePlan, EnvironmentSource, FailureReason
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.launching.environment import (
    base_environment,
    data_parallel_environment,
    launcher_environment,
    parse_environ,
    plan_environment,
    read_api_key,
    refuse_second_key,
    secret_names,
)


def projected(folder: Path, keys: dict[str, str]) -> Path:
    """Lay a folder out as the kubelet does: links into a hidden folder of a date."""
    data = folder / "..2026_01_01"
    data.mkdir(parents=True)
    (folder / "..data").symlink_to(data.name)
    for key, value in keys.items():
        (data / key).write_text(value)
        (folder / key).symlink_to(f"..data/{key}")
    return folder


def test_what_ray_added_is_gone_and_what_the_pod_set_stays():
    own = {
        "OMP_NUM_THREADS": "1",
        "RAY_JOB_ID": "02",
        "PYTHONBREAKPOINT": "ray",
        "PATH": "/bin",
        "RAY_AUTH_MODE": "token",
    }
    assert base_environment(own, {}) == {"PATH": "/bin", "RAY_AUTH_MODE": "token"}
    raylet = {"OMP_NUM_THREADS": "8", "CUDA_VISIBLE_DEVICES": "0", "OTHER": "x"}
    assert base_environment(own, raylet) == {
        "PATH": "/bin",
        "RAY_AUTH_MODE": "token",
        "OMP_NUM_THREADS": "8",
        "CUDA_VISIBLE_DEVICES": "0",
    }


def test_env_wins_over_env_from_and_later_over_earlier(tmp_path: Path, make_plan: Callable[..., EnginePlan]):
    first = projected(tmp_path / "0", {"A": "first", "B": "first", "C": "first", "bad-name": "x"})
    second = projected(tmp_path / "1", {"B": "second"})
    files = projected(tmp_path / "env", {"D": "secret\n"})
    plan = make_plan(
        environment={"C": "plain"},
        environment_files=("D",),
        environment_sources=(
            EnvironmentSource(directory=str(first)),
            EnvironmentSource(directory=str(second)),
            EnvironmentSource(directory=str(second), prefix="P_"),
        ),
    )
    variables, warnings = plan_environment(plan, files=files)
    assert variables == {"A": "first", "B": "second", "P_B": "second", "C": "plain", "D": "secret\n"}
    assert len(warnings) == 1
    assert "bad-name" in warnings[0]


@pytest.mark.parametrize("name", sorted(RESERVED_ENVIRONMENT))
def test_a_reserved_name_is_refused_by_name(tmp_path: Path, make_plan: Callable[..., EnginePlan], name: str):
    source = EnvironmentSource(directory=str(projected(tmp_path / "0", {name: "x"})))
    for plan in (make_plan(environment={name: "x"}), make_plan(environment_sources=(source,))):
        with pytest.raises(EngineFailure, match=f"{name} is set by the operator") as raised:
            plan_environment(plan, files=tmp_path)
        assert raised.value.reason is FailureReason.INVALID_ENVIRONMENT


def test_a_missing_file_is_named(tmp_path: Path, make_plan: Callable[..., EnginePlan]):
    with pytest.raises(EngineFailure, match=r"value of KEY could not be read .*No such file"):
        plan_environment(make_plan(environment_files=("KEY",)), files=tmp_path)
    with pytest.raises(EngineFailure, match="not mounted"):
        plan_environment(make_plan(environment_sources=(EnvironmentSource(directory="/nowhere"),)), files=tmp_path)


@pytest.mark.parametrize(
    ("content", "key"),
    [("sk-1", "sk-1"), ("sk-1\n", "sk-1"), ("", None), ("\n", None), ("a b", None), ("schlüssel", None)],
)
def test_the_api_key_is_what_a_header_can_carry(tmp_path: Path, content: str, key: str | None):
    path = tmp_path / "key"
    path.write_text(content)
    if key is not None:
        assert read_api_key(str(path)) == key
        return
    with pytest.raises(EngineFailure, match="put another into the Secret") as raised:
        read_api_key(str(path))
    assert raised.value.reason is FailureReason.INVALID_ENVIRONMENT
    assert not content.strip() or content.strip() not in raised.value.message


def test_no_key_is_asked_for_where_none_is_named_and_a_missing_one_is_a_fault(tmp_path: Path):
    assert read_api_key("") == ""
    with pytest.raises(EngineFailure, match="the value of apiKeySecret could not be read"):
        read_api_key(str(tmp_path / "key"))


def test_two_keys_exclude_each_other(make_plan: Callable[..., EnginePlan]):
    refuse_second_key(make_plan(), {"VLLM_API_KEY": "a"})
    refuse_second_key(make_plan(api_key_file="/key"), {"VLLM_API_KEY": ""})
    with pytest.raises(EngineFailure, match=r"apiKeySecret and VLLM_API_KEY .* exclude each other"):
        refuse_second_key(make_plan(api_key_file="/key"), {"VLLM_API_KEY": "a"})


def launch(base: dict[str, str], variables: dict[str, str]) -> dict[str, str]:
    return launcher_environment(
        base,
        variables,
        ray_address="10.0.0.1:6379",
        host_ip="10.0.0.2",
        instance_id="demo-1",
        package="/pkg",
    )


def test_the_launcher_gets_what_a_launch_needs():
    merged = launch({"A": "pod", "B": "pod"}, {"B": "plan", "PYTHONPATH": "/user"})
    assert merged["A"] == "pod"
    assert merged["B"] == "plan"
    assert merged["RAY_ADDRESS"] == "10.0.0.1:6379"
    assert merged["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert merged["VLLM_HOST_IP"] == "10.0.0.2"
    assert merged["PYTHONPATH"] == "/pkg:/user"
    assert launch({"VLLM_HOST_IP": "10.1.1.1"}, {})["VLLM_HOST_IP"] == "10.1.1.1"
    assert launch({}, {})["PYTHONPATH"] == "/pkg"


def test_what_came_as_a_file_or_is_called_so_is_secret(make_plan: Callable[..., EnginePlan]):
    plan = make_plan(environment={"PLAIN": "1", "BOTH": "1"}, environment_files=("COLOUR", "BOTH"))
    variables = {"PLAIN": "1", "BOTH": "2", "COLOUR": "blue", "MY_FROM": "x"}
    pods = {
        "HF_TOKEN": "t",
        "VLLM_API_KEY": "k",
        "my_password": "p",
        "TOKENIZERS_PARALLELISM": "false",
        "KEYS_PATH": "/",
    }
    assert secret_names(plan, variables, {**pods, **variables}) == [
        "BOTH",
        "COLOUR",
        "HF_TOKEN",
        "MY_FROM",
        "VLLM_API_KEY",
        "my_password",
    ]


def test_plain_variables_go_on_to_the_engine_cores(make_plan: Callable[..., EnginePlan]):
    plan = make_plan(environment={"NCCL_DEBUG": "INFO", "PYTHONPATH": "/mine", "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY": "X"})
    given = {"VLLM_RAY_EXTRA_ENV_VARS_TO_COPY": "MINE, OTHER"}
    assert data_parallel_environment(plan, given) == {
        "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY": "ENGINE_INSTANCE_ID,MINE,NCCL_DEBUG,OTHER"
    }


def test_parse_environ():
    assert parse_environ(b"A=1\0B=x=y\0broken\0") == {"A": "1", "B": "x=y"}
