"""Configuration files of the daemons, as pure functions of where things lie.

Every setting that is not obvious was paid for with a failure; the comment beside it says which.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path

BRIDGE = "vtb0"
# 198.18/15 is reserved for tests of network devices (RFC 2544): no address of a bed can be a real host.
PODS = "198.18.0.0/20"
SERVICES = "198.19.0.0/20"
GATEWAY = "198.18.0.1"
API_SERVICE = "198.19.0.1"
PREFIX = 20
API = "https://127.0.0.1:6443"
DNS_READY = "127.0.0.1:18181"

PAUSE_IMAGE = "localhost/vllm-operator/pause:1"
THIN_IMAGE = "localhost/vllm-operator/thin:1"

AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
- level: None
"""


@dataclass(frozen=True)
class NodeNetwork:
    """Addresses of one node: its own, and the range of its pods, so that an address tells the node.

    Parameters
    ----------
    index
        Place of the node in its bed.
    """

    index: int

    @property
    def address(self) -> str:
        """The node's own address, on the bridge."""
        return f"198.18.0.{10 + self.index}"

    @property
    def first_pod(self) -> str:
        """First address of its pods."""
        return f"198.18.{1 + self.index}.1"

    @property
    def last_pod(self) -> str:
        """Last address of its pods."""
        return f"198.18.{1 + self.index}.254"

    @property
    def kubelet_port(self) -> int:
        """Port of the kubelet's API."""
        return 10250 + 10 * self.index

    @property
    def health_port(self) -> int:
        """Port of the kubelet's health check."""
        return 10248 + 10 * self.index


def cgroup(node: str) -> str:
    """Give the cgroup below which a node's containers run.

    Two kubelets with the same root kill each other's pods as orphans.
    """
    return f"vllm-testbed-{node}"


def cni_network(node: str) -> str:
    """Give the name of a node's CNI network, under which libcni keeps its results."""
    return f"vllm-testbed-{node}"


def kubeconfig(authority: bytes, certificate: bytes, key: bytes) -> str:
    """Write a kubeconfig that holds its certificates."""

    def encoded(data: bytes) -> str:
        return base64.b64encode(data).decode()

    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "testbed", "cluster": {"server": API, "certificate-authority-data": encoded(authority)}}
            ],
            "users": [
                {
                    "name": "testbed",
                    "user": {"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)},
                }
            ],
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "testbed"}}],
            "current-context": "testbed",
        },
        indent=1,
    )


def cni(node: str, network: NodeNetwork, data: Path) -> str:
    """Write the CNI configuration of one node."""
    ipam = {
        "type": "host-local",
        "ranges": [
            [{"subnet": PODS, "rangeStart": network.first_pod, "rangeEnd": network.last_pod, "gateway": GATEWAY}]
        ],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(data),
    }
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": ipam,
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "1.0.0", "name": cni_network(node), "plugins": [bridge, ports]}, indent=1)


def containerd(folder: Path) -> str:
    """Write the configuration of one node's containerd."""
    return f"""\
version = 2
root = "{folder}/root"
state = "{folder}/state"
# Bind-mounted volumes of a bed on a small machine are slow to unmount under load.
[timeouts]
  "io.containerd.timeout.shim.cleanup" = "20s"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Without CAP_SYS_RESOURCE a negative oom_score_adj is refused and runc dies of it ("can't get final child's PID").
  restrict_oom_score_adj = true
  # Below our own folder instead of /run/netns: what lies there is ours to unmount.
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


def kubelet(node: str, network: NodeNetwork, *, folder: Path, pki: Path, resolv_conf: Path, pod_logs: Path) -> str:
    """Write the configuration of one kubelet (JSON is YAML)."""
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": network.address,
            "port": network.kubelet_port,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": network.health_port,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{pki}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{pki}/node-{node}.crt",
            "tlsPrivateKeyFile": f"{pki}/node-{node}.key",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{cgroup(node)}",
            "failCgroupV1": False,
            "enforceNodeAllocatable": [],
            "clusterDNS": [GATEWAY],
            "clusterDomain": "cluster.local",
            "resolvConf": str(resolv_conf),
            "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
            # In the default folder each kubelet would delete the other's logs as orphans.
            "podLogsDir": str(pod_logs),
            "failSwapOn": False,
            "evictionHard": {},
            "imageGCHighThresholdPercent": 100,
            "serializeImagePulls": False,
        },
        indent=1,
    )


def kube_proxy(kubeconfig_path: Path, node: str, *, bridge_filtered: bool) -> str:
    """Write the configuration of kube-proxy.

    Without bridge filtering, an answer from a pod of the same bridge would pass by the translation of its Service
    address; masquerading makes every answer come back through the host.
    """
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(kubeconfig_path)},
            "mode": "iptables",
            "iptables": {"masqueradeAll": not bridge_filtered},
            "hostnameOverride": node,
            "clusterCIDR": PODS,
            # Raising conntrack's limits is refused inside containers and small machines.
            "conntrack": {"maxPerCore": 0},
            "metricsBindAddress": "127.0.0.1:10249",
            "healthzBindAddress": "127.0.0.1:10256",
        },
        indent=1,
    )


def corefile(kubeconfig_path: Path) -> str:
    """Write CoreDNS's configuration: the cluster's names, and a quick "no such name" for all others."""
    return f"""\
cluster.local:53 in-addr.arpa:53 {{
  bind {GATEWAY}
  errors
  ready {DNS_READY}
  kubernetes cluster.local in-addr.arpa {{
    endpoint {API}
    kubeconfig {kubeconfig_path}
    pods insecure
  }}
  cache 2
}}
.:53 {{
  bind {GATEWAY}
  errors
  template ANY ANY {{
    rcode NXDOMAIN
  }}
}}
"""
