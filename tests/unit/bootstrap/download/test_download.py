"""A download as the pods do it: the real process and library, against a hub on loopback."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.hub.server import COMMIT, ELSEWHERE, HubServer, Repository, error, serving_hub

from vllm_bootstrap.clock import Clock, poll
from vllm_bootstrap.contract import DownloadReport, FailureReason, HubSource
from vllm_bootstrap.download import hub as hub_module
from vllm_bootstrap.download.downloader import Downloader
from vllm_bootstrap.download.fetch import describe, fetch
from vllm_bootstrap.download.process import Order, Sight, child_environment
from vllm_bootstrap.download.snapshot import Cached, Snapshot
from vllm_bootstrap.failure import EngineFailure

TOKEN = "hf_verysecrettoken"
SHARDS = {f"model-0000{number}-of-00002.safetensors": bytes([number]) * 300_000 for number in (1, 2)}
FILES = {
    "config.json": b"{}",
    "README.md": b"for people",
    "model.safetensors.index.json": json.dumps({"weight_map": dict(zip("ab", SHARDS, strict=True))}).encode(),
    "pytorch_model.bin": b"again" * 1000,
    **SHARDS,
}
NEEDED = {"config.json", "model.safetensors.index.json", *SHARDS}
SIZE = sum(len(FILES[name]) for name in NEEDED)
DEADLINE = 60.0


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with serving_hub() as server:
        server.repositories["org/name"] = Repository(files=dict(FILES))
        yield server


@pytest.fixture
def order(hub: HubServer, tmp_path: Path) -> Order:
    return Order(source=HubSource(repository="org/name", endpoint=hub.url, folder=str(tmp_path / "cache" / "hub")))


def environment(**changes: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **changes}


def with_token(order: Order, tmp_path: Path, token: str = TOKEN) -> Order:
    (tmp_path / "token").write_text(f"{token}\n")
    return replace(order, token_file=str(tmp_path / "token"))


@pytest.fixture
def bring() -> Iterator[Callable[..., Sight]]:
    """Download in one pod, and give how that ended."""
    made: list[Downloader] = []

    def ended(order: Order, *, stall: float = DEADLINE, **variables: str) -> Sight:
        made.append(Downloader("pod", stall=stall, clock=Clock(), environment=environment(**variables)))
        made[-1].start(order)
        sight = poll(
            lambda: seen if (seen := made[-1].look()).path or seen.reason else None, seconds=DEADLINE, clock=Clock()
        )
        assert sight, "the download did not end"
        return sight

    yield ended
    for downloader in made:
        downloader.close()


def test_what_is_needed_lies_in_the_cache(order: Order, hub: HubServer, bring: Callable[..., Sight]):
    sight = bring(order)
    assert (sight.message, sight.reason) == ("", None)
    assert sight.path == f"{order.source.folder}/models--org--name/snapshots/{COMMIT}"
    assert {name.name: name.read_bytes() for name in Path(sight.path).iterdir()} == {n: FILES[n] for n in NEEDED}
    assert (sight.done, sight.total) == (SIZE, SIZE)
    assert {item.authorization for item in hub.asked} == {""}
    asked = len(hub.asked)
    assert bring(order).path == sight.path
    assert [item.path for item in hub.asked[asked:]] == ["/api/models/org/name"], "what is there is not asked for again"


def test_the_token_comes_from_its_file_and_goes_to_the_hub(
    order: Order, hub: HubServer, bring: Callable[..., Sight], tmp_path: Path
):
    hub.repositories["org/name"].is_private = True
    hub.tokens = frozenset({TOKEN})
    assert bring(with_token(order, tmp_path), HF_TOKEN="hf_of_the_pod", HF_ENDPOINT="http://127.0.0.1:9").path
    by_the_hub = {item.authorization for item in hub.asked if not item.path.startswith(ELSEWHERE)}
    by_the_storage = {item.authorization for item in hub.asked if item.path.startswith(ELSEWHERE)}
    assert (by_the_hub, by_the_storage) == ({f"Bearer {TOKEN}"}, {""})
    assert TOKEN not in with_token(order, tmp_path).dumps()


@pytest.mark.parametrize(
    ("change", "token", "reason", "words"),
    [
        pytest.param(
            {},
            "hf_wrongtoken",
            FailureReason.HUB_ACCESS_DENIED,
            ["spec.model.hfTokenSecret: ", "refuses the token (401)", "put a valid one into the Secret"],
            id="a token that is not valid",
        ),
        pytest.param(
            {"is_gated": True},
            TOKEN,
            FailureReason.HUB_ACCESS_DENIED,
            ["hf://org/name is gated", "accept its licence at ", "with the account of the token"],
            id="gated, and the token's account has not accepted",
        ),
        pytest.param(
            {"is_gated": True},
            "",
            FailureReason.HUB_ACCESS_DENIED,
            ["hf://org/name is gated and not open to who has no token", "by spec.model.hfTokenSecret"],
            id="gated, and no token",
        ),
        pytest.param(
            {"is_private": True},
            "",
            FailureReason.MODEL_NOT_ON_HUB,
            ["spec.model.uri: ", "has no org/name, or it is private and spec.model.hfTokenSecret names no token"],
            id="private, or not there",
        ),
        pytest.param(
            {"revisions": ("v2",)},
            "",
            FailureReason.MODEL_NOT_ON_HUB,
            ["spec.model.revision: hf://org/name has no revision main on http", "branches, tags or commits"],
            id="no such revision",
        ),
        pytest.param(
            {"files": {name: data for name, data in FILES.items() if name != "model-00002-of-00002.safetensors"}},
            "",
            FailureReason.MODEL_INCOMPLETE,
            ["spec.model: hf://org/name lacks model-00002-of-00002.safetensors", "upload is not complete"],
            id="a shard that the index names and nobody has uploaded",
        ),
        pytest.param(
            {"files": {"config.json": b"{}"}},
            "",
            FailureReason.MODEL_INCOMPLETE,
            ["has no weights that vLLM loads"],
            id="no weights",
        ),
        pytest.param(
            {"sizes": {"model-00001-of-00002.safetensors": 10**18}},
            "",
            FailureReason.DISK_FULL,
            ["hf://org/name needs 931322574", "GiB are free: name a claim with more room by spec.model.cache"],
            id="larger than the disk",
        ),
    ],
)
def test_what_the_hub_does_not_give(
    order: Order,
    hub: HubServer,
    bring: Callable[..., Sight],
    tmp_path: Path,
    *,
    change: Mapping[str, Any],
    token: str,
    reason: FailureReason,
    words: list[str],
):
    hub.tokens = frozenset({TOKEN})
    hub.repositories["org/name"] = replace(hub.repositories["org/name"], **change)
    sight = bring(with_token(order, tmp_path, token) if token else order)
    assert sight.reason is reason, sight.message
    assert [word for word in words if word not in sight.message] == [], sight.message
    assert not token or token not in sight.message


def answering(status: int, code: str = "", message: str = "") -> Any:
    async def answer(_: web.Request) -> web.Response:
        return error(status, code, message)

    return answer


@pytest.mark.parametrize(
    ("status", "said", "reason", "words"),
    [
        (503, "maintenance", FailureReason.HUB_UNAVAILABLE, "answers 503 for hf://org/name: maintenance"),
        (403, f"{TOKEN} lacks a right", FailureReason.HUB_ACCESS_DENIED, "forbidden (403): (the token) lacks a right"),
        (451, "", FailureReason.HUB_ACCESS_DENIED, "forbidden (451): the token needs the right to read it"),
    ],
)
def test_what_the_hub_says_is_told_without_the_token(
    order: Order,
    hub: HubServer,
    bring: Callable[..., Sight],
    tmp_path: Path,
    *,
    status: int,
    said: str,
    reason: FailureReason,
    words: str,
):
    hub.answers["/api/models/org/name"] = answering(status, message=said)
    sight = bring(with_token(order, tmp_path))
    assert sight.reason is reason
    assert words in sight.message


def test_a_hub_that_is_not_there(order: Order, bring: Callable[..., Sight]):
    away = replace(order, source=replace(order.source, endpoint="http://127.0.0.1:9"))
    sight = bring(away)
    assert sight.reason is FailureReason.HUB_UNAVAILABLE
    assert "the hub http://127.0.0.1:9 cannot be reached" in sight.message
    assert "set hub.endpoint of the operator's chart to a mirror" in sight.message


def test_a_cache_that_may_hold_less_than_its_disk(order: Order, bring: Callable[..., Sight]):
    sight = bring(replace(order, source=replace(order.source, room=SIZE - 1)))
    assert sight.reason is FailureReason.DISK_FULL
    assert "(its volume may hold 0.00 GiB)" in sight.message
    assert bring(replace(order, source=replace(order.source, room=2 * SIZE))).path


@pytest.mark.parametrize("token", ["", "two words", "ümläut"])
def test_a_secret_without_a_token(order: Order, bring: Callable[..., Sight], tmp_path: Path, token: str):
    sight = bring(with_token(order, tmp_path, token))
    assert sight.reason is FailureReason.HUB_ACCESS_DENIED
    assert "spec.model.hfTokenSecret: the Secret holds no token" in sight.message
    gone = bring(replace(order, token_file=str(tmp_path / "absent")))
    assert "spec.model.hfTokenSecret: the token cannot be read" in gone.message


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        RuntimeError("IO Error: No space left on device (os error 28)"),
    ],
)
def test_a_disk_that_fills_up_meanwhile(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the library wraps it") from error

    monkeypatch.setattr(hub_module, "hf_hub_download", fail)
    repository = hub_module.Repository(HubSource(repository="org/name", folder=str(tmp_path)), "")
    with pytest.raises(EngineFailure) as raised:
        repository.download(repository.cached(Snapshot(commit=COMMIT, files={"a": 3 * 2**30})))
    assert raised.value.reason is FailureReason.DISK_FULL
    assert f"hf://org/name needs 3.00 GiB more (of 3.00 GiB) in {tmp_path}, " in raised.value.message


def test_parts_that_a_killed_download_left_go_and_others_stay(tmp_path: Path):
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for name, age in (("old.incomplete", 7200), ("new.incomplete", 60), ("whole", 7200)):
        (blobs / name).write_bytes(b"x" * 100)
        os.utime(blobs / name, (10_000 - age, 10_000 - age))
    cached = Cached(tmp_path, Snapshot(commit=COMMIT, files={"a": 1000}))
    cached.sweep(10_000)
    assert sorted(path.name for path in blobs.iterdir()) == ["new.incomplete", "whole"]
    assert cached.done() == 100, "what is being written counts"


def test_a_file_that_the_hub_lists_and_does_not_have(order: Order, hub: HubServer, bring: Callable[..., Sight]):
    hub.answers[f"/org/name/resolve/{COMMIT}/config.json"] = answering(404, "EntryNotFound", "Entry not found")
    sight = bring(order)
    assert sight.reason is FailureReason.MODEL_INCOMPLETE
    assert (
        f"lists a file of hf://org/name that it does not have (/org/name/resolve/{COMMIT}/config.json)" in sight.message
    )


def test_an_engine_that_starts_again_keeps_its_commit_and_needs_no_hub(
    order: Order, hub: HubServer, bring: Callable[..., Sight]
):
    first = bring(order).path
    moved = "f" * 40
    hub.repositories["org/name"] = replace(hub.repositories["org/name"], commit=moved, revisions=("main", moved))
    asked = len(hub.asked)
    assert bring(replace(order, keep=True)).path == first
    assert len(hub.asked) == asked
    hub.answers["/api/models/org/name"] = answering(502)
    assert bring(order).path == first, "what is there does, while the hub does not answer"
    del hub.answers["/api/models/org/name"]
    assert bring(order).path.endswith(moved)


def test_a_cache_that_somebody_has_filled_needs_no_hub(order: Order, bring: Callable[..., Sight], tmp_path: Path):
    nowhere = bring(order, HF_HUB_OFFLINE="1")
    assert nowhere.reason is FailureReason.HUB_UNAVAILABLE
    assert "HF_HUB_OFFLINE is set in the pods" in nowhere.message
    repository = Path(order.source.folder) / "models--org--name"
    (repository / "snapshots" / COMMIT).mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for name, data in FILES.items():
        (repository / "snapshots" / COMMIT / name).write_bytes(data)
    assert bring(order, HF_HUB_OFFLINE="1").path == str(repository / "snapshots" / COMMIT)


def test_a_download_of_which_no_byte_comes_is_given_up(order: Order, hub: HubServer, bring: Callable[..., Sight]):
    async def never(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    hub.answers["/api/models/org/name"] = never
    sight = bring(order, stall=1.5)
    assert sight.reason is FailureReason.DOWNLOAD_STALLED
    assert "no byte of the download came for 1.5 s" in sight.message


def test_the_process_goes_with_whoever_ordered_it(order: Order, bring: Callable[..., Sight]):
    process = subprocess.Popen(
        [sys.executable, "-c", "from vllm_bootstrap.download.process import main; main()"],
        stdin=subprocess.PIPE,
        env=child_environment(environment(), order, "operator"),
    )
    process.communicate(timeout=DEADLINE)
    assert process.returncode is not None


def test_only_what_concerns_the_hub_reaches_the_process(order: Order):
    given = {"HTTPS_PROXY": "http://proxy", "HF_HUB_DOWNLOAD_TIMEOUT": "60", "HF_ENDPOINT": "http://evil", "OTHER": "1"}
    told = child_environment({"HF_TOKEN": "t", "OMP_NUM_THREADS": "1"}, replace(order, environment=given), "/package")
    assert (told["HTTPS_PROXY"], told["HF_HUB_DOWNLOAD_TIMEOUT"]) == ("http://proxy", "60")
    assert told["HF_ENDPOINT"] == order.source.endpoint
    assert told["PYTHONPATH"] == "/package"
    assert not {"OTHER", "OMP_NUM_THREADS"} & told.keys()
    assert "HF_TOKEN" in told
    assert "HF_TOKEN" not in child_environment({"HF_TOKEN": "t"}, replace(order, token_file="/t"), "/package")


# ---- to every node ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
def test_every_pod_gets_the_commit_that_the_lead_found(order: Order, hub: HubServer, tmp_path: Path, shared: bool):
    told: list[tuple[tuple[DownloadReport, ...], str]] = []
    source = replace(order.source, shared=shared)
    pods = [Downloader(name, stall=DEADLINE, clock=Clock(), environment=environment()) for name in ("lead", "worker")]
    try:
        path = fetch(
            pods,
            replace(order, source=source),
            tell=lambda downloads, message: told.append((downloads, message)),
            check=lambda: None,
            clock=Clock(),
        )
    finally:
        for pod in pods:
            pod.close()
    assert Path(path, "config.json").exists()
    assert hub.paths.count("/api/models/org/name") == 1, "the worker is told the commit"
    large = [item for item in hub.asked if item.path.startswith(ELSEWHERE) and item.method == "GET"]
    assert not shared or len(large) == len(SHARDS), "a shared cache is filled once"
    assert told[0][1] == "asking the hub for hf://org/name"


def test_the_first_pod_that_fails_ends_it_and_is_named(order: Order, hub: HubServer):
    hub.repositories["org/name"].revisions = ("v1",)
    pod = Downloader("pod-7", stall=DEADLINE, clock=Clock(), environment=environment())
    try:
        with pytest.raises(EngineFailure) as raised:
            fetch([pod], order, tell=lambda *_: None, check=lambda: None, clock=Clock())
    finally:
        pod.close()
    assert raised.value.reason is FailureReason.MODEL_NOT_ON_HUB
    assert raised.value.message.endswith("(pod pod-7)")


class Played:
    """A pod whose download a test has written down."""

    def __init__(self, pod: str, *sights: Sight) -> None:
        self.pod = pod
        self.sights = list(sights)
        self.order: Order | None = None

    def start(self, order: Order) -> None:
        self.order = order

    def look(self) -> Sight:
        return self.sights.pop(0) if len(self.sights) > 1 else self.sights[0]

    def close(self) -> None:
        """Nothing runs."""


def test_progress_is_told_by_the_per_cent_and_not_too_often(time: Any):
    source = HubSource(repository="org/name", endpoint="http://hub", folder="/cache")
    size = 4 * 1024**3
    snapshot = Snapshot(commit=COMMIT, files={"a": size})
    steps = [Sight(done=size * step // 1000, total=size, snapshot=snapshot) for step in range(1000)]
    pod = Played("lead", Sight(), *steps, Sight(done=size, total=size, snapshot=snapshot, path="/cache/x"))
    told: list[tuple[float, str]] = []
    path = fetch(
        [pod],
        Order(source=source),
        tell=lambda _, message: told.append((time.now, message)),
        check=lambda: None,
        clock=time.clock,
    )
    assert path == "/cache/x"
    assert 90 <= len(told) <= 102
    assert min(later[0] - earlier[0] for earlier, later in itertools.pairwise(told)) >= 3
    assert "downloading hf://org/name: lead 50% (2.00 of 4.00 GiB)" in [message for _, message in told]


def test_a_slow_download_is_told_now_and_then(time: Any):
    snapshot = Snapshot(commit=COMMIT, files={"a": 10**12})
    steps = [Sight(done=step, total=10**12, snapshot=snapshot) for step in range(1000)]
    pod = Played("lead", *steps, replace(steps[-1], path="/cache/x"))
    told: list[float] = []
    order = Order(source=HubSource(repository="org/name"))
    fetch([pod], order, tell=lambda *_: told.append(time.now), check=lambda: None, clock=time.clock)
    assert [later - earlier for earlier, later in itertools.pairwise(told)] == [300.0] * 3


def test_what_ends_the_waiting_ends_it(order: Order):
    def check() -> None:
        raise EngineFailure(FailureReason.BOOTSTRAP_ERROR, "another attempt has taken its place")

    with pytest.raises(EngineFailure, match="another attempt"):
        fetch([Played("lead", Sight())], order, tell=lambda *_: None, check=check, clock=Clock())


def test_many_pods_are_told_by_those_that_lag():
    downloads = [DownloadReport(pod=f"p{number}", done=number * 2**30, total=10 * 2**30) for number in range(1, 7)]
    assert describe("org/name", downloads) == (
        "downloading hf://org/name: p1 10% (1.00 of 10.00 GiB), p2 20% (2.00 of 10.00 GiB), "
        "p3 30% (3.00 of 10.00 GiB), p4 40% (4.00 of 10.00 GiB), 2 more pods are further"
    )
