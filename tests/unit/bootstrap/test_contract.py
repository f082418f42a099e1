"""Two processes of different ages must understand each other."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from vllm_bootstrap import contract
from vllm_bootstrap.contract import (
    ContractError,
    EngineCoreReport,
    EnginePlan,
    EngineReport,
    EnvironmentSource,
    FailureReason,
    Phase,
    PlacementGroupReport,
    RankReport,
    TimingsReport,
)


def report() -> EngineReport:
    return EngineReport(
        uid="u",
        engine="engine-0",
        revision="r",
        attempt=2,
        ray_session="s",
        sequence=3,
        phase=Phase.FAILED,
        time="2026-01-01T00:00:00.000Z",
        reason=FailureReason.RANK_DIED,
        failed_rank=0,
        log_tail=("a", "b"),
        ranks=(RankReport(rank=0, tp=0, pp=0, bundle=1, driver=True),),
        engine_cores=(EngineCoreReport(dp=1, kind="EngineCoreActor", pod="p"),),
        placement_groups=(PlacementGroupReport(name="g"),),
        timings=TimingsReport(placed="x"),
        versions={"vllm": "0.32.0"},
    )


def test_a_report_survives_the_way(make_plan: Callable[..., EnginePlan]):
    assert contract.loads(EngineReport, contract.dumps(report())) == report()


def test_a_plan_survives_the_way(make_plan: Callable[..., EnginePlan]):
    plan = make_plan(environment={"A": "b"}, environment_sources=(EnvironmentSource(directory="/x", prefix="P_"),))
    assert contract.loads(EnginePlan, contract.dumps(plan)) == plan


def test_an_older_reader_ignores_what_it_does_not_know(make_plan: Callable[..., EnginePlan]):
    value = json.loads(contract.dumps(make_plan())) | {"later": {"a": 1}}
    assert contract.loads(EnginePlan, json.dumps(value)) == make_plan()


def test_a_newer_reader_takes_the_default_for_what_is_missing(make_plan: Callable[..., EnginePlan]):
    value = json.loads(contract.dumps(make_plan()))
    for name in ("deadlines", "environment_sources", "version", "data", "expert"):
        del value[name]
    assert contract.loads(EnginePlan, json.dumps(value)) == make_plan()


@pytest.mark.parametrize(
    ("group", "data", "groups"),
    [
        ("demo-0-x-dp0", 1, ("demo-0-x-dp0",)),
        ("demo-0-x-dp0", 3, ("demo-0-x-dp0", "demo-0-x-dp1", "demo-0-x-dp2")),
        ("demo", 2, ("demo", "demo-dp1")),
    ],
)
def test_each_data_parallel_rank_has_a_group(
    make_plan: Callable[..., EnginePlan], group: str, data: int, groups: tuple[str, ...]
):
    plan = make_plan(placement_group=group, tensor=2, pipeline=2, data=data)
    assert plan.placement_groups == groups
    assert (plan.world_size, plan.total_ranks) == (4, 4 * data)


@pytest.mark.parametrize(
    "change",
    [{"version": contract.VERSION + 1}, {"attempt": "1"}, {"attempt": True}, {"arguments": "x"}, {"groups": [{}]}],
)
def test_what_would_be_misread_is_refused(make_plan: Callable[..., EnginePlan], change: dict[str, object]):
    with pytest.raises(ContractError):
        contract.loads(EnginePlan, json.dumps(json.loads(contract.dumps(make_plan())) | change))


def test_the_job_id_tells_attempts_and_sessions_apart(make_plan: Callable[..., EnginePlan]):
    plans = [make_plan(), make_plan(attempt=2), make_plan(ray_session="other"), make_plan(uid="other")]
    assert len({contract.job_id(plan) for plan in plans}) == 4
    assert contract.job_id(make_plan()) == contract.job_id(make_plan(arguments=("--x",)))
