"""A ``VLLMDeployment`` on the test bed, as a user sees it with kubectl."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.testbed.bed import Bed
from tests.testbed.errors import BedError
from tests.testbed.waiting import SOON

RESOURCE = "vllmdeployments.vllm-operator.io"

STARTED = 900.0
"""Seconds for what needs an engine to start: many imports of vLLM on two cores, each of 12 s or, in a bad hour, 40."""

T = TypeVar("T")

_NO_CONDITION = {"status": "", "reason": "", "message": ""}


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
        return _condition(self.read(), kind)

    @property
    def engines(self) -> list[dict[str, Any]]:
        """Its engines."""
        return list(self.status.get("engineReplicas", []))

    def await_condition(
        self, kind: str, status: str, *, reason: str = "", text: str = "", deadline: float = SOON
    ) -> dict[str, str]:
        """Wait until a condition has a status and, if given, a reason and words, for the present generation."""

        def probe(body: dict[str, Any]) -> dict[str, str] | None:
            found = _condition(body, kind)
            as_wanted = found["status"] == status and reason in ("", found["reason"]) and text in found["message"]
            return found if as_wanted else None

        return self.await_seen(f"{kind}={status} {reason} {text}", probe, deadline=deadline)

    def await_engine(self, state: str, *, attempt: int, deadline: float = STARTED) -> dict[str, Any]:
        """Wait until its only engine is in a state, in the given attempt or a later one."""

        def probe(body: dict[str, Any]) -> dict[str, Any] | None:
            (engine,) = body["status"]["engineReplicas"]
            return dict(engine) if engine["state"] == state and engine["attempt"] >= attempt else None

        return self.await_seen(f"engine {state} in attempt {attempt}", probe, deadline=deadline)

    def await_seen(self, what: str, probe: Callable[[dict[str, Any]], T | None], *, deadline: float = SOON) -> T:
        """Wait until a probe of the CR gives something; its status speaks of the present spec."""
        for body in self._follow(deadline):
            found = probe(body)
            if found is not None:
                return found
        raise BedError(f"{self.name}: not seen within {deadline:.0f} s: {what}; last seen: {self.describe()}")

    def await_ready(self, deadline: float = STARTED, tell: Callable[[str], None] | None = None) -> dict[str, Any]:
        """Wait until it is Ready, telling each change of its state; give up at once when it is Stalled."""
        told = ""
        for body in self._follow(deadline):
            ready, stalled = _condition(body, "Ready"), _condition(body, "Stalled")
            if ready["status"] == "True":
                return body
            line = f"{ready['reason']}: {ready['message']}"
            if tell and line != told and ready["reason"]:
                tell(line)
                told = line
            if stalled["status"] == "True":
                raise BedError(f"{self.name} is stalled: {stalled['reason']}: {stalled['message']}")
        raise BedError(f"{self.name} is not Ready after {deadline:.0f} s: {self.describe()}")

    def _follow(self, deadline: float) -> Iterator[dict[str, Any]]:
        """Give the CR after each change whose status speaks of the present spec."""
        chosen = (f"--field-selector=metadata.name={self.name}", "-n", self.namespace)
        for body in self.bed.api.follow(RESOURCE, *chosen, deadline=deadline):
            if body.get("status", {}).get("observedGeneration") == body["metadata"]["generation"]:
                yield body

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
                "wait", "--for=delete", "pod", "-l", selector, "-n", self.namespace, "--timeout=300s", timeout=310
            )


@contextmanager
def applying(bed: Bed, namespace: str) -> Iterator[Callable[[dict[str, Any]], Deployment]]:
    """Give what applies a manifest; all that it applied is removed at the end."""
    made: list[Deployment] = []

    def apply(manifest: dict[str, Any]) -> Deployment:
        bed.api.apply(manifest, namespace=namespace)
        made.append(Deployment(bed, namespace, manifest["metadata"]["name"]))
        return made[-1]

    yield apply
    for deployment in made:
        deployment.delete()


def _condition(body: dict[str, Any], kind: str) -> dict[str, str]:
    conditions = body.get("status", {}).get("conditions", [])
    return next((dict(item) for item in conditions if item["type"] == kind), _NO_CONDITION)
