"""Look before the launch: one task per bundle says which GPU it got and whether an engine can start there.

A launch costs minutes and its errors come out of a worker process three layers down.  What is cheap to see beforehand
(no model in this pod, another vLLM here than there, a host IP that is not the pod's) is said here, in a sentence.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vllm_bootstrap import contract
from vllm_bootstrap.contract import EnginePlan, FailureReason
from vllm_bootstrap.download.checkpoint import ModelSight, look_at_model, size_warning
from vllm_bootstrap.download.model_files import DEFAULT_FORMAT
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.vllm_adapter import facts

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - it is looked through, not written to
STALE_NAMES = re.compile(r"psm_.*|.*-cpushm_\d+")
NVIDIA_SMI_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class BundleFacts:
    """What a task that runs in a bundle sees.

    Attributes
    ----------
    bundle, dp
        Index of the bundle in the placement group of a data parallel rank.
    gpu
        Ray's GPU id of the bundle.
    host_ip
        ``VLLM_HOST_IP`` of the pod.
    """

    bundle: int
    ray_node: str
    address: str
    gpu: int
    dp: int = 0
    pod: str = ""
    node: str = ""
    host_ip: str = ""
    machine: MachineFacts | None = None

    @property
    def where(self) -> str:
        """Name the pod, or what is known instead of it."""
        return self.pod or self.address

    @property
    def place(self) -> str:
        """Name the pod and its node."""
        return f"{self.where} (node {self.node})" if self.node else self.where


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """What is the same for all bundles of a pod; only one task a pod looks it up."""

    gpu_uuids: Mapping[int, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    missing_uses: tuple[str, ...] = ()
    model: ModelSight = field(default_factory=ModelSight)
    removed: tuple[str, ...] = ()


def look(
    bundle: int,
    model: str,
    *,
    whole: bool,
    form: str = DEFAULT_FORMAT,
    dp: int = 0,
    data_parallel: bool = False,
) -> BundleFacts:
    """Run as a Ray task inside the bundle: gather the facts; ``whole`` with those of the machine."""
    import ray  # noqa: PLC0415 - the rest of the module is for processes without Ray, too

    context = ray.get_runtime_context()
    gpus = context.get_accelerator_ids().get("GPU", [])
    return BundleFacts(
        bundle=bundle,
        dp=dp,
        ray_node=context.get_node_id(),
        address=ray.util.get_node_ip_address(),
        gpu=int(gpus[0]) if gpus and str(gpus[0]).isdigit() else -1,
        pod=os.environ.get(contract.POD_NAME_VARIABLE, ""),
        node=os.environ.get(contract.NODE_NAME_VARIABLE, ""),
        host_ip=os.environ.get("VLLM_HOST_IP", ""),
        machine=look_around(model, form=form, data_parallel=data_parallel) if whole else None,
    )


def look_around(model: str, *, form: str = DEFAULT_FORMAT, data_parallel: bool = False) -> MachineFacts:
    """Gather what concerns the whole pod, and delete what dead engines left in its shared memory.

    Parameters
    ----------
    form
        vLLM's ``--load-format``.
    data_parallel
        More of vLLM is needed.
    """
    package = facts.package_folder()
    return MachineFacts(
        gpu_uuids=_gpu_uuids(),
        versions=_versions(package),
        missing_uses=tuple(facts.missing_uses(package, data_parallel=data_parallel)) if package else (),
        model=look_at_model(model, form=form),
        removed=tuple(remove_stale_memory(SHARED_MEMORY, Path("/proc"))),
    )


def judge(plan: EnginePlan, found: Sequence[BundleFacts]) -> list[str]:
    """Decide whether the launch may start.

    Returns
    -------
    list
        Warnings, for the log and the report.

    Raises
    ------
    EngineFailure
        The first thing that stands in the way.
    """
    machines = [(bundle.where, bundle.machine) for bundle in found if bundle.machine]
    _judge_runtime(machines)
    for bundle in found:
        if bundle.host_ip and bundle.host_ip != bundle.address:
            raise EngineFailure(
                FailureReason.PREFLIGHT_FAILED,
                f"VLLM_HOST_IP is {bundle.host_ip} in {bundle.where}, but its Ray node is at {bundle.address}",
            )
    sizes = judge_model(plan, plan.model, [(item.place, item.machine.model) for item in found if item.machine])
    versions = sorted({machine.versions.get("vllm", "") for _, machine in machines})
    if plan.data > 1:
        _refuse_untested(versions)
    return [*sizes, *_untested(versions)]


def judge_model(plan: EnginePlan, path: str, sights: Sequence[tuple[str, ModelSight]]) -> list[str]:
    """Decide whether the model that lies in the pods can be started.

    Parameters
    ----------
    path
        Where it lies; downloaded, it has another than the plan's name.
    sights
        Pod, and what was seen there.

    Returns
    -------
    list
        Warnings.

    Raises
    ------
    EngineFailure
        It is not there, not whole, or cannot be divided as planned.
    """
    absent = [where for where, sight in sights if not sight.found]
    if absent:
        there = "; in the others it is there" if len(absent) < len(sights) else ""
        raise EngineFailure(FailureReason.MODEL_NOT_FOUND, f"{path} does not exist in pod {', '.join(absent)}{there}")
    for where, sight in sights:
        if sight.missing:
            more = f" and {len(sight.missing) - 3} more files" if len(sight.missing) > 3 else ""
            raise EngineFailure(
                FailureReason.MODEL_INCOMPLETE,
                f"the model in {path} of pod {where} lacks {', '.join(sight.missing[:3])}{more}: copy it again",
            )
    for _, sight in sights:
        fault = facts.parallelism_fault(
            sight.config, tensor=plan.tensor, pipeline=plan.pipeline, data=plan.data, expert=plan.expert
        )
        if fault:
            raise EngineFailure(FailureReason.INVALID_PARALLELISM, fault)
    return sorted({size_warning(path, sight.size, plan.checkpoint_bytes) for _, sight in sights} - {""})


def _refuse_untested(versions: Sequence[str]) -> None:
    """Refuse data parallel with a vLLM that it was not tested with: a class inside vLLM is replaced for it."""
    for version in versions:
        if not facts.is_tested(version):
            raise EngineFailure(
                FailureReason.RUNTIME_INCOMPATIBLE,
                f"parallelism.data needs a vLLM that was tested with it ({', '.join(facts.TESTED_VERSIONS)}), this is "
                f"{version}: use an image with one of these, or replicas instead of parallelism.data",
            )


def name_pod(plan: EnginePlan, bundle: BundleFacts) -> BundleFacts:
    """Name the pod of a bundle where its own environment does not: on a shared cluster the plan knows it."""
    seat = next((seat for seat in plan.seats if seat.address == bundle.address), None)
    return replace(bundle, pod=seat.pod, node=seat.node) if seat else bundle


def _untested(versions: Sequence[str]) -> list[str]:
    return [
        f"vLLM {version} was not tested with this bootstrap (tested: {', '.join(facts.TESTED_VERSIONS)})"
        for version in versions
        if not facts.is_tested(version)
    ]


def remove_stale_memory(folder: Path, proc: Path) -> list[str]:
    """Delete the shared memory of dead engines: files of vLLM's names that no process maps or holds open.

    A killed engine leaves up to 240 MiB a file, and a pod's ``/dev/shm`` counts against its memory limit.  A process
    whose maps cannot be read may use any of them, so then nothing of its owner is deleted.
    """
    try:
        candidates = {entry for entry in folder.iterdir() if STALE_NAMES.fullmatch(entry.name)}
    except OSError:
        return []
    if not candidates:
        return []
    used, hidden_owners = _memory_in_use(folder, proc)
    removed = []
    for path in sorted(candidates):
        try:
            owner = path.stat().st_uid
            if str(path) not in used and owner == os.geteuid() and owner not in hidden_owners:
                path.unlink()
                removed.append(path.name)
        except OSError:
            continue
    return removed


def _memory_in_use(folder: Path, proc: Path) -> tuple[set[str], set[int]]:
    inside = f"{folder}/"
    used: set[str] = set()
    hidden: set[int] = set()
    for process in proc.iterdir():
        if not process.name.isdigit():
            continue
        try:
            owner = process.stat().st_uid
        except OSError:
            continue
        try:
            maps = (process / "maps").read_text(errors="replace")
            links = [os.readlink(link) for link in (process / "fd").iterdir()]
        except FileNotFoundError:
            continue  # it ended meanwhile
        except OSError:
            if process.exists():
                hidden.add(owner)
            continue
        used |= {line[line.index(inside) :] for line in maps.splitlines() if inside in line}
        used |= {link for link in links if link.startswith(inside)}
    return used, hidden


def _judge_runtime(machines: Sequence[tuple[str, MachineFacts]]) -> None:
    for where, machine in machines:
        if not machine.versions.get("vllm"):
            raise EngineFailure(
                FailureReason.RUNTIME_INCOMPATIBLE,
                f"vLLM is not installed in pod {where}: use a runtime image with both Ray and vLLM",
            )
        if machine.missing_uses:
            raise EngineFailure(
                FailureReason.RUNTIME_INCOMPATIBLE,
                f"vLLM {machine.versions['vllm']} in pod {where} lacks {'; '.join(machine.missing_uses)}; "
                f"tested versions: {', '.join(facts.TESTED_VERSIONS)}",
            )
    for package in ("vllm", "ray", "python"):
        seen = {machine.versions.get(package, ""): where for where, machine in machines}
        if len(seen) > 1:
            listing = ", ".join(f"{version} in {where}" for version, where in sorted(seen.items()))
            raise EngineFailure(
                FailureReason.RUNTIME_INCOMPATIBLE, f"the pods have different versions of {package}: {listing}"
            )


def _versions(package: Path | None) -> dict[str, str]:
    versions = {"python": platform.python_version(), "vllm": facts.installed_version(package) if package else ""}
    for name in ("ray", "torch"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = ""
    return versions


def _gpu_uuids() -> dict[int, str]:
    program = shutil.which("nvidia-smi")
    if not program:
        return {}
    try:
        listing = subprocess.run(  # noqa: S603
            [program, "-L"], capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return parse_gpu_list(listing)


def parse_gpu_list(listing: str) -> dict[int, str]:
    """Read ``nvidia-smi -L``: index → UUID; where all there is is a slice of a GPU (MIG), the slice's."""
    gpus = {int(index): uuid for index, uuid in re.findall(r"^GPU (\d+):.*\(UUID: ([^)]+)\)", listing, re.MULTILINE)}
    slices = re.findall(r"^\s+MIG .*\(UUID: ([^)]+)\)", listing, re.MULTILINE)
    return {0: slices[0]} if len(gpus) == len(slices) == 1 else gpus
