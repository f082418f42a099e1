"""What follows from one another: adapters that are wanted, downloaded, asked for, answered."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.bootstrap.conftest import Time

from vllm_bootstrap.contract import Adapter, AdapterReport, AdapterState, HubSource
from vllm_bootstrap.supervising.adapters import AGAIN_SECONDS, Adapters
from vllm_bootstrap.supervising.events import AdapterFetched, AdaptersSeen

SQL = Adapter(name="sql", path="/a")


def hub(name: str = "hub", revision: str = "main") -> Adapter:
    source = HubSource(repository="org/a", revision=revision)
    return Adapter(name=name, path=f"hf://org/a@{revision}", source=source)


def answer(adapters: Adapters, question: tuple[Adapter, ...] | None, *, failed: str = "") -> None:
    assert question is not None
    adapters.answered(
        AdaptersSeen(
            tuple(
                AdapterReport(
                    name=item.name,
                    path=item.path,
                    state=AdapterState.FAILED if item.name == failed else AdapterState.LOADED,
                    message="no" if item.name == failed else "",
                )
                for item in question
            )
        )
    )


def brought(adapter: Adapter, commit: str = "c1") -> AdapterFetched:
    return AdapterFetched(adapter, folder=f"/cache/{commit}", commit=commit)


def states(adapters: Adapters) -> list[str]:
    return [f"{item.name} {item.path} {item.state}" for item in adapters.reports()]


def served(time: Time, *wanted: Adapter) -> Adapters:
    """Give adapters that are all loaded."""
    adapters = Adapters(wanted, time.clock)
    for adapter in adapters.next_downloads():
        adapters.take(brought(adapter))
    answer(adapters, adapters.next_question())
    return adapters


def test_the_engine_is_asked_for_folders_and_what_is_told_is_what_was_wanted(time: Time) -> None:
    adapters = served(time, SQL, hub())
    assert states(adapters) == ["sql /a Loaded", "hub hf://org/a@main Loaded"]
    assert [item.commit for item in adapters.reports()] == ["", "c1"]
    assert adapters.next_question(again=True) is None
    assert adapters.next_downloads() == []


def test_a_download_is_begun_once_and_the_others_do_not_wait_for_it(time: Time) -> None:
    adapters = Adapters((SQL, hub()), time.clock)
    assert adapters.next_downloads() == [hub()]
    assert adapters.next_downloads() == []
    assert adapters.next_question() == (SQL,)
    assert adapters.next_question() is None, "one question at a time"
    adapters.take(AdapterFetched(hub(), message="a: 50%"))
    assert [item.message for item in adapters.reports()] == ["a: 50%"], "of the other the engine has said nothing yet"
    adapters.take(brought(hub()))
    answer(adapters, (SQL,))
    assert adapters.next_question() == (SQL, Adapter(name="hub", path="/cache/c1"))
    assert "the engine is asked to load it" in adapters.reports()[1].message


def test_a_new_revision_under_the_same_name_takes_the_place_of_the_old_one_when_it_is_there(time: Time) -> None:
    adapters = served(time, hub())
    adapters.want((hub(revision="v2"),))
    assert adapters.next_downloads() == [hub(revision="v2")]
    assert adapters.next_question() is None, "the old one is served meanwhile"
    assert states(adapters) == ["hub hf://org/a@v2 Pending", "hub hf://org/a@main Loaded"]
    adapters.take(brought(hub(revision="v2"), "c2"))
    answer(adapters, adapters.next_question())
    assert states(adapters) == ["hub hf://org/a@v2 Loaded"]
    assert [item.commit for item in adapters.reports()] == ["c2"]


def test_two_revisions_that_are_one_commit_cost_the_engine_nothing(time: Time) -> None:
    adapters = served(time, hub())
    adapters.want((hub(revision="v1"),))
    adapters.take(brought(*adapters.next_downloads()))
    assert adapters.next_question() is None
    assert states(adapters) == ["hub hf://org/a@v1 Loaded"]


@pytest.mark.parametrize("again", [False, True])
def test_a_download_that_failed_is_told_until_it_succeeds_and_tried_again_after_a_while(
    time: Time, *, again: bool
) -> None:
    adapters = Adapters((hub(),), time.clock)
    adapters.next_downloads()
    adapters.take(AdapterFetched(hub(), failed=True, message="no such revision"))
    assert adapters.next_downloads() == []
    assert adapters.next_question(again=again) is None
    time.now += AGAIN_SECONDS
    assert adapters.next_downloads() == [hub()]
    adapters.take(AdapterFetched(hub(), message="asking the hub"))
    [told] = adapters.reports()
    assert (told.state, told.message) == (AdapterState.FAILED, "no such revision")
    adapters.take(brought(hub()))
    assert adapters.reports()[0].state is AdapterState.PENDING


def test_what_the_engine_refused_is_asked_for_again_after_a_while_only(time: Time) -> None:
    adapters = Adapters((SQL, hub()), time.clock)
    adapters.take(brought(*adapters.next_downloads()))
    answer(adapters, adapters.next_question(), failed="hub")
    assert states(adapters) == ["sql /a Loaded", "hub hf://org/a@main Failed"]
    assert adapters.next_question(again=True) is None, "however often something else makes the operator look"
    time.now += AGAIN_SECONDS
    assert adapters.next_question() is None
    assert adapters.next_question(again=True) is not None


def test_one_that_goes_and_comes_again_is_downloaded_again(time: Time) -> None:
    adapters = served(time, hub())
    adapters.want(())
    assert adapters.next_question() == ()
    assert states(adapters) == ["hub hf://org/a@main Loaded"], "the engine has it still"
    answer(adapters, ())
    assert states(adapters) == []
    adapters.want((hub(),))
    assert adapters.next_downloads() == [hub()]


def test_a_commit_that_it_had_is_told_before_it_is_there(time: Time) -> None:
    adapters = Adapters((replace(hub(), commit="c9"),), time.clock)
    adapters.next_downloads()
    assert [item.commit for item in adapters.reports()] == ["c9"]


def test_news_of_a_download_that_nobody_wants_any_more_is_forgotten(time: Time) -> None:
    adapters = Adapters((hub(),), time.clock)
    adapters.next_downloads()
    adapters.want(())
    adapters.take(AdapterFetched(hub(), failed=True, message="it is wanted no more"))
    adapters.take(brought(hub()))
    assert adapters.reports() == ()
    assert adapters.next_question() is None


def test_an_engine_without_an_answer_has_failed_of_each(time: Time) -> None:
    adapters = Adapters((SQL, hub()), time.clock)
    adapters.take(brought(*adapters.next_downloads()))
    adapters.next_question()
    adapters.answered(AdaptersSeen(fault="timed out"))
    assert {(item.state, item.message) for item in adapters.reports()} == {(AdapterState.FAILED, "timed out")}
    assert adapters.reports()[1].commit == "c1"
