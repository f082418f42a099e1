"""What vLLM is told, and the plan of one attempt."""

from __future__ import annotations

import json

import pytest
from tests.unit.resources import samples

from vllm_bootstrap import contract
from vllm_operator.api.model import Model
from vllm_operator.planning.inventory import GpuNode
from vllm_operator.resources import lora
from vllm_operator.resources.engine import Attempt, engine_part, engine_plan
from vllm_operator.resources.model import hub_part, locate
from vllm_operator.resources.names import EngineNames


@pytest.mark.parametrize(
    ("uri", "argument"),
    [
        ("hf://org/name", "org/name"),
        ("hf://gpt2", "gpt2"),
        ("pvc://claim", "/mnt/models/claim"),
        ("pvc://claim/", "/mnt/models/claim"),
        ("pvc://claim/a/b/", "/mnt/models/claim/a/b"),
        ("file:///opt/models/m", "/opt/models/m"),
    ],
)
def test_model_argument(uri: str, argument: str) -> None:
    assert locate(Model(uri=uri)).argument == argument


def part(*specs: samples.Object) -> samples.Object:
    spec = samples.spec_of(*specs)
    nodes = [type(node)(name=node.name, gpus=node.gpus, labels=spec.pod.node_selector) for node in samples.NODES]
    return engine_part(spec=spec, shape=samples.shape_of(spec, nodes), owner=samples.OWNER)


def test_arguments_of_a_typical_spec() -> None:
    assert part(samples.TYPICAL)["arguments"] == [
        "--max-model-len=2048",
        "--dtype=bfloat16",
        "-cc.mode=2",
    ]


def test_every_field_reaches_vllm() -> None:
    rendered = part(samples.EVERYTHING)
    assert (rendered["model"], rendered["servedName"]) == ("org/name", "served")
    found = rendered["arguments"]
    for argument in (
        "--gpu-memory-utilization=0.9",
        "--quantization=fp8",
        "--kv-cache-dtype=fp8",
        "--max-num-seqs=64",
    ):
        assert argument in found


@pytest.mark.parametrize(
    ("config", "told"),
    [({}, ["--gpu-memory-utilization=0.23"]), ({"gpuMemoryUtilization": 0.2}, ["--gpu-memory-utilization=0.2"])],
)
def test_an_engine_on_a_time_sliced_gpu_keeps_to_its_share(config: samples.Object, told: list[str]) -> None:
    spec = samples.spec_of({"vllmConfig": config})
    shared = GpuNode(name="a", gpus=8, product="L40S-SHARED", labels={"nvidia.com/gpu.replicas": "4"})
    shape = samples.shape_of(spec, [shared])
    assert engine_part(spec=spec, shape=shape, owner=samples.OWNER)["arguments"] == told


def test_absent_fields_are_not_told() -> None:
    assert part()["arguments"] == []


def test_environment_holds_no_secret_and_files_are_named() -> None:
    found = part(samples.EVERYTHING)
    assert found["environment"] == {"PLAIN": "1"}
    assert found["environmentFiles"] == ["CONFIG", "SECRET"]
    assert found["environmentPrefixes"] == ["A_", ""]
    assert part({"env": [{"name": "EMPTY"}]})["environment"] == {"EMPTY": ""}


def plan(
    number: int = 1, *specs: samples.Object, index: int = 0, adapters: tuple[contract.Adapter, ...] = ()
) -> contract.EnginePlan:
    found = part(*(specs or (samples.TYPICAL,)))
    return engine_plan(
        owner=samples.OWNER,
        names=EngineNames.of(samples.OWNER, index, "aaaaaaaa"),
        revision="eeeeeeee-aaaaaaaa",
        part=json.loads(json.dumps(found)),
        attempt=Attempt(number=number, ray_session="session_1"),
        deadlines=contract.Deadlines(load=99),
        hub="https://mirror.example",
        adapters=adapters,
    )


def test_plan_says_all_that_the_ray_side_needs() -> None:
    made = plan()
    assert (made.deployment, made.namespace, made.uid) == ("demo", "models", samples.OWNER.uid)
    assert (made.engine, made.revision, made.attempt) == ("engine-0", "eeeeeeee-aaaaaaaa", 1)
    assert made.world_size == 2 == sum(group.pods * group.gpus for group in made.groups)
    assert made.groups[0] == contract.PodGroup(name="lead", pods=1, gpus=1)
    assert made.report == contract.ReportTarget(namespace="models", config_map="demo-0-aaaaaaaa-report")
    assert made.instance_id == "demo-0f0e0d0c-engine-0-1"
    assert made.deadlines.load == 99
    assert contract.loads(contract.EnginePlan, contract.dumps(made)) == made


def test_data_and_expert_parallel_go_with_the_plan() -> None:
    assert not {"data", "expert"} & part(samples.TYPICAL).keys(), "a rendering without them stays what it was"
    made = plan(1, {"parallelism": {"tensor": 2, "data": 2, "expert": True}})
    assert (made.data, made.expert, made.world_size, made.total_ranks) == (2, True, 2, 4)
    assert made.placement_groups == ("demo-0-aaaaaaaa-dp0", "demo-0-aaaaaaaa-dp1")
    assert sum(group.pods * group.gpus for group in made.groups) == made.total_ranks


LORA_ADAPTERS = [
    {"name": "image", "uri": "file:///opt/a"},
    {"name": "own", "uri": "pvc://claim/b/"},
    {"name": "other", "uri": "pvc://more/c"},
]
LORA = {
    "model": {"uri": "pvc://claim/a"},
    "lora": {"adapters": LORA_ADAPTERS, "persistentVolumeClaims": ["more", "claim"]},
}


@pytest.mark.parametrize(
    ("lora", "expected"),
    [
        ({}, ["--enable-lora", "--max-cpu-loras=64"]),
        ({"maxLoras": 100}, ["--enable-lora", "--max-loras=100", "--max-cpu-loras=100"]),
        (
            {"maxLoraRank": 32, "maxLoras": 2, "maxCpuLoras": 4},
            ["--enable-lora", "--max-lora-rank=32", "--max-loras=2", "--max-cpu-loras=4"],
        ),
    ],
)
def test_what_lets_an_engine_take_adapters(lora: samples.Object, expected: list[str]) -> None:
    assert [item for item in part({"lora": lora})["arguments"] if "lora" in item] == expected


def test_adapters_have_paths_in_the_pods_and_only_engines_that_take_them_get_any() -> None:
    spec = samples.spec_of(LORA)
    assert {adapter.name: adapter.path for adapter in lora.adapters(spec)} == {
        "image": "/opt/a",
        "own": "/mnt/models/claim/b",
        "other": "/mnt/models/more/c",
    }
    cached = {**LORA, "model": {"uri": "hf://a/b", "cache": {"persistentVolumeClaim": "claim"}}}
    paths = {adapter.name: adapter.path for adapter in lora.adapters(samples.spec_of(cached))}
    assert paths["own"] == "/var/cache/huggingface/b"
    assert lora.adapters(samples.spec_of()) == {}
    wanted = tuple(lora.adapters(spec))
    assert plan(1, LORA, adapters=wanted).adapters == wanted
    assert plan(1, adapters=wanted).adapters == ()


def test_an_adapter_of_the_hub_shares_the_cache_of_the_model_and_renders_nothing() -> None:
    adapters = {"lora": {"adapters": [{"name": "hub", "uri": "hf://org/a"}, *LORA_ADAPTERS[:1]]}}
    cache = {"model": {"uri": "hf://a/b", "cache": {"persistentVolumeClaim": "claim"}}}
    found, image = lora.adapters(samples.spec_of(adapters, cache))
    assert (found.path, found.source.repository) == ("hf://org/a", "")
    assert part(cache, adapters) == part(cache, {"lora": {}})
    hub = {"folder": "/var/cache/huggingface/hub", "shared": True, "room": 5, "repository": "a/b", "revision": "r"}
    made = lora.to_download(found, {"hub": hub}, hub="https://mirror", commit="c")
    assert made.source == contract.HubSource(
        repository="org/a",
        endpoint="https://mirror",
        folder="/var/cache/huggingface/hub",
        shared=True,
        room=5,
        named_by="spec.lora.adapters[hub]",
    )
    assert made.commit == "c"
    assert lora.to_download(image, {"hub": hub}, hub="https://mirror", commit="") == image
    assert lora.to_download(found, {}, hub="https://mirror", commit="").source.folder == contract.ADAPTER_CACHE


def test_claims_of_adapters_are_mounted_beside_the_models_own() -> None:
    assert lora.claims(samples.spec_of(LORA)) == ["more"]
    [mount] = lora.mounts(samples.spec_of(LORA))
    assert mount == {"name": "adapters-0", "mountPath": "/mnt/models/more", "readOnly": True}
    [volume] = lora.volumes(samples.spec_of(LORA))
    assert volume["persistentVolumeClaim"] == {"claimName": "more", "readOnly": True}


def test_where_the_api_key_is_goes_with_the_plan_and_nothing_more() -> None:
    assert plan().api_key_file == ""
    made = plan(1, {"apiKeySecret": {"name": "callers", "key": "k"}})
    assert made.api_key_file == "/var/run/vllm-operator/api-key/key"
    assert "callers" not in contract.dumps(made)


def test_what_each_node_downloads_goes_with_the_plan() -> None:
    assert plan().source.repository == ""
    made = plan(1, samples.EVERYTHING)
    assert made.source == contract.HubSource(
        repository="org/name",
        revision="v1",
        endpoint="https://mirror.example",
        folder="/var/cache/huggingface/hub",
        shared=True,
    )
    assert made.hub_token_file == "/var/run/vllm-operator/hf-token/token"
    assert '"hub"' not in contract.dumps(made), "the Secret's name stays with the pods"


def test_a_revision_of_an_earlier_version_downloads_as_it_did() -> None:
    found = {key: value for key, value in part(samples.EVERYTHING).items() if key not in ("hub", "hubToken")}
    made = engine_plan(
        owner=samples.OWNER,
        names=EngineNames.of(samples.OWNER, 0, "aaaaaaaa"),
        revision="eeeeeeee-aaaaaaaa",
        part=found,
        attempt=Attempt(number=1, ray_session="session_1"),
        deadlines=contract.Deadlines(),
        hub="https://mirror.example",
    )
    assert (made.model, made.source, made.hub_token_file) == ("org/name", contract.HubSource(), "")


@pytest.mark.parametrize(
    ("volume", "told"),
    [
        ({"emptyDir": {}}, (False, 0)),
        ({"emptyDir": {"sizeLimit": "1Gi"}}, (False, 2**30)),
        ({"persistentVolumeClaim": {"claimName": "c"}}, (True, 0)),
        ({"hostPath": {"path": "/cache"}}, (True, 0)),
        ({"ephemeral": {"volumeClaimTemplate": {}}}, (False, 0)),
    ],
)
def test_the_volume_of_the_cache_says_whose_it_is_and_what_it_holds(
    volume: samples.Object, told: tuple[bool, int]
) -> None:
    model = Model(uri="hf://org/name")
    found = hub_part(model, {"volumes": [{"name": "dshm"}, {"name": "model", **volume}]})
    assert (found["shared"], found["room"]) == told
    assert hub_part(Model(uri="file:///m"), {}) == {}


def test_sources_of_variables_are_folders_on_the_lead() -> None:
    made = plan(1, samples.EVERYTHING)
    assert made.environment_sources == (
        contract.EnvironmentSource(directory="/var/run/vllm-operator/env-from/0", prefix="A_"),
        contract.EnvironmentSource(directory="/var/run/vllm-operator/env-from/1"),
    )


def test_nsight_passes_through() -> None:
    made = plan(1, {"vllmConfig": {"extraArgs": ["--ray-workers-use-nsight"]}})
    assert "--ray-workers-use-nsight" in made.arguments


def test_attempts_and_engines_have_jobs_and_actors_of_their_own() -> None:
    plans = [plan(1), plan(2), plan(1, index=1)]
    assert len({item.instance_id for item in plans}) == 3
    assert len({contract.job_id(item) for item in plans}) == 3
    assert contract.job_id(plan(1)) == contract.job_id(plan(1))
