"""kubectl, bound to the bed's own kubeconfig: no verb here can reach another cluster."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from .layout import Layout
from .process import run


@dataclass(frozen=True)
class Kubectl:
    """Calls kubectl with the administrator's rights.

    Parameters
    ----------
    layout
        The bed.
    """

    layout: Layout

    def __call__(self, *args: str, stdin: str | None = None, timeout: float = 120.0) -> str:
        """Run kubectl and give its output; raise :class:`.errors.BedError` with its standard error."""
        program = self.layout.bin / "kubectl"
        env = {**os.environ, "KUBECONFIG": str(self.layout.kubeconfig)}
        return run([program, f"--kubeconfig={self.layout.kubeconfig}", *args], env=env, stdin=stdin, timeout=timeout)

    def json(self, *args: str) -> Any:
        """Run kubectl with ``-o json`` and read its output."""
        return json.loads(self(*args, "-o", "json"))

    def apply(self, *manifests: object, namespace: str | None = None) -> str:
        """Apply manifests given as objects."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        scope = [f"--namespace={namespace}"] if namespace else []
        return self("apply", *scope, "-f", "-", stdin=json.dumps(items))
