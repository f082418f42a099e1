"""Engines on a RayCluster that the user made: planned beside others, led traffic to by their reports, given back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.lifecycle import views
from tests.unit.reconcile.test_finalizer import delete, finalizers
from tests.unit.reconcile.world import KEY, World, deployment
from tests.unit.resources import samples

from vllm_bootstrap import contract
from vllm_bootstrap.contract import Phase
from vllm_operator.clients.ray import Job, PlacementGroup, RayNode, RayTokenError
from vllm_operator.reconcile.reconciler import Key
from vllm_operator.resources.tenancy import DATA_KEY, Tenancy, free_ports, read_tenancy

SPEC: dict[str, Any] = {
    "model": {"uri": "file:///models/demo"},
    "parallelism": {"tensor": 2, "pipeline": 1},
    "rayClusterRef": {"name": "pool", "authSecret": {"name": "pool-auth"}},
}
OTHER = Key("models", "other")
TOKEN_MOUNT = {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}


class Shared(World):
    """A world with a RayCluster of the user's: a head, and pods with GPUs."""

    def __init__(self, spec: dict[str, Any] | None = None, *, gpus: tuple[int, ...] = (8,)) -> None:
        super().__init__(spec={**SPEC, **(spec or {})})
        cluster = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "spec": {}}
        self.api.put({**cluster, "metadata": {"name": "pool", "namespace": "models"}})
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pool-auth", "namespace": "models"}}
        self.api.put({**secret, "data": {"auth_token": "cG9vbC10b2tlbg=="}})
        self.put_pod("pool-head", "head", ip="10.0.0.1")
        for index in range(len(gpus)):
            self.put_pod(f"pool-gpus-{index}", "worker", ip=f"10.0.1.{index}")
        self.ray.joined = (
            RayNode(id="ray-head", gpus=0, address="10.0.0.1"),
            *(RayNode(id=f"ray-{index}", gpus=number, address=f"10.0.1.{index}") for index, number in enumerate(gpus)),
        )

    def put_pod(self, name: str, kind: str, *, ip: str, account: str = "pool", **spec: Any) -> None:
        container = {"name": "ray", "image": "their/image:1", "volumeMounts": [TOKEN_MOUNT]}
        self.api.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": "models",
                    "labels": {"ray.io/cluster": "pool", "ray.io/node-type": kind},
                },
                "spec": {
                    "nodeName": "gpu-a",
                    "serviceAccountName": account,
                    "containers": [container],
                    **spec,
                },
                "status": views.running(ready=True) | {"podIP": ip},
            }
        )

    @property
    def tenancies(self) -> dict[str, Tenancy]:
        bodies = {name: self.api.body("ConfigMap", name) for name in self.api.names("ConfigMap")}
        return {name: told for name, body in bodies.items() if (told := read_tenancy(body))}

    @property
    def endpoints(self) -> dict[str, tuple[list[str], bool, int]]:
        """Addresses, readiness and port by EndpointSlice."""
        found = {}
        for name in self.api.names("EndpointSlice"):
            body = self.api.body("EndpointSlice", name)
            ready = any(item["conditions"]["ready"] for item in body["endpoints"])
            found[name] = (
                [ip for item in body["endpoints"] for ip in item["addresses"]],
                ready,
                body["ports"][0]["port"],
            )
        return found

    def say(self, phase: Phase, *, engine: int = 0, **changes: Any) -> None:
        """Write an engine's report."""
        plan = next(item for item in reversed(self.ray.plans) if item.engine == f"engine-{engine}")
        told = views.report(
            phase,
            uid=plan.uid,
            engine=plan.engine,
            revision=plan.revision,
            attempt=plan.attempt,
            ray_session=plan.ray_session,
            **{
                "time": views.at(self.clock),
                "ranks": tuple(
                    contract.RankReport(rank=rank, tp=rank, pp=0, bundle=rank, pod=seat.pod, ray_node="ray-0")
                    for seat in plan.seats
                    for rank in range(seat.gpus)
                ),
                **changes,
            },
        )
        self.api.body("ConfigMap", plan.report.config_map)["data"] = {contract.REPORT_KEY: contract.dumps(told)}

    async def serving(self) -> None:
        await self.rounds(3)
        for engine in range(len(self.tenancies)):
            self.say(Phase.SERVING, engine=engine)
        await self.round()

    async def other(self, spec: dict[str, Any]) -> None:
        """Do a round for another deployment."""
        if ("VLLMDeployment", "models", "other") not in self.api.objects:
            body = deployment({**SPEC, **spec}, name="other")
            body["metadata"]["uid"] = "99999999-other"
            self.api.put(body)
        self.clock += 1
        await self.reconciler.reconcile(OTHER)


async def test_nothing_is_made_but_what_says_what_it_holds() -> None:
    world = Shared()
    written = await world.round()
    kinds = {line.split()[1] for line in written if line.startswith("create")}
    assert kinds == {"ControllerRevision", "Service", "Secret", "ConfigMap", "Role", "RoleBinding"}
    (tenancy,) = world.tenancies.values()
    assert tenancy.cluster == "pool"
    assert tenancy.gpus == {"pool-gpus-0": 2}
    assert (tenancy.http_port, tenancy.supervisor_port) == (20000, 20001)
    assert world.api.names("RayCluster") == ["pool"]
    assert "selector" not in world.api.body("Service", "demo")["spec"]
    plan = world.status["plan"]
    assert (plan["distributedExecutorBackend"], plan["image"]) == ("ray", "their/image:1")
    assert finalizers(world)


async def test_its_plan_names_its_pod_and_its_ports_and_goes_to_the_heads_job_api() -> None:
    world = Shared()
    await world.rounds(2)
    (plan,) = world.ray.plans
    assert plan.seats == (contract.Seat(pod="pool-gpus-0", address="10.0.1.0", gpus=2, node="gpu-a"),)
    assert (plan.http_port, plan.supervisor_port) == (20000, 20001)
    assert plan.placement_group == f"demo-{samples.OWNER.uid[:8]}-engine-0-dp0"
    assert plan.heartbeat > 0
    assert world.ray.tokens == {"pool-token"}


async def test_its_pods_may_report_and_read_what_it_is_given_and_nothing_else() -> None:
    world = Shared(
        {
            "apiKeySecret": {"name": "key", "key": "k"},
            "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "a", "optional": True}}}],
            "envFrom": [{"secretRef": {"name": "all", "optional": True}, "prefix": "P_"}],
        }
    )
    world.api.put(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "key", "namespace": "models"},
            "data": {"k": "YQ=="},
        }
    )
    await world.rounds(2)
    (name,) = world.tenancies
    rules = world.api.body("Role", f"{name}-report")["rules"]
    assert [(rule["resources"], rule["resourceNames"], rule["verbs"]) for rule in rules] == [
        (["configmaps"], [f"{name}-report"], ["patch"]),
        (["secrets"], ["all", f"{name}-token", "key"], ["get"]),
        (["configmaps"], ["conf"], ["get"]),
    ]
    subjects = world.api.body("RoleBinding", f"{name}-report")["subjects"]
    assert [item["name"] for item in subjects] == ["pool"]
    (plan,) = world.ray.plans
    assert plan.references.control_token == contract.Reference(kind="Secret", name=f"{name}-token", key="control_token")
    assert plan.references.api_key == contract.Reference(kind="Secret", name="key", key="k")
    assert plan.references.sources == (contract.Reference(kind="Secret", name="all", optional=True, prefix="P_"),)
    assert plan.references.environment["A"].name == "conf"
    assert list(world.api.body("Secret", f"{name}-token")["data"]) == ["control_token"]


async def test_it_has_traffic_as_long_as_its_report_shows_life() -> None:
    world = Shared()
    await world.serving()
    (name,) = world.endpoints
    assert world.endpoints[name] == (["10.0.1.0"], True, 20000)
    assert world.condition("Ready")["status"] == "True"
    assert world.engines["engine-0"]["ports"] == {"http": 20000, "supervisor": 20001}
    assert world.engines["engine-0"]["rayCluster"] == "pool"
    assert world.again is not None
    assert world.again <= 31  # somebody must look when the next sign does not come
    world.say(Phase.SERVING, heartbeat=views.at(world.clock + 20), time=views.at(world.clock))
    await world.round(40)
    assert world.endpoints[name][1]
    await world.round(20)
    assert not world.endpoints[name][1]
    assert world.engines["engine-0"]["reason"] == "SupervisorSilent"


@pytest.mark.parametrize(
    "change", [{"unready": "the engine does not answer on /health"}, {"phase": Phase.FAILED}, {"phase": Phase.DRAINING}]
)
async def test_it_has_none_when_its_report_says_so(change: dict[str, Any]) -> None:
    world = Shared()
    await world.serving()
    told = {"heartbeat": views.at(world.clock), **change}
    world.say(told.pop("phase", Phase.SERVING), **told)
    await world.round()
    assert [ready for _, ready, _ in world.endpoints.values()] == [False]


async def test_nothing_is_written_while_nothing_changes() -> None:
    world = Shared()
    await world.serving()
    await world.round()
    assert await world.round() == []


async def test_others_are_planned_beside_it_and_a_plan_that_overlaps_names_it() -> None:
    world = Shared({"parallelism": {"tensor": 4}})
    await world.round()
    await world.other({"parallelism": {"tensor": 4}})
    ports = sorted(port for item in world.tenancies.values() for port in (item.http_port, item.supervisor_port))
    assert ports == [20000, 20001, 20002, 20003]
    assert {item.stem.split("-")[0] for item in world.tenancies.values()} == {"demo", "other"}
    third = deployment({**SPEC, "parallelism": {"tensor": 2}}, name="third")
    third["metadata"]["uid"] = "77777777-third"
    world.api.put(third)
    await world.reconciler.reconcile(Key("models", "third"))
    ready = next(
        item for item in world.api.body("VLLMDeployment", "third")["status"]["conditions"] if item["type"] == "Ready"
    )
    assert ready["reason"] == "WaitingForGPUs"
    assert "pool-gpus-0 8 of 8" in ready["message"]
    assert "models/demo engine-0: 4" in ready["message"]
    assert "models/other engine-0: 4" in ready["message"]
    assert len(world.tenancies) == 2


async def test_replicas_take_seats_of_their_own() -> None:
    world = Shared({"replicas": 3}, gpus=(4, 4))
    await world.round()
    seats = sorted((seat.pod, seat.gpus) for item in world.tenancies.values() for seat in item.seats)
    assert [gpus for _, gpus in seats] == [2, 2, 2]
    assert len({item.http_port for item in world.tenancies.values()}) == 3


async def test_more_than_there_will_ever_be() -> None:
    world = Shared({"parallelism": {"tensor": 16}})
    await world.round()
    assert world.condition("Stalled")["reason"] == "NoSuchGPUs"
    assert not world.tenancies


def _no_cluster(world: Shared) -> None:
    world.api.drop("RayCluster", "pool")


def _no_head(world: Shared) -> None:
    world.api.drop("Pod", "pool-head")


def _default_account(world: Shared) -> None:
    world.put_pod("pool-gpus-0", "worker", ip="10.0.1.0", account="default")


def _no_token_mounted(world: Shared) -> None:
    world.put_pod("pool-gpus-0", "worker", ip="10.0.1.0", containers=[{"name": "ray"}])


def _of_another_deployment(world: Shared) -> None:
    world.api.body("RayCluster", "pool")["metadata"]["labels"] = {"vllm-operator.io/deployment": "big"}


def _wrong_token(world: Shared) -> None:
    world.ray.error = RayTokenError("HTTP 401")


def _silent(world: Shared) -> None:
    world.ray.error = "refused"


def _no_secret(world: Shared) -> None:
    world.api.drop("Secret", "pool-auth")


@pytest.mark.parametrize(
    ("damage", "reason", "words"),
    [
        (_no_cluster, "RayClusterNotFound", "RayCluster pool does not exist in namespace models; create it"),
        (_no_head, "RayClusterNotReady", "no running head pod"),
        (_default_account, "RayClusterUnfit", "serviceAccountName"),
        (_no_token_mounted, "RayClusterUnfit", "automountServiceAccountToken"),
        (_of_another_deployment, "RayClusterUnfit", "belongs to VLLMDeployment big"),
        (_wrong_token, "RayTokenRefused", "authSecret"),
        (_silent, "RayUnreachable", "does not answer: refused"),
        (_no_secret, "SecretNotFound", "spec.rayClusterRef.authSecret"),
    ],
)
async def test_what_is_wrong_with_the_cluster_is_said_and_nothing_half_made(
    damage: Any, reason: str, words: str
) -> None:
    world = Shared()
    damage(world)
    written = await world.round()
    assert world.condition("Ready")["reason"] == reason
    assert words in world.condition("Ready")["message"]
    assert [line for line in written if not line.startswith("status")] == []


async def test_scaled_down_the_one_with_the_fewest_requests_goes_though_all_are_in_one_pod() -> None:
    world = Shared({"replicas": 3})
    await world.serving()
    for name, tenancy in world.tenancies.items():
        index = int(name.split("-")[1])
        world.supervisors.requests["10.0.1.0", tenancy.supervisor_port] = (4, 0, 7)[index]
    world.change(replicas=2)
    await world.round()
    states = {name: entry["state"] for name, entry in world.engines.items()}
    assert states == {"engine-0": "Serving", "engine-1": "Draining", "engine-2": "Serving"}


SCHEDULED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": views.at(-60)}
PULLING = {"phase": "Pending", "conditions": [SCHEDULED]}
UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [{**SCHEDULED, "status": "False", "reason": "Unschedulable", "message": "no node"}],
}


@pytest.mark.parametrize(
    ("status", "waits"),
    [
        (views.running(started=-10), True),
        (views.running(started=-200), False),
        (PULLING, True),
        ({**PULLING, "conditions": [{**SCHEDULED, "lastTransitionTime": views.at(-900)}]}, False),
        (UNSCHEDULABLE, False),
        ({**PULLING, "phase": "Failed", "reason": "Evicted"}, False),
    ],
    ids=["has just started", "never joined", "pulls its image", "has pulled it for long", "has no node", "was evicted"],
)
async def test_a_plan_waits_for_pods_that_are_about_to_join_ray(status: dict[str, Any], waits: bool) -> None:
    world = Shared(gpus=(1, 1))
    world.put_pod("pool-late", "worker", ip="10.0.1.9")
    world.api.body("Pod", "pool-late")["status"] = {**status, "podIP": "10.0.1.9"}
    await world.round()
    if not waits:
        (tenancy,) = world.tenancies.values()
        assert tenancy.gpus == {"pool-gpus-0": 1, "pool-gpus-1": 1}
        return
    assert world.tenancies == {}
    told = world.condition("Ready")
    assert told["reason"] == "RayClusterNotReady"
    assert "pods of RayCluster pool are starting, and have not joined Ray yet: pool-late" in told["message"]
    world.api.body("Pod", "pool-late")["status"] = views.running(ready=True) | {"podIP": "10.0.1.9"}
    world.ray.joined = (*world.ray.joined, RayNode(id="ray-9", gpus=8, address="10.0.1.9"))
    await world.round()
    (tenancy,) = world.tenancies.values()
    assert tenancy.gpus == {"pool-late": 2}


async def test_scaled_down_it_drains_and_gives_its_groups_back_before_it_is_removed() -> None:
    world = Shared()
    await world.serving()
    (name,) = world.tenancies
    world.change(replicas=0)
    await world.round()
    assert world.engines["engine-0"]["state"] == "Draining"
    assert [ready for _, ready, _ in world.endpoints.values()] == [False]
    assert world.supervisors.drains == [("10.0.1.0", 60)]
    world.say(Phase.STOPPED)
    await world.round()
    (release,) = world.ray.releases
    assert release.tenancies == (contract.Tenancy(stem=f"demo-{samples.OWNER.uid[:8]}-engine-0"),)
    assert world.engines["engine-0"]["reason"] == "Releasing"
    assert name in world.tenancies
    world.ray.jobs = {job: Job(status="SUCCEEDED", message="") for job in world.ray.jobs}
    await world.rounds(2)
    assert not world.tenancies
    assert not world.endpoints
    assert world.engines == {}
    assert [item for item in world.api.names("ConfigMap") if item.startswith("demo-")] == []
    assert world.condition("Ready")["reason"] == "ScaledToZero"


@pytest.mark.parametrize("trouble", ["the job fails", "the head is silent", "the cluster is gone"])
async def test_deleted_it_goes_in_any_case(trouble: str) -> None:
    world = Shared({"drain": {"timeoutSeconds": 10}})
    await world.serving()
    delete(world)
    await world.round()
    world.say(Phase.STOPPED)
    if trouble == "the head is silent":
        world.ray.error = "refused"
    if trouble == "the cluster is gone":
        world.api.drop("RayCluster", "pool")
        for pod in ("pool-head", "pool-gpus-0"):
            world.api.drop("Pod", pod)
    await world.round()
    world.ray.jobs = {job: Job(status="FAILED", message="no") for job in world.ray.jobs}
    await world.round(130)
    await world.round()
    assert not finalizers(world)
    assert not world.tenancies


async def test_what_deployments_that_are_gone_left_is_collected_and_nothing_else() -> None:
    world = Shared()
    await world.other({})
    world.ray.groups = (
        PlacementGroup(id="g1", name="gone-12345678-engine-0-dp0"),
        PlacementGroup(id="g2", name="gone-12345678-engine-0-dp1"),
        PlacementGroup(id="g3", name="other-99999999-engine-0-dp0"),
        PlacementGroup(id="g4", name="somebody-elses"),
    )
    await world.round()
    (release,) = world.ray.releases
    assert release.tenancies == (contract.Tenancy(stem="gone-12345678-engine-0", groups=("g1", "g2")),)


async def test_a_pod_that_is_gone_is_left_for_another() -> None:
    world = Shared(gpus=(2,))
    await world.serving()
    (before,) = world.tenancies.values()
    world.api.drop("Pod", "pool-gpus-0")
    world.put_pod("pool-gpus-9", "worker", ip="10.0.1.9")
    world.ray.joined = (world.ray.joined[0], RayNode(id="ray-9", gpus=2, address="10.0.1.9"))
    await world.round()
    assert "pool-gpus-0 is gone" in json.dumps(world.status["engineReplicas"])
    world.ray.jobs = {job: Job(status="SUCCEEDED", message="") for job in world.ray.jobs}
    await world.rounds(3)
    (after,) = world.tenancies.values()
    assert (before.gpus, after.gpus) == ({"pool-gpus-0": 2}, {"pool-gpus-9": 2})


async def test_a_new_ray_session_starts_the_engine_anew() -> None:
    world = Shared()
    await world.serving()
    world.ray.session = "session_2"
    await world.round(40)
    assert world.engines["engine-0"]["reason"] == "RaySessionLost"
    await world.round(10)
    assert [(plan.attempt, plan.ray_session) for plan in world.ray.plans] == [(1, "session_1"), (2, "session_2")]


async def test_from_a_cluster_of_its_own_to_a_shared_one_and_back() -> None:
    world = Shared({"rayClusterRef": None, "distributedExecutorBackend": "ray"})
    await world.round()
    world.change(rayClusterRef=SPEC["rayClusterRef"])
    await world.round()
    world.api.drop("RayCluster", next(name for name in world.api.names("RayCluster") if name != "pool"))
    await world.round()
    assert len(world.tenancies) == 1
    assert "selector" not in world.api.body("Service", "demo")["spec"]
    assert await world.reconciler.reconcile(KEY) is not None


def test_ports_are_given_once() -> None:
    assert free_ports({20000, 20003}) == (20004, 20005)
    with pytest.raises(LookupError):
        free_ports(set(range(20000, 25000)))


def test_another_config_map_is_no_tenancy() -> None:
    assert read_tenancy({"data": {DATA_KEY: "{}"}}) is None
    assert read_tenancy({}) is None
