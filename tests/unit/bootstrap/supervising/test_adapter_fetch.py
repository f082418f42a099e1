"""LoRA adapters of the hub, brought to two pods by the real process and library, from a hub on loopback."""

from __future__ import annotations

import asyncio
import os
import queue
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.hub.server import COMMIT, ELSEWHERE, HubServer, Repository, serving_hub

from vllm_bootstrap import contract
from vllm_bootstrap.clock import Clock
from vllm_bootstrap.contract import Adapter, EnginePlan, HubSource
from vllm_bootstrap.download import hub_failure
from vllm_bootstrap.download.downloader import Downloader
from vllm_bootstrap.download.process import Order
from vllm_bootstrap.supervising.adapter_fetch import AdapterFetcher
from vllm_bootstrap.supervising.events import AdapterFetched, Inbox

TOKEN = "hf_verysecrettoken"
CONFIG, WEIGHTS = b"{}", b"w" * 100_000
FILES = {
    "adapter_config.json": CONFIG,
    "adapter_model.safetensors": WEIGHTS,
    "adapter_model.bin": b"again",
    "checkpoint-100/adapter_model.safetensors": b"an earlier one",
    "optimizer.pt": b"o",
    "tokenizer.json": b"{}",
    "README.md": b"for people",
}
WEIGHTS_PATH = f"{ELSEWHERE}org/sql//adapter_model.safetensors"
DEADLINE = 60.0


class Pod(Downloader):
    """A pod with a disk of its own."""

    def __init__(self, name: str, root: Path, stall: float) -> None:
        super().__init__(name, stall=stall, clock=Clock(), environment={"PATH": os.environ["PATH"], "HOME": "/none"})
        self._root = root

    def start(self, order: Order) -> None:
        super().start(replace(order, source=replace(order.source, folder=f"{self._root}{order.source.folder}")))


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with serving_hub() as server:
        server.repositories["org/sql"] = Repository(files=dict(FILES))
        server.tokens = frozenset({TOKEN})
        yield server


@pytest.fixture
def sql(hub: HubServer) -> Adapter:
    named = "spec.lora.adapters[sql]"
    source = HubSource(repository="org/sql", endpoint=hub.url, folder="/cache/hub", named_by=named)
    return Adapter(name="sql", path="hf://org/sql", source=source)


class Fetching:
    """A fetcher for two pods."""

    def __init__(self, plan: EnginePlan, root: Path, stall: float) -> None:
        self.pods: list[Pod] = []
        self.root = root
        self.stall = stall
        self.inbox = Inbox()
        self.fetcher = AdapterFetcher(plan, sites=self.sites, inbox=self.inbox, clock=Clock(sleep=lambda _: None))

    def sites(self) -> list[Pod]:
        self.pods = [Pod(name, self.root / name, self.stall) for name in ("pod-0", "pod-1")]
        return self.pods

    def begin(self, adapter: Adapter) -> None:
        self.fetcher.keep([adapter])
        self.fetcher.fetch(adapter)

    def event(self) -> AdapterFetched:
        event = self.inbox.events.get(timeout=DEADLINE)
        assert isinstance(event, AdapterFetched)
        return event

    def ended(self) -> AdapterFetched:
        while True:
            event = self.event()
            if event.folder or event.failed:
                return event

    def files(self, pod: str, folder: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in Path(f"{self.root / pod}{folder}").iterdir()}


@pytest.fixture
def fetching(
    make_plan: Callable[..., EnginePlan], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Fetching]:
    (tmp_path / "token").write_text(TOKEN)
    made = Fetching(
        make_plan(hub_token_file=str(tmp_path / "token")), tmp_path, stall=getattr(request, "param", DEADLINE)
    )
    yield made
    made.fetcher.close()


def test_every_pod_has_what_vllm_reads_of_it(fetching: Fetching, hub: HubServer, sql: Adapter):
    hub.repositories["org/sql"].is_private = True
    fetching.begin(sql)
    assert fetching.event().message == "asking the hub for hf://org/sql"
    event = fetching.ended()
    assert (event.adapter, event.commit, event.failed) == (sql, COMMIT, False), event.message
    folder = event.folder.removeprefix(str(fetching.root / "pod-0"))
    assert folder == f"/cache/hub/models--org--sql/snapshots/{COMMIT}"
    for pod in ("pod-0", "pod-1"):
        assert fetching.files(pod, folder) == {"adapter_config.json": CONFIG, "adapter_model.safetensors": WEIGHTS}
    assert hub.paths.count("/api/models/org/sql") == 1, "the lead alone finds out what the revision is"
    assert len([item for item in hub.asked if item.path == WEIGHTS_PATH and item.method == "GET"]) == 2


def test_weights_in_the_old_form_where_there_are_no_others(fetching: Fetching, hub: HubServer, sql: Adapter):
    hub.repositories["org/sql"].files = {name: FILES[name] for name in ("adapter_config.json", "adapter_model.bin")}
    fetching.begin(sql)
    folder = fetching.ended().folder.removeprefix(str(fetching.root / "pod-0"))
    assert set(fetching.files("pod-1", folder)) == {"adapter_config.json", "adapter_model.bin"}


def test_one_that_had_a_commit_keeps_it_and_needs_no_hub_where_it_is_there(
    fetching: Fetching, hub: HubServer, sql: Adapter
):
    fetching.begin(sql)
    first = fetching.ended()
    hub.repositories["org/sql"] = replace(hub.repositories["org/sql"], commit="f" * 40)
    asked = len(hub.asked)
    fetching.begin(replace(sql, commit=first.commit))
    again = fetching.ended()
    assert (again.folder, again.commit) == (first.folder, first.commit)
    assert len(hub.asked) == asked


def test_in_new_pods_it_is_downloaded_at_the_commit_that_it_had(fetching: Fetching, hub: HubServer, sql: Adapter):
    hub.repositories["org/sql"] = replace(hub.repositories["org/sql"], commit="f" * 40)
    fetching.begin(replace(sql, commit=COMMIT))
    assert fetching.ended().commit == COMMIT
    fetching.begin(replace(sql, commit="e" * 40))
    assert f"has no revision {'e' * 40}" in fetching.ended().message


@pytest.mark.parametrize(
    ("change", "token", "words"),
    [
        pytest.param({}, "hf_old", "spec.model.hfTokenSecret: {url} refuses the token (401)", id="401"),
        pytest.param({"is_gated": True}, TOKEN, "hf://org/sql is gated and not open to the token", id="403"),
        pytest.param({"is_private": True}, "", "spec.lora.adapters[sql].uri: {url} has no org/sql", id="404"),
        pytest.param(
            {"revisions": ("v2",)},
            TOKEN,
            "spec.lora.adapters[sql].revision: hf://org/sql has no revision main on {url}",
            id="no such revision",
        ),
        pytest.param(
            {"files": {"model.safetensors": b"x", "config.json": b"{}"}},
            TOKEN,
            "spec.lora.adapters[sql]: hf://org/sql has no adapter_config.json: a repository must hold one adapter",
            id="no adapter",
        ),
        pytest.param(
            {"files": {"adapter_config.json": CONFIG}}, TOKEN, "has no adapter_model.safetensors", id="no weights"
        ),
        pytest.param(
            {"sizes": {"adapter_model.safetensors": 10**18}}, TOKEN, "name a claim with more room", id="disk full"
        ),
    ],
)
def test_what_is_wrong_is_said_of_the_adapter(
    fetching: Fetching, hub: HubServer, sql: Adapter, *, change: Mapping[str, Any], token: str, words: str
):
    hub.repositories["org/sql"] = replace(hub.repositories["org/sql"], **change)
    (fetching.root / "token").write_text(token)
    if not token:
        fetching.fetcher = AdapterFetcher(
            replace(fetching.fetcher._plan, hub_token_file=""),
            sites=fetching.sites,
            inbox=fetching.inbox,
            clock=Clock(),
        )
    fetching.begin(sql)
    event = fetching.ended()
    assert event.failed
    assert words.format(url=hub.url) in event.message
    assert event.message.endswith("(pod pod-0)")
    assert not token or token not in event.message


def test_where_the_pods_have_no_cache_of_models_another_remedy_is_named(sql: Adapter):
    source = replace(sql.source, folder=contract.ADAPTER_CACHE)
    said = hub_failure.HubWords(source, "").full(hub_failure.Snapshot(commit=COMMIT, files={}), 1)
    assert f"mount a larger volume at {contract.ADAPTER_CACHE} by spec.pod.template" in said.message


@pytest.mark.parametrize("fetching", [1.5], indirect=True)
def test_one_that_stalls_is_given_up(fetching: Fetching, hub: HubServer, sql: Adapter):
    async def never(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    hub.answers["/api/models/org/sql"] = never
    fetching.begin(sql)
    assert "no byte of the download came for 1.5 s" in fetching.ended().message


def test_a_download_that_nobody_wants_any_more_ends_in_every_pod(fetching: Fetching, hub: HubServer, sql: Adapter):
    hub.held.set()
    try:
        fetching.begin(sql)
        while "pod-1" not in fetching.event().message:
            pass
        fetching.fetcher.keep([])
        assert fetching.ended().message == "it is wanted no more"
    finally:
        hub.held.clear()
    assert [pod._process.wait(DEADLINE) for pod in fetching.pods if pod._process] == [-9, -9]
    with pytest.raises(queue.Empty):
        fetching.inbox.events.get_nowait()
