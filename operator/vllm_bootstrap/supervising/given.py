"""What users give an engine in Secrets and ConfigMaps: from files where its pod has them mounted, else by itself.

The pods of a shared Ray cluster are not made for an engine, so nothing of its is mounted there.  It reads what its plan
names from the API server, with a right to exactly that, at each attempt, as mounted files are read.  The values are
held in this process and, as those of files, in its launcher: not in Ray, not in an argument.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from vllm_bootstrap import contract
from vllm_bootstrap.contract import EnginePlan, FailureReason, Reference
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.launching.environment import (
    check_api_key,
    check_variables,
    plan_environment,
    read_api_key,
    source_variables,
)
from vllm_bootstrap.supervising.api_server import RefusedError

PLURALS = {"Secret": "secrets", "ConfigMap": "configmaps"}
ABSENT = 404
TRIES = 5
PAUSE_SECONDS = 1.0


class Reader(Protocol):
    """The API server; raises ``OSError``."""

    def get(self, path: str) -> dict[str, Any]:
        """Read an object."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """What an engine was given; none of it may be printed.

    Attributes
    ----------
    variables
        Of ``spec.env`` and ``spec.envFrom``, the plain ones included.
    api_key
        The key that its API asks for; empty where it asks for none of ours.
    warnings
        About keys that cannot be names.
    """

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_key: str = field(default="", repr=False)
    warnings: tuple[str, ...] = ()


def read_files(plan: EnginePlan) -> Given:
    """Read what is mounted, as it is now.

    Raises
    ------
    EngineFailure
        A reserved name, a file that is not there, or a key that is none.
    """
    variables, warnings = plan_environment(plan)
    return Given(variables=variables, api_key=read_api_key(plan.api_key_file), warnings=tuple(warnings))


class Fetcher:
    """Reads the objects that a plan refers to, each once.

    Parameters
    ----------
    reader
        The API server; ``None`` outside Kubernetes.
    """

    def __init__(self, plan: EnginePlan, reader: Reader | None, sleep: Callable[[float], None] = time.sleep) -> None:
        self._plan = plan
        self._reader = reader
        self._sleep = sleep
        self._objects: dict[tuple[str, str], Mapping[str, bytes] | None] = {}

    def control_token(self) -> bytes:
        """Read the supervisor's token.

        Raises
        ------
        EngineFailure
            It cannot be read.
        """
        reference = self._plan.references.control_token
        return self._value(reference, "the control token") or b""

    def fetch(self) -> Given:
        """Read everything else; precedence as Kubernetes has it, see ``plan_environment``.

        Raises
        ------
        EngineFailure
            A reserved name, something that is not there, or a key that is none.
        """
        plan, references = self._plan, self._plan.references
        variables: dict[str, str] = {}
        warnings: list[str] = []
        for source in references.sources:
            data = self._object(source, "envFrom") or {}
            variables |= source_variables(
                {key: _text(value, key) for key, value in data.items()}, source.prefix, warnings
            )
        variables |= plan.environment
        for name, reference in references.environment.items():
            value = self._value(reference, f"env {name}")
            if value is not None:
                variables[name] = _text(value, name)
        check_variables(variables)
        key = self._value(references.api_key, "apiKeySecret") if references.api_key.name else None
        api_key = check_api_key(_text(key, "apiKeySecret")) if key is not None else ""
        return Given(variables=variables, api_key=api_key, warnings=tuple(warnings))

    def _value(self, reference: Reference, what: str) -> bytes | None:
        data = self._object(reference, what)
        if data is None or reference.key not in data:
            if reference.optional:
                return None
            raise EngineFailure(
                FailureReason.INVALID_ENVIRONMENT,
                f"{what}: {reference.kind} {reference.name} has no key {reference.key}",
            )
        return data[reference.key]

    def _object(self, reference: Reference, what: str) -> Mapping[str, bytes] | None:
        wanted = (reference.kind, reference.name)
        if wanted not in self._objects:
            self._objects[wanted] = self._read(reference, what)
        found = self._objects[wanted]
        if found is None and not reference.optional:
            text = f"{what}: {reference.kind} {reference.name} does not exist"
            raise EngineFailure(FailureReason.INVALID_ENVIRONMENT, text)
        return found

    def _read(self, reference: Reference, what: str) -> Mapping[str, bytes] | None:
        if self._reader is None:
            text = f"{what}: {reference.kind} {reference.name} cannot be read outside Kubernetes"
            raise EngineFailure(FailureReason.INVALID_ENVIRONMENT, text)
        path = f"/api/v1/namespaces/{self._plan.namespace}/{PLURALS[reference.kind]}/{reference.name}"
        trouble: OSError | None = None
        for _ in range(TRIES):
            try:
                return _data(reference.kind, self._reader.get(path))
            except RefusedError as error:
                if error.status == ABSENT:
                    return None
                trouble = error
            except OSError as error:
                trouble = error
            self._sleep(PAUSE_SECONDS)  # a right that was granted a moment ago may take another to count
        raise EngineFailure(
            FailureReason.BOOTSTRAP_ERROR, f"{what}: {reference.kind} {reference.name} cannot be read: {trouble}"
        )


@dataclass(frozen=True)
class HeldToken:
    """A token in memory, where a control server would read a file."""

    value: bytes = field(repr=False)

    def read_bytes(self) -> bytes:
        """Give it."""
        return self.value


def control_token(plan: EnginePlan, fetcher: Fetcher) -> HeldToken | Path:
    """Give where the supervisor's token is."""
    if plan.references.control_token.name:
        return HeldToken(fetcher.control_token().strip())
    return Path(contract.CONTROL_TOKEN_FILE)


def _data(kind: str, body: Mapping[str, Any]) -> dict[str, bytes]:
    data = body.get("data") or {}
    if kind == "Secret":
        return {key: base64.b64decode(value) for key, value in data.items()}
    binary = {key: base64.b64decode(value) for key, value in (body.get("binaryData") or {}).items()}
    return {key: str(value).encode() for key, value in data.items()} | binary


def _text(value: bytes, name: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise EngineFailure(FailureReason.INVALID_ENVIRONMENT, f"the value of {name} is no UTF-8 text") from error
