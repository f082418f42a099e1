"""The process that is the engine's front: vLLM's API server, started by the guard on the lead pod.

vLLM spawns its engine process from this one, and a spawned process imports its parent's main module before anything
else.  That is our one chance to bind it to this process's life: an engine process that outlives its front keeps every
rank actor, and with them the GPUs.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from vllm_bootstrap.clock import Clock
from vllm_bootstrap.contract import FailureReason
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.launching.guard import PR_SET_PDEATHSIG
from vllm_bootstrap.launching.order import BUNDLES_VARIABLE, EVENTS_FILE, ORDER_FILE, EventLog, LaunchOrder, Stage

ORDERLY, REFUSED, FAILED = 0, 2, 1
ORDER_INTERVAL = 0.05


def main(arguments: Sequence[str]) -> int:
    """Serve as ordered; say in the event log why it ended, when that is known here."""
    folder = Path(arguments[0])
    log = EventLog(folder / EVENTS_FILE)
    try:
        log.stage(Stage.IMPORTING)
        from vllm_bootstrap.vllm_adapter.serve import serve  # noqa: PLC0415 - it takes seconds, and may fail

        log.stage(Stage.WAITING)
        order = wait_for_order(folder / ORDER_FILE, Clock())
        if order.bundles:
            # vLLM reads it when it starts the ranks, in a process that inherits it.
            os.environ[BUNDLES_VARIABLE] = ",".join(map(str, order.bundles))
        serve(order, log)
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


def wait_for_order(path: Path, clock: Clock) -> LaunchOrder:
    """Wait until the engine has been placed; if it comes to nothing, the guard ends this process."""
    while (order := LaunchOrder.read(path)) is None:
        clock.sleep(ORDER_INTERVAL)
    return order


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, however that dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid != os.getppid():  # it died before the line above
        os._exit(FAILED)


if __name__ == "__mp_main__":
    die_with_parent()

if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # vLLM leaves threads behind that keep a failed process alive.
    os._exit(code)
