"""Configurations of daemons: the settings that were paid for, and what keeps two nodes apart."""

from __future__ import annotations

import base64
import json
import tomllib
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
import yaml
from tests.testbed import components, control, render
from tests.testbed.layout import Layout
from tests.testbed.spec import MAX_NODES

FOLDER = Path("/state/run/nodes/gpu-a")
LAYOUT = Layout(cache=Path("/cache"), state=Path("/state"))


def kubelet(index: int, name: str) -> dict[str, object]:
    text = render.kubelet(
        name,
        render.NodeNetwork(index),
        folder=Path("/state/run/nodes", name),
        pki=Path("/state/run/pki"),
        resolv_conf=Path("/state/run/config/resolv.conf"),
        pod_logs=Path("/state/logs/pods", name),
    )
    loaded = yaml.safe_load(text)
    assert isinstance(loaded, dict)
    return loaded


def test_every_address_lies_in_the_range_for_tests_and_the_ranges_do_not_meet() -> None:
    reserved = ip_network("198.18.0.0/15")
    pods, services = ip_network(render.PODS), ip_network(render.SERVICES)
    assert pods.subnet_of(reserved)  # type: ignore[arg-type]
    assert services.subnet_of(reserved)  # type: ignore[arg-type]
    assert not pods.overlaps(services)
    assert ip_address(render.API_SERVICE) in services


def test_addresses_of_the_largest_bed_are_distinct_and_on_the_bridge() -> None:
    networks = [render.NodeNetwork(index) for index in range(MAX_NODES)]
    pods = ip_network(render.PODS)
    taken = {render.GATEWAY}
    for network in networks:
        first, last = ip_address(network.first_pod), ip_address(network.last_pod)
        addresses = {network.address, *(str(ip_address(number)) for number in range(int(first), int(last) + 1))}
        assert not addresses & taken
        assert all(ip_address(address) in pods for address in addresses)
        taken |= addresses


def test_two_kubelets_share_nothing() -> None:
    first, second = kubelet(0, "gpu-a"), kubelet(1, "gpu-b")
    own = ("address", "port", "healthzPort", "cgroupRoot", "containerRuntimeEndpoint", "podLogsDir", "tlsCertFile")
    assert all(first[key] != second[key] for key in own)
    assert {key for key in first if first[key] != second[key]} == {*own, "tlsPrivateKeyFile"}


def test_the_kubelet_runs_without_systemd_swap_control_or_eviction() -> None:
    settings = kubelet(0, "gpu-a")
    assert settings["cgroupDriver"] == "cgroupfs"
    assert settings["enforceNodeAllocatable"] == []
    assert settings["evictionHard"] == {}
    assert (settings["failCgroupV1"], settings["failSwapOn"]) == (False, False)
    assert settings["clusterDNS"] == [render.GATEWAY]


def test_containerd_is_valid_toml_with_folders_of_its_own() -> None:
    settings = tomllib.loads(render.containerd(FOLDER))
    cri = settings["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["restrict_oom_score_adj"] is True
    assert cri["netns_mounts_under_state_dir"] is True
    assert cri["sandbox_image"] == render.PAUSE_IMAGE
    assert cri["containerd"]["runtimes"]["runc"]["options"]["SystemdCgroup"] is False
    paths = (settings["root"], settings["state"], settings["grpc"]["address"], cri["cni"]["conf_dir"])
    assert all(Path(path).is_relative_to(FOLDER) for path in paths)


def test_the_network_of_a_node_gives_addresses_of_its_range_only() -> None:
    settings = json.loads(render.cni("gpu-b", render.NodeNetwork(1), FOLDER / "ipam"))
    ipam = settings["plugins"][0]["ipam"]
    (((only,),)) = ipam["ranges"]
    assert (only["rangeStart"], only["rangeEnd"], only["gateway"]) == ("198.18.2.1", "198.18.2.254", "198.18.0.1")
    assert settings["name"] == "vllm-testbed-gpu-b"


@pytest.mark.parametrize("filtered", [True, False])
def test_kube_proxy_masquerades_when_the_filter_cannot_see_the_bridge(filtered: bool) -> None:
    settings = yaml.safe_load(render.kube_proxy(Path("/k"), "gpu-a", bridge_filtered=filtered))
    assert settings["iptables"]["masqueradeAll"] is not filtered


def test_the_audit_policy_records_changes_once_and_reads_never() -> None:
    policy = yaml.safe_load(render.AUDIT_POLICY)
    assert policy["omitStages"] == ["RequestReceived"]
    first, rest = policy["rules"]
    assert first == {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]}
    assert rest == {"level": "None"}


def test_a_kubeconfig_holds_its_certificates_and_names_only_our_api_server() -> None:
    config = yaml.safe_load(render.kubeconfig(b"authority", b"certificate", b"key"))
    (cluster,) = config["clusters"]
    assert cluster["cluster"]["server"] == "https://127.0.0.1:6443"
    user = config["users"][0]["user"]
    assert base64.b64decode(user["client-key-data"]) == b"key"


def test_the_api_server_finds_kubelets_by_address_and_audits() -> None:
    flags = control.apiserver_flags(LAYOUT)
    assert "--kubelet-preferred-address-types=InternalIP" in flags
    assert "--audit-log-path=/state/logs/audit.log" in flags
    assert "--authorization-mode=Node,RBAC" in flags


def test_kubernetes_programs_know_their_version() -> None:
    flags = {program.name: program.linker_flags for program in components.PROGRAMS}
    assert "version.gitVersion=v1.37.2" in flags["kubelet"]
    assert "version.gitMinor=37" in flags["kube-apiserver"]
    assert "gitVersion" not in flags["etcd"]


def test_every_module_is_pinned() -> None:
    for program in (*components.PROGRAMS, components.KWOK):
        folder = components.MODULES / program.module
        assert (folder / "go.mod").is_file()
        assert program.module == "pause" or (folder / "go.sum").stat().st_size > 1000


def test_the_layout_follows_xdg_and_falls_back_to_home() -> None:
    own = Layout.from_environment({"HOME": "/h", "XDG_CACHE_HOME": "/c", "XDG_STATE_HOME": "/s"})
    assert (own.cache, own.state) == (Path("/c/vllm-operator/testbed"), Path("/s/vllm-operator/testbed"))
    home = Layout.from_environment({"HOME": "/h"})
    assert home.kubeconfig == Path("/h/.local/state/vllm-operator/testbed/run/kubeconfig")
