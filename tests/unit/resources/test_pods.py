"""What holds for every pod of every spec: each rule here is somebody's lost night (``pod.py`` names the reports)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.unit.resources import samples
from tests.unit.resources.samples import main, named, rendered, spec_of, templates

from vllm_bootstrap.contract import RESERVED_ENVIRONMENT
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.planning.inventory import GpuNode
from vllm_operator.resources.defaults import RuntimeDefaults
from vllm_operator.resources.deployment import deployment_spec
from vllm_operator.resources.names import EngineNames

FIVE_PORTS = {"gcs-server": 6379, "dashboard": 8265, "client": 10001, "metrics": 8080, "serve": 8000}
BIG = tuple(GpuNode(name=f"n{index}", gpus=8) for index in range(16))

words = st.text("abcxyz", min_size=1, max_size=5)
labels = st.dictionaries(
    st.one_of(
        words,
        st.sampled_from(
            [
                "vllm-operator.io/deployment",
                "vllm-operator.io/engine",
                "vllm-operator.io/lead",
                "app.kubernetes.io/component",
                "app.kubernetes.io/managed-by",
            ]
        ),
    ),
    words,
    max_size=4,
)
resources = st.fixed_dictionaries(
    {},
    optional={
        "requests": st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.just("3"), max_size=3),
        "limits": st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.just("3"), max_size=3),
    },
)
sources = st.sampled_from(
    [
        {"value": "plain"},
        {"valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}},
        {"valueFrom": {"configMapKeyRef": {"name": "conf", "key": "k"}}},
    ]
)
templates_over = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries({}, optional={"labels": labels, "annotations": labels}),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": st.just([{"name": "side"}]),
                "volumes": st.just([{"name": "own", "emptyDir": {}}]),
                "priorityClassName": words,
            },
        ),
    },
)
specs = st.fixed_dictionaries(
    {
        "model": st.sampled_from(
            [
                {"uri": "file:///m"},
                {"uri": "hf://a/b", "hfTokenSecret": {"name": "t"}},
                {"uri": "hf://a/b", "cache": {"persistentVolumeClaim": "c"}},
                {"uri": "pvc://claim/path"},
            ]
        ),
        "parallelism": st.fixed_dictionaries({}, optional={"tensor": st.integers(1, 4), "pipeline": st.integers(1, 3)}),
        "placement": st.sampled_from(
            [{}, {"gpusPerPod": 1}, {"strategy": "SPREAD"}, {"strategy": "STRICT_SPREAD"}, {"gpusPerPod": 5}]
        ),
    },
    optional={
        "env": st.lists(st.tuples(words, sources), max_size=3, unique_by=lambda item: item[0]).map(
            lambda items: [{"name": name, **source} for name, source in items]
        ),
        "envFrom": st.lists(
            st.sampled_from([{"secretRef": {"name": "s"}}, {"configMapRef": {"name": "c"}, "prefix": "P_"}]), max_size=2
        ),
        "pod": st.fixed_dictionaries(
            {},
            optional={
                "labels": labels,
                "annotations": labels,
                "resources": resources,
                "shmSize": st.sampled_from(["1Gi", "64Gi"]),
                "serviceAccountName": st.just("own"),
                "template": templates_over,
            },
        ),
        "rayHead": st.fixed_dictionaries({}, optional={"resources": resources}),
    },
).map(VLLMDeploymentSpec.model_validate)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(specs)
def test_every_pod_of_every_spec(spec: VLLMDeploymentSpec) -> None:
    cluster = rendered(spec, nodes=BIG)
    assert json.loads(json.dumps(cluster)) == cluster
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert cluster["headGroupSpec"]["rayStartParams"]["num-gpus"] == "0"
    groups = cluster["workerGroupSpecs"]
    assert groups[0]["groupName"] == "lead"
    assert sum(int(group["rayStartParams"]["num-gpus"]) * group["replicas"] for group in groups) == spec.world_size
    for group in groups:
        assert group["replicas"] == group["minReplicas"] == group["maxReplicas"]
        limits = main(group["template"])["resources"]["limits"]
        assert limits["nvidia.com/gpu"] == group["rayStartParams"]["num-gpus"]
    for role, template in templates(cluster).items():
        check_ray_container(role, template)
        check_pod(role, template, spec)


def check_ray_container(role: str, template: dict[str, Any]) -> None:
    container = main(template)
    # KubeRay injects wget probes into a Ray container without own ones
    assert container["readinessProbe"]
    assert container["livenessProbe"]
    env = named(container["env"])
    assert env["VLLM_HOST_IP"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert env["RAY_AUTH_MODE"]["value"] == "token"
    secrets = [item for item in container["env"] if "secretKeyRef" in item.get("valueFrom", {})]
    assert [item["name"] for item in secrets] == ["RAY_AUTH_TOKEN"]
    assert "envFrom" not in container
    mounts = named(container["volumeMounts"], "mountPath")
    volumes = named(template["spec"]["volumes"])
    shm = volumes[mounts["/dev/shm"]["name"]]["emptyDir"]  # noqa: S108 - the path is the point
    assert shm["medium"] == "Memory"
    assert shm["sizeLimit"]
    assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    if role == "head":
        assert ports == FIVE_PORTS
    assert len(set(ports.values())) == len(ports)
    assert all(len(name) <= 15 for name in ports)


def check_pod(role: str, template: dict[str, Any], spec: VLLMDeploymentSpec) -> None:
    pod, meta = template["spec"], template["metadata"]
    assert pod["enableServiceLinks"] is False
    assert pod["terminationGracePeriodSeconds"] > 0
    worker = role not in ("head", "lead")
    assert pod["automountServiceAccountToken"] is not worker
    if not worker:
        assert pod["serviceAccountName"]
    assert meta["labels"]["vllm-operator.io/deployment"] == "demo"
    assert meta["labels"]["vllm-operator.io/engine"] == "0"
    assert meta["labels"]["app.kubernetes.io/managed-by"] == "vllm-operator"
    assert meta["labels"]["app.kubernetes.io/component"] == ("worker" if worker else role)
    # the Service selects by this one: neither a user's label nor an overlay gives it to another pod
    assert meta["labels"].get("vllm-operator.io/lead") == ("true" if role == "lead" else None)
    assert spec.pod.annotations.keys() <= meta.get("annotations", {}).keys()


def test_users_labels_and_annotations_reach_head_and_workers() -> None:
    spec = spec_of({"pod": {"labels": {"team": "a"}, "annotations": {"note": "b"}}}, {"parallelism": {"tensor": 8}})
    for template in templates(rendered(spec)).values():
        assert template["metadata"]["labels"]["team"] == "a"
        assert template["metadata"]["annotations"] == {"note": "b"}


def test_lead_offers_the_resource_that_tells_it_from_the_others() -> None:
    lead, worker = rendered(spec_of(samples.TYPICAL))["workerGroupSpecs"]
    # KubeRay puts the value on a shell's command line as it is: quotes and all
    assert lead["rayStartParams"]["resources"] == r'"{\"vllm-lead\": 1}"'
    assert json.loads(json.loads(lead["rayStartParams"]["resources"])) == {"vllm-lead": 1}
    assert "resources" not in worker["rayStartParams"]


def test_lead_is_ready_when_the_supervisor_says_so_and_lives_without_the_model() -> None:
    lead = main(templates(rendered(spec_of()))["lead"])
    assert lead["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 8001}
    assert lead["readinessProbe"]["periodSeconds"] == lead["readinessProbe"]["failureThreshold"] == 1
    assert "httpGet" not in lead["livenessProbe"]
    # kserve#5062: nothing kills a slow load
    assert lead["livenessProbe"]["failureThreshold"] * lead["livenessProbe"]["periodSeconds"] >= 600


def test_affinity_by_strategy() -> None:
    def affinity(strategy: str, **more: Any) -> Any:
        spec = spec_of({"placement": {"strategy": strategy}, "parallelism": {"tensor": 2}, **more})
        found = templates(rendered(spec, nodes=[GpuNode(name="a", gpus=1), GpuNode(name="b", gpus=1)]))
        assert found["lead"]["spec"]["affinity"] == found["gpu1"]["spec"]["affinity"]
        assert "affinity" not in found["head"]["spec"]
        return found["lead"]["spec"]["affinity"]

    required = affinity("STRICT_SPREAD")["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required[0]["topologyKey"] == "kubernetes.io/hostname"
    assert required[0]["labelSelector"]["matchLabels"] == {
        "vllm-operator.io/deployment": "demo",
        "vllm-operator.io/engine": "0",
    }
    assert list(affinity("SPREAD")["podAntiAffinity"]) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    assert list(affinity("PACK")["podAffinity"]) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    own = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}}
    both = affinity("STRICT_SPREAD", pod={"affinity": own})["podAntiAffinity"]
    assert [item["topologyKey"] for item in both["requiredDuringSchedulingIgnoredDuringExecution"]] == [
        "kubernetes.io/hostname",
        "zone",
    ]


def test_one_pod_needs_no_affinity() -> None:
    spec = spec_of({"placement": {"strategy": "STRICT_PACK"}, "parallelism": {"tensor": 4}})
    assert "affinity" not in templates(rendered(spec))["lead"]["spec"]


def test_secrets_are_files_on_the_lead_alone() -> None:
    spec = spec_of(samples.EVERYTHING)
    found = templates(rendered(spec))
    lead = found.pop("lead")
    mounts = {item["mountPath"]: item["name"] for item in main(lead)["volumeMounts"]}
    volumes = named(lead["spec"]["volumes"])
    projected = volumes[mounts["/var/run/vllm-operator/env"]]["projected"]["sources"]
    paths = [item["path"] for source in projected for kind in source.values() for item in kind["items"]]
    assert sorted(paths) == ["CONFIG", "SECRET"]
    assert volumes[mounts["/var/run/vllm-operator/env-from/0"]]["secret"]["secretName"] == "all-keys"
    assert volumes[mounts["/var/run/vllm-operator/env-from/1"]]["configMap"]["name"] == "all-conf"
    control = volumes[mounts["/var/run/vllm-operator/control"]]["secret"]
    assert control["items"] == [{"key": "control_token", "path": "control_token"}]
    for template in found.values():
        told = json.dumps(template)
        for word in ("keys", "conf", "all-keys", "control_token", "env-from"):
            assert f'"{word}"' not in told


def test_the_token_of_the_hub_is_a_file_on_every_pod_that_downloads() -> None:
    found = templates(rendered(spec_of(samples.EVERYTHING)))
    assert "hf-token" not in json.dumps(found.pop("head"))
    assert len(found) > 1
    for template in found.values():
        secret = named(template["spec"]["volumes"])["hf-token"]["secret"]
        assert secret == {"secretName": "hub", "items": [{"key": "token", "path": "token"}]}
        [mount] = [item for item in main(template)["volumeMounts"] if item["name"] == "hf-token"]
        assert (mount["mountPath"], mount["readOnly"]) == ("/var/run/vllm-operator/hf-token", True)
        [told] = [item for item in main(template)["env"] if item["name"] == "HF_TOKEN_PATH"]
        assert told["value"] == "/var/run/vllm-operator/hf-token/token"
    assert "hf-token" not in json.dumps(rendered(spec_of(samples.TYPICAL)))


def test_the_api_key_is_a_file_on_the_lead_alone() -> None:
    found = templates(rendered(spec_of(samples.TYPICAL, {"apiKeySecret": {"name": "callers", "key": "k"}})))
    lead = found.pop("lead")
    [mount] = [item for item in main(lead)["volumeMounts"] if item["name"] == "api-key"]
    assert (mount["mountPath"], mount["readOnly"]) == ("/var/run/vllm-operator/api-key", True)
    secret = named(lead["spec"]["volumes"])["api-key"]["secret"]
    assert secret == {"secretName": "callers", "items": [{"key": "k", "path": "key"}]}
    assert "callers" not in json.dumps(found)
    assert "api-key" not in json.dumps(rendered(spec_of(samples.TYPICAL)))


@pytest.mark.parametrize(("drain", "seconds"), [({}, 60), ({"timeoutSeconds": 0}, 0), ({"timeoutSeconds": 600}, 600)])
def test_a_pod_without_ray_has_the_time_to_drain(drain: samples.Object, seconds: int) -> None:
    spec = spec_of({"drain": drain})
    told = deployment_spec(
        spec=spec,
        shape=samples.shape_of(spec, samples.NODES),
        owner=samples.OWNER,
        names=EngineNames.placeholder(),
        defaults=samples.DEFAULTS,
    )["template"]
    assert named(main(told)["env"])["VLLM_OPERATOR_DRAIN_SECONDS"]["value"] == str(seconds)
    assert told["spec"]["terminationGracePeriodSeconds"] >= seconds + 40, "the engine's orderly end comes after it"


def test_workers_use_no_account_of_ours() -> None:
    found = templates(rendered(spec_of(samples.TYPICAL)))
    assert found["head"]["spec"]["serviceAccountName"] == found["lead"]["spec"]["serviceAccountName"]
    assert "serviceAccountName" not in found["gpu1"]["spec"]


@pytest.mark.parametrize(
    ("model", "mount", "volume"),
    [
        ({"uri": "file:///m"}, None, None),
        ({"uri": "hf://a/b"}, "/var/cache/huggingface", {"emptyDir": {}}),
        (
            {"uri": "hf://a/b", "cache": {"persistentVolumeClaim": "c"}},
            "/var/cache/huggingface",
            {"persistentVolumeClaim": {"claimName": "c", "readOnly": False}},
        ),
        (
            {"uri": "pvc://c/sub/m/"},
            "/mnt/models/c",
            {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}},
        ),
    ],
)
def test_model_volume_is_on_every_gpu_pod_and_not_on_the_head(model: Any, mount: str | None, volume: Any) -> None:
    found = templates(rendered(spec_of({"model": model, "parallelism": {"tensor": 8}})))
    for role, template in found.items():
        mounts = {item["name"]: item["mountPath"] for item in main(template)["volumeMounts"]}
        assert mounts.get("model") == (None if role == "head" else mount)
        if role != "head" and volume:
            assert named(template["spec"]["volumes"])["model"] == {"name": "model", **volume}


def test_chart_template_lies_under_the_crs() -> None:
    chart = {
        "metadata": {"annotations": {"from": "chart", "chart": "1"}, "labels": {"vllm-operator.io/deployment": "x"}},
        "spec": {
            "containers": [
                {"name": "vllm", "env": [{"name": "CA", "value": "chart"}, {"name": "X", "value": "chart"}]}
            ],
            "volumes": [{"name": "plugin", "hostPath": {"path": "/chart"}}],
        },
    }
    own = {
        "metadata": {"annotations": {"from": "cr"}},
        "spec": {
            "containers": [
                {
                    "name": "vllm",
                    "env": [{"name": "X", "value": "cr"}],
                    "volumeMounts": [{"name": "plugin", "mountPath": "/p"}],
                },
                {"name": "side", "image": "s"},
            ],
            "volumes": [{"name": "plugin", "emptyDir": {}}],
        },
    }
    defaults = RuntimeDefaults(image="i", pod_template=chart)
    for template in templates(rendered(spec_of({"pod": {"template": own}}), defaults=defaults)).values():
        assert template["metadata"]["annotations"] == {"from": "cr", "chart": "1"}
        assert template["metadata"]["labels"]["vllm-operator.io/deployment"] == "demo"
        env = named(main(template)["env"])
        assert (env["CA"]["value"], env["X"]["value"]) == ("chart", "cr")
        assert named(template["spec"]["volumes"])["plugin"] == {"name": "plugin", "emptyDir": {}}
        assert named(main(template)["volumeMounts"], "mountPath")["/p"]["name"] == "plugin"
        assert [item["name"] for item in template["spec"]["containers"]] == ["vllm", "side"]


@pytest.mark.parametrize("name", sorted(RESERVED_ENVIRONMENT))
def test_overlay_must_not_set_what_the_operator_sets(name: str) -> None:
    template = {"spec": {"containers": [{"name": "vllm", "env": [{"name": name, "value": "x"}]}]}}
    with pytest.raises(ValidationError, match=f"pod.template.*{name}"):
        spec_of({"pod": {"template": template}})


def test_head_resources_and_image() -> None:
    found = templates(rendered(spec_of({"image": "own:1"})))
    assert main(found["head"])["resources"] == {"requests": {"cpu": "1", "memory": "4Gi"}, "limits": {"memory": "4Gi"}}
    assert {main(template)["image"] for template in found.values()} == {"own:1"}
    assert main(templates(rendered(spec_of()))["head"])["image"] == samples.DEFAULTS.image


@pytest.mark.parametrize(
    "resource",
    [
        "nvidia.com/gpu",
        "nvidia.com/gpu.shared",
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-1g.10gb.me",
        "amd.com/gpu",
        "gpu.intel.com/i915",
        "gpu.intel.com/xe",
    ],
)
def test_pods_ask_for_the_planned_resource_alone(resource: str) -> None:
    """Ray is told their number beside: KubeRay would not know most of the names (kuberay#2354)."""
    asked = {"cpu": "4", "nvidia.com/gpu": "8", "amd.com/gpu": "8", "example.com/nic": "1"}
    spec = spec_of({"pod": {"resources": {"requests": asked, "limits": asked}}})
    cluster = rendered(spec, nodes=[GpuNode(name="a", gpus=4, resource=resource)])
    kept = {"cpu": "4", "example.com/nic": "1", resource: "1"}
    assert main(templates(cluster)["lead"])["resources"] == {"requests": kept, "limits": kept}
    assert cluster["workerGroupSpecs"][0]["rayStartParams"]["num-gpus"] == "1"
    assert not any("gpu" in name for part in main(templates(cluster)["head"])["resources"].values() for name in part)


def test_size_of_shared_memory() -> None:
    found = templates(rendered(spec_of({"pod": {"shmSize": "3Gi"}})))
    sizes = {role: named(item["spec"]["volumes"])["dshm"]["emptyDir"]["sizeLimit"] for role, item in found.items()}
    assert sizes == {"head": "512Mi", "lead": "3Gi"}
    # vllm#7466: 64 MiB, the container runtime's default, kills NCCL
    assert named(templates(rendered(spec_of()))["lead"]["spec"]["volumes"])["dshm"]["emptyDir"]["sizeLimit"] == "16Gi"


def test_the_installation_lies_under_all_that_a_cr_says() -> None:
    chart = {
        "spec": {
            "nodeSelector": {"pool": "chart", "zone": "a"},
            "tolerations": [{"key": "chart"}],
            "containers": [{"name": "vllm", "imagePullPolicy": "Never"}],
        }
    }
    pod = {"nodeSelector": {"pool": "mine"}, "template": {"spec": {"tolerations": [{"key": "mine"}]}}}
    lead = templates(rendered(spec_of({"pod": pod}), defaults=RuntimeDefaults(image="i", pod_template=chart)))["lead"]
    assert lead["spec"]["nodeSelector"] == {"pool": "mine", "zone": "a"}
    assert lead["spec"]["tolerations"] == [{"key": "mine"}]
    assert lead["spec"]["containers"][0]["imagePullPolicy"] == "Never"
    other = templates(rendered(spec_of({}), defaults=RuntimeDefaults(image="i", pod_template=chart)))["lead"]
    assert other["spec"]["tolerations"] == [{"key": "chart"}]


def test_pods_of_unlike_sizes_prefer_their_planned_nodes() -> None:
    spec = samples.spec_of({"parallelism": {"pipeline": 6}, "placement": {}})
    nodes = [GpuNode(name="gpu-a", gpus=4, used=1), GpuNode(name="gpu-b", gpus=4)]
    groups = rendered(spec, nodes=nodes)["workerGroupSpecs"]
    preferred = [
        [
            term["preference"]["matchFields"][0]["values"]
            for term in group["template"]["spec"]["affinity"]["nodeAffinity"][
                "preferredDuringSchedulingIgnoredDuringExecution"
            ]
        ]
        for group in groups
    ]
    assert preferred == [[["gpu-b"]], [["gpu-a"]]]
    assert "podAffinity" in groups[0]["template"]["spec"]["affinity"]
