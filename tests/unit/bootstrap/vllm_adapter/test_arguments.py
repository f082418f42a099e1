"""Arguments of ours, and those of a user that would undo them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from vllm_bootstrap.contract import EnginePlan, FailureReason
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.launching.order import (
    LISTEN_HOST,
    EventLog,
    LaunchEvents,
    LaunchOrder,
    Placed,
    Stage,
    make_order,
    read_events,
)
from vllm_bootstrap.vllm_adapter.arguments import (
    classify,
    find_api_key,
    find_culprit,
    own_arguments,
    plain,
    refuse_overrides,
)


@pytest.fixture
def order(make_plan: Callable[..., EnginePlan]) -> LaunchOrder:
    plan = make_plan(tensor=2, arguments=("--max-model-len=100",))
    return make_order(plan, Placed(groups=("ab",), bundles=(1, 0, 2, 3)))


def parsed(**changes: object) -> argparse.Namespace:
    values: dict[str, object] = {
        "model": "/models/demo",
        "served_model_name": ["demo"],
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "data_parallel_size": 1,
        "distributed_executor_backend": "ray",
        "host": LISTEN_HOST,
        "port": 8000,
    }
    return argparse.Namespace(**(values | changes))


def test_what_is_ours_stays(order: LaunchOrder):
    assert own_arguments(order) == [
        "--model=/models/demo",
        "--served-model-name=demo",
        "--tensor-parallel-size=2",
        "--pipeline-parallel-size=2",
        "--distributed-executor-backend=ray",
        "--host=0.0.0.0",
        "--port=8000",
    ]
    refuse_overrides(order, parsed())


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"served_model_name": ["demo", "alias"]},
        {"tensor_parallel_size": 4},
        {"data_parallel_size": 2},
        {"distributed_executor_backend": "mp"},
        {"host": "127.0.0.1"},
        {"port": 1},
        {"uds": "/x"},
        {"ssl_keyfile": "/x"},
        {"headless": True},
        {"nnodes": 2},
    ],
)
def test_an_override_is_refused_by_name(order: LaunchOrder, change: dict[str, object]):
    with pytest.raises(EngineFailure, match="--" + next(iter(change)).replace("_", "-")) as raised:
        refuse_overrides(order, parsed(**change))
    assert raised.value.reason is FailureReason.ARGUMENTS_REFUSED


PATH_B = {
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 3,
    "data_parallel_size_local": 2,
    "data_parallel_backend": "ray",
    "data_parallel_address": "10.0.0.2",
}


@pytest.fixture
def data_parallel(make_plan: Callable[..., EnginePlan]) -> LaunchOrder:
    plan = make_plan(tensor=2, pipeline=1, data=3, expert=True)
    placed = Placed(groups=("ab", "cd", "ef"), bundles=(0, 1), local_ranks=(0, 1, 0), beside=2)
    return replace(make_order(plan, placed), address="10.0.0.2")


def test_data_and_expert_parallel_are_told(data_parallel: LaunchOrder):
    assert own_arguments(data_parallel)[-5:] == [
        "--enable-expert-parallel",
        "--data-parallel-size=3",
        "--data-parallel-size-local=2",
        "--data-parallel-backend=ray",
        "--data-parallel-address=10.0.0.2",
    ]
    refuse_overrides(data_parallel, parsed(**PATH_B))


@pytest.mark.parametrize(
    "change",
    [
        {"data_parallel_size": 1},
        {"data_parallel_size_local": 3},
        {"data_parallel_backend": "mp"},
        {"data_parallel_address": "10.0.0.3"},
        {"data_parallel_rank": 0},
        {"data_parallel_external_lb": True},
        {"data_parallel_hybrid_lb": True},
        {"enable_elastic_ep": True},
        {"enable_expert_parallel": False},
    ],
)
def test_an_override_of_data_parallel_is_refused_by_name(data_parallel: LaunchOrder, change: dict[str, object]):
    with pytest.raises(EngineFailure, match="--" + next(iter(change)).replace("_", "-")):
        refuse_overrides(data_parallel, parsed(**PATH_B | change))


@pytest.mark.parametrize("backend", ["ray"])
def test_one_data_parallel_rank_never_takes_the_ray_backend(order: LaunchOrder, backend: str):
    assert not [argument for argument in own_arguments(order) if argument.startswith("--data-parallel")]
    with pytest.raises(EngineFailure, match="--data-parallel-backend"):
        refuse_overrides(order, parsed(data_parallel_backend=backend))


def test_the_order_is_read_as_it_was_written(data_parallel: LaunchOrder, tmp_path: Path):
    data_parallel.write(tmp_path / "order")
    assert LaunchOrder.read(tmp_path / "order") == data_parallel


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (("--tensor-parallel-size=4",), "--tensor-parallel-size=4"),
        (("--tensor_parallel_size", "4"), "--tensor_parallel_size"),
        (("--tensor-par=4",), "--tensor-par=4"),
        (("-tp=4",), "-tp=4"),
        (("-tp", "4"), "-tp"),
        (("--te", "4", "--max-model-len=1"), "--te"),
        (("--config=x.yaml",), "an argument (or the file that --config names)"),
    ],
)
def test_the_culprit_is_found_however_it_is_spelt(arguments: tuple[str, ...], culprit: str):
    assert find_culprit(arguments, ("--tensor-parallel-size", "-tp")) == culprit


@pytest.mark.parametrize(
    ("arguments", "environment", "key"),
    [
        ((), {}, ""),
        ((), {"VLLM_API_KEY": "e"}, "e"),
        (("--api-key=a",), {"VLLM_API_KEY": "e"}, "a"),
        (("--x", "--api_key", "b", "c"), {}, "b"),
        (("--api-key",), {}, ""),
    ],
)
def test_the_key_for_the_warm_up(arguments: tuple[str, ...], environment: dict[str, str], key: str):
    assert find_api_key(arguments, environment) == key


class ValidationError(ValueError):
    """As pydantic's looks."""

    def errors(self) -> list[dict[str, object]]:
        return [
            {"loc": (), "msg": "Value error, too\nlong", "input": "x" * 1000, "url": "https://errors.pydantic.dev"},
            {"loc": ("dtype", 0), "msg": "bad"},
        ]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValidationError("noise"), "too long; dtype.0: bad"),
        (KeyError("invalid tool call parser: x"), "invalid tool call parser: x"),
        (ValueError("two\n  lines"), "two lines"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_an_error_in_its_own_words(error: Exception, words: str):
    assert plain(error) == words


class RepositoryNotFoundError(OSError):
    """As the hub's client calls it."""


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (None, FailureReason.CONFIG_REFUSED),
        (ConnectionError("no route"), FailureReason.LOAD_FAILED),
        (RepositoryNotFoundError("404"), FailureReason.MODEL_NOT_FOUND),
    ],
)
def test_a_hub_that_does_not_answer_is_no_refusal(cause: Exception | None, reason: FailureReason):
    error = ValueError("no config")
    error.__cause__ = cause
    assert classify(error) is reason


def test_an_order_survives_the_way(order: LaunchOrder, tmp_path: Path):
    assert LaunchOrder.read(tmp_path / "order.json") is None
    order.write(tmp_path / "order.json")
    assert LaunchOrder.read(tmp_path / "order.json") == order


def test_events_are_read_up_to_a_half_written_line(tmp_path: Path):
    path = tmp_path / "events"
    assert read_events(path) == LaunchEvents()
    log = EventLog(path)
    log.stage(Stage.ENGINE)
    log.failure(FailureReason.CONFIG_REFUSED, "no")
    with path.open("a") as file:
        file.write('{"stage": "st')
    assert read_events(path) == LaunchEvents(stage=Stage.ENGINE, reason=FailureReason.CONFIG_REFUSED, message="no")
