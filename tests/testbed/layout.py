"""Where the test bed keeps what it builds (cache) and what it runs (state).

Both lie outside the checkout: a clean checkout must find yesterday's twelve-minute build, and ``git clean`` must not
pull the floor from under a running kubelet.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MARKER = "VLLM_OPERATOR_TESTBED"
"""Environment variable that every process of a bed carries: its value is the bed's state folder."""

REPOSITORY = Path(__file__).resolve().parents[2]
_SUBFOLDER = Path("vllm-operator", "testbed")


@dataclass(frozen=True)
class Layout:
    """The two roots of a test bed and the places below them.

    Parameters
    ----------
    cache
        What is built once, keyed by version or content; safe to delete while no bed runs.
    state
        What one bed is made of.  ``run`` below it goes with ``down``, ``logs`` stays until the next ``up``.
    """

    cache: Path
    state: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Layout:
        """Follow the XDG variables."""
        home = Path(environ.get("HOME") or Path.home())
        cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
        state = Path(environ.get("XDG_STATE_HOME") or home / ".local" / "state")
        return cls(cache=cache / _SUBFOLDER, state=state / _SUBFOLDER)

    @property
    def bin(self) -> Path:
        """Links to every program of the bed, for a user's ``PATH``."""
        return self.state / "bin"

    @property
    def run(self) -> Path:
        """Everything that ``down`` removes."""
        return self.state / "run"

    @property
    def record(self) -> Path:
        """The description of the bed that is up, coming up or going down."""
        return self.run / "bed.json"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.run / "kubeconfig"

    @property
    def logs(self) -> Path:
        """Logs of every daemon and pod."""
        return self.state / "logs"

    @property
    def audit_log(self) -> Path:
        """The API server's audit log."""
        return self.logs / "audit.log"

    @property
    def pids(self) -> Path:
        """One file a daemon: its identity."""
        return self.run / "pids"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.run / "pki"

    @property
    def config(self) -> Path:
        """Configuration files of the daemons."""
        return self.run / "config"

    @property
    def images(self) -> Path:
        """Image archives that belong to this bed: pause and thin."""
        return self.run / "images"

    def node(self, name: str) -> Path:
        """Give the folder of one node."""
        return self.run / "nodes" / name

    def pod_logs(self, name: str) -> Path:
        """Give the folder of the pod logs of one node."""
        return self.logs / "pods" / name

    def log(self, daemon: str) -> Path:
        """Give the log of one daemon."""
        return self.logs / f"{daemon}.log"
