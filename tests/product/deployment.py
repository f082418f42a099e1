"""A ``VLLMDeployment`` on the test bed, as a user sees it with kubectl."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.testbed.bed import Bed
from tests.testbed.errors import BedError

RESOURCE = "vllmdeployments.vllm-operator.io"


@dataclass(frozen=True)
class Deployment:
    """A deployment by name."""

    bed: Bed
    namespace: str
    name: str

    def read(self) -> dict[str, Any]:
        """Read the CR."""
        body: dict[str, Any] = self.bed.api.json("get", RESOURCE, self.name, "-n", self.namespace)
        return body

    @property
    def status(self) -> dict[str, Any]:
        """Its status."""
        return dict(self.read().get("status") or {})

    def condition(self, kind: str) -> dict[str, str]:
        """Give a condition; an empty one before it is there."""
        found = [item for item in self.status.get("conditions", []) if item["type"] == kind]
        return dict(found[0]) if found else {"status": "", "reason": "", "message": ""}

    @property
    def engines(self) -> list[dict[str, Any]]:
        """Its engines."""
        return list(self.status.get("engineReplicas", []))

    def await_condition(self, kind: str, status: str, *, reason: str = "", deadline: float = 60.0) -> dict[str, str]:
        """Wait until a condition has a status and, if given, a reason, for the present generation."""

        def probe() -> dict[str, str] | None:
            body = self.read()
            if body.get("status", {}).get("observedGeneration") != body["metadata"]["generation"]:
                return None
            found = [item for item in body["status"].get("conditions", []) if item["type"] == kind]
            if found and found[0]["status"] == status and reason in ("", found[0]["reason"]):
                return dict(found[0])
            return None

        try:
            return self.bed.wait_for(f"{self.name}: {kind}={status} {reason}", probe, deadline) or {}
        except BedError as error:
            raise BedError(f"{error}; last seen: {self.describe()}") from error

    def await_ready(self, deadline: float = 240.0, tell: Callable[[str], None] | None = None) -> dict[str, Any]:
        """Wait until it is Ready, telling each change of its state; give up at once when it is Stalled."""
        told = ""
        limit = time.monotonic() + deadline
        while True:
            ready, stalled = self.condition("Ready"), self.condition("Stalled")
            if ready["status"] == "True":
                return self.read()
            line = f"{ready['reason']}: {ready['message']}"
            if tell and line != told and ready["reason"]:
                tell(line)
                told = line
            if stalled["status"] == "True":
                raise BedError(f"{self.name} is stalled: {stalled['reason']}: {stalled['message']}")
            if time.monotonic() > limit:
                raise BedError(f"{self.name} is not Ready after {deadline:.0f} s: {self.describe()}")
            time.sleep(0.5)

    def describe(self) -> str:
        """Say in one line where it stands."""
        conditions = {item["type"]: item for item in self.status.get("conditions", [])}
        ready = conditions.get("Ready", {})
        return f"Ready={ready.get('status')} {ready.get('reason')}: {ready.get('message')}"

    def delete(self, *, wait: bool = True) -> None:
        """Delete it and wait until its pods are gone, too."""
        self.bed.kubectl("delete", RESOURCE, self.name, "-n", self.namespace, "--ignore-not-found")
        if wait:
            selector = f"vllm-operator.io/deployment={self.name}"
            self.bed.kubectl(
                "wait", "--for=delete", "pod", "-l", selector, "-n", self.namespace, "--timeout=120s", timeout=130
            )
