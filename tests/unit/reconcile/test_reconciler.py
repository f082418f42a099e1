"""Whole rounds over a Kubernetes in memory: what is made, in which order, and that nothing is written twice."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from tests.unit.reconcile.world import KEY, World, deployment, node
from tests.unit.resources import samples

from vllm_bootstrap import contract
from vllm_bootstrap.contract import Phase
from vllm_operator.api import identity
from vllm_operator.clients.kubernetes import ApiError, ConflictError

CLUSTER = "demo-0-d72fcd62"


def two_engines() -> World:
    return World(spec={**samples.TYPICAL, "replicas": 2})


def kinds(log: list[str]) -> list[str]:
    return [" ".join(line.split(" ")[:2]) for line in log]


async def test_first_sight_makes_everything_the_ray_cluster_last() -> None:
    world = World()
    assert kinds(await world.round()) == [
        "create ControllerRevision",
        "create Service",
        "create Secret",
        "create ConfigMap",
        "create Role",
        "create RoleBinding",
        "create ServiceAccount",
        "create RayCluster",
        "status VLLMDeployment",
    ]
    assert world.api.names("RayCluster") == [CLUSTER]
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "CreatingPods")
    assert world.condition("Reconciling")["status"] == "True"
    assert world.status["observedGeneration"] == 1
    assert world.again == math.inf


async def test_everything_belongs_to_the_cr() -> None:
    world = World()
    await world.round()
    for (kind, _, _), body in world.api.objects.items():
        if kind not in ("Node", identity.KIND):
            assert body["metadata"]["ownerReferences"] == [samples.OWNER.reference]
            assert body["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "vllm-operator"


async def test_ray_cluster_has_no_placeholder_left() -> None:
    world = two_engines()
    await world.round()
    for index in (0, 1):
        told = repr(world.api.body("RayCluster", f"demo-{index}-d72fcd62")["spec"])
        assert "@" not in told
        assert f"demo-{index}-d72fcd62-token" in told
        assert f"'vllm-operator.io/engine': '{index}'" in told


async def test_from_apply_to_serving() -> None:
    world = World()
    await world.round()
    world.start_pods()
    world.ray.error = "refused"
    await world.round()
    assert world.engines["engine-0"]["reason"] == "RayUnreachable"
    assert world.again == 0.5
    assert not world.ray.plans
    world.ray.error = ""
    await world.round(0.5)
    assert len(world.ray.plans) == 1, "the job waits for the nodes"
    world.report(Phase.PLACING, message="0 of 2 have joined", timings=contract.TimingsReport())
    await world.round()
    assert world.engines["engine-0"]["reason"] == "WaitingForRayNodes"
    assert world.condition("RayClustersReady")["status"] == "False"
    world.report(Phase.PLACING)
    await world.round()
    assert world.engines["engine-0"]["state"] == "Placing"
    assert world.condition("RayClustersReady")["status"] == "True"
    world.report(Phase.LOADING)
    await world.round()
    assert world.engines["engine-0"]["state"] == "Loading"
    assert world.condition("Ready")["reason"] == "Loading"
    world.report(Phase.SERVING)
    await world.round()
    assert {item["type"]: item["status"] for item in world.status["conditions"]} == {
        "Ready": "True",
        "Available": "True",
        "Reconciling": "False",
        "Stalled": "False",
        "Planned": "True",
        "RayClustersReady": "True",
        "RuntimeCompatible": "True",
    }
    assert world.status["url"] == "http://demo.models.svc:8000"
    assert world.status["readyReplicas"] == world.status["replicas"] == 1
    assert world.status["selector"] == "vllm-operator.io/deployment=demo,vllm-operator.io/lead=true"
    assert world.condition("RuntimeCompatible")["message"] == "ray 2.60.0, vllm 0.32.0"
    assert world.engines["engine-0"]["pod"] == world.pod(f"{CLUSTER}-lead-0")
    assert [rank["node"] for rank in world.engines["engine-0"]["ranks"]] == ["gpu-a", "gpu-a"]
    assert len(world.ray.plans) == 1
    assert world.ray.tokens == {"secret-1"}


async def test_status_while_waiting_is_written_once_for_each_change() -> None:
    world = World()
    await world.round()
    world.start_pods()
    world.ray.error = "refused"
    await world.round()
    for _ in range(5):
        assert await world.round(0.5) == []


async def test_steady_state_writes_nothing_and_asks_no_ray() -> None:
    world = two_engines()
    await world.serve()
    world.ray.error = "must not be asked"
    for body in world.api.objects.values():
        if body["kind"] == "Service":  # what an API server adds
            body["spec"] |= {"clusterIP": "10.0.0.9", "sessionAffinity": "None", "ipFamilies": ["IPv4"]}
            body["spec"]["ports"][0]["nodePort"] = 0
        if body["kind"] == "RayCluster":  # what KubeRay and an API server add
            body["spec"]["suspend"] = False
            body["status"] = {"state": "ready", "conditions": [{"type": "HeadPodReady", "status": "True"}]}
    for _ in range(3):
        assert await world.round(100) == []
    assert world.again == math.inf
    world.restart()
    assert await world.round(300) == []
    assert world.condition("Ready")["status"] == "True"


async def test_a_steady_round_is_cheap() -> None:
    world = two_engines()
    await world.serve()
    world.api.reads = 0
    await world.round()
    assert world.api.reads <= 7


async def test_a_changed_service_is_put_right_and_what_others_added_stays() -> None:
    world = World()
    await world.serve()
    body = world.api.body("Service", "demo")
    body["spec"] |= {"selector": {"app": "other"}, "clusterIP": "10.0.0.9"}
    assert await world.round() == ["patch Service demo"]
    live = world.api.body("Service", "demo")["spec"]
    assert live["selector"]["vllm-operator.io/lead"] == "true"
    assert live["clusterIP"] == "10.0.0.9"
    assert await world.round() == []


async def test_a_node_goes_and_its_pod_comes_back_elsewhere() -> None:
    world = World()
    await world.serve()
    world.api.drop("Pod", world.pod(f"{CLUSTER}-gpu1-0"))
    await world.round()
    assert world.engines["engine-0"]["reason"] == "CreatingPods"
    world.start_pods()
    await world.round()
    assert world.engines["engine-0"]["reason"] == "PodReplaced"
    assert world.status["lastFailures"][0]["reason"] == "PodReplaced"
    world.clock += 10
    await world.bring_up()
    assert world.condition("Ready")["status"] == "True"
    assert world.engines["engine-0"]["attempt"] == 2


async def test_a_report_that_was_deleted_comes_back_and_the_engine_serves_on() -> None:
    world = World()
    await world.serve()
    name = f"{CLUSTER}-report"
    report = contract.loads(contract.EngineReport, world.api.body("ConfigMap", name)["data"][contract.REPORT_KEY])
    lead = world.api.body("Pod", world.pod(f"{CLUSTER}-lead-0"))
    world.supervisors.reports[lead["status"]["podIP"]] = report
    world.api.drop("ConfigMap", name)
    assert kinds(await world.round()) == ["create ConfigMap"]
    found = contract.loads(contract.EngineReport, world.api.body("ConfigMap", name)["data"][contract.REPORT_KEY])
    assert found == report
    assert (world.engines["engine-0"]["state"], world.engines["engine-0"]["attempt"]) == ("Serving", 1)
    assert await world.round() == []


async def test_a_lost_report_whose_supervisor_is_silent_costs_the_attempt() -> None:
    world = World()
    await world.serve()
    world.api.drop("ConfigMap", f"{CLUSTER}-report")
    world.ray.end_jobs(at=world.clock)
    assert "create ConfigMap" in kinds(await world.round())
    await world.round(31)
    assert world.engines["engine-0"]["reason"] == "SupervisorSilent"


async def test_an_engine_whose_cluster_was_deleted_is_made_anew() -> None:
    world = World()
    await world.serve()
    world.report(Phase.FAILED, reason="RankDied")
    await world.rounds(20)
    await world.bring_up()
    assert world.engines["engine-0"]["attempt"] == 2
    world.api.body("RayCluster", CLUSTER)["metadata"]["deletionTimestamp"] = "x"
    await world.round()
    assert world.engines["engine-0"]["reason"] == "Replacing"
    world.collect()
    assert kinds(await world.round()) == [
        "delete ConfigMap",  # what the earlier cluster's engine said
        "create ConfigMap",
        "create RayCluster",
        "status VLLMDeployment",
    ]
    world.ray.session, world.ray.joined = "session_2", ()
    await world.bring_up()
    assert world.condition("Ready")["status"] == "True"
    assert world.engines["engine-0"]["attempt"] == 1


# ---- a change of the spec ---------------------------------------------------------------------------------------


async def test_a_changed_spec_removes_the_old_engine_waits_for_its_pods_and_makes_the_new_one() -> None:
    world = World()
    await world.serve()
    world.change(vllmConfig={"maxModelLen": 4096})
    assert kinds(await world.depart()) == [
        "delete RoleBinding",
        "delete Role",
        "delete ConfigMap",
        "delete ServiceAccount",
        "delete Secret",
        "delete RayCluster",
        "status VLLMDeployment",
    ]
    assert world.engines["engine-0"]["reason"] == "Replacing"
    world.api.drop("RayCluster", CLUSTER)
    await world.round()
    assert f"goes first: {CLUSTER}-" in world.engines["engine-0"]["message"]
    assert world.api.names("RayCluster") == [], "its pods are still there"
    world.api.objects = {key: body for key, body in world.api.objects.items() if key[0] != "Pod"}
    assert kinds(await world.round())[-2:] == ["create RayCluster", "status VLLMDeployment"]
    await world.bring_up()
    assert world.condition("Ready")["status"] == "True"
    assert "--max-model-len=4096" in world.ray.plans[-1].arguments
    assert world.engines["engine-0"]["attempt"] == 1


async def test_an_interrupted_removal_is_taken_up_again() -> None:
    world = World()
    await world.serve()
    world.change(image="other:1", drain={"timeoutSeconds": 0})
    world.api.refuse["delete", "Secret"] = ApiError(0, "no answer")
    with pytest.raises(ApiError):
        await world.round()
    assert "deletionTimestamp" not in world.api.body("RayCluster", CLUSTER)["metadata"]
    world.api.refuse.clear()
    removed = ["delete Secret", "delete RayCluster", "status VLLMDeployment"]
    assert kinds(await world.round()) == [*removed, "patch VLLMDeployment"], "nothing is to drain any more"


async def test_an_upgrade_of_the_operator_restarts_nothing() -> None:
    """kuberay#2315: a later version renders differently; an engine keeps its revision's rendering."""
    world = World()
    await world.serve()
    world.settings = type(world.settings)(
        defaults=type(samples.DEFAULTS)(
            image="registry.example/runtime:2", ray_version="9.9.9", pod_template={"spec": {"hostIPC": True}}
        )
    )
    world.restart()
    assert await world.round() == []
    assert world.status["plan"]["image"] == "registry.example/runtime:1"


async def test_back_to_an_earlier_spec_uses_its_revision() -> None:
    world = World()
    await world.serve()
    for spec in ({"maxModelLen": 4096}, samples.TYPICAL["vllmConfig"]):
        world.change(vllmConfig=spec)
        await world.round()
        world.collect()
        await world.round()
    assert len(world.api.names("ControllerRevision")) == 2
    assert world.status["revision"] == "22e7104e-d72fcd62"


async def test_history_is_kept_short() -> None:
    world = World(spec={**samples.TYPICAL, "replicas": 0})
    for length in range(1, 30):
        world.change(vllmConfig={"maxModelLen": length})
        await world.round()
    numbers = sorted(
        world.api.body("ControllerRevision", name)["revision"] for name in world.api.names("ControllerRevision")
    )
    assert len(numbers) <= 12
    assert numbers[-1] == 29


# ---- replicas ---------------------------------------------------------------------------------------------------


async def test_scaling_up_touches_nothing_that_is_there() -> None:
    world = World()
    await world.serve()
    world.change(replicas=3)
    log = await world.round()
    assert [line for line in log if line.startswith("create RayCluster")] == [
        "create RayCluster demo-1-d72fcd62",
        "create RayCluster demo-2-d72fcd62",
    ]
    assert not any(CLUSTER in line for line in log)
    assert world.engines["engine-0"]["state"] == "Serving"
    assert world.condition("Available")["status"] == "True"


async def test_scaling_down_removes_the_highest_index_and_no_other() -> None:
    world = World(spec={**samples.TYPICAL, "replicas": 3})
    await world.serve()
    world.change(replicas=2)
    log = await world.depart()
    assert {line.split(" ")[2][:6] for line in log if line.startswith("delete")} == {"demo-2"}
    assert kinds(log).count("delete RayCluster") == 1
    assert world.status["replicas"] == world.status["readyReplicas"] == 2
    assert world.condition("Ready")["status"] == "True"
    world.collect()
    assert await world.round() == []


@pytest.mark.parametrize(("replicas", "told"), [(32, [0, 1]), (33, [])])
async def test_more_than_64_ranks_stand_in_the_reports(replicas: int, told: list[int]) -> None:
    world = World(spec={**samples.TYPICAL, "replicas": replicas})
    world.api.put(node("large", gpus=64))
    await world.serve()
    engine = world.engines["engine-7"]
    assert [rank["pp"] for rank in engine.get("ranks", [])] == told
    body = world.api.body("ConfigMap", engine["report"])
    report = contract.loads(contract.EngineReport, body["data"][contract.REPORT_KEY])
    assert [rank.pp for rank in report.ranks] == [0, 1]


async def test_zero_replicas_is_ready() -> None:
    world = World()
    await world.serve()
    world.change(replicas=0)
    await world.depart()
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("True", "ScaledToZero")
    assert world.status["replicas"] == 0
    assert world.api.names("Service") == ["demo"]


# ---- what is in the way -----------------------------------------------------------------------------------------

MISSING_SECRET = {"env": [{"name": "S", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}]}
BLOCKED: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "a missing Secret",
        MISSING_SECRET,
        "SecretNotFound",
        "spec.env S: Secret keys does not exist in namespace models",
    ),
    ("a missing claim", {"model": {"uri": "pvc://claim/m"}}, "ClaimNotFound", "spec.model.uri: PersistentVolumeClaim"),
    (
        "GPUs that no node has",
        {"parallelism": {"tensor": 9}, "placement": {}},
        "NoSuchGPUs",
        "do not go into gpu-a 4, gpu-b 4",
    ),
    ("an invalid spec", {"parallelism": {"tensor": 0}}, "InvalidSpec", "spec.parallelism.tensor: "),
]


async def test_gpus_that_are_away_are_waited_for() -> None:
    world = World()
    for body in world.nodes:
        body["spec"] = {"unschedulable": True}
    await world.round()
    assert world.condition("Ready")["reason"] == "WaitingForGPUs"
    assert "the node is cordoned" in world.condition("Ready")["message"]
    assert world.condition("Stalled")["status"] == "False"
    assert world.api.names("RayCluster") == []
    for body in world.nodes:
        body["spec"] = {}
    await world.round()
    assert len(world.api.names("RayCluster")) == 1


async def test_gpus_that_others_hold_are_waited_for() -> None:
    world = World()
    container = {"resources": {"limits": {"nvidia.com/gpu": "4"}}}
    for name in ("gpu-a", "gpu-b"):
        spec = {"nodeName": name, "containers": [container]}
        meta = {"name": f"other-{name}", "namespace": "elsewhere"}
        world.api.put(
            {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Running"}}
        )
    await world.round()
    assert world.condition("Ready")["reason"] == "WaitingForGPUs"
    holders = "gpu-a 4 of 4 (elsewhere/other-gpu-a), gpu-b 4 of 4 (elsewhere/other-gpu-b)"
    assert f"held by other pods: {holders}" in world.condition("Ready")["message"]
    assert world.reconciler.waiting == {KEY}
    assert world.again == 15.0
    world.api.drop("Pod", "other-gpu-a", namespace="elsewhere")
    await world.round()
    assert len(world.api.names("RayCluster")) == 1
    assert world.reconciler.waiting == frozenset()


async def test_what_the_engine_itself_holds_is_free_for_its_new_spec() -> None:
    world = World()
    await world.serve()
    for index, name in enumerate(name for name in world.api.names("Pod") if "head" not in name):
        world.api.body("Pod", name)["spec"] = {
            "nodeName": ("gpu-a", "gpu-b")[index],
            "containers": [{"name": "vllm", "resources": {"limits": {"nvidia.com/gpu": "4"}}}],
        }
    world.change(vllmConfig={"maxNumSeqs": 4})
    await world.depart()
    assert world.condition("Ready")["reason"] == "Replacing"


async def test_the_plan_stands_in_status() -> None:
    facts = {"uri": "file:///opt/models/m", "facts": {"parameters": "7B"}}
    world = World(spec={"model": facts})
    for body in world.nodes:
        body["metadata"]["labels"] = {
            "nvidia.com/gpu.product": "NVIDIA-L40S",
            "nvidia.com/gpu.memory": "46068",
        }
    await world.rounds(2)
    told = world.status["plan"]
    assert (told["accelerator"], told["tensor"], told["gpus"]) == ("NVIDIA-L40S", 1, 1)
    assert told["resource"] == "nvidia.com/gpu"
    assert told["memory"]["weightsMiB"] == 13351
    assert [item["gpus"] for item in told["candidates"]] == [1, 2, 4]
    assert await world.round() == []


@pytest.mark.parametrize(("name", "spec", "reason", "words"), BLOCKED, ids=[item[0] for item in BLOCKED])
async def test_a_blocked_spec_says_why_and_makes_nothing(
    name: str, spec: dict[str, Any], reason: str, words: str
) -> None:
    world = World(spec={**samples.TYPICAL, **spec})
    assert await world.round() == ["status VLLMDeployment demo"], name
    for kind in ("Ready", "Stalled"):
        assert world.condition(kind)["reason"] == reason
        assert words in world.condition(kind)["message"]
    assert world.condition("Stalled")["status"] == "True"
    assert world.again == 15
    assert await world.round() == []


@pytest.mark.parametrize(("name", "spec", "reason", "words"), BLOCKED, ids=[item[0] for item in BLOCKED])
async def test_what_serves_is_kept_while_the_present_spec_is_blocked(
    name: str, spec: dict[str, Any], reason: str, words: str
) -> None:
    world = World()
    await world.serve()
    world.change(**spec)
    assert await world.round() == ["status VLLMDeployment demo"], name
    assert world.condition("Ready")["reason"] == reason
    assert words in world.condition("Stalled")["message"]
    assert world.condition("Available")["status"] == "True"
    assert world.engines["engine-0"]["state"] == "Serving"
    assert world.status["readyReplicas"] == 1
    world.change(**{key: copy.deepcopy(samples.TYPICAL.get(key, [])) for key in spec})
    await world.round()
    assert world.condition("Ready")["status"] == "True"
    assert world.api.names("RayCluster") == [CLUSTER]


async def test_what_was_missing_comes_and_all_goes_on() -> None:
    world = World(spec={**samples.TYPICAL, **MISSING_SECRET})
    await world.round()
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "keys", "namespace": "models"},
        "data": {"x": ""},
    }
    world.api.put(secret)
    await world.round()
    assert world.condition("Ready")["message"] == "spec.env S: Secret keys has no key k (its keys: x)"
    world.api.put({**secret, "data": {"k": "", "x": ""}})
    assert "create RayCluster" in kinds(await world.round())


async def test_no_image() -> None:
    world = World(settings=type(World().settings)())
    await world.round()
    assert world.condition("Stalled")["reason"] == "ImageMissing"


async def test_kuberay_is_not_installed_and_then_is() -> None:
    world = World()
    world.api.unknown.add("RayCluster")
    await world.round()
    assert world.condition("Ready")["reason"] == "KubeRayNotInstalled"
    assert "install the KubeRay operator" in world.condition("Stalled")["message"]
    assert world.api.names("Secret") == []
    assert [line for line in await world.round() if "status" in line] == []
    world.api.unknown.clear()
    await world.serve()
    assert world.condition("Ready")["status"] == "True"


@pytest.mark.parametrize("kind", ["Service", "RayCluster", "Secret", "ServiceAccount", "Role", "ConfigMap"])
async def test_an_object_of_somebody_else_is_named_and_left_alone(kind: str) -> None:
    world = World()
    names = {"Service": "demo", "RayCluster": CLUSTER, "Secret": f"{CLUSTER}-token", "ServiceAccount": CLUSTER}
    name = names.get(kind, f"{CLUSTER}-report")
    theirs = world.api.put(
        {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "models"}, "data": {"a": "b"}}
    )
    log = await world.round()
    assert log == ["status VLLMDeployment demo"], "nothing is half-created"
    assert world.condition("Ready")["reason"] == "NameConflict"
    assert f"{kind} {name} exists and does not belong" in world.condition("Ready")["message"]
    assert world.api.body(kind, name) == theirs
    assert world.again is not None
    assert world.again <= 15
    world.api.drop(kind, name)
    assert "create RayCluster" in kinds(await world.round())


async def test_a_removal_leaves_what_is_not_ours() -> None:
    world = World(spec={**samples.TYPICAL, "pod": {"serviceAccountName": "own"}})
    await world.serve()
    name = world.api.names("RayCluster")[0]
    theirs = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "models"}}
    world.api.put(theirs)
    world.change(replicas=0)
    await world.round()
    assert world.api.names("ServiceAccount") == [name]


async def test_a_list_that_fails_is_unknown_not_empty() -> None:
    world = World()
    await world.serve()
    for kind in ("Pod", "RayCluster", "ConfigMap", "ControllerRevision"):
        world.api.refuse["list", kind] = ApiError(500, "etcd")
        with pytest.raises(ApiError):
            await world.round()
        assert world.api.log == []
        world.api.refuse.clear()


# ---- recovery ---------------------------------------------------------------------------------------------------


async def test_a_rank_dies_and_the_next_attempt_serves() -> None:
    world = World()
    await world.serve()
    world.report(Phase.FAILED, reason="RankDied", message="rank 1: exit code -9", failed_rank=1)
    await world.round(0)
    engine = world.engines["engine-0"]
    assert (engine["state"], engine["reason"], engine["attempt"]) == ("Failed", "RankDied", 1)
    assert engine["retryAt"]
    [failure] = world.status["lastFailures"]
    assert (failure["engine"], failure["rank"], failure["pod"]) == ("engine-0", 1, world.pod(f"{CLUSTER}-gpu1-0"))
    assert failure["node"] == "gpu-a"
    assert await world.round() == [], "the backoff is waited for in silence"
    world.clock += 10
    await world.bring_up()
    assert world.condition("Ready")["status"] == "True"
    assert (world.engines["engine-0"]["attempt"], world.engines["engine-0"]["restarts"]) == (2, 1)
    assert [plan.attempt for plan in world.ray.plans] == [1, 2]
    assert world.status["lastFailures"] == [failure], "told once, kept"


async def test_a_fatal_failure_stays_until_somebody_asks() -> None:
    world = World()
    await world.serve()
    world.report(Phase.FAILED, reason="ArgumentsRefused", message="error: unrecognized arguments: --nope")
    await world.round()
    assert world.condition("Stalled")["reason"] == "ArgumentsRefused"
    assert "unrecognized arguments: --nope" in world.condition("Ready")["message"]
    assert await world.round(9999) == []
    world.annotate(**{identity.ANNOTATION_RETRY: world.now().isoformat()})
    await world.bring_up()
    assert world.condition("Ready")["status"] == "True"
    assert world.engines["engine-0"]["attempt"] == 2


async def test_the_operator_restarts_while_a_job_runs() -> None:
    world = World()
    await world.round()
    world.start_pods()
    world.join_ray()
    await world.rounds(4)
    world.restart()
    await world.rounds(4)
    assert len(world.ray.plans) == 1
    assert world.engines["engine-0"]["message"] == "bootstrap job running"


async def test_the_token_is_gone() -> None:
    world = World()
    await world.round()
    world.start_pods()
    world.api.drop("Secret", f"{CLUSTER}-token")
    await world.round()
    assert world.engines["engine-0"]["reason"] == "RayUnreachable"
    assert "token" in world.engines["engine-0"]["message"]


# ---- the CR itself ----------------------------------------------------------------------------------------------


async def test_a_deployment_that_is_gone_is_forgotten() -> None:
    world = World()
    world.api.drop(identity.KIND, "demo")
    assert await world.reconciler.reconcile(KEY) is None


async def test_a_deployment_that_goes_is_left_to_the_garbage_collector() -> None:
    world = World()
    world.api.put(deployment(samples.TYPICAL, deletionTimestamp="2026-03-01T12:00:00Z"))
    assert await world.round() == []
    assert world.again is None


async def test_an_object_of_an_earlier_cr_of_that_name_is_not_ours() -> None:
    """The garbage collector has not come round yet: the new CR waits and then goes on."""
    world = World()
    await world.serve()
    body = deployment(samples.TYPICAL, uid="another")
    world.api.put(body)
    await world.round()
    assert world.condition("Ready")["reason"] == "NameConflict"
    world.api.objects = {key: item for key, item in world.api.objects.items() if key[0] in ("Node", identity.KIND)}
    assert "create RayCluster" in kinds(await world.round())


async def test_a_status_that_changed_meanwhile_is_a_conflict_and_the_round_is_repeated() -> None:
    world = World()
    world.api.refuse["status", identity.KIND] = ConflictError(409, "modified")
    with pytest.raises(ConflictError):
        await world.round()
    world.api.refuse.clear()
    await world.round()
    assert world.status["observedGeneration"] == 1


async def test_an_unreadable_status_is_made_anew() -> None:
    world = World()
    await world.serve()
    world.api.body(identity.KIND, "demo")["status"] = {"engineReplicas": "nonsense"}
    await world.round()
    assert world.condition("Ready")["status"] == "True"


@pytest.mark.parametrize("text", ["{", '{"version": 99}', '{"uid": 1}', "[]", ""])
async def test_an_unreadable_report_is_no_report(text: str) -> None:
    world = World()
    await world.serve()
    world.api.body("ConfigMap", f"{CLUSTER}-report")["data"] = {"report.json": text}
    await world.round()
    assert world.engines["engine-0"]["state"] in ("Placing", "Pending")


async def test_the_engine_compares_what_it_finds_with_what_was_planned() -> None:
    world = World(spec={**samples.TYPICAL, "model": {"uri": "file:///m", "facts": {"parameters": "7B"}}})
    for body in world.nodes:
        body["metadata"]["labels"] = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    await world.serve()
    [plan] = world.ray.plans
    assert plan.checkpoint_bytes == pytest.approx(14e9, rel=0.01)
    world.report(contract.Phase.SERVING, warnings=("the checkpoint in /m has 26 GiB",))
    await world.round()
    assert world.status["plan"]["warning"].endswith("the checkpoint in /m has 26 GiB")
