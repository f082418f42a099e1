"""The real KubeRay operator, as a host process, and its CRDs."""

from __future__ import annotations

from . import components
from .kube import Kubectl
from .layout import Layout
from .process import Command, Daemons
from .waiting import answers

DAEMON = "kuberay"
_HEALTH = "127.0.0.1:18082"


def install(layout: Layout) -> None:
    """Create the CRDs and start the operator; nothing happens to what is there already."""
    kubectl = Kubectl(layout)
    if not _crds(kubectl):
        # Not "apply": the CRDs are longer than its annotation may be.
        kubectl("create", "-f", str(components.crds(layout)))
    # Before the CRDs are served the operator would log errors until it retries.
    kubectl("wait", "--for=condition=Established", "--timeout=60s", *_crds(kubectl))
    start(layout)


def uninstall(layout: Layout) -> None:
    """Stop the operator and delete the CRDs, and with them every Ray object."""
    stop(layout)
    kubectl = Kubectl(layout)
    found = _crds(kubectl)
    if found:
        kubectl("delete", "--wait=true", "--timeout=90s", *found)


def start(layout: Layout) -> None:
    """Start the operator and wait until it is healthy."""
    daemons = Daemons(layout)
    command: Command = [
        layout.bin / "kuberay-operator",
        "--enable-leader-election=false",
        "--metrics-addr=127.0.0.1:18080",
        f"--health-probe-bind-address={_HEALTH}",
        "--reconcile-concurrency=2",
    ]
    daemons.start(DAEMON, command, env={"KUBECONFIG": str(layout.kubeconfig)})
    daemons.await_ready(DAEMON, "KubeRay to be healthy", lambda: answers(f"http://{_HEALTH}/readyz"))


def stop(layout: Layout) -> None:
    """Stop the operator; Ray objects and their pods stay."""
    Daemons(layout).stop(DAEMON)


def _crds(kubectl: Kubectl) -> list[str]:
    names = kubectl("get", "crd", "-o", "name").split()
    return [name for name in names if name.endswith(".ray.io")]
