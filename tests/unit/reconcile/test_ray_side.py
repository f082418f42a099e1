"""Asking Ray heads: their nodes, the job of this attempt, and errors that are told."""

from __future__ import annotations

import datetime
from typing import cast

from tests.unit.lifecycle import views
from tests.unit.reconcile.world import FakeApi, FakeRay, FakeSupervisors

from vllm_operator.clients.kubernetes import KubernetesClient
from vllm_operator.clients.ray import Job, RayClient, RayNode
from vllm_operator.clients.supervisor import SupervisorClient
from vllm_operator.lifecycle.engine_view import RayView
from vllm_operator.reconcile.ray_side import RaySide


class Bench:
    """A head and its token."""

    def __init__(self) -> None:
        self.api, self.ray = FakeApi(lambda: views.NOW), FakeRay()
        self.ray.joined = (RayNode(id="a", gpus=1), RayNode(id="b", gpus=2))
        self.api.put(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "t", "namespace": "n"},
                "data": {"auth_token": "cmF5", "control_token": "Y29udHJvbA=="},
            }
        )
        self.supervisors = FakeSupervisors()
        self.side = RaySide(
            cast("KubernetesClient", self.api),
            cast("RayClient", self.ray),
            cast("SupervisorClient", self.supervisors),
        )

    async def look(self, **view: object) -> RayView:
        return await self.side.look(
            views.engine(**view), namespace="n", secret="t", job_id=lambda session: f"job-{session}"
        )


async def test_a_head_that_fails_is_told() -> None:
    bench = Bench()
    bench.ray.error = "http://10.0.0.1:8265: refused"
    assert await bench.look() == RayView(error="http://10.0.0.1:8265: refused")


async def test_session_nodes_and_token() -> None:
    bench = Bench()
    told = await bench.look()
    assert (told.session, told.gpus, told.job) == ("session_1", (("a", 1), ("b", 2)), None)
    assert bench.ray.tokens == {"ray"}


async def test_job_of_this_session_with_its_last_line() -> None:
    bench = Bench()
    bench.ray.jobs["job-session_1"] = Job(status="FAILED", message="Traceback:\n  File x\n\nValueError: why\n \n")
    told = await bench.look()
    assert told.job
    assert (told.job.status, told.job.message) == ("FAILED", "ValueError: why")
    bench.ray.session = "session_2"
    assert (await bench.look()).job is None


async def test_when_the_job_ended() -> None:
    bench = Bench()
    bench.ray.jobs["job-session_1"] = Job(status="SUCCEEDED", message="", ended_at=0.0)
    told = await bench.look()
    assert told.job
    assert told.job.ended_at == datetime.datetime.fromtimestamp(0, datetime.UTC), "an engine silent since is noticed"


async def test_a_lost_report_is_asked_for_with_the_control_token() -> None:
    bench = Bench()
    view = views.engine()
    assert view.lead
    bench.supervisors.reports[view.lead.ip] = views.report()
    assert await bench.side.recall(view, namespace="n", secret="t") == views.report()
    assert bench.supervisors.tokens == {"control"}


async def test_a_supervisor_that_does_not_answer_tells_nothing() -> None:
    bench = Bench()
    assert await bench.side.recall(views.engine(), namespace="n", secret="t") is None
    assert await bench.side.recall(views.engine(pods=()), namespace="n", secret="t") is None
    bench.api.objects.clear()
    assert await bench.side.recall(views.engine(), namespace="n", secret="t") is None


async def test_no_head_pod_and_no_token() -> None:
    bench = Bench()
    assert (await bench.look(pods=())).error == "there is no head pod"
    bench.api.objects.clear()
    assert "token cannot be read" in (await bench.look()).error
