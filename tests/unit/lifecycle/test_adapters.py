"""LoRA adapters: what is wanted beside what an engine says."""

from __future__ import annotations

import pytest
from tests.unit.lifecycle import views

from vllm_bootstrap.contract import Adapter, AdapterReport
from vllm_bootstrap.contract import AdapterState as Told
from vllm_operator.lifecycle.adapters import ASK_SECONDS, RETRY_SECONDS, compare, reported_adapters, shortened

SQL, POEMS = Adapter(name="sql", path="/a/sql"), Adapter(name="poems", path="/a/poems")
NEW_SQL = Adapter(name="sql", path="/a/sql2")


def loaded(adapter: Adapter) -> AdapterReport:
    return AdapterReport(name=adapter.name, path=adapter.path, state=Told.LOADED)


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
    ],
)
def test_compared(
    wanted: list[Adapter], reported: list[AdapterReport], states: list[str], ask: bool, again: float | None
) -> None:
    told = compare(dict.fromkeys(wanted, "file:///x"), views.report(adapters=tuple(reported)))
    assert [f"{entry.name} {entry.state}" for entry in told.entries] == states
    assert (told.ask, told.requeue_after) == (ask, again)


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
