"""A whole bed: up, down, and what is left of one.

``down`` trusts no memory: it works after a crash of ``up`` and when it was itself killed half-way, so every step looks
at what is there, and the end is checked against the kernel.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from . import archive, cgroups, components, control, kuberay, kwok, mounts, network, nodes, render
from .errors import BedError
from .kube import Kubectl
from .layout import Layout
from .process import Daemons, command_line, end, marked
from .progress import part, say
from .spec import BedSpec

_SETTINGS = "settings.json"


def running(layout: Layout) -> BedSpec | None:
    """Give what the recorded bed was asked to be, whether or not it is healthy."""
    try:
        return BedSpec.load(layout.record.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return None


def expected_daemons(spec: BedSpec) -> list[str]:
    """Give the daemons of a healthy bed."""
    of_nodes = [name(node.name) for node in spec.nodes for name in (nodes.containerd_name, nodes.kubelet_name)]
    return [*control.DAEMONS, *of_nodes, *([kuberay.DAEMON] if spec.kuberay else [])]


def ailments(layout: Layout, spec: BedSpec) -> list[str]:
    """Say what is wrong with a recorded bed; nothing when it is healthy."""
    daemons = Daemons(layout)
    found = [f"{name} does not run" for name in expected_daemons(spec) if not daemons.runs(name)]
    if found:
        return found
    if not control.ready(layout):
        return ["the API server is not ready"]
    kubectl = Kubectl(layout)
    for node in spec.nodes:
        ready = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
        if kubectl("get", "node", node.name, "-o", ready) != "True":
            found.append(f"node {node.name} is not Ready")
    return found


def up(layout: Layout, wanted: BedSpec | None = None) -> BedSpec:
    """Bring a bed up, or find the one that is.

    Parameters
    ----------
    layout
        Where it is kept.
    wanted
        What it shall be; nothing means: whatever is running, else the default.

    Returns
    -------
    BedSpec
        What it is.
    """
    require_root()
    components.build(layout)
    with lock(layout):
        present = running(layout)
        if present is not None and wanted in (None, present):
            wrong = ailments(layout, present)
            if not wrong:
                say(f"the test bed is up already: {', '.join(node.name for node in present.nodes)}")
                return present
            say(f"the test bed is half dead and is made anew: {'; '.join(wrong)}")
        spec = wanted or present or BedSpec()
        _take_down(layout)
        with part("test bed up"):
            _bring_up(layout, spec)
        return spec


def _bring_up(layout: Layout, spec: BedSpec) -> None:
    busy = network.busy_ports()
    if busy:
        raise BedError(f"ports that the test bed needs are in use: {', '.join(map(str, busy))}")
    foreign = network.leftover_chains()
    if foreign:
        raise BedError(f"this machine is part of another Kubernetes (its packet filter has {foreign[0]}): not touched")
    shutil.rmtree(layout.logs, ignore_errors=True)
    layout.logs.mkdir(parents=True)
    layout.run.mkdir(parents=True, exist_ok=True)
    (layout.run / _SETTINGS).write_text(json.dumps(network.read_settings()), encoding="utf-8")
    layout.record.write_text(spec.dump(), encoding="utf-8")
    network.up(len(spec.nodes))
    control.prepare(layout, spec)
    _write_images(layout)
    names = [node.name for node in spec.nodes]
    with ThreadPoolExecutor(max_workers=len(names) + 1) as pool:
        api = pool.submit(control.start_api, layout)
        for node in spec.nodes:
            nodes.prepare(layout, spec, node)
            nodes.start_runtime(layout, node.name)
        list(pool.map(lambda name: _fill_runtime(layout, name), names))
        api.result()
        say("API server ready")
        control.start_controllers(layout)
        for node in spec.nodes:
            nodes.start_kubelet(layout, spec, node)
        ray = pool.submit(kuberay.install, layout) if spec.kuberay else None
        list(pool.map(lambda node: nodes.await_ready(layout, node), spec.nodes))
        say(f"nodes ready: {', '.join(names)}")
        control.await_controllers(layout)
        if ray is not None:
            ray.result()
            say(f"KubeRay {components.KUBERAY} ready")


def _write_images(layout: Layout) -> None:
    layout.images.mkdir(parents=True, exist_ok=True)
    archive.write(archive.pause(render.PAUSE_IMAGE, layout.bin / "pause"), layout.images / "pause.tar")
    archive.write(archive.thin(render.THIN_IMAGE), layout.images / "thin.tar")


def _fill_runtime(layout: Layout, node: str) -> None:
    nodes.await_runtime(layout, node)
    for path in sorted(layout.images.glob("*.tar")):
        nodes.import_image(layout, node, path)


def down(layout: Layout) -> None:
    """Take the bed down and check that nothing of it is left.

    Raises
    ------
    BedError
        Naming what is left.
    """
    require_root()
    with lock(layout), part("test bed down"):
        _take_down(layout)


def _take_down(layout: Layout) -> None:
    if not layout.run.exists() and not any(marked(layout)):
        return
    daemons = Daemons(layout)
    names = _node_names(layout)
    # Writers first, so that nothing is restarted or reported on the way down.
    for name in (kwok.DAEMON, kuberay.DAEMON, "kube-proxy", *(nodes.kubelet_name(node) for node in names)):
        daemons.stop(name, grace=1.0)
    for node in names:
        nodes.kill(layout, node)
    for name in control.DAEMONS:
        daemons.stop(name, grace=3.0)
    for name in daemons.names():
        daemons.stop(name, grace=1.0)
    end(list(marked(layout)), grace=0.0)
    network.down()
    _restore_settings(layout)
    for node in names:
        cgroups.remove(node)
    mounts.remove_files(layout.run / "nodes", layout.logs)
    # The record goes last of all: while it is there, the next down knows that there is something to do.
    for path in layout.run.iterdir() if layout.run.exists() else ():
        if path != layout.record and path.is_dir():
            mounts.remove_tree(path)
    left = leftovers(layout)
    if left:
        raise BedError("the test bed is down, but left behind: " + "; ".join(left))
    mounts.remove_tree(layout.run)


def _node_names(layout: Layout) -> list[str]:
    folders = layout.run / "nodes"
    found = {path.name for path in folders.iterdir()} if folders.exists() else set()
    spec = running(layout)
    return sorted(found | {node.name for node in spec.nodes} if spec else found)


def _restore_settings(layout: Layout) -> None:
    path = layout.run / _SETTINGS
    if path.exists():
        with suppress(ValueError):
            network.write_settings(json.loads(path.read_text(encoding="utf-8")))


def leftovers(layout: Layout) -> list[str]:
    """Say what of a bed is still there, as the kernel sees it."""
    found = [f"process {process.pid} ({command_line(process)[:80]})" for process in marked(layout)]
    for node in _node_names(layout):
        found += [f"process {pid} in the cgroup of node {node}" for pid in cgroups.processes(node)]
    found += [f"mount {point}" for point in mounts.mounted_below(layout.state)]
    found += [f"interface {name}" for name in network.leftover_interfaces()]
    found += [f"chain {name}" for name in network.leftover_chains()]
    found += [f"cgroup {path}" for path in cgroups.leftovers()]
    found += [f"file {path}" for path in (*mounts.cni_results(), *mounts.dangling_log_links(layout.logs))]
    return found


def require_root() -> None:
    """Fail early and clearly when the caller cannot make namespaces, mounts and interfaces."""
    if os.geteuid() != 0:
        raise BedError("the test bed needs root: it makes network namespaces, mounts and cgroups")


@contextmanager
def lock(layout: Layout) -> Iterator[None]:
    """Let one process at a time change the bed; the lock ends with its holder."""
    layout.state.mkdir(parents=True, exist_ok=True)
    with (layout.state / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def record_kuberay(layout: Layout, *, installed: bool) -> None:
    """Note whether KubeRay belongs to the bed now, so that its absence is no ailment."""
    spec = require_spec(layout)
    text = BedSpec(nodes=spec.nodes, kuberay=installed).dump()
    temporary: Path = layout.record.with_suffix(".new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(layout.record)


def require_spec(layout: Layout) -> BedSpec:
    """Give the recorded bed, or say how to get one."""
    spec = running(layout)
    if spec is None:
        raise BedError("no test bed is up; run: python -m tests.testbed up")
    return spec
