"""Which line of a long log says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_bootstrap.supervising.launcher_log import last_line, read_tail, root_cause


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ((), ""),
        (("all is well",), ""),
        (("ValueError: first", "RuntimeError: second"), "RuntimeError: second"),
        (
            (
                "(EngineCore pid=7) ERROR 11-29 20:38:01 [core.py:1510] ValueError: No available memory for the cache.",
                "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.",
            ),
            "ValueError: No available memory for the cache.",
        ),
        (
            ("\x1b[36m(RayWorkerProc pid=1, ip=10.0.0.2)\x1b[0m torch.cuda.OutOfMemoryError: CUDA out of memory",),
            "torch.cuda.OutOfMemoryError: CUDA out of memory",
        ),
        (
            ("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue",),
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue",
        ),
        (
            ("(EngineCoreActor pid=1) ValueError: a rank's own", "(EngineCoreActor pid=1) RuntimeError: cancelled"),
            "ValueError: a rank's own",
        ),
        (("INFO: a sentence with ValueError: in it",), ""),
    ],
)
def test_root_cause(lines: tuple[str, ...], cause: str):
    assert root_cause(lines) == cause


def test_the_tail(tmp_path: Path):
    log = tmp_path / "log"
    assert read_tail(log) == ()
    log.write_bytes(b"".join(f"\x1b[31mline {i}\x1b[0m\r\n".encode() for i in range(100)) + b"\xff end")
    tail = read_tail(log)
    assert len(tail) == 50
    assert tail[0] == "line 51"
    assert tail[-1] == "\ufffd end"
    assert last_line((*tail, "", " ")) == "\ufffd end"
