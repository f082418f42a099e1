"""LoRA adapters: what is wanted beside what an engine says."""

from __future__ import annotations

import pytest
from tests.unit.lifecycle import views

from vllm_bootstrap.contract import Adapter, AdapterReport
from vllm_bootstrap.contract import AdapterState as Told
from vllm_operator.lifecycle.adapters import (
    ASK_SECONDS,
    RETRY_SECONDS,
    able,
    compare,
    reported_adapters,
    shortened,
    told_commits,
)

SQL, POEMS = Adapter(name="sql", path="/a/sql"), Adapter(name="poems", path="/a/poems")
NEW_SQL = Adapter(name="sql", path="/a/sql2")
HUB, NEW_HUB = Adapter(name="hub", path="hf://org/a"), Adapter(name="hub", path="hf://org/a@v2")


def loaded(adapter: Adapter) -> AdapterReport:
    return AdapterReport(name=adapter.name, path=adapter.path, state=Told.LOADED)


def pending(adapter: Adapter) -> AdapterReport:
    return AdapterReport(name=adapter.name, path=adapter.path, state=Told.PENDING, message="50%", commit="c1")


def failed(adapter: Adapter) -> AdapterReport:
    return AdapterReport(name=adapter.name, path=adapter.path, state=Told.FAILED, message="no")


@pytest.mark.parametrize(
    ("wanted", "reported", "states", "ask", "again"),
    [
        ([], [], [], False, None),
        ([SQL], [], ["sql Pending"], True, ASK_SECONDS),
        ([SQL], [loaded(SQL)], ["sql Loaded"], False, None),
        ([SQL, POEMS], [loaded(SQL)], ["sql Loaded", "poems Pending"], True, ASK_SECONDS),
        ([NEW_SQL], [loaded(SQL)], ["sql Pending"], True, ASK_SECONDS),
        ([SQL], [failed(SQL)], ["sql Failed"], True, RETRY_SECONDS),
        ([SQL], [loaded(SQL), loaded(POEMS)], ["sql Loaded", "poems Leaving"], True, ASK_SECONDS),
        ([], [loaded(SQL)], ["sql Leaving"], True, ASK_SECONDS),
        ([SQL], [loaded(SQL), failed(POEMS)], ["sql Loaded"], True, None),
        ([SQL, POEMS], [failed(SQL)], ["sql Failed", "poems Pending"], True, ASK_SECONDS),
        ([HUB], [], ["hub Pending"], True, ASK_SECONDS),
        # A download that has begun tells by itself how far it is.
        ([HUB], [pending(HUB)], ["hub Pending"], False, None),
        ([NEW_HUB], [pending(NEW_HUB), loaded(HUB)], ["hub Pending"], False, None),
        ([SQL, HUB], [failed(SQL), pending(HUB)], ["sql Failed", "hub Pending"], True, RETRY_SECONDS),
    ],
)
def test_compared(
    wanted: list[Adapter], reported: list[AdapterReport], states: list[str], ask: bool, again: float | None
) -> None:
    told = compare(dict.fromkeys(wanted, "file:///x"), views.report(adapters=tuple(reported), hub_adapters=True))
    assert [f"{entry.name} {entry.state}" for entry in told.entries] == states
    assert (told.ask, told.requeue_after) == (ask, again)


def test_an_engine_from_before_an_upgrade_is_not_told_to_download() -> None:
    report = views.report(adapters=(loaded(SQL),))
    told = compare({SQL: "file:///a/sql", HUB: "hf://org/a"}, report)
    assert [f"{entry.name} {entry.state}" for entry in told.entries] == ["sql Loaded", "hub Failed"]
    assert "was started by an earlier version of the operator" in told.entries[1].message
    assert able((SQL, HUB), report) == (SQL,)
    assert able((SQL, HUB), views.report(hub_adapters=True)) == able((SQL, HUB), None) == (SQL, HUB)


def test_how_far_a_download_is_and_what_it_is_stand_in_the_status() -> None:
    report = views.report(adapters=(pending(HUB), loaded(SQL)), hub_adapters=True)
    [entry] = compare({HUB: "hf://org/a"}, report).entries[:1]
    assert (entry.message, entry.commit) == ("50%", "c1")
    assert told_commits(report) == {("hub", "hf://org/a"): "c1"}
    assert told_commits(None) == {}


def test_an_engine_without_a_report_is_told_all() -> None:
    told = compare({SQL: "file:///a/sql"}, None)
    assert told.ask
    assert [entry.uri for entry in told.entries] == ["file:///a/sql"]
    assert reported_adapters(None) == ()


def test_what_an_engine_was_asked_for_last_is_read_from_its_report() -> None:
    assert reported_adapters(views.report(adapters=(loaded(SQL), failed(POEMS)))) == (SQL, POEMS)


def test_where_they_are_too_many_those_that_lack_are_told() -> None:
    told = compare({SQL: "", POEMS: "", NEW_SQL: ""}, views.report(adapters=(loaded(SQL),)))
    assert [entry.name for entry in shortened(told.entries, 64)] == ["poems", "sql"]
    assert [entry.name for entry in shortened(told.entries, 1)] == ["poems"]
