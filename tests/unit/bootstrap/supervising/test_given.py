"""What an engine on a shared cluster is given, read from the API server with its own right."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from vllm_bootstrap.contract import EnginePlan, FailureReason, Reference, References
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.supervising.api_server import RefusedError
from vllm_bootstrap.supervising.given import Fetcher, HeldToken, control_token

MakePlan = Callable[..., EnginePlan]
ROOT = "/api/v1/namespaces/default"


class Server:
    """An API server that has some objects, and refuses so many times first."""

    def __init__(self, refusals: int = 0, **data: dict[str, str]) -> None:
        self.refusals = refusals
        self.asked: list[str] = []
        self.objects = {f"{ROOT}/{path}": values for path, values in data.items()}

    def get(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        if self.refusals:
            self.refusals -= 1
            raise RefusedError(403, f"GET {path}: 403")
        if path not in self.objects:
            raise RefusedError(404, f"GET {path}: 404")
        values = self.objects[path]
        if "/secrets/" in path:
            values = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        return {"data": values}


def secret(name: str, key: str = "", **more: Any) -> Reference:
    return Reference(kind="Secret", name=name, key=key, **more)


def fetcher(plan: EnginePlan, server: Server) -> Fetcher:
    return Fetcher(plan, server, sleep=lambda _: None)


def test_variables_have_the_precedence_of_mounted_ones(make_plan: MakePlan) -> None:
    references = References(
        api_key=secret("keys", "api"),
        environment={"TOKEN": secret("keys", "token")},
        sources=(
            Reference(kind="ConfigMap", name="all", prefix="P_"),
            secret("more", optional=True),
        ),
    )
    plan = make_plan(references=references, environment={"P_a": "plain"})
    server = Server(
        **{"secrets/keys": {"api": "sk-1\n", "token": "t"}, "configmaps/all": {"a": "1", "b": "2", "bad.key": "3"}}
    )
    given = fetcher(plan, server).fetch()
    assert given.variables == {"P_a": "plain", "P_b": "2", "TOKEN": "t"}
    assert given.api_key == "sk-1"
    assert "bad.key" in given.warnings[0]
    assert server.asked.count(f"{ROOT}/secrets/keys") == 1
    assert "sk-1" not in repr(given)


def test_the_control_token_is_held_and_not_shown(make_plan: MakePlan) -> None:
    plan = make_plan(references=References(control_token=secret("demo-token", "control_token")))
    token = control_token(plan, fetcher(plan, Server(**{"secrets/demo-token": {"control_token": "tok"}})))
    assert isinstance(token, HeldToken)
    assert token.read_bytes() == b"tok"
    assert "tok'" not in repr(token)


def test_a_right_that_counts_a_moment_later_is_waited_for(make_plan: MakePlan) -> None:
    plan = make_plan(references=References(environment={"A": secret("s", "a")}))
    assert fetcher(plan, Server(2, **{"secrets/s": {"a": "1"}})).fetch().variables == {"A": "1"}


@pytest.mark.parametrize(
    ("references", "reason", "words"),
    [
        (References(environment={"A": secret("none", "a")}), FailureReason.INVALID_ENVIRONMENT, "does not exist"),
        (References(environment={"A": secret("s", "none")}), FailureReason.INVALID_ENVIRONMENT, "no key none"),
        (References(sources=(secret("none"),)), FailureReason.INVALID_ENVIRONMENT, "envFrom: Secret none"),
        (References(environment={"RAY_ADDRESS": secret("s", "a")}), FailureReason.INVALID_ENVIRONMENT, "RAY_ADDRESS"),
        (References(api_key=secret("s", "empty")), FailureReason.INVALID_ENVIRONMENT, "apiKeySecret"),
    ],
)
def test_what_is_not_there_is_said(
    make_plan: MakePlan, references: References, reason: FailureReason, words: str
) -> None:
    plan = make_plan(references=references)
    with pytest.raises(EngineFailure, match=words) as error:
        fetcher(plan, Server(**{"secrets/s": {"a": "1", "empty": ""}})).fetch()
    assert error.value.reason is reason


def test_what_may_not_be_read_is_said(make_plan: MakePlan) -> None:
    plan = make_plan(references=References(environment={"A": secret("s", "a")}))
    with pytest.raises(EngineFailure, match=r"cannot be read: GET .* 403"):
        fetcher(plan, Server(99)).fetch()


def test_what_is_optional_may_be_absent(make_plan: MakePlan) -> None:
    plan = make_plan(
        references=References(
            environment={"A": secret("none", "a", optional=True), "B": secret("s", "b", optional=True)}
        )
    )
    assert fetcher(plan, Server(**{"secrets/s": {"a": "1"}})).fetch().variables == {}
