"""A small Kubernetes in memory, a KubeRay that makes pods on command, and the reconciler on top of them."""

from __future__ import annotations

import copy
import datetime
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from tests.unit.lifecycle import views
from tests.unit.resources import samples

from vllm_bootstrap import contract
from vllm_operator.api import identity
from vllm_operator.clients.hub import Hub
from vllm_operator.clients.kubernetes import (
    ApiError,
    ConflictError,
    Kind,
    KubernetesClient,
    NotFoundError,
    kind_of,
)
from vllm_operator.clients.ray import Job, PlacementGroup, RayClient, RayError, RayHead, RayNode
from vllm_operator.clients.supervisor import SupervisorClient, SupervisorError, SupervisorView
from vllm_operator.lifecycle.recovery import Recovery
from vllm_operator.reconcile.act import Actor
from vllm_operator.reconcile.hub_side import HubSide
from vllm_operator.reconcile.inventory import DEPLOYMENT as WORKLOAD
from vllm_operator.reconcile.inventory import RAY_CLUSTER, InventoryReader
from vllm_operator.reconcile.observe import DEPLOYMENT, Observer
from vllm_operator.reconcile.ray_side import RaySide
from vllm_operator.reconcile.reconciler import Key, Reconciler
from vllm_operator.reconcile.settings import Settings

Object = dict[str, Any]
KEY = Key("models", "demo")


class FakeApi:
    """Objects by kind, namespace and name; every write is logged, any call can be made to fail."""

    def __init__(self, now: Any) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.log: list[str] = []
        self.unknown: set[str] = set()
        self.refuse: dict[tuple[str, str], ApiError] = {}
        self.reads = 0
        self._now = now
        self._serial = itertools.count(1)

    def _check(self, verb: str, kind: str) -> None:
        if kind in self.unknown:
            raise NotFoundError(404, "the server could not find the requested resource")
        for wanted in ((verb, kind), (verb, "*")):
            if wanted in self.refuse:
                raise self.refuse[wanted]

    def put(self, body: Mapping[str, Any]) -> Object:
        """Put an object there as somebody else would."""
        made = copy.deepcopy(dict(body))
        meta = made["metadata"]
        meta.setdefault("uid", f"uid-{next(self._serial)}")
        meta["resourceVersion"] = str(next(self._serial))
        meta.setdefault("creationTimestamp", self._now().strftime("%Y-%m-%dT%H:%M:%SZ"))
        self.objects[made["kind"], meta.get("namespace", ""), meta["name"]] = made
        return made

    def names(self, kind: str) -> list[str]:
        return sorted(name for found, _, name in self.objects if found == kind)

    def body(self, kind: str, name: str) -> Object:
        return self.objects[kind, "models", name]

    def drop(self, kind: str, name: str, namespace: str = "models") -> None:
        del self.objects[kind, namespace, name]

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        self._check("get", kind.kind)
        self.reads += 1
        if (kind.kind, namespace, name) not in self.objects:
            raise NotFoundError(404, f"{kind.kind} {name} not found")
        return copy.deepcopy(self.objects[kind.kind, namespace, name])

    async def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        try:
            return await self.get(kind, namespace, name)
        except NotFoundError:
            return None

    async def list(self, kind: Kind, namespace: str = "", labels: Mapping[str, str] | None = None) -> list[Object]:
        self._check("list", kind.kind)
        self.reads += 1
        return [
            copy.deepcopy(body)
            for (found, where, _), body in sorted(self.objects.items())
            if found == kind.kind
            and namespace in ("", where)
            and (labels or {}).items() <= (body["metadata"].get("labels") or {}).items()
        ]

    async def create(self, body: Mapping[str, Any]) -> Object:
        kind, meta = kind_of(body), body["metadata"]
        self._check("create", kind.kind)
        if (kind.kind, meta["namespace"], meta["name"]) in self.objects:
            raise ConflictError(409, f"{kind.kind} {meta['name']} already exists")
        self.log.append(f"create {kind.kind} {meta['name']}")
        return self.put(body)

    async def patch(self, body: Mapping[str, Any], *, uid: str, resource_version: str) -> Object:
        kind, meta = kind_of(body), body["metadata"]
        self._check("patch", kind.kind)
        live = self.objects[kind.kind, meta["namespace"], meta["name"]]
        if (live["metadata"]["uid"], live["metadata"]["resourceVersion"]) != (uid, resource_version):
            raise ConflictError(409, "the object has been modified")
        self.log.append(f"patch {kind.kind} {meta['name']}")
        return self.put(_merged(live, body))

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str = "") -> None:
        self._check("delete", kind.kind)
        live = self.objects.get((kind.kind, namespace, name))
        if live is None:
            return
        if uid and live["metadata"]["uid"] != uid:
            raise ConflictError(409, "the UID in the precondition does not match")
        self.log.append(f"delete {kind.kind} {name}")
        if kind in (RAY_CLUSTER, WORKLOAD):
            # Its pods take their time: ``World.collect`` is the garbage collector.
            live["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
        else:
            del self.objects[kind.kind, namespace, name]

    async def replace_status(self, body: Mapping[str, Any]) -> Object:
        meta = body["metadata"]
        self._check("status", body["kind"])
        live = self.objects[body["kind"], meta["namespace"], meta["name"]]
        if live["metadata"]["resourceVersion"] != meta["resourceVersion"]:
            raise ConflictError(409, "the object has been modified")
        self.log.append(f"status {body['kind']} {meta['name']}")
        return self.put({**live, "status": body["status"]})


def _merged(base: Any, over: Any) -> Any:
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        return {**base, **{key: _merged(base.get(key), value) for key, value in over.items()}}
    return over


class FakeRay:
    """Ray heads that have joined nodes and take jobs."""

    def __init__(self) -> None:
        self.session = "session_1"
        self.joined: tuple[RayNode, ...] = ()
        self.jobs: dict[str, Job] = {}
        self.plans: list[contract.EnginePlan] = []
        self.groups: tuple[PlacementGroup, ...] = ()
        self.releases: list[contract.ReleasePlan] = []
        self.tokens: set[str] = set()
        self.error: RayError | str = ""

    def _answer(self, head: RayHead) -> None:
        self.tokens.add(head.token)
        if self.error:
            raise self.error if isinstance(self.error, RayError) else RayError(self.error)

    async def session_name(self, head: RayHead) -> str:
        self._answer(head)
        return self.session

    async def nodes(self, head: RayHead) -> tuple[RayNode, ...]:
        self._answer(head)
        return self.joined

    async def gpu_nodes(self, head: RayHead) -> tuple[RayNode, ...]:
        return tuple(node for node in await self.nodes(head) if node.gpus)

    async def placement_groups(self, head: RayHead) -> tuple[PlacementGroup, ...]:
        self._answer(head)
        return self.groups

    async def release(self, head: RayHead, plan: contract.ReleasePlan, job_id: str) -> None:
        self._answer(head)
        if job_id not in self.jobs:
            self.releases.append(plan)
            self.jobs[job_id] = Job(status="RUNNING", message="")

    async def job(self, head: RayHead, job_id: str) -> Job | None:
        self._answer(head)
        return self.jobs.get(job_id)

    async def submit(self, head: RayHead, plan: contract.EnginePlan) -> str:
        self._answer(head)
        job_id = contract.job_id(plan)
        self.plans.append(plan)
        self.jobs[job_id] = Job(status="RUNNING", message="")
        return job_id

    def end_jobs(self, at: float) -> None:
        """Let every job have succeeded at a moment of the world's clock."""
        ended = views.later(at).timestamp()
        self.jobs = {name: Job(status="SUCCEEDED", message="", ended_at=ended) for name in self.jobs}


class FakeSupervisors:
    """Supervisors by the address of their pod."""

    def __init__(self) -> None:
        self.reports: dict[str, contract.EngineReport] = {}
        self.tokens: set[str] = set()
        self.session = ""
        self.job = ""
        self.plans: list[contract.EnginePlan] = []
        self.drains: list[tuple[str, float]] = []
        self.requests: dict[str | tuple[str, int], int] = {}
        self.adapted: list[tuple[contract.Adapter, ...]] = []
        self.deaf = False

    async def drain(self, ip: str, token: str, seconds: float, port: int = contract.SUPERVISOR_PORT) -> None:
        self.tokens.add(token)
        if self.deaf:
            raise SupervisorError(f"http://{ip}:8001/drain: refused")
        self.drains.append((ip, seconds))

    async def adapt(self, ip: str, token: str, adapters: tuple[contract.Adapter, ...], port: int = 0) -> None:
        self.tokens.add(token)
        if self.deaf:
            raise SupervisorError(f"http://{ip}:8001/adapters: refused")
        self.adapted.append(adapters)

    async def look(self, ip: str, token: str, port: int = contract.SUPERVISOR_PORT) -> SupervisorView:
        self.tokens.add(token)
        requests = self.requests.get((ip, port), self.requests.get(ip))
        if ip not in self.reports and requests is None and not self.session:
            raise SupervisorError(f"http://{ip}:{port}/status: refused")
        return SupervisorView(report=self.reports.get(ip), session=self.session, job=self.job, requests=requests)

    async def start(self, ip: str, token: str, plan: contract.EnginePlan) -> str:
        self.tokens.add(token)
        self.plans.append(plan)
        self.job = contract.job_id(plan)
        return self.job


def node(name: str, gpus: int = 4) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}},
    }


def deployment(spec: Object, *, name: str = "demo", **metadata: Any) -> Object:
    return {
        "apiVersion": identity.API_VERSION,
        "kind": identity.KIND,
        "metadata": {
            "name": name,
            "namespace": "models",
            "uid": samples.OWNER.uid,
            "generation": 1,
            **metadata,
        },
        "spec": copy.deepcopy(spec),
        "status": {"observedGeneration": -1},
    }


@dataclass
class World:
    """Everything that the operator sees, and the operator."""

    spec: Object = field(default_factory=lambda: copy.deepcopy(samples.TYPICAL))
    settings: Settings = field(
        default_factory=lambda: Settings(
            defaults=samples.DEFAULTS, recovery=Recovery(backoff_seconds=5, silence_seconds=30)
        )
    )
    clock: float = 0.0
    hub: Hub | None = None

    def __post_init__(self) -> None:
        self.api = FakeApi(self.now)
        self.ray = FakeRay()
        self.supervisors = FakeSupervisors()
        for name in ("gpu-a", "gpu-b"):
            self.api.put(node(name))
        self.api.put(deployment(self.spec))
        self.suffixes = itertools.count(1)
        self.secrets = (f"secret-{number}" for number in itertools.count(1))
        self.restart()

    def restart(self) -> None:
        """Start the operator anew: nothing is in its memory."""
        api = cast("KubernetesClient", self.api)
        self.observer = Observer(api)
        side = RaySide(api, cast("RayClient", self.ray), cast("SupervisorClient", self.supervisors))
        self.actor = Actor(api, self.observer, side, lambda: next(self.secrets))
        self.reconciler = Reconciler(
            api=api,
            observer=self.observer,
            inventory=InventoryReader(api, now=self.now),
            ray_side=side,
            actor=self.actor,
            settings=self.settings,
            now=self.now,
            hub=HubSide(api, self.hub) if self.hub else None,
        )

    def now(self) -> datetime.datetime:
        return views.later(self.clock)

    async def round(self, seconds: float = 1.0) -> list[str]:
        """Let time pass and do one round; gives what was written."""
        self.clock += seconds
        self.api.log.clear()
        self.again = await self.reconciler.reconcile(KEY)
        return list(self.api.log)

    async def rounds(self, count: int) -> None:
        for _ in range(count):
            await self.round()

    @property
    def status(self) -> Object:
        found: Object = self.api.body(identity.KIND, "demo")["status"]
        return found

    @property
    def nodes(self) -> list[Object]:
        """The Node objects, to be changed."""
        return [body for body in self.api.objects.values() if body["kind"] == "Node"]

    @property
    def engines(self) -> Object:
        return {item["name"]: item for item in self.status.get("engineReplicas", [])}

    def condition(self, kind: str) -> Object:
        found: Object = next(item for item in self.status["conditions"] if item["type"] == kind)
        return found

    def change(self, **spec: Any) -> None:
        """Change the spec as a user does."""
        body = self.api.body(identity.KIND, "demo")
        body["spec"] |= spec
        body["metadata"]["generation"] += 1
        self.api.put(body)

    def annotate(self, **annotations: str) -> None:
        body = self.api.body(identity.KIND, "demo")
        body["metadata"].setdefault("annotations", {}).update(annotations)
        self.api.put(body)

    # ---- what KubeRay, the kubelets and the engines do ----------------------------------------------------------

    def start_pods(self) -> None:
        """Make the pods of every RayCluster, running."""
        for name in self.api.names("RayCluster"):
            cluster = self.api.body("RayCluster", name)
            if "deletionTimestamp" in cluster["metadata"]:
                continue
            self._pod(f"{name}-head", cluster, cluster["spec"]["headGroupSpec"]["template"], "head")
            for group in cluster["spec"]["workerGroupSpecs"]:
                for index in range(group["replicas"]):
                    self._pod(f"{name}-{group['groupName']}-{index}", cluster, group["template"], "worker")

    def _pod(self, name: str, cluster: Object, template: Object, kind: str) -> None:
        labels = {"ray.io/cluster": cluster["metadata"]["name"], "ray.io/node-type": kind} if kind else {}
        if any(found.startswith(f"{name}-") for found in self.api.names("Pod")):
            return
        self.api.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{next(self.suffixes)}",
                    "namespace": "models",
                    "labels": {**template["metadata"]["labels"], **labels},
                },
                "spec": {"nodeName": "gpu-a", **template["spec"]},
                "status": views.running(started=self.clock),
            }
        )

    def pod(self, prefix: str) -> str:
        """Give the name of the pod that begins so."""
        [found] = [name for name in self.api.names("Pod") if name.startswith(f"{prefix}-")]
        return found

    def join_ray(self) -> None:
        """Let Ray list every GPU node."""
        self.ray.joined = (RayNode(id="ray-0", gpus=1), RayNode(id="ray-1", gpus=1))

    def report(self, phase: contract.Phase, *, engine: int = 0, **changes: Any) -> None:
        """Write an engine's report, and its lead's readiness with it."""
        plan = next(item for item in reversed(self.ray.plans) if item.engine == f"engine-{engine}")
        cluster = plan.report.config_map.removesuffix("-report")
        pods = [self.pod(f"{cluster}-lead-0"), self.pod(f"{cluster}-gpu1-0")]
        told = views.report(
            phase,
            uid=plan.uid,
            engine=plan.engine,
            revision=plan.revision,
            attempt=plan.attempt,
            ray_session=plan.ray_session,
            time=views.at(self.clock),
            ranks=tuple(
                contract.RankReport(rank=index, tp=0, pp=index, bundle=index, pod=pod, ray_node=f"ray-{index}")
                for index, pod in enumerate(pods)
            ),
            versions={"vllm": "0.32.0", "ray": "2.60.0"},
            **changes,
        )
        body = self.api.body("ConfigMap", plan.report.config_map)
        body["data"] = {contract.REPORT_KEY: contract.dumps(told)}
        lead = self.api.body("Pod", pods[0])
        lead["status"] = views.running(
            ready=phase is contract.Phase.SERVING, ready_since=self.clock, started=self.clock - 100
        )

    def collect(self) -> None:
        """Collect the garbage: what held pods and was deleted, and its pods."""
        for kind in ("RayCluster", "Deployment"):
            for name in self.api.names(kind):
                if "deletionTimestamp" in self.api.body(kind, name)["metadata"]:
                    self.api.drop(kind, name)
                    self._drop_pods(name)

    def _drop_pods(self, workload: str) -> None:
        for kind, namespace, pod in list(self.api.objects):
            tags = self.api.objects[kind, namespace, pod]["metadata"].get("labels") or {}
            if kind == "Pod" and workload in (tags.get("ray.io/cluster"), tags.get(identity.LABEL_WORKLOAD)):
                self.api.drop("Pod", pod)

    def start_deployments(self) -> None:
        """Make the pod of every Deployment, running, and let it take plans."""
        self.supervisors.session = "pod-session-1"
        for name in self.api.names("Deployment"):
            body = self.api.body("Deployment", name)
            if "deletionTimestamp" not in body["metadata"]:
                self._pod(name, body, body["spec"]["template"], "")

    def report_pod(self, phase: contract.Phase, **changes: Any) -> None:
        """Write the report of the newest engine without Ray, and its readiness with it."""
        plan = self.supervisors.plans[-1]
        pod = self.pod(plan.report.config_map.removesuffix("-report"))
        told = views.report(
            phase,
            uid=plan.uid,
            engine=plan.engine,
            revision=plan.revision,
            attempt=plan.attempt,
            ray_session=plan.ray_session,
            time=views.at(self.clock),
            ranks=(contract.RankReport(rank=0, tp=0, pp=0, bundle=0, pod=pod),),
            **changes,
        )
        self.api.body("ConfigMap", plan.report.config_map)["data"] = {contract.REPORT_KEY: contract.dumps(told)}
        self.api.body("Pod", pod)["status"] = views.running(
            ready=phase is contract.Phase.SERVING, ready_since=self.clock, started=self.clock - 100
        )

    async def serve(self) -> None:
        """Bring every engine from nothing to serving."""
        await self.round()
        await self.bring_up()

    async def depart(self) -> list[str]:
        """Let those that go be drained; gives what was written when they had ended."""
        await self.round()
        for name, entry in self.engines.items():
            if entry["state"] == "Draining" and "rayCluster" in entry:
                self.report(contract.Phase.STOPPED, engine=int(name.removeprefix("engine-")))
            elif entry["state"] == "Draining":
                self.report_pod(contract.Phase.STOPPED)
        return await self.round()

    async def bring_up(self) -> None:
        self.start_pods()
        self.join_ray()
        before = len(self.ray.plans)
        await self.rounds(4)
        for plan in self.ray.plans[before:]:
            self.report(contract.Phase.SERVING, engine=int(plan.engine.removeprefix("engine-")))
        await self.rounds(2)


__all__ = ["DEPLOYMENT", "KEY", "FakeApi", "FakeRay", "World", "deployment", "node"]
