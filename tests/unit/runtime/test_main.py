"""The process from outside: exit status, what it says, and no traceback where a sentence does."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import aiohttp
import pytest

from vllm_operator.clients.kubernetes import ApiError
from vllm_operator.runtime import main as main_module
from vllm_operator.runtime.lease import LeaseLostError
from vllm_operator.runtime.main import main
from vllm_operator.runtime.metrics import Metrics
from vllm_operator.runtime.settings import ProcessSettings
from vllm_operator.runtime.web import serve


@pytest.fixture(autouse=True)
def _logging_as_before() -> object:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level


def test_bad_settings_are_a_sentence_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("concurency: 3\n")
    assert main(["run", "--config", str(path)]) == 2
    told = capsys.readouterr()
    assert told.err.count("\n") == 1
    assert told.err.startswith(f"vllm-operator: {path}: concurency: ")
    assert told.out == ""


@pytest.mark.parametrize("arguments", [[], ["walk"], ["run", "--nope"]])
def test_bad_arguments_are_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: vllm-operator" in capsys.readouterr().err


def test_no_cluster_is_a_sentence_and_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "absent"))
    assert main(["run"]) == 1
    told = capsys.readouterr()
    assert "KUBECONFIG" in told.out
    assert "Traceback" not in told.out + told.err


@pytest.mark.parametrize(
    "error",
    [
        LeaseLostError("lost the Lease"),
        ApiError(500, "etcd"),
        ExceptionGroup(
            "outer", [ExceptionGroup("inner", [LeaseLostError("lost the Lease"), OSError("a port in use")])]
        ),
    ],
)
def test_what_ends_the_process_is_named(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(_: ProcessSettings) -> None:
        raise error

    monkeypatch.setattr(main_module, "_run", fail)
    assert main(["run"]) == 1
    told = capsys.readouterr().out
    assert "Traceback" not in told
    assert "sub-exception" not in told
    assert "lost the Lease" in told or "etcd" in told


def test_an_orderly_stop_is_status_0(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stop(_: ProcessSettings) -> None:
        return

    monkeypatch.setattr(main_module, "_run", stop)
    assert main(["run"]) == 0


def test_json_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def log(_: ProcessSettings) -> None:
        logging.getLogger("x").debug('a "word"')

    monkeypatch.setattr(main_module, "_run", log)
    path = tmp_path / "config.yaml"
    path.write_text("logging: {level: debug, format: json}\n")
    assert main(["run", "--config", str(path)]) == 0
    [line] = [item for item in capsys.readouterr().out.splitlines() if '"x"' in item]
    told = json.loads(line)
    assert (told["level"], told["logger"], told["message"]) == ("DEBUG", "x", 'a "word"')


@pytest.mark.looptime
async def test_a_swarm_of_nodes_is_one_list(monkeypatch: pytest.MonkeyPatch) -> None:
    lists: list[float] = []
    asked = asyncio.Event()

    class Api:
        async def list(self, *_: object) -> list[object]:
            lists.append(asyncio.get_running_loop().time())
            if len(lists) == 2:
                raise ApiError(500, "etcd")
            return [{"metadata": {"namespace": "n", "name": "d"}}]

    keys: list[object] = []
    queue = type("Queue", (), {"add": staticmethod(keys.append)})
    task = asyncio.create_task(main_module._enqueue_all(asked, Api(), queue, []))  # type: ignore[arg-type]
    for _ in range(300):
        asked.set()
        await asyncio.sleep(0.01)
    await asyncio.sleep(10)
    task.cancel()
    assert len(lists) <= 5
    assert len(keys) == len(lists) - 1, "one that fails ends nothing"


async def test_probes_and_metrics() -> None:
    problem, ready = "", False
    runners = await serve(
        probes_port=_free(), metrics_port=_free(), metrics=Metrics(), problem=lambda: problem, ready=lambda: ready
    )
    ports = [runner.addresses[0][1] for runner in runners]
    async with aiohttp.ClientSession() as session:

        async def get(port: int, path: str) -> tuple[int, str]:
            async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status, await answer.text()

        assert await get(ports[0], "/healthz") == (200, "ok")
        assert await get(ports[0], "/readyz") == (503, "starting")
        problem, ready = "the workers hang", True
        assert await get(ports[0], "/healthz") == (503, "the workers hang")
        assert await get(ports[0], "/readyz") == (200, "ok")
        status, text = await get(ports[1], "/metrics")
        assert status == 200
        assert "vllm_operator_queue_depth 0.0" in text
    for runner in runners:
        await runner.cleanup()


async def test_no_metrics_when_they_are_off() -> None:
    runners = await serve(
        probes_port=_free(), metrics_port=0, metrics=Metrics(), problem=lambda: "", ready=lambda: True
    )
    assert len(runners) == 1
    await runners[0].cleanup()


def _free() -> int:
    import socket  # noqa: PLC0415

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
