"""The process that is the engine's front: vLLM's API server, started by the guard on the lead pod.

Importable without a side effect, because vLLM's engine process is spawned from it and imports it again.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from vllm_bootstrap.contract import FailureReason
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.launch import EventLog, LaunchOrder, Stage

ORDERLY, REFUSED, FAILED = 0, 2, 1


def main(arguments: Sequence[str]) -> int:
    """Serve as ordered; say in the event log why it ended, when that is known here."""
    order = LaunchOrder.read(Path(arguments[0]))
    log = EventLog(Path(order.events))
    log.stage(Stage.STARTING)
    try:
        log.stage(Stage.IMPORTING)
        from vllm_bootstrap.vllm_adapter.serve import serve  # noqa: PLC0415 - it takes seconds, and may fail

        serve(order, log.stage)
    except EngineFailure as failure:
        log.failure(failure.reason, failure.message)
        print(failure.message, file=sys.stderr)  # noqa: T201
        return REFUSED
    except ImportError as error:
        traceback.print_exc()
        log.failure(FailureReason.RUNTIME_INCOMPATIBLE, f"this vLLM cannot be used: {error}")
        return REFUSED
    except KeyboardInterrupt:
        return FAILED
    except Exception:
        # What the engine's own processes printed says more than what arrived here: the supervisor reads the log.
        traceback.print_exc()
        return FAILED
    return ORDERLY


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # vLLM leaves threads behind that keep a failed process alive.
    os._exit(code)
