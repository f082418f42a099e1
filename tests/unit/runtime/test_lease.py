"""The Lease: work only while it is held, no work after it is lost or given back."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from vllm_operator.clients.kubernetes import ApiError, ConflictError, KubernetesClient, NotFoundError
from vllm_operator.runtime.lease import LeaseLostError, give_back, lead
from vllm_operator.runtime.settings import LeaderElection

pytestmark = pytest.mark.looptime

SETTINGS = LeaderElection(lease_name="l")


class Store:
    """One Lease at an API server that can be slow, silent or refuse."""

    def __init__(self) -> None:
        self.body: dict[str, Any] | None = None
        self.hangs: set[str] = set()
        self.silent = False
        self.log: list[tuple[float, str]] = []
        self._version = 0

    def client(self, who: str) -> KubernetesClient:
        return cast("KubernetesClient", Candidate(self, who))

    def holder(self) -> str:
        return self.body["spec"]["holderIdentity"] if self.body else ""

    def put(self, body: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        meta = {**body["metadata"], "uid": "u", "resourceVersion": str(self._version)}
        spec = {**(self.body["spec"] if self.body else {}), **body["spec"]}
        self.body = {**body, "metadata": meta, "spec": spec}
        return self.body


class Candidate:
    """A client of the store."""

    def __init__(self, store: Store, who: str) -> None:
        self._store, self._who = store, who

    async def _call(self) -> None:
        if self._who in self._store.hangs:
            await asyncio.sleep(30)
            raise ApiError(0, "timed out")
        if self._store.silent:
            raise ApiError(0, "refused")

    async def get(self, *_: Any) -> dict[str, Any]:
        await self._call()
        if self._store.body is None:
            raise NotFoundError(404, "not found")
        return self._store.body

    async def find(self, *_: Any) -> dict[str, Any] | None:
        await self._call()
        return self._store.body

    async def create(self, body: dict[str, Any]) -> dict[str, Any]:
        await self._call()
        if self._store.body:
            raise ConflictError(409, "exists")
        return self._store.put(body)

    async def patch(self, body: dict[str, Any], *, uid: str, resource_version: str) -> dict[str, Any]:
        await self._call()
        assert self._store.body
        assert uid == "u"
        if self._store.body["metadata"]["resourceVersion"] != resource_version:
            raise ConflictError(409, "modified")
        return self._store.put(body)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    clock = type("Clock", (), {"time": staticmethod(lambda: 1e9 + asyncio.get_running_loop().time())})
    monkeypatch.setattr("kubernetes.aio.leaderelection.leaderelection.time", clock)
    return Store()


class Work:
    """What is done while the Lease is held."""

    def __init__(self, error: Exception | None = None) -> None:
        self.spans: list[list[float]] = []
        self._error = error

    @property
    def busy(self) -> bool:
        return bool(self.spans) and len(self.spans[-1]) == 1

    async def __call__(self) -> None:
        loop = asyncio.get_running_loop()
        self.spans.append([loop.time()])
        try:
            if self._error:
                raise self._error
            await asyncio.Event().wait()
        finally:
            self.spans[-1].append(loop.time())


def leading(store: Store, who: str, work: Work) -> asyncio.Task[None]:
    return asyncio.create_task(lead(api=store.client(who), settings=SETTINGS, namespace="n", identity=who, work=work))


async def stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_first_makes_the_lease_and_works_and_the_second_waits(store: Store) -> None:
    one, two = Work(), Work()
    tasks = [leading(store, "one", one)]
    await asyncio.sleep(1)
    tasks.append(leading(store, "two", two))
    await asyncio.sleep(1000)
    assert (one.busy, two.busy) == (True, False)
    assert store.holder() == "one"
    assert store.body
    spec = store.body["spec"]
    assert spec["leaseDurationSeconds"] == 15
    assert spec["acquireTime"] <= spec["renewTime"]
    assert spec["renewTime"].endswith("Z")
    for task in tasks:
        await stopped(task)
    assert not one.busy, "nobody works on when the process stops and gives the Lease back"
    assert len(asyncio.all_tasks()) == 1


async def test_a_lease_that_is_given_back_is_taken_at_once(store: Store) -> None:
    one, two = Work(), Work()
    first = leading(store, "one", one)
    await asyncio.sleep(1)
    second = leading(store, "two", two)
    await asyncio.sleep(50)
    await stopped(first)
    await give_back(api=store.client("one"), settings=SETTINGS, namespace="n", identity="one")
    given = asyncio.get_running_loop().time()
    await asyncio.sleep(5)
    assert two.busy
    assert two.spans[0][0] - given <= 2 * SETTINGS.retry_period_seconds
    await stopped(second)


async def test_a_leader_that_hangs_has_stopped_before_the_next_begins(store: Store) -> None:
    """A call that does not come back takes 30 s, the Lease lasts 15."""
    one, two = Work(), Work()
    first = leading(store, "one", one)
    await asyncio.sleep(1)
    second = leading(store, "two", two)
    await asyncio.sleep(50)
    store.hangs.add("one")
    await asyncio.sleep(60)
    with pytest.raises(ExceptionGroup) as group:
        await first
    assert group.group_contains(LeaseLostError, match="one lost the Lease n/l")
    assert two.busy
    assert one.spans[0][1] < two.spans[0][0]
    assert one.spans[0][1] - 51 <= SETTINGS.renew_deadline_seconds
    await stopped(second)


async def test_a_short_silence_of_the_api_server_costs_nothing(store: Store) -> None:
    work = Work()
    task = leading(store, "one", work)
    await asyncio.sleep(50)
    store.silent = True
    await asyncio.sleep(6)
    store.silent = False
    await asyncio.sleep(50)
    assert work.busy
    assert len(work.spans) == 1
    store.silent = True
    await asyncio.sleep(20)
    with pytest.raises(ExceptionGroup) as group:
        await task
    assert group.group_contains(LeaseLostError)
    assert not work.busy


async def test_an_api_server_that_is_not_there_yet_is_waited_for(store: Store) -> None:
    work = Work()
    store.silent = True
    task = leading(store, "one", work)
    await asyncio.sleep(500)
    assert not work.spans
    store.silent = False
    await asyncio.sleep(5)
    assert work.busy
    await stopped(task)


async def test_work_that_fails_is_heard_and_the_lease_not_kept_by_one_who_does_nothing(store: Store) -> None:
    task = leading(store, "one", Work(RuntimeError("bug")))
    with pytest.raises(ExceptionGroup) as group:
        await task
    assert group.group_contains(RuntimeError, match="bug")
    assert len(asyncio.all_tasks()) == 1


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
