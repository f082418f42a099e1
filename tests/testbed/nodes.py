"""Nodes: a containerd and a kubelet each, that share nothing but the kernel and the bridge.

Two faults are told apart, because the right answers to them differ.  *Machine gone*: everything on the node is killed
and its addresses fall silent.  *Kubelet stopped*: the node turns NotReady while its containers go on serving.
"""

from __future__ import annotations

import json
from pathlib import Path

from . import cgroups, control, mounts, pki, render
from .errors import BedError
from .kube import Kubectl
from .layout import Layout
from .process import Daemons, ProcessId, command_line, end, marked, run
from .spec import BedSpec, NodeSpec
from .waiting import wait_for

_MAX_SOCKET = 107
"""The kernel's limit for the path of a Unix socket."""


def containerd_name(node: str) -> str:
    """Name the daemon."""
    return f"containerd-{node}"


def kubelet_name(node: str) -> str:
    """Name the daemon."""
    return f"kubelet-{node}"


def socket(layout: Layout, node: str) -> Path:
    """Give the path of a node's containerd socket."""
    return layout.node(node) / "containerd.sock"


def prepare(layout: Layout, spec: BedSpec, node: NodeSpec) -> None:
    """Make certificates, configuration and cgroups of a node."""
    network = render.NodeNetwork(spec.index(node.name))
    folder = layout.node(node.name)
    if len(str(socket(layout, node.name))) > _MAX_SOCKET:
        raise BedError(f"{socket(layout, node.name)}: too long for a socket; set XDG_STATE_HOME to a shorter path")
    (folder / "cni").mkdir(parents=True, exist_ok=True)
    identity = f"node-{node.name}"
    alternatives = (f"DNS:{node.name}", f"IP:{network.address}")
    pki.issue(layout.pki, identity, f"/O=system:nodes/CN=system:node:{node.name}", alternatives)
    control.write_kubeconfig(layout, identity, folder / "kubeconfig")
    pod_logs = layout.pod_logs(node.name)
    pod_logs.mkdir(parents=True, exist_ok=True)
    files = {
        "containerd.toml": render.containerd(folder),
        "cni/10-testbed.conflist": render.cni(node.name, network, folder / "ipam"),
        "kubelet.yaml": render.kubelet(
            node.name,
            network,
            folder=folder,
            pki=layout.pki,
            resolv_conf=layout.config / "resolv.conf",
            pod_logs=pod_logs,
        ),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    cgroups.create(node.name)


def start_runtime(layout: Layout, node: str) -> None:
    """Start containerd."""
    name = containerd_name(node)
    Daemons(layout).start(name, ["containerd", "--config", layout.node(node) / "containerd.toml"])


def await_runtime(layout: Layout, node: str) -> None:
    """Wait until containerd answers."""

    def answers() -> bool:
        return bool(ctr(layout, node, "version"))

    Daemons(layout).await_ready(containerd_name(node), f"containerd of {node}", answers)


def ctr(layout: Layout, node: str, *args: str | Path) -> str:
    """Run ``ctr`` against a node's containerd."""
    return run(["ctr", "--address", socket(layout, node), "--namespace", "k8s.io", *args])


def import_image(layout: Layout, node: str, archive: Path) -> None:
    """Make the images of an archive known on a node; do nothing when this very archive was imported before."""
    facts = archive.stat()
    mark = layout.node(node) / "imported" / f"{archive.name}-{facts.st_ino}-{facts.st_size}-{facts.st_mtime_ns}"
    if mark.exists():
        return
    ctr(layout, node, "images", "import", archive)
    mark.parent.mkdir(exist_ok=True)
    mark.touch()


def start_kubelet(layout: Layout, spec: BedSpec, node: NodeSpec) -> None:
    """Start the kubelet; it registers the node with its labels."""
    folder = layout.node(node.name)
    command: list[str | Path] = [
        layout.bin / "kubelet",
        f"--config={folder}/kubelet.yaml",
        f"--kubeconfig={folder}/kubeconfig",
        f"--hostname-override={node.name}",
        f"--root-dir={folder}/kubelet",
        f"--node-ip={render.NodeNetwork(spec.index(node.name)).address}",
    ]
    if node.labels:
        command.append("--node-labels=" + ",".join(f"{key}={value}" for key, value in node.labels.items()))
    Daemons(layout).start(kubelet_name(node.name), command)


def await_ready(layout: Layout, node: NodeSpec, *, since: str = "") -> None:
    """Wait until a node is Ready and its GPUs can be scheduled.

    Parameters
    ----------
    layout
        The bed.
    node
        The node.
    since
        Heartbeat that a started kubelet must have replaced; what a stopped one said last does not count.
    """
    kubectl = Kubectl(layout)

    def is_ready() -> bool:
        status, beat = _ready(kubectl, node.name)
        return status == "True" and beat != since

    Daemons(layout).await_ready(kubelet_name(node.name), f"node {node.name} to be Ready", is_ready, 90.0)
    if node.gpus:
        wait_for(f"the GPUs of {node.name}", lambda: _give_gpus(kubectl, node), 30.0)


def heartbeat(layout: Layout, node: str) -> str:
    """Give the time of a node's last word about itself."""
    return _ready(Kubectl(layout), node)[1]


def _ready(kubectl: Kubectl, node: str) -> tuple[str, str]:
    for condition in kubectl.json("get", "node", node)["status"].get("conditions", []):
        if condition["type"] == "Ready":
            return str(condition["status"]), str(condition["lastHeartbeatTime"])
    return "", ""


def _give_gpus(kubectl: Kubectl, node: NodeSpec) -> bool:
    wanted = str(node.gpus)
    status = kubectl.json("get", "node", node.name)["status"]
    if all(status[part].get("nvidia.com/gpu") == wanted for part in ("capacity", "allocatable")):
        return True
    patch = [
        {"op": "add", "path": f"/status/{part}/nvidia.com~1gpu", "value": wanted}
        for part in ("capacity", "allocatable")
    ]
    kubectl("patch", "node", node.name, "--subresource=status", "--type=json", "--patch", json.dumps(patch))
    return False  # seen again before it is believed: the kubelet may have written at the same time


def stop_kubelet(layout: Layout, node: str) -> None:
    """Stop the kubelet only; containers go on serving."""
    Daemons(layout).stop(kubelet_name(node))


def kill(layout: Layout, node: str) -> None:
    """Kill everything on a node, as when its machine is switched off.

    The kubelet goes first, or it would restart what dies.  Without their network namespaces the pods' addresses fall
    silent, instead of refusing connections as a living machine would.
    """
    daemons = Daemons(layout)
    daemons.stop(kubelet_name(node), grace=0.0)
    daemons.stop(containerd_name(node), grace=0.0)
    end(shims(layout, node), grace=0.0)
    cgroups.kill(node)
    mounts.remove_tree(layout.node(node) / "state")  # on a real machine it lies in memory
    mounts.unmount_below(layout.node(node))


def shims(layout: Layout, node: str) -> list[ProcessId]:
    """Give the shims of a node: they outlive their containerd, which is what they are for."""
    address = f"-address {socket(layout, node)}"
    return [process for process in marked(layout) if address in command_line(process)]
