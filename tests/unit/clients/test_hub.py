"""What the hub says of a model, against a hub on loopback: facts, every way to get none, and where the token goes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web
from tests.testbed.pki import issue, make_authority
from tests.unit.clients.hub_server import (
    COMMIT,
    CONFIG,
    INDEX_TEXT,
    TOKEN,
    WEIGHTS,
    Clock,
    HubServer,
    Repository,
    always,
    clean_environment,
    error,
    hub_at,
    hub_server,
    never,
)
from tests.unit.planning import models

from vllm_operator.clients import hub as hub_module
from vllm_operator.clients.address import hub_url
from vllm_operator.planning.facts import read_config
from vllm_operator.planning.known import HubAnswer, HubFacts, HubTrouble, Trouble

__all__ = ["clean_environment"]
pytestmark = pytest.mark.usefixtures("clean_environment")

LISTING, FILE = "/api/models/org/name", f"/org/name/resolve/{COMMIT}/config.json"
INDEX = "model.safetensors.index.json"
SHARDS: dict[str, int | None] = {f"model-0000{number}-of-00003.safetensors": 10**9 + number for number in (1, 2, 3)}


async def ask(server: HubServer, *, revision: str = "", token: str = "", name: str = "org/name") -> HubAnswer:
    with hub_at(server.url) as hub:
        return await hub.ask(name, revision=revision, token=token)


# ---- facts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [models.LLAMA_8B, models.SMOLLM2, models.QWEN3_235B, models.DEEPSEEK_V3],
    ids=lambda it: it["architectures"][0],
)
async def test_the_facts_are_those_of_the_config(config: models.Config) -> None:
    async with hub_server() as server:
        server.repositories["org/name"] = Repository(
            files={"config.json": json.dumps(config).encode()}, sizes={"model.safetensors": 10**12}
        )
        answer = await ask(server)
    assert answer == HubFacts(facts=read_config(config, checkpoint_bytes=10**12), commit=COMMIT)


@pytest.mark.parametrize(
    ("files", "sizes", "total"),
    [
        pytest.param({}, {"model.safetensors": WEIGHTS}, WEIGHTS, id="one file"),
        pytest.param({INDEX: b"unread"}, SHARDS, 3 * 10**9 + 6, id="numbered files"),
        pytest.param({INDEX: b"unread"}, SHARDS | {"consolidated.safetensors": 7}, 3 * 10**9 + 6, id="and others"),
        pytest.param({INDEX: INDEX_TEXT}, SHARDS | {next(iter(SHARDS)): None}, 16_060_522_496, id="a size is missing"),
        pytest.param({INDEX: INDEX_TEXT}, dict(list(SHARDS.items())[:2]), 16_060_522_496, id="a file is missing"),
        pytest.param({INDEX: INDEX_TEXT}, {"odd.safetensors": 9}, 16_060_522_496, id="other names"),
        pytest.param({INDEX: b"{}"}, {}, 0, id="an index without a size"),
        pytest.param({INDEX: b"[" * 99_999}, {}, 0, id="a senseless index"),
        pytest.param({}, {"pytorch_model.bin": 5}, 0, id="no safetensors"),
        pytest.param({}, {"model.safetensors": None}, 0, id="no sizes"),
        pytest.param({}, {"model.safetensors": 135}, 0, id="the size of a pointer"),
    ],
)
async def test_the_size_of_the_checkpoint(files: dict[str, bytes], sizes: dict[str, int | None], total: int) -> None:
    async with hub_server() as server:
        server.repositories["org/name"] = Repository(files={"config.json": CONFIG, **files}, sizes=sizes)
        answer = await ask(server)
    assert isinstance(answer, HubFacts)
    assert answer.facts.checkpoint_bytes == total


async def test_an_index_is_read_only_as_far_as_its_size() -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(INDEX_TEXT[:45])
        while True:
            await response.write(b" " * 2**16)
            sent += 2**16

    async with hub_server() as server:
        server.repositories["org/name"] = Repository(files={"config.json": CONFIG, INDEX: b""}, sizes={})
        server.answers[f"/org/name/resolve/{COMMIT}/{INDEX}"] = endless
        answer = await ask(server)
    assert isinstance(answer, HubFacts)
    assert answer.facts.checkpoint_bytes == 16_060_522_496
    assert sent < 32 * 2**20


async def test_the_revision_is_asked_for_and_the_files_are_read_at_its_commit() -> None:
    async with hub_server() as server:
        await ask(server, revision="v1")
        assert server.paths == [f"{LISTING}/revision/v1", FILE]


async def test_a_model_without_an_organisation() -> None:
    async with hub_server() as server:
        server.repositories["gpt2"] = Repository()
        assert isinstance(await ask(server, name="gpt2"), HubFacts)


async def test_a_renamed_model_is_followed_with_its_token() -> None:
    async with hub_server() as server:
        server.answers["/api/models/old/name"] = always(307, Location=LISTING)
        server.answers[f"/old/name/resolve/{COMMIT}/config.json"] = always(307, Location=FILE)
        assert isinstance(await ask(server, name="old/name", token=TOKEN), HubFacts)
        assert {item.authorization for item in server.asked} == {f"Bearer {TOKEN}"}


# ---- no facts --------------------------------------------------------------------------------------------------------

Change = Callable[[HubServer], None]


def put(path: str, status: int, code: str = "", message: str = "") -> Change:
    async def answer(_: web.Request) -> web.Response:
        return error(status, code, message)

    def change(server: HubServer) -> None:
        server.answers[path] = answer

    return change


def text(path: str, body: str, status: int = 200, **headers: str) -> Change:
    def change(server: HubServer) -> None:
        server.answers[path] = always(status, body, **headers)

    return change


def repository(**fields: object) -> Change:
    def change(server: HubServer) -> None:
        server.repositories["org/name"] = Repository(**fields)  # type: ignore[arg-type]

    return change


def gone(server: HubServer) -> None:
    server.repositories.clear()


MISSING, DENIED, UNREADABLE, UNAVAILABLE = Trouble.MISSING, Trouble.DENIED, Trouble.UNREADABLE, Trouble.UNAVAILABLE


@pytest.mark.parametrize(
    ("change", "token", "trouble", "words"),
    [
        (gone, "", MISSING, ["spec.model.uri", "has no model org/name, or it is private", "hfTokenSecret gives no"]),
        (gone, TOKEN, MISSING, ["has no model org/name", "the token of spec.model.hfTokenSecret may not see it"]),
        (repository(is_private=True), "", MISSING, ["or it is private"]),
        (put(LISTING, 401), "", MISSING, ["has no model org/name"]),
        (put(LISTING, 404), "", MISSING, ["has no model org/name"]),
        (
            put(LISTING, 401, "", "Invalid credentials in Authorization header"),
            TOKEN,
            DENIED,
            ["spec.model.hfTokenSecret: ", "refuses the token"],
        ),
        (repository(revisions=()), "", MISSING, ["spec.model.revision: org/name has no revision main"]),
        (repository(is_gated=True), "", DENIED, ["org/name is gated; accept its licence at", "/org/name", "token"]),
        (repository(is_gated=True), TOKEN, DENIED, ["gated and the token of spec.model.hfTokenSecret has no access"]),
        (put(LISTING, 403, "", "Enable access to gated repositories"), TOKEN, DENIED, ["forbidden: Enable access to"]),
        (put(LISTING, 403), TOKEN, DENIED, ["forbidden: the token needs the right to read it"]),
        (put(LISTING, 403, "", "Access to this resource is disabled."), "", DENIED, ["is disabled"]),
        (put(LISTING, 451), "", DENIED, ["forbidden"]),
        (repository(files={"m.gguf": b""}), "", UNREADABLE, ["org/name on http://127", "has no config.json: ", "GGUF"]),
        (put(FILE, 404, "EntryNotFound"), "", UNREADABLE, ["has no config.json"]),
        (text(FILE, "<html>"), "", UNREADABLE, ["description that is not understood: config.json is no JSON: "]),
        (text(FILE, "[1]"), "", UNREADABLE, ["config.json is no JSON object"]),
        (text(FILE, "[" * 10**5), "", UNREADABLE, ["config.json is no JSON"]),
        (text(FILE, '{"a": ' + "9" * 9999 + "}"), "", UNREADABLE, ["config.json is no JSON"]),
        (text(FILE, "{}"), "", UNREADABLE, ["config.json has no positive hidden_size"]),
        (text(FILE, " " * (2**20 + 1)), "", UNREADABLE, ["is not understood: an answer has more than 1 MiB"]),
        (text(LISTING, " " * (2**23 + 1)), "", UNREADABLE, ["more than 8 MiB"]),
        (text(LISTING, "{}"), "", UNAVAILABLE, ["describes no model; is it the address of a hub?"]),
        (text(LISTING, "[]"), "", UNAVAILABLE, ["describes no model"]),
        (text(LISTING, "<html>welcome"), "", UNAVAILABLE, ["describes no model"]),
        (text(LISTING, '{"id": 1, "siblings": [{}]}'), "", UNAVAILABLE, ["describes no model"]),
        (text(LISTING, '{"id": 1, "siblings": 7}'), "", UNAVAILABLE, ["describes no model"]),
        (text(LISTING, "x", Content_Encoding="gzip"), "", UNAVAILABLE, ["compressed"]),
        (put(LISTING, 500), "", UNAVAILABLE, ["the hub http://127", "cannot tell about org/name now: HTTP 500"]),
        (put(LISTING, 503, "", "busy"), "", UNAVAILABLE, ["HTTP 503: busy"]),
        (put(LISTING, 429), "", UNAVAILABLE, ["HTTP 429"]),
        (put(FILE, 502), "", UNAVAILABLE, ["HTTP 502"]),
        (text(LISTING, "", 302, Location=LISTING), "", UNAVAILABLE, ["redirects"]),
        (text(LISTING, "", 302, Location="ftp://x/"), "", UNAVAILABLE, ["ftp"]),
    ],
)
async def test_every_way_to_get_no_facts(change: Change, token: str, trouble: Trouble, words: list[str]) -> None:
    async with hub_server() as server:
        change(server)
        answer = await ask(server, token=token)
    assert isinstance(answer, HubTrouble)
    assert answer.trouble is trouble, answer.message
    for word in words:
        assert word in answer.message
    assert len(answer.message) <= 1000
    assert "\n" not in answer.message


@pytest.mark.parametrize("name", ["a..b/c", "a--b", "x" * 97, "a/b.git"])
async def test_a_name_that_no_model_can_have_is_not_asked_for(name: str) -> None:
    async with hub_server() as server:
        answer = await ask(server, name=name)
        assert server.asked == []
    assert isinstance(answer, HubTrouble)
    assert "no possible name of a model" in answer.message


async def test_a_revision_with_odd_characters_stays_one_part_of_the_path() -> None:
    async with hub_server() as server:
        answer = await ask(server, revision="../../x?y#z")
        assert server.paths == [f"{LISTING}/revision/../../x?y#z"]
    assert isinstance(answer, HubTrouble)
    assert "spec.model.revision: org/name has no revision ../../x?y#z" in answer.message


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_nobody_listens() -> None:
    server = HubServer(url=f"http://127.0.0.1:{free_port()}")
    answer = await ask(server)
    assert isinstance(answer, HubTrouble)
    assert answer.trouble is UNAVAILABLE
    assert f"the hub {server.url} cannot be reached: " in answer.message
    assert "Connection refused" in answer.message
    assert "hub.endpoint" in answer.message


async def test_a_hub_that_speaks_no_tls() -> None:
    async with hub_server() as server:
        server.url = server.url.replace("http:", "https:")
        answer = await ask(server)
    assert isinstance(answer, HubTrouble)
    assert answer.trouble is UNAVAILABLE
    assert "TLS fails" in answer.message


async def test_an_authority_of_ones_own_goes_into_ssl_cert_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_authority(tmp_path)
    issue(tmp_path, "hub", "/CN=hub", ["IP:127.0.0.1"])
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "hub.crt", tmp_path / "hub.key")
    async with hub_server(tls) as server:
        answer = await ask(server)
        assert isinstance(answer, HubTrouble)
        assert "CERTIFICATE_VERIFY_FAILED" in answer.message
        assert "SSL_CERT_FILE" in answer.message
        clean_session()
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
        assert isinstance(await ask(server), HubFacts)
        clean_session()
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "absent"))
        answer = await ask(server)
        assert isinstance(answer, HubTrouble)
        assert "SSL_CERT_FILE of the operator cannot be read" in answer.message


def clean_session() -> None:
    import huggingface_hub  # noqa: PLC0415

    huggingface_hub.close_session()


async def test_a_proxy_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    proxy = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with proxy:
        port = proxy.sockets[0].getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:proxypassword@127.0.0.1:{port}")
        answer = await ask(HubServer(url="https://hub.example"))
    assert isinstance(answer, HubTrouble)
    assert answer.trouble is UNAVAILABLE
    assert "the proxy refuses (407 Proxy Authentication Required), see HTTPS_PROXY" in answer.message
    assert "proxypassword" not in answer.message


async def test_a_proxy_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "nonsense://user:proxypassword@x:y")
    answer = await ask(HubServer(url="https://hub.example"))
    assert isinstance(answer, HubTrouble)
    assert "HTTPS_PROXY" in answer.message
    assert "proxypassword" not in answer.message


async def test_an_offline_environment_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    async with hub_server() as server:
        answer = await ask(server)
        assert server.asked == []
    assert isinstance(answer, HubTrouble)
    assert "HF_HUB_OFFLINE is set" in answer.message


async def test_a_hub_that_never_answers() -> None:
    async with hub_server() as server:
        server.answers[LISTING] = never
        with hub_at(server.url, seconds=0.2) as hub:
            answer = await hub.ask("org/name")
    assert isinstance(answer, HubTrouble)
    assert answer.trouble is UNAVAILABLE
    assert "cannot tell about org/name now: no answer within 0.2 s" in answer.message


async def test_an_answer_that_never_ends() -> None:
    clock = Clock()

    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            clock.now += 1
            await response.write(b" ")
            await asyncio.sleep(0)

    async with hub_server() as server:
        server.answers[LISTING] = drip
        with hub_at(server.url, clock) as hub:
            answer = await hub.ask("org/name")
    assert isinstance(answer, HubTrouble)
    assert "no answer within 15 s" in answer.message


# ---- the token -------------------------------------------------------------------------------------------------------


async def test_the_token_goes_to_the_hub_and_not_where_it_redirects_to() -> None:
    async with hub_server() as server:
        elsewhere = server.url.replace("127.0.0.1", "localhost")
        server.answers[FILE] = always(302, Location=f"{elsewhere}/cdn/config?signature=1")
        server.answers["/cdn/config"] = always(200, CONFIG.decode())
        assert isinstance(await ask(server, token=TOKEN), HubFacts)
        sent = {item.path: item.authorization for item in server.asked}
    assert sent == {LISTING: f"Bearer {TOKEN}", FILE: f"Bearer {TOKEN}", "/cdn/config": ""}


async def test_no_token_of_the_environment_is_sent() -> None:
    async with hub_server() as server:
        await ask(server)
        assert [item.authorization for item in server.asked] == ["", ""]


async def test_cookies_of_one_token_are_not_sent_with_the_next() -> None:
    cookies: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        cookies.append(request.headers.get("Cookie", ""))
        return web.Response(status=500, headers={"Set-Cookie": "session=mine; Path=/"})

    async with hub_server() as server:
        server.answers[LISTING] = answer
        with hub_at(server.url) as hub:
            await hub.ask("org/name", token=TOKEN)
            await hub.ask("org/name")
    assert cookies == ["", ""]


@pytest.mark.parametrize("path", [LISTING, FILE])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 407, 409, 418, 429, 500, 503])
async def test_the_token_is_in_no_message_and_no_log(path: str, status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with hub_server() as server:
        put(path, status, "", f"the token Bearer {TOKEN} is bad\nvery")(server)
        with hub_at(server.url) as hub:
            answer = await hub.ask("org/name", token=TOKEN)
            assert TOKEN not in repr(vars(hub))
    assert isinstance(answer, HubTrouble)
    assert TOKEN not in repr(answer)
    assert TOKEN not in caplog.text


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_nothing_is_written_nothing_else_is_asked_and_no_token_file_is_read(tmp_path: Path) -> None:
    """In a process of its own: the library looks at its environment when it is loaded."""
    token = tmp_path / ".cache" / "huggingface" / "token"
    token.parent.mkdir(parents=True)
    token.write_text("hf_tokenfile")
    script = (
        "import asyncio, sys, time\n"
        "from vllm_operator.clients.hub import Hub\n"
        "hub = Hub(sys.argv[1], clock=time.monotonic)\n"
        "print(asyncio.run(hub.ask('org/name')).commit)\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('hf_xet', 'torch', 'kopf')])\n"
    )
    async with hub_server() as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            script,
            server.url,
            env={"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path), "HF_TOKEN": "hf_environment"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert out.decode().split() == [COMMIT, "[]"], err.decode()
        assert server.paths == [LISTING, FILE]
        assert {item.authorization for item in server.asked} == {""}
    assert err == b""
    assert files(tmp_path) == [token]


# ---- what is remembered ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("revision", "seconds"),
    [("", hub_module.BRANCH_SECONDS), ("v1", hub_module.BRANCH_SECONDS), (COMMIT, hub_module.COMMIT_SECONDS)],
)
async def test_facts_are_kept_as_long_as_the_revision_stands_still(revision: str, seconds: float) -> None:
    clock = Clock()
    async with hub_server() as server:
        with hub_at(server.url, clock) as hub:
            for step, requests in ((0.0, 2), (seconds - 1, 2), (2.0, 4)):
                clock.now += step
                assert isinstance(await hub.ask("org/name", revision=revision), HubFacts)
                assert len(server.asked) == requests


@pytest.mark.parametrize(("status", "seconds"), [(404, 60.0), (500, 30.0)])
async def test_a_refusal_is_taken_for_a_while(status: int, seconds: float) -> None:
    clock = Clock()
    async with hub_server() as server:
        server.answers[LISTING] = always(status)
        with hub_at(server.url, clock) as hub:
            for step, requests in ((0.0, 1), (seconds - 1, 1), (2.0, 2)):
                clock.now += step
                assert isinstance(await hub.ask("org/name"), HubTrouble)
                assert len(server.asked) == requests
            del server.answers[LISTING]
            clock.now += seconds
            assert isinstance(await hub.ask("org/name"), HubFacts)


async def test_another_token_another_revision_and_another_model_are_other_questions() -> None:
    async with hub_server() as server:
        server.repositories["org/name"].is_private = True
        server.repositories["org/other"] = Repository()
        with hub_at(server.url) as hub:
            assert isinstance(await hub.ask("org/name", token=TOKEN), HubFacts)
            assert isinstance(await hub.ask("org/name"), HubTrouble), "facts of a private model are its token's"
            assert isinstance(await hub.ask("org/name", token=TOKEN, revision="v1"), HubFacts)
            assert isinstance(await hub.ask("org/other"), HubFacts)
        assert len([path for path in server.paths if path.startswith("/api")]) == 4


async def test_equal_questions_at_a_time_are_one_request() -> None:
    async with hub_server() as server:
        with hub_at(server.url) as hub:
            answers = await asyncio.gather(*(hub.ask("org/name") for _ in range(50)))
        assert server.paths == [LISTING, FILE]
    assert len(set(map(id, answers))) == 1


async def test_a_hub_that_is_down_is_asked_once_for_all_models() -> None:
    clock = Clock()
    connections = 0

    def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    listener = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with listener:
        # TLS fails at once on each connection.
        with hub_at(f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}", clock) as hub:
            for name in ("a/a", "b/b", "c/c"):
                answer = await hub.ask(name)
                assert isinstance(answer, HubTrouble)
                assert "cannot be reached" in answer.message
            assert connections == 1
            clock.now += hub_module.DOWN_SECONDS
            await hub.ask("d/d")
            assert connections == 2


async def test_facts_that_ended_are_given_while_the_hub_is_not_available() -> None:
    clock = Clock()
    async with hub_server() as server:
        with hub_at(server.url, clock) as hub:
            known = await hub.ask("org/name")
            clock.now += hub_module.BRANCH_SECONDS
            server.answers[LISTING] = always(503)
            assert await hub.ask("org/name") == known
            assert await hub.ask("org/name") == known
            clock.now += hub_module.DOWN_SECONDS
            server.answers[LISTING] = always(404)
            assert isinstance(await hub.ask("org/name"), HubTrouble), "a model that is gone is gone"


async def test_a_late_answer_is_kept_for_the_next_question() -> None:
    release = asyncio.Event()

    async def late(request: web.Request) -> web.StreamResponse:
        await release.wait()
        del server.answers[LISTING]
        return await server.handle(request)

    async with hub_server() as server:
        server.answers[LISTING] = late
        with hub_at(server.url, seconds=5) as hub:
            first = asyncio.create_task(hub.ask("org/name"))
            second = asyncio.create_task(hub.ask("org/name"))
            first.cancel()
            release.set()
            assert isinstance(await second, HubFacts), "who gives up takes nobody with it"
            assert isinstance(await hub.ask("org/name"), HubFacts)
    assert server.paths.count(FILE) == 1


# ---- the address -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("https://huggingface.co", "https://huggingface.co"),
        ("https://huggingface.co/", "https://huggingface.co"),
        ("http://[::1]:8080/artifactory/api/hf//", "http://[::1]:8080/artifactory/api/hf"),
    ],
)
def test_addresses(given: str, address: str) -> None:
    assert hub_url(given) == address


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("huggingface.co", "begins with http:// or https://"),
        ("", "begins with http:// or https://"),
        ("ftp://h", "begins with http:// or https://"),
        ("https://", "begins with http:// or https://"),
        ("https:///path", "begins with http:// or https://"),
        ("http://h:99999", "is no address"),
        ("http://[::1", "is no address"),
        ("https://user:secret@h", "no user, no query"),
        ("https://h?token=1", "no user, no query"),
        ("https://h#a", "no user, no query"),
        ("https://h /", "blanks"),
        ("https://hüb", "not ASCII"),
    ],
)
def test_what_is_no_address(given: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        hub_url(given)
    assert "secret" not in str(refusal.value)
