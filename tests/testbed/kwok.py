"""kwok: nodes without a machine, by the hundred, whose pods run as soon as they are bound.

Where only the control plane is asked (does the scheduler find a node, does an operator bear a thousand engines), a
kubelet a node would be a waste.  kwok renews the Lease of such a node, keeps it Ready, and says of its pods that they
run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import components
from .layout import Layout
from .process import Command, Daemons
from .waiting import answers

DAEMON = "kwok"
LABEL = "kwok.x-k8s.io/node"
"""Nodes with it, set to ``fake``, are played.  (An annotation that a node gets later would not be seen.)"""

_SERVER = "127.0.0.1:18083"
# In the range that is reserved for tests, beside the bed's own networks: nobody answers there.
_NODE_ADDRESS = "198.18.127.1"
_PODS = "198.18.128.0/17"


def start(layout: Layout) -> None:
    """Start kwok and wait until it is healthy; build it when it is not there."""
    components.build_kwok(layout)
    daemons = Daemons(layout)
    command: Command = [
        layout.bin / "kwok",
        f"--kubeconfig={layout.kubeconfig}",
        f"--server-address={_SERVER}",
        f"--manage-nodes-with-label-selector={LABEL}=fake",
        f"--node-ip={_NODE_ADDRESS}",
        f"--cidr={_PODS}",
        # A quarter of it passes between two renewals; Kubernetes gives up after 50 s.
        "--node-lease-duration-seconds=100",
        "--v=WARN",  # otherwise a line for every node and pod
        *(f"--config={path}" for path in sorted(components.stages(layout).glob("*.yaml"))),
    ]
    daemons.start(DAEMON, command)
    daemons.await_ready(DAEMON, "kwok to be healthy", lambda: answers(f"http://{_SERVER}/healthz"))


def stop(layout: Layout) -> None:
    """Stop kwok; nobody ends the pods of its nodes after that."""
    Daemons(layout).stop(DAEMON)


def node(
    name: str,
    *,
    gpus: int,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    cordoned: bool = False,
    ready: bool = True,
) -> dict[str, Any]:
    """Give a Node object with CPU and memory for anything.

    Parameters
    ----------
    gpus
        Allocatable ``nvidia.com/gpu``.
    ready
        Whether kwok plays it; of a node that nobody plays Kubernetes says that it is not ready.
    """
    own = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **({LABEL: "fake"} if ready else {})}
    room = {"cpu": "512", "memory": "4Ti", "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**own, **(labels or {})}},
        "spec": {"taints": [dict(item) for item in taints], "unschedulable": cordoned},
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "False", "reason": "NotPlayed", "message": "not played yet"}],
        },
    }
