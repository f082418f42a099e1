"""Mounts and files that kubelets and container runtimes leave behind."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from .errors import BedError
from .process import run
from .render import cni_network

_CNI_RESULTS = Path("/var/lib/cni/results")
_SHIM_SOCKETS = Path("/run/containerd/s")
_CONTAINER_LOGS = Path("/var/log/containers")


def mounted_below(folder: Path, table: str | None = None) -> list[str]:
    """Give the mounts at and below a folder, deepest first."""
    lines = (Path("/proc/self/mounts").read_text(encoding="utf-8") if table is None else table).splitlines()
    points = [_unescape(line.split(" ")[1]) for line in lines]
    # Later lines lie on top of earlier ones, so the order of removal is the reverse.
    return [point for point in reversed(points) if Path(point).is_relative_to(folder)]


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def unmount_below(folder: Path) -> None:
    """Unmount everything at and below a folder."""
    for point in mounted_below(folder):
        with suppress(BedError):
            run(["umount", "--lazy", point])


def remove_tree(folder: Path) -> None:
    """Remove a folder, but never through a mount: a kubelet's volumes may be the host's own folders."""
    unmount_below(folder)
    left = mounted_below(folder)
    if left:
        raise BedError(f"still mounted, so not removed: {', '.join(left)}")
    if folder.exists():
        shutil.rmtree(folder)


def sandboxes(nodes: Path) -> set[str]:
    """Give the ids of the pods' sandboxes, which are folders of their containerd."""
    return {path.name for path in nodes.glob("*/root/io.containerd.grpc.v1.cri/sandboxes/*")}


def cni_results(ids: Collection[str] = ()) -> list[Path]:
    """Give libcni's records of interfaces in networks of a bed, and of the loopback of given sandboxes."""
    own = sorted(_CNI_RESULTS.glob(f"{cni_network('*')}-*"))
    names = {*ids, *(path.name.removesuffix("-eth0").rpartition("-")[2] for path in own)}
    loopback = (_CNI_RESULTS / f"cni-loopback-{name}-lo" for name in sorted(names))
    return [*own, *(path for path in loopback if path.exists())]


def stale_shim_sockets() -> list[Path]:
    """Give shim sockets on which nobody listens: a killed shim leaves its own."""
    bound = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace")
    return [path for path in _SHIM_SOCKETS.glob("*") if path.is_socket() and str(path) not in bound]


def dangling_log_links(logs: Path) -> list[Path]:
    """Give the links that kubelets made to the bed's pod logs, in a folder that cannot be configured."""
    return [
        path for path in _CONTAINER_LOGS.glob("*.log") if path.is_symlink() and path.readlink().is_relative_to(logs)
    ]


def remove_files(nodes: Path, logs: Path) -> None:
    """Remove what lies outside the bed's own folders."""
    for path in (*cni_results(sandboxes(nodes)), *stale_shim_sockets(), *dangling_log_links(logs)):
        path.unlink(missing_ok=True)
