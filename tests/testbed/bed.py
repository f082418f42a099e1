"""The test bed as tests see it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from . import cgroups, cluster, imagebuild, kuberay, kwok, nodes, python_runtime, waiting
from .kube import TIMEOUT, Kubectl
from .layout import Layout
from .python_runtime import Runtime
from .spec import BedSpec, NodeSpec

T = TypeVar("T")


@dataclass(frozen=True)
class Bed:
    """A running bed.

    Parameters
    ----------
    layout
        Where it is kept.
    spec
        What it was asked to be.
    """

    layout: Layout
    spec: BedSpec

    @classmethod
    def find(cls, layout: Layout | None = None) -> Bed | None:
        """Give the bed that is up and healthy, if there is one."""
        layout = layout or Layout.from_environment()
        spec = cluster.running(layout)
        if spec is None or cluster.ailments(layout, spec):
            return None
        return cls(layout, spec)

    @classmethod
    def up(cls, spec: BedSpec | None = None, layout: Layout | None = None) -> Bed:
        """Bring a bed up, or find the one that is."""
        layout = layout or Layout.from_environment()
        return cls(layout, cluster.up(layout, spec))

    def down(self) -> None:
        """Take it down; logs stay."""
        cluster.down(self.layout)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.layout.kubeconfig

    @property
    def bin(self) -> Path:
        """Folder with kubectl, helm and all other programs."""
        return self.layout.bin

    @property
    def audit_log(self) -> Path:
        """The API server's audit log: one JSON object a line, for every request that changes something."""
        return self.layout.audit_log

    @property
    def logs(self) -> Path:
        """Folder with the logs of daemons and pods."""
        return self.layout.logs

    @property
    def nodes(self) -> tuple[NodeSpec, ...]:
        """The nodes."""
        return self.spec.nodes

    @property
    def environment(self) -> dict[str, str]:
        """What a shell needs to work with the bed, to be merged over ``os.environ``."""
        return {"KUBECONFIG": str(self.kubeconfig), "PATH": f"{self.bin}:{os.environ.get('PATH', '')}"}

    @property
    def api(self) -> Kubectl:
        """Kubectl with its helpers ``json`` and ``apply``."""
        return Kubectl(self.layout)

    def kubectl(self, *args: str, stdin: str | None = None, timeout: float = TIMEOUT) -> str:
        """Run kubectl; raise :class:`.errors.BedError` with its standard error."""
        return self.api(*args, stdin=stdin, timeout=timeout)

    def wait_for(self, description: str, probe: Callable[[], T], deadline: float = waiting.SOON) -> T:
        """Poll until a probe gives something true; see :func:`.waiting.wait_for`."""
        return waiting.wait_for(description, probe, deadline)

    def runtime(self) -> Runtime:
        """Build or find the CPU runtime and the demo model."""
        return python_runtime.ensure(self.layout)

    def pod_mounts(self, *containers: str) -> dict[str, Any]:
        """Give the overlay that makes the CPU runtime usable in a pod of the thin image.

        Parameters
        ----------
        containers
            Names of the containers that get it; none means ``vllm``, which is how the operator calls its own.

        Returns
        -------
        dict
            Part of a pod template: volumes, and mounts and ``PATH`` for each container.
        """
        runtime = self.runtime()
        return overlay(runtime.mounts, runtime.env, containers or ("vllm",))

    def import_image(self, archive: Path) -> None:
        """Make the images of an archive known on every node."""
        with ThreadPoolExecutor(max_workers=len(self.nodes)) as pool:
            list(pool.map(lambda node: nodes.import_image(self.layout, node.name, archive), self.nodes))

    def build_image(self, file: Path, tag: str, build_args: Mapping[str, str] | None = None) -> Path:
        """Build an image, or find the one that was built from the same content; see :func:`.imagebuild.build`."""
        return imagebuild.build(self.layout, file, tag, build_args=build_args)

    def stop_node(self, name: str) -> None:
        """Switch a node's machine off: kubelet, containerd and all its containers are killed."""
        with cluster.lock(self.layout):
            nodes.kill(self.layout, self._node(name).name)

    def start_node(self, name: str) -> None:
        """Switch a node's machine on again, and wait until the node is Ready with its GPUs."""
        node = self._node(name)
        with cluster.lock(self.layout):
            last = nodes.heartbeat(self.layout, name)
            cgroups.create(name)
            nodes.start_runtime(self.layout, name)
            nodes.await_runtime(self.layout, name)
            nodes.start_kubelet(self.layout, self.spec, node)
            nodes.await_ready(self.layout, node, since=last)

    def stop_kubelet(self, name: str) -> None:
        """Stop a node's kubelet; its containers go on serving."""
        with cluster.lock(self.layout):
            nodes.stop_kubelet(self.layout, self._node(name).name)

    def start_kubelet(self, name: str) -> None:
        """Start a node's kubelet again, and wait until the node is Ready with its GPUs."""
        node = self._node(name)
        with cluster.lock(self.layout):
            last = nodes.heartbeat(self.layout, name)
            nodes.start_kubelet(self.layout, self.spec, node)
            nodes.await_ready(self.layout, node, since=last)

    def install_kuberay(self) -> None:
        """Create KubeRay's CRDs and start its operator."""
        with cluster.lock(self.layout):
            kuberay.install(self.layout)
            cluster.record_kuberay(self.layout, installed=True)

    def uninstall_kuberay(self) -> None:
        """Stop KubeRay's operator and delete its CRDs with every Ray object."""
        with cluster.lock(self.layout):
            cluster.record_kuberay(self.layout, installed=False)
            kuberay.uninstall(self.layout)

    def start_kuberay(self) -> None:
        """Start KubeRay's operator."""
        with cluster.lock(self.layout):
            kuberay.start(self.layout)

    def stop_kuberay(self) -> None:
        """Stop KubeRay's operator; CRDs, Ray objects and pods stay."""
        with cluster.lock(self.layout):
            kuberay.stop(self.layout)

    def start_kwok(self) -> None:
        """Start kwok, which plays the nodes of :func:`.kwok.node` and their pods; build it when it is not there."""
        with cluster.lock(self.layout):
            kwok.start(self.layout)

    def stop_kwok(self) -> None:
        """Stop kwok; its nodes and pods should be gone by then, since nobody else ends such pods."""
        with cluster.lock(self.layout):
            kwok.stop(self.layout)

    def _node(self, name: str) -> NodeSpec:
        return self.spec.nodes[self.spec.index(name)]


def overlay(mounts: Mapping[str, Path], env: Mapping[str, str], containers: Sequence[str]) -> dict[str, Any]:
    """Make the part of a pod template that mounts host folders read-only at their own paths.

    Parameters
    ----------
    mounts
        Volume name to folder.
    env
        Environment for the containers.
    containers
        Names of the containers that get them.
    """
    volumes = [{"name": name, "hostPath": {"path": str(path), "type": "Directory"}} for name, path in mounts.items()]
    volume_mounts = [{"name": name, "mountPath": str(path), "readOnly": True} for name, path in mounts.items()]
    variables = [{"name": name, "value": value} for name, value in env.items()]
    return {
        "spec": {
            "volumes": volumes,
            "containers": [
                {"name": name, "volumeMounts": list(volume_mounts), "env": list(variables)} for name in containers
            ],
        }
    }
