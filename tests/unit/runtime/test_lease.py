"""The Lease: work only while it is held, no work after it is lost or given back."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from vllm_operator.clients.kubernetes import ApiError, ConflictError, KubernetesClient
from vllm_operator.runtime import lease
from vllm_operator.runtime.lease import LeaseLostError, give_back, lead
from vllm_operator.runtime.settings import LeaderElection

pytestmark = pytest.mark.looptime

SETTINGS = LeaderElection(lease_name="l")


class FakeElection:
    """An election that is won and lost when a test says so."""

    won = asyncio.Event()
    lost = asyncio.Event()

    def __init__(self, config: Any) -> None:
        self._config = config

    async def run(self) -> None:
        await self.won.wait()
        await self._config.onstarted_leading()
        await self.lost.wait()
        await self._config.onstopped_leading()


@pytest.fixture
def election(monkeypatch: pytest.MonkeyPatch) -> type[FakeElection]:
    kind = type("Election", (FakeElection,), {"won": asyncio.Event(), "lost": asyncio.Event()})
    monkeypatch.setattr(lease, "LeaderElection", kind)
    monkeypatch.setattr(lease, "_Lock", lambda *_: object())
    return kind


class Api:
    """As much of a client as the Lease needs."""

    api = None

    def __init__(self, body: dict[str, Any] | None = None, error: ApiError | None = None) -> None:
        self.body, self.error = body, error
        self.patched: list[dict[str, Any]] = []

    async def find(self, *_: Any) -> dict[str, Any] | None:
        return self.body

    async def patch(self, body: dict[str, Any], **guard: str) -> None:
        if self.error:
            raise self.error
        self.patched.append(body | {"guard": guard})


class Work:
    """What is done while the Lease is held."""

    def __init__(self, error: Exception | None = None) -> None:
        self.state = "not begun"
        self._error = error

    async def __call__(self) -> None:
        self.state = "working"
        try:
            if self._error:
                raise self._error
            await asyncio.Event().wait()
        finally:
            self.state = "ended"


def leading(work: Work) -> asyncio.Task[None]:
    api = cast("KubernetesClient", Api())
    return asyncio.create_task(lead(api=api, settings=SETTINGS, namespace="n", identity="me", work=work))


async def test_no_work_before_the_lease_is_held(election: type[FakeElection]) -> None:
    work = Work()
    task = leading(work)
    await asyncio.sleep(100)
    assert work.state == "not begun"
    election.won.set()
    await asyncio.sleep(1)
    assert work.state == "working"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.state == "ended", "nobody works on when the process stops and gives the Lease back"
    assert len(asyncio.all_tasks()) == 1


async def test_a_lost_lease_ends_the_work_and_the_process(election: type[FakeElection]) -> None:
    work = Work()
    task = leading(work)
    election.won.set()
    await asyncio.sleep(1)
    election.lost.set()
    with pytest.raises(ExceptionGroup) as group:
        await task
    assert group.group_contains(LeaseLostError, match="me lost the Lease n/l")
    assert work.state == "ended"


async def test_work_that_fails_is_heard_and_the_lease_not_kept_by_one_who_does_nothing(
    election: type[FakeElection],
) -> None:
    task = leading(Work(RuntimeError("bug")))
    election.won.set()
    with pytest.raises(ExceptionGroup) as group:
        await task
    assert group.group_contains(RuntimeError, match="bug")
    assert len(asyncio.all_tasks()) == 1


def held(by: str) -> dict[str, Any]:
    return {"metadata": {"name": "l", "uid": "u", "resourceVersion": "7"}, "spec": {"holderIdentity": by}}


async def test_our_lease_is_given_back() -> None:
    api = Api(held("me"))
    await give_back(api=cast("KubernetesClient", api), settings=SETTINGS, namespace="n", identity="me")
    [patched] = api.patched
    assert patched["spec"] == {"holderIdentity": "", "leaseDurationSeconds": 1}
    assert patched["guard"] == {"uid": "u", "resource_version": "7"}


@pytest.mark.parametrize("body", [None, held("another"), held("")])
async def test_what_is_not_ours_is_not_given_back(body: dict[str, Any] | None) -> None:
    api = Api(body)
    await give_back(api=cast("KubernetesClient", api), settings=SETTINGS, namespace="n", identity="me")
    assert api.patched == []


@pytest.mark.parametrize("error", [ApiError(0, "no answer"), ConflictError(409, "modified")])
async def test_a_stop_does_not_fail_because_the_lease_could_not_be_given_back(error: ApiError) -> None:
    api = Api(held("me"), error)
    await give_back(api=cast("KubernetesClient", api), settings=SETTINGS, namespace="n", identity="me")
