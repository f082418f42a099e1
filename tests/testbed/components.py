"""Builds or finds every program of the bed.

Go modules are the only source of Kubernetes at hand on a machine without registries.  Each module folder holds a
``go.mod`` with a committed ``go.sum``; building with ``-mod=readonly`` makes that the whole truth.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .errors import BedError
from .layout import Layout
from .process import run, run_logged
from .progress import part, say

KUBERNETES = "1.37.2"
ETCD = "3.7.0"
KUBERAY = "1.5.0"
COREDNS = "1.14.7"
HELM = "4.3.1"
KWOK_VERSION = "0.8.0"

MODULES = Path(__file__).resolve().parent / "modules"
_KUBERAY_MODULE = "github.com/ray-project/kuberay/ray-operator"
_KWOK_MODULE = "sigs.k8s.io/kwok"

DEBIAN_PACKAGES = (
    "buildah",
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "debootstrap",
    "ethtool",
    "iproute2",
    "iptables",
    "nftables",
    "openssl",
    "runc",
    "socat",
)


@dataclass(frozen=True)
class Program:
    """One Go program.

    Parameters
    ----------
    name
        File name of the program.
    version
        Its version; part of the cache's key.
    component
        The cache folder's name without the version.
    module
        Folder below ``modules`` that pins it.
    package
        The Go package to build.
    version_flags
        Arguments that make it print its version; empty when it cannot.
    """

    name: str
    version: str
    component: str
    module: str
    package: str
    version_flags: tuple[str, ...] = field(default=("--version",))

    def folder(self, layout: Layout) -> Path:
        """Give the program's folder in the cache."""
        return layout.cache / f"{self.component}-{self.version}"

    @property
    def linker_flags(self) -> str:
        """Linker flags; a server that calls itself v0.0.0 would refuse its own kubelets."""
        if self.component != "kubernetes":
            return "-s -w"
        major, minor, _ = self.version.split(".")
        stamp = "-X k8s.io/component-base/version.git"
        return f"-s -w {stamp}Version=v{self.version} {stamp}Major={major} {stamp}Minor={minor}"


def _kubernetes(name: str, *version_flags: str) -> Program:
    return Program(
        name, KUBERNETES, "kubernetes", "kubernetes", f"k8s.io/kubernetes/cmd/{name}", version_flags or ("--version",)
    )


PROGRAMS = (
    _kubernetes("kube-apiserver"),
    _kubernetes("kube-controller-manager"),
    _kubernetes("kube-scheduler"),
    _kubernetes("kubelet"),
    _kubernetes("kubectl", "version", "--client"),
    _kubernetes("kube-proxy"),
    Program("etcd", ETCD, "etcd", "kubernetes", "go.etcd.io/etcd/server/v3"),
    Program("kuberay-operator", KUBERAY, "kuberay", "kuberay", _KUBERAY_MODULE, ()),
    Program("coredns", COREDNS, "coredns", "coredns", "github.com/coredns/coredns", ("-version",)),
    Program("helm", HELM, "helm", "helm", "helm.sh/helm/v4/cmd/helm", ("version",)),
    Program("pause", "1", "pause", "pause", "testbed/pause", ()),
)
KWOK = Program("kwok", KWOK_VERSION, "kwok", "kwok", f"{_KWOK_MODULE}/cmd/kwok", ())
"""Few tests need it: built when the first of them asks."""


def crds(layout: Layout) -> Path:
    """Give the folder of KubeRay's CRDs."""
    return layout.cache / f"kuberay-{KUBERAY}" / "crds"


def stages(layout: Layout) -> Path:
    """Give the folder of what kwok does with nodes and pods."""
    return KWOK.folder(layout) / "stages"


def build(layout: Layout) -> None:
    """Build or find everything that a bed is made of, and link it into the bed's ``bin``.

    Programs are built one after the other: Go's compiler uses every core by itself, and two linkers of Kubernetes at
    once do not fit into a small machine.
    """
    install_packages(layout)
    layout.bin.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        _link(layout.bin / program.name, _found(program) or _built(layout, program))
    _copy(crds(layout), MODULES / "kuberay", _KUBERAY_MODULE, ("config/crd/bases/*.yaml",))


def build_kwok(layout: Layout) -> None:
    """Build or find kwok with its stages: pods run at once, nodes are Ready at once."""
    layout.bin.mkdir(parents=True, exist_ok=True)
    _link(layout.bin / KWOK.name, _built(layout, KWOK))
    fast = ("kustomize/stage/node/fast/node-*.yaml", "kustomize/stage/pod/fast/pod-*.yaml")
    _copy(stages(layout), MODULES / "kwok", _KWOK_MODULE, fast)


def install_packages(layout: Layout) -> None:
    """Install the Debian packages that are missing."""
    # Debian's own Python cannot make virtual environments without a package of its own.
    wanted = (*DEBIAN_PACKAGES, "python3-venv") if sys.base_prefix == "/usr" else DEBIAN_PACKAGES
    missing = [name for name in wanted if not _installed(name)]
    if not missing:
        return
    log = layout.cache / "logs" / "apt.log"
    with part(f"Debian packages: {' '.join(missing)}"):
        run_logged(["apt-get", "update"], log)
        install = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
        run_logged(install, log, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})


def _installed(package: str) -> bool:
    try:
        return "ok installed" in run(["dpkg-query", "--show", "--showformat=${Status}", package])
    except BedError:
        return False


def _found(program: Program) -> Path | None:
    """Look into ``KUBEBUILDER_ASSETS`` for a program of exactly our version."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets or not program.version_flags:
        return None
    path = Path(assets, program.name)
    try:
        version = run([path, *program.version_flags], timeout=30.0)
    except (BedError, OSError):
        return None
    if program.version not in version:
        say(f"{path} is not version {program.version}: not used")
        return None
    return path


def _built(layout: Layout, program: Program) -> Path:
    target = program.folder(layout) / program.name
    if target.exists():
        return target
    log = layout.cache / "logs" / f"build-{program.name}.log"
    with part(f"building {program.name} {program.version}"):
        command = ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", program.linker_flags]
        _atomic(
            target,
            lambda temporary: run_logged(
                [*command, "-o", temporary, program.package], log, env=_go_environment(), cwd=MODULES / program.module
            ),
        )
    return target


def _go_environment() -> dict[str, str]:
    if shutil.which("go") is None:
        raise BedError("go is not on the PATH: the test bed builds Kubernetes from its Go modules (Go 1.26 or later)")
    # A user's GOFLAGS (say -mod=vendor) or workspace must not leak into the build.
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}


def _copy(target: Path, pinned: Path, module: str, patterns: Sequence[str]) -> None:
    """Copy files of a Go module into a folder of the cache."""
    if target.exists():
        return
    folder = run(["go", "list", "-m", "-f", "{{.Dir}}", module], env=_go_environment(), cwd=pinned).strip()
    files = [path for pattern in patterns for path in sorted(Path(folder).glob(pattern))]
    # The module cache is read-only, down to its folders; copies must be removable.
    _atomic(target, lambda temporary: _copy_files(files, temporary))


def _copy_files(files: Sequence[Path], target: Path) -> None:
    target.mkdir()
    for path in files:
        (target / path.name).write_bytes(path.read_bytes())


def _atomic(target: Path, make: Callable[[Path], None]) -> None:
    """Let a file or folder appear under its name only when it is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        make(temporary)
        temporary.rename(target)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        temporary.unlink(missing_ok=True)


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    link.unlink(missing_ok=True)
    link.symlink_to(target)
