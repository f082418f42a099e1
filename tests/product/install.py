"""Build the operator's image and install it with its chart, as a user would: it runs as a pod, under the chart's roles.

What the test bed needs beyond a user's cluster stands in the chart's values, never in a CR: the thin image with the
host's Python mounted into it, and the variables that make vLLM's CPU build small.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.testbed.bed import Bed
from tests.testbed.errors import BedError
from tests.testbed.process import run

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "helm" / "vllm-operator"
DOCKERFILE = REPOSITORY / "images" / "operator" / "Dockerfile"
NAMESPACE = "vllm-operator-system"
RELEASE = "vllm-operator"
IMAGE = "localhost/vllm-operator/operator"
THIN_IMAGE = "localhost/vllm-operator/thin:1"
MODEL_MOUNT = "/opt/models/smollm2-135m-instruct"
DUMMY_MODELS = "/opt/models/dummy"
RANK_DUMP = "/tmp/ranks"  # noqa: S108 - inside the pods

RESYNC_SECONDS = 10
COMPILE_CACHE = "/var/cache/compiled"

CPU_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    # Ray starts a worker for each of a pod's CPUs ahead.  The actors of an engine have environments of their own, for
    # which Ray starts others: the first ones would only take the cores from them.
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    # torch compiles C++ kernels for the first token: a quarter of a minute of each engine's life, but for this cache.
    "TORCHINDUCTOR_CACHE_DIR": f"{COMPILE_CACHE}/inductor",
    "VLLM_CACHE_ROOT": f"{COMPILE_CACHE}/vllm",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_RAY_RANK_DUMP": RANK_DUMP,
}


@dataclass(frozen=True)
class Installation:
    """The operator, installed."""

    bed: Bed
    image: str

    @property
    def account(self) -> str:
        """Identity of the operator in the audit log."""
        return f"system:serviceaccount:{NAMESPACE}:{RELEASE}"

    def logs(self) -> str:
        """What the operator printed."""
        return self.bed.kubectl("logs", "-n", NAMESPACE, f"deployment/{RELEASE}", "--tail=-1")

    def rounds(self) -> int:
        """How many rounds the operator's pod has finished."""
        pods = self.bed.api.json("get", "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=vllm-operator")["items"]
        ip = next(pod["status"]["podIP"] for pod in pods if "deletionTimestamp" not in pod["metadata"])
        with urllib.request.urlopen(f"http://{ip}:9090/metrics", timeout=5) as answer:
            text = answer.read().decode()
        return int(sum(float(found) for found in re.findall(r"vllm_operator_reconcile_total\{.*\} (\S+)", text)))

    def restart(self) -> None:
        """Restart the operator's pod and wait until the new one is there."""
        self.bed.kubectl("rollout", "restart", "-n", NAMESPACE, f"deployment/{RELEASE}")
        self.await_ready()

    def await_ready(self) -> None:
        """Wait until the operator's pod is ready; when it is not, say what it said last."""
        target = ("-n", NAMESPACE, f"deployment/{RELEASE}")
        try:
            self.bed.kubectl("rollout", "status", *target, "--timeout=90s", timeout=100)
        except BedError as error:
            words = self.bed.kubectl("logs", *target, "--tail=5")
            raise BedError(f"the operator's pod does not become ready; its last words: {words}") from error


def build_image(bed: Bed) -> str:
    """Build the operator's image and make it known on every node; give its name."""
    tag = f"{IMAGE}:{_source_key()}"
    bed.import_image(bed.build_image(DOCKERFILE, tag))
    return tag


def install(bed: Bed, *, values: dict[str, Any] | None = None) -> Installation:
    """Install or upgrade the operator with the chart."""
    image = build_image(bed)
    repository, _, tag = image.rpartition(":")
    given = {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "logging": {"format": "text", "level": "info"},
        "resyncSeconds": RESYNC_SECONDS,
        "recovery": {"backoffSeconds": 2, "maxBackoffSeconds": 30, "unscheduledSeconds": 15},
        "runtime": {"image": THIN_IMAGE, "podTemplate": pod_template(bed)},
        **(values or {}),
    }
    _helm(
        bed, "upgrade", "--install", RELEASE, str(CHART), "--create-namespace", "--values", "-", stdin=json.dumps(given)
    )
    installation = Installation(bed=bed, image=image)
    installation.await_ready()
    return installation


def uninstall(bed: Bed) -> None:
    """Remove the operator; the CRD and what it made stay."""
    _helm(bed, "uninstall", RELEASE, "--ignore-not-found", "--wait")


def pod_template(bed: Bed) -> dict[str, Any]:
    """Give the chart's ``runtime.podTemplate`` of the test bed."""
    overlay = bed.pod_mounts()
    compiled = bed.layout.cache / f"compiled-{bed.runtime().venv.parent.name}"
    container = overlay["spec"]["containers"][0]
    container["imagePullPolicy"] = "Never"
    container["env"] += [{"name": name, "value": value} for name, value in CPU_ENVIRONMENT.items()]
    container["volumeMounts"] += [
        {"name": "demo-model-stable", "mountPath": MODEL_MOUNT, "readOnly": True},
        {"name": "dummy-models", "mountPath": DUMMY_MODELS, "readOnly": True},
        {"name": "compiled", "mountPath": COMPILE_CACHE},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - inside the pods
    ]
    overlay["spec"]["volumes"] += [
        {"name": "demo-model-stable", "hostPath": {"path": str(bed.runtime().model), "type": "Directory"}},
        {"name": "dummy-models", "hostPath": {"path": str(dummy_models(bed)), "type": "Directory"}},
        {"name": "compiled", "hostPath": {"path": str(compiled), "type": "DirectoryOrCreate"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    return overlay


def dummy_models(bed: Bed) -> Path:
    """Make or find the tiny models without weights; give their folder."""
    script = REPOSITORY / "images" / "runtime-cpu" / "make_dummy_models.py"
    runtime = bed.runtime()
    key = hashlib.sha256(script.read_bytes() + str(runtime.model).encode()).hexdigest()[:12]
    folder = bed.layout.cache / f"dummy-models-{key}"
    if not (folder / "complete").exists():
        run([runtime.python, script, runtime.model, folder])
        (folder / "complete").touch()
    return folder


def _source_key() -> str:
    total = hashlib.sha256()
    names = ("operator", "images/operator", "requirements.lock", "pyproject.toml", "README.md", "LICENSE")
    files = [path for name in names for path in _files(REPOSITORY / name)]
    for path in files:
        total.update(f"{path.relative_to(REPOSITORY)}\0".encode())
        total.update(path.read_bytes())
    return total.hexdigest()[:12]


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(item for item in path.rglob("*") if item.is_file() and "__pycache__" not in item.parts)


def _helm(bed: Bed, *args: str, stdin: str | None = None) -> str:
    done = subprocess.run(  # noqa: S603 - our own binary
        [str(bed.bin / "helm"), *args, "--namespace", NAMESPACE],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
        env={**os.environ, "KUBECONFIG": str(bed.kubeconfig)},
    )
    if done.returncode != 0:
        raise BedError(f"helm {args[0]}: {done.stderr.strip()}")
    return done.stdout
