"""The control plane: etcd, API server, controller manager, scheduler, DNS and kube-proxy, as host processes.

On the host they need no image, are up in seconds, and their logs are files.  They talk to the API server over
loopback; only pods use its Service.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from . import network, pki, render
from .errors import BedError
from .kube import Kubectl
from .layout import Layout
from .process import Daemons
from .spec import BedSpec
from .waiting import answers, wait_for

# Order of stopping: whoever writes to the API server ends before it, and it ends before etcd, or it would hang.
DAEMONS = ("kube-proxy", "coredns", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")

# By themselves they make 20 and 50 requests a second: a test with a thousand nodes and pods would wait for minutes.
_IMPATIENT = ("--kube-api-qps=500", "--kube-api-burst=1000")


def prepare(layout: Layout, spec: BedSpec) -> None:
    """Make keys, certificates and configuration files."""
    pki.make_authority(layout.pki)
    addresses = ("127.0.0.1", render.GATEWAY, render.API_SERVICE)
    names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
    alternatives = [*(f"DNS:{name}" for name in names), *(f"IP:{address}" for address in addresses)]
    pki.issue(layout.pki, "apiserver", "/CN=kube-apiserver", alternatives)
    pki.issue(layout.pki, "admin", "/O=system:masters/CN=admin")
    write_kubeconfig(layout, "admin", layout.kubeconfig)
    layout.config.mkdir(parents=True, exist_ok=True)
    files = {
        "audit-policy.yaml": render.AUDIT_POLICY,
        "Corefile": render.corefile(layout.kubeconfig),
        "resolv.conf": f"nameserver {render.GATEWAY}\n",
        "kube-proxy.yaml": render.kube_proxy(
            layout.kubeconfig, spec.nodes[0].name, bridge_filtered=network.bridge_filter_available()
        ),
    }
    for name, text in files.items():
        (layout.config / name).write_text(text, encoding="utf-8")


def write_kubeconfig(layout: Layout, identity: str, target: Path) -> None:
    """Write the kubeconfig of one identity."""
    parts = (layout.pki / "ca.crt", layout.pki / f"{identity}.crt", layout.pki / f"{identity}.key")
    target.write_text(render.kubeconfig(*(path.read_bytes() for path in parts)), encoding="utf-8")
    target.chmod(0o600)


def start_api(layout: Layout) -> None:
    """Start etcd and the API server, and wait until it answers."""
    daemons = Daemons(layout)
    # On a cluster they have a machine of their own.  Here pods that start engines would hold them up for seconds, and
    # an operator that hears nothing for ten gives up its Lease.
    daemons.start("etcd", [layout.bin / "etcd", *etcd_flags(layout)], urgent=True)
    daemons.start("kube-apiserver", [layout.bin / "kube-apiserver", *apiserver_flags(layout)], urgent=True)
    daemons.await_ready("kube-apiserver", "the API server to be ready", lambda: ready(layout), 90.0)


def start_controllers(layout: Layout) -> None:
    """Start what needs the API server; CoreDNS is awaited, since Ray's workers look up their head by name."""
    daemons = Daemons(layout)
    config = f"--kubeconfig={layout.kubeconfig}"
    local = ("--leader-elect=false", "--bind-address=127.0.0.1", *_IMPATIENT)
    manager = (
        f"--service-account-private-key-file={layout.pki}/sa.key",
        f"--root-ca-file={layout.pki}/ca.crt",
        "--use-service-account-credentials=true",
    )
    daemons.start("kube-controller-manager", [layout.bin / "kube-controller-manager", config, *local, *manager])
    daemons.start("kube-scheduler", [layout.bin / "kube-scheduler", config, *local])
    daemons.start("coredns", [layout.bin / "coredns", "-conf", layout.config / "Corefile"])
    daemons.start("kube-proxy", [layout.bin / "kube-proxy", f"--config={layout.config}/kube-proxy.yaml"])


def await_controllers(layout: Layout) -> None:
    """Wait until names resolve, Services are routed and pods can have a service account."""
    kubectl = Kubectl(layout)
    daemons = Daemons(layout)
    for name, url in (
        ("coredns", f"http://{render.DNS_READY}/ready"),
        ("kube-proxy", "http://127.0.0.1:10256/healthz"),
    ):
        daemons.await_ready(name, f"{name} to be ready", partial(answers, url))
    wait_for("the default service account", lambda: kubectl("get", "serviceaccount", "default"), 60.0)


def etcd_flags(layout: Layout) -> list[str]:
    """Give etcd's flags; a bed that crashes is rebuilt, so nothing is synced to disk."""
    return [
        f"--data-dir={layout.run}/etcd",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",
    ]


def apiserver_flags(layout: Layout) -> list[str]:
    """Give the API server's flags."""
    return [
        "--etcd-servers=http://127.0.0.1:2379",
        f"--service-cluster-ip-range={render.SERVICES}",
        f"--advertise-address={render.GATEWAY}",
        "--secure-port=6443",
        f"--tls-cert-file={layout.pki}/apiserver.crt",
        f"--tls-private-key-file={layout.pki}/apiserver.key",
        f"--client-ca-file={layout.pki}/ca.crt",
        f"--service-account-key-file={layout.pki}/sa.pub",
        f"--service-account-signing-key-file={layout.pki}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        f"--kubelet-client-certificate={layout.pki}/admin.crt",
        f"--kubelet-client-key={layout.pki}/admin.key",
        # Otherwise logs and exec look up node names in DNS, which knows none of them.
        "--kubelet-preferred-address-types=InternalIP",
        f"--audit-policy-file={layout.config}/audit-policy.yaml",
        f"--audit-log-path={layout.audit_log}",
        "--audit-log-maxsize=4000",  # MB; a rotated log would lose the beginning of a test
        "--profiling=false",
    ]


def ready(layout: Layout) -> bool:
    """Tell whether the API server answers that it is ready."""
    try:
        return Kubectl(layout)("get", "--raw", "/readyz", timeout=10.0).strip() == "ok"
    except BedError:
        return False
