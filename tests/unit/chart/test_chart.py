"""The Helm chart, rendered: what a matrix of values makes of it, and that no value and no right is without effect."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.resources import samples

from vllm_operator.api.identity import CRD_NAME
from vllm_operator.runtime.settings import ProcessSettings

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm" / "vllm-operator"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())

Object = dict[str, Any]
Right = tuple[str, str, str]


class RefusedError(Exception):
    """Helm does not render the chart with these values."""


class Rendered:
    """Objects of one rendering."""

    def __init__(self, documents: list[Object]) -> None:
        self.documents = documents

    def all(self, kind: str) -> list[Object]:
        return [document for document in self.documents if document["kind"] == kind]

    def one(self, kind: str, name: str = "vllm-operator", namespace: str | None = None) -> Object:
        (only,) = (
            document
            for document in self.all(kind)
            if document["metadata"]["name"] == name
            and (namespace is None or document["metadata"].get("namespace") == namespace)
        )
        return only

    @property
    def kinds(self) -> set[str]:
        return {document["kind"] for document in self.documents}

    @property
    def pod(self) -> Object:
        pod: Object = self.one("Deployment")["spec"]["template"]["spec"]
        return pod

    @property
    def config(self) -> Object:
        config: Object = yaml.safe_load(self.one("ConfigMap")["data"]["config.yaml"])
        # The operator refuses to start with what it does not know.
        ProcessSettings.model_validate(config)
        return config


Render = Callable[..., Rendered]


@pytest.fixture(scope="session")
def helm() -> str:
    binary = os.environ.get("HELM") or shutil.which("helm")
    if binary:
        return binary
    if os.environ.get("CI"):
        pytest.fail("no helm: set HELM to the binary that the test bed builds, or put it on PATH")
    pytest.skip("no helm: set HELM to the binary that the test bed builds (make test does), or put it on PATH")


@pytest.fixture
def render(helm: str, tmp_path: Path) -> Render:
    def rendered(values: Object | None = None, *, release: str = "vllm-operator") -> Rendered:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(values or {}))
        command = [helm, "template", release, str(CHART), "--namespace", "system", "--values", str(file)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if run.returncode:
            raise RefusedError(run.stderr)
        return Rendered([document for document in yaml.safe_load_all(run.stdout) if document])

    return rendered


def test_lint(helm: str) -> None:
    run = subprocess.run([helm, "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False)  # noqa: S603
    assert run.returncode == 0, run.stdout + run.stderr


def test_version_is_the_project_s() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert chart["version"] == chart["appVersion"] == project


def test_defaults(render: Render) -> None:
    chart = render()
    assert chart.kinds == {
        "ClusterRole",
        "ClusterRoleBinding",
        "ConfigMap",
        "CustomResourceDefinition",
        "Deployment",
        "Role",
        "RoleBinding",
        "Service",
        "ServiceAccount",
    }
    (container,) = chart.pod["containers"]
    assert container["image"] == "vllm-operator:0.1.0"
    assert container["args"] == ["run", "--config", "/etc/vllm-operator/config.yaml"]
    assert [variable["name"] for variable in container["env"]] == ["POD_NAME", "POD_NAMESPACE"]
    assert chart.one("Deployment")["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
    }
    # Kubernetes names the probes' and the Service's port: they must be there.
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {"probes": 8080, "metrics": 9090}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "probes"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "probes"}


def test_selectors_select_the_pod(render: Render) -> None:
    chart = render(
        {"podDisruptionBudget": {"enabled": True}, "networkPolicy": {"enabled": True}, "podLabels": {"a": "b"}}
    )
    deployment = chart.one("Deployment")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert labels["a"] == "b"
    for selector in (
        deployment["selector"]["matchLabels"],
        chart.one("Service", "vllm-operator-metrics")["spec"]["selector"],
        chart.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        chart.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()


def test_runs_with_as_little_as_possible(render: Render) -> None:
    pod = render().pod
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is True
    assert "limits" in container["resources"]
    assert all(mount["mountPath"] == "/tmp" or mount.get("readOnly") for mount in container["volumeMounts"])  # noqa: S108


def test_config_of_the_defaults(render: Render) -> None:
    assert render().config == {
        "watchNamespaces": [],
        "concurrency": 8,
        "resyncSeconds": 300,
        "logging": {"level": "info", "format": "json"},
        "leaderElection": {
            "enabled": True,
            "leaseName": "vllm-operator",
            "leaseDurationSeconds": 15,
            "renewDeadlineSeconds": 10,
            "retryPeriodSeconds": 2,
        },
        "probes": {"port": 8080},
        "metrics": {"port": 9090},
        "runtime": {"image": "", "rayVersion": "2.60.0", "podTemplate": {}},
        "deadlines": {},
        "recovery": {"backoffSeconds": 5, "maxBackoffSeconds": 300, "unscheduledSeconds": 180},
        "accelerators": [],
        "hub": {"enabled": True, "endpoint": "https://huggingface.co"},
    }


def test_defaults_are_the_operator_s_own(render: Render) -> None:
    read, own = ProcessSettings.model_validate(render().config), ProcessSettings()
    assert read.model_copy(update={"logging": own.logging}) == own


def test_config_of_the_user(render: Render) -> None:
    template = {
        "metadata": {"annotations": {"a": "{{ not a template }}"}},
        "spec": {
            "containers": [{"name": "vllm", "env": [{"name": "A", "value": "1"}]}],
            "securityContext": {"runAsUser": 1000660000},
            "volumes": [{"name": "models", "hostPath": {"path": "/models"}}],
        },
    }
    chart = render(
        {
            "watchNamespaces": ["a", "b"],
            "concurrency": 2,
            "logging": {"level": "debug", "format": "text"},
            "metrics": {"enabled": False},
            "runtime": {"image": "r/vllm-ray:1", "rayVersion": "2.61.0", "podTemplate": template},
            "deadlines": {"load": 3600, "rayNodes": 90.5},
            "recovery": {"backoffSeconds": 1},
            "accelerators": [{"product": "*X*", "memoryGib": 24, "price": 0.5, "classes": ["small"]}],
            "hub": {"enabled": False, "endpoint": "http://mirror.example:8080/hf"},
        }
    )
    config = chart.config
    assert config["hub"] == {"enabled": False, "endpoint": "http://mirror.example:8080/hf"}
    assert config["runtime"] == {"image": "r/vllm-ray:1", "rayVersion": "2.61.0", "podTemplate": template}
    assert config["watchNamespaces"] == ["a", "b"]
    assert config["deadlines"] == {"load": 3600, "rayNodes": 90.5}
    assert config["recovery"] == {"backoffSeconds": 1, "maxBackoffSeconds": 300, "unscheduledSeconds": 180}
    assert config["logging"] == {"level": "debug", "format": "text"}
    assert config["metrics"] == {"port": 0}


def test_a_changed_configuration_restarts_the_operator(render: Render) -> None:
    def checksum(values: Object) -> Any:
        return render(values).one("Deployment")["spec"]["template"]["metadata"]["annotations"]["checksum/config"]

    assert checksum({}) == checksum({"replicaCount": 2})
    assert checksum({}) != checksum({"runtime": {"podTemplate": {"spec": {"hostNetwork": True}}}})


def test_image(render: Render) -> None:
    def image(**values: str) -> Any:
        return render({"image": {"repository": "r/o", **values}}).pod["containers"][0]["image"]

    digest = "sha256:" + "0" * 64
    assert image() == "r/o:0.1.0"
    assert image(tag="2") == "r/o:2"
    assert image(tag="2", digest=digest) == f"r/o@{digest}"


def test_without_leader_election_two_never_run(render: Render) -> None:
    off = {"leaderElection": {"enabled": False}}
    chart = render(off)
    assert chart.one("Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    assert chart.config["leaderElection"]["enabled"] is False
    assert chart.all("Role") == []
    with pytest.raises(RefusedError, match="replicaCount above 1 needs leaderElection"):
        render(off | {"replicaCount": 2})


def test_lease_times_must_make_sense(render: Render) -> None:
    with pytest.raises(RefusedError, match="leaseDurationSeconds > renewDeadlineSeconds"):
        render({"leaderElection": {"leaseDurationSeconds": 5}})


def test_crd(render: Render) -> None:
    keep = render().one("CustomResourceDefinition", CRD_NAME)
    assert keep["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    committed = yaml.safe_load((ROOT / "crds" / f"{CRD_NAME}.yaml").read_text())
    assert keep["spec"] == committed["spec"]
    assert "annotations" not in render({"crds": {"keep": False}}).one("CustomResourceDefinition", CRD_NAME)["metadata"]
    assert render({"crds": {"enabled": False}}).all("CustomResourceDefinition") == []


def test_metrics(render: Render) -> None:
    chart = render(
        {"metrics": {"port": 9999, "serviceMonitor": {"enabled": True, "additionalLabels": {"release": "p"}}}}
    )
    assert chart.one("Service", "vllm-operator-metrics")["spec"]["ports"][0]["port"] == 9999
    assert chart.config["metrics"]["port"] == 9999
    monitor = chart.one("ServiceMonitor")
    assert monitor["metadata"]["labels"]["release"] == "p"
    service = chart.one("Service", "vllm-operator-metrics")["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service.items()
    off = render(
        {"metrics": {"enabled": False, "serviceMonitor": {"enabled": True}}, "networkPolicy": {"enabled": True}}
    )
    assert not off.kinds & {"Service", "ServiceMonitor"}
    assert off.one("NetworkPolicy")["spec"]["ingress"] == []


def test_engines_are_scraped_by_the_labels_and_the_port_of_their_lead_pods(render: Render) -> None:
    on = {"enabled": True, "interval": "5s", "additionalLabels": {"release": "p"}}
    monitor = render({"engines": {"podMonitor": on}}).one("PodMonitor", "vllm-operator-engines")
    assert monitor["metadata"]["labels"]["release"] == "p"
    spec = monitor["spec"]
    assert spec["namespaceSelector"] == {"any": True}
    cluster = samples.rendered(samples.spec_of(samples.TYPICAL))
    lead = cluster["workerGroupSpecs"][0]["template"]
    assert spec["selector"]["matchLabels"].items() <= lead["metadata"]["labels"].items()
    assert set(spec["podTargetLabels"]) <= set(lead["metadata"]["labels"])
    [endpoint] = spec["podMetricsEndpoints"]
    ports = {port["name"] for container in lead["spec"]["containers"] for port in container.get("ports", ())}
    assert endpoint["port"] in ports
    some = render({"watchNamespaces": ["a", "b"], "engines": {"podMonitor": on}}).one(
        "PodMonitor", "vllm-operator-engines"
    )
    assert some["spec"]["namespaceSelector"] == {"matchNames": ["a", "b"]}


def test_disruption_budget(render: Render) -> None:
    def spec(**values: Any) -> Any:
        return render({"podDisruptionBudget": {"enabled": True, **values}}).one("PodDisruptionBudget")["spec"]

    assert spec()["maxUnavailable"] == 1
    assert spec(minAvailable="50%")["minAvailable"] == "50%"
    assert "maxUnavailable" not in spec(minAvailable=1)


def test_service_account_of_the_user(render: Render) -> None:
    chart = render({"serviceAccount": {"create": False, "name": "mine"}})
    assert chart.all("ServiceAccount") == []
    assert chart.pod["serviceAccountName"] == "mine"
    bindings = [*chart.all("ClusterRoleBinding"), *chart.all("RoleBinding")]
    assert {binding["subjects"][0]["name"] for binding in bindings} == {"mine"}


def test_names_follow_the_release(render: Render) -> None:
    assert render(release="x").one("Deployment", "x-vllm-operator")
    assert render({"fullnameOverride": "mine"}).one("Deployment", "mine")
    assert render({"nameOverride": "z"}, release="x").one("Deployment", "x-z")


def test_pass_through(render: Render) -> None:
    values = {
        "imagePullSecrets": [{"name": "s"}],
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"a": "b"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [{"maxSkew": 1}],
        "terminationGracePeriodSeconds": 7,
    }
    extra: dict[str, list[Object]] = {
        "extraEnv": [{"name": "A", "value": "1"}],
        "extraVolumes": [{"name": "v", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True}],
    }
    pod = render(values | extra).pod
    assert {key: pod[key] for key in values} == values
    assert extra["extraEnv"][0] in pod["containers"][0]["env"]
    assert extra["extraVolumes"][0] in pod["volumes"]
    assert extra["extraVolumeMounts"][0] in pod["containers"][0]["volumeMounts"]


# -- rights ----------------------------------------------------------------------------------------------------


def rights(rules: list[Object]) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def documented(where: str) -> set[Right]:
    """Read the table of docs/security.md."""
    found = set()
    for line in (ROOT / "docs" / "security.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 5 or cells[3] != where:
            continue
        group, resource, verbs, _, why = cells
        assert why, f"{resource}: a right needs a reason"
        resource = resource.split(" ", 1)[0]
        found |= {("" if group == "core" else group, resource, verb) for verb in verbs.split(", ")}
    assert found
    return found


def test_rights_everywhere_are_those_of_the_table(render: Render) -> None:
    chart = render()
    assert rights(chart.one("ClusterRole")["rules"]) == documented("watched") | documented("cluster")
    binding = chart.one("ClusterRoleBinding")
    assert binding["roleRef"]["name"] == "vllm-operator"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "vllm-operator", "namespace": "system"}]


def test_rights_in_some_namespaces_are_those_of_the_table(render: Render) -> None:
    chart = render({"watchNamespaces": ["a", "b"]})
    assert rights(chart.one("ClusterRole")["rules"]) == documented("cluster")
    for namespace in ("a", "b"):
        assert rights(chart.one("Role", namespace=namespace)["rules"]) == documented("watched")
        binding = chart.one("RoleBinding", namespace=namespace)
        assert binding["roleRef"] == {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "Role",
            "name": "vllm-operator",
        }
        assert binding["subjects"][0]["namespace"] == "system"


def test_rights_to_the_lease(render: Render) -> None:
    role = render({"leaderElection": {"leaseName": "mine"}}).one("Role", "vllm-operator-leader-election", "system")
    assert rights(role["rules"]) == documented("own")
    assert [rule.get("resourceNames") for rule in role["rules"]] == [None, ["mine"]]


def test_no_right_is_without_bounds(render: Render) -> None:
    chart = render({"watchNamespaces": ["a"]})
    for role in [*chart.all("ClusterRole"), *chart.all("Role")]:
        for group, resource, verb in rights(role["rules"]):
            assert "*" not in group + resource + verb
            assert verb not in {"escalate", "bind", "impersonate"}
    assert not {("", "secrets", verb) for verb in ("list", "watch")} & documented("watched")


def test_whose_secrets_are_read_by_value_is_documented() -> None:
    lines = (ROOT / "docs" / "security.md").read_text().splitlines()
    (right,) = (line for line in lines if line.startswith("| core | secrets |"))
    assert "the value of `model.hfTokenSecret`" in right
    (row,) = (line for line in lines if line.startswith("| `model.hfTokenSecret` |"))
    assert "operator" in row.split("|")[3]


def test_users_rights_are_aggregated(render: Render) -> None:
    chart = render()
    view, edit = chart.one("ClusterRole", "vllm-operator-view"), chart.one("ClusterRole", "vllm-operator-edit")

    def goes_to(role: Object) -> set[str]:
        prefix = "rbac.authorization.k8s.io/aggregate-to-"
        return {label.removeprefix(prefix) for label in role["metadata"]["labels"] if label.startswith(prefix)}

    assert goes_to(view) == {"view", "edit", "admin"}
    assert goes_to(edit) == {"edit", "admin"}
    assert {verb for _, _, verb in rights(view["rules"])} == {"get", "list", "watch"}
    assert ("vllm-operator.io", "vllmdeployments/status", "patch") not in rights(edit["rules"])
    assert len(render({"rbac": {"aggregateClusterRoles": False}}).all("ClusterRole")) == 1


def test_rights_of_the_user(render: Render) -> None:
    assert not render({"rbac": {"create": False}}).kinds & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}


# -- values ----------------------------------------------------------------------------------------------------


def leaves(values: Object, path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{path}.{key}")
        else:
            yield f"{path}.{key}", value


TEMPLATES = "\n".join(file.read_text() for file in sorted((CHART / "templates").rglob("*")) if file.is_file())
USED = set(re.findall(r"\.Values((?:\.[A-Za-z]+)+)", TEMPLATES))


@pytest.mark.parametrize("path", [path for path, _ in leaves(VALUES)])
def test_every_value_is_used(path: str) -> None:
    prefixes = {".".join(path.split(".")[:end]) for end in range(2, path.count(".") + 2)}
    assert prefixes & USED


def test_every_value_that_is_used_is_there() -> None:
    known = {path for path, _ in leaves(VALUES)}
    for path in USED:
        assert any(leaf == path or leaf.startswith(f"{path}.") for leaf in known), f".Values{path}"


def test_every_value_is_explained() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    assert lines[0].startswith("# ")
    for name in ("watchNamespaces", "concurrency", "runtime", "deadlines", "recovery", "hub"):
        assert lines[lines.index(next(line for line in lines if line.startswith(f"{name}:"))) - 1].startswith("#"), name


def test_schema_knows_exactly_the_values() -> None:
    def compare(values: Object, schema: Object, path: str) -> None:
        if "properties" not in schema:
            return
        assert schema["additionalProperties"] is False, path
        if values:
            assert values.keys() == schema["properties"].keys() - {"global"}, path
        for key, value in values.items():
            if isinstance(value, dict):
                compare(value, schema["properties"][key], f"{path}.{key}")

    compare(VALUES, SCHEMA, "")


@pytest.mark.parametrize(
    "values",
    [
        {"replicas": 2},
        {"image": {"name": "x"}},
        {"runtime": {"podTemplate": {"containers": []}}},
        {"deadlines": {"loading": 1}},
        {"deadlines": {"load": 0}},
        {"concurrency": 0},
        {"hub": {"endpoint": "huggingface.co"}},
        {"hub": {"endpoint": "https://user:password@mirror"}},
        {"hub": {"token": "hf_x"}},
        {"logging": {"level": "INFO"}},
        {"watchNamespaces": "a"},
        {"watchNamespaces": ["A"]},
        {"image": {"digest": "latest"}},
        {"metrics": {"serviceMonitor": {"interval": 30}}},
    ],
    ids=json.dumps,
)
def test_schema_refuses(render: Render, values: Object) -> None:
    with pytest.raises(RefusedError):
        render(values)


def test_a_parent_chart_may_set_global(render: Render) -> None:
    assert render({"global": {"imageRegistry": "r"}})
