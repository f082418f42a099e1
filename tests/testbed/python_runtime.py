"""The CPU runtime (vLLM, Ray, torch and our platform plugin in a venv) and the demo model.

Pods run it by read-only mounts of host folders: an image of it would be 6 GB, to be written and imported into every
node.  The venv is keyed by its lock and the interpreter; the plugin, which changes often, is put into it afresh when
its files change, so that an edit of one line does not cost four minutes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import BedError
from .layout import REPOSITORY, Layout
from .process import Command, run, run_logged
from .progress import part

UV = "0.13.9"
SOURCES = REPOSITORY / "images" / "runtime-cpu"
_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_SYSTEM = Path("/usr")

HUGE_PAGES = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Makes Python ask for huge pages, which its own allocator never does.

On some virtual machines (most likely those whose page tables the host shadows) a page of 4 KiB that was not touched
for a second is slow to touch again; figures are in this folder's README.
"""


@dataclass(frozen=True)
class Runtime:
    """A CPU runtime that is there.

    Parameters
    ----------
    venv
        The environment with vLLM and Ray.
    base
        The Python installation that it stands on.
    model
        The demo model, as safetensors.
    """

    venv: Path
    base: Path
    model: Path

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.venv / "bin" / "python"

    @property
    def mounts(self) -> dict[str, Path]:
        """Host folders that a pod must mount, read-only and at the same path, to run it."""
        folders = {"host-usr": _SYSTEM, "runtime-venv": self.venv, "demo-model": self.model}
        if not self.base.is_relative_to(_SYSTEM):
            folders["host-python"] = self.base
        return folders

    @property
    def env(self) -> dict[str, str]:
        """Environment that makes its programs found, and their memory quick."""
        return {"PATH": f"{self.venv}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **HUGE_PAGES}


def ensure(layout: Layout) -> Runtime:
    """Build or find venv, plugin and demo model."""
    requirements = SOURCES / "requirements.txt"
    if not requirements.exists():
        raise BedError(f"{requirements} is missing: it is the lock of the CPU runtime")
    key = digest([requirements], {"python": sys.version, "base": sys.base_prefix})
    folder = layout.cache / f"runtime-cpu-{key}"
    venv = folder / "venv"
    log = layout.cache / "logs" / "runtime-cpu.log"
    # Programs in a venv name its path, so it cannot be built elsewhere and renamed; a mark says that it is whole.
    if not (folder / "complete").exists():
        with part("CPU runtime: vLLM, Ray and torch"):
            _build_venv(layout, venv, requirements, log)
        (folder / "complete").touch()
    _install_plugin(layout, folder, venv, log)
    base = run([venv / "bin" / "python", "-c", "import sys; print(sys.base_prefix)"]).strip()
    model = _convert_model(layout, venv, key, log)
    return Runtime(venv=venv, base=Path(base), model=model)


def _build_venv(layout: Layout, venv: Path, requirements: Path, log: Path) -> None:
    program = uv(layout)
    shutil.rmtree(venv.parent, ignore_errors=True)
    venv.parent.mkdir(parents=True)
    interpreter = Path(sys.executable).resolve()  # the installation, not the caller's own venv
    run_logged([program, "venv", "--python", interpreter, venv], log, env=_environment())
    # Compiled here, once: pods mount it read-only, and each of their processes would compile all that it imports anew.
    install: Command = [
        program,
        "pip",
        "install",
        "--python",
        venv / "bin" / "python",
        "--no-deps",
        "--compile-bytecode",
    ]
    run_logged([*install, "--requirement", requirements], log, env=_environment())


def _install_plugin(layout: Layout, folder: Path, venv: Path, log: Path) -> None:
    plugin = SOURCES / "plugin"
    if not (plugin / "pyproject.toml").exists():
        return
    key = digest(source_files(plugin), {})
    mark = folder / "plugin"
    if mark.exists() and mark.read_text(encoding="ascii") == key:
        return
    with part("CPU runtime: platform plugin"):
        mark.unlink(missing_ok=True)
        # Built from a copy: a build leaves folders beside the sources.
        copy = folder / "plugin-source"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(plugin, copy, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
        install: Command = [uv(layout), "pip", "install", "--python", venv / "bin" / "python", "--no-deps"]
        run_logged([*install, "--reinstall", "--no-cache", "--compile-bytecode", copy], log, env=_environment())
        mark.write_text(key, encoding="ascii")


def _convert_model(layout: Layout, venv: Path, venv_key: str, log: Path) -> Path:
    script = SOURCES / "convert_demo_model.py"
    if not script.exists():
        raise BedError(f"{script} is missing: it makes the demo model")
    model = layout.cache / f"demo-model-{digest([script], {'venv': venv_key})}"
    if model.exists():
        return model
    temporary = model.with_name(f".{model.name}.{os.getpid()}")
    with part("demo model"):
        try:
            run_logged([venv / "bin" / "python", script, temporary], log)
            temporary.rename(model)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return model


def uv(layout: Layout) -> Path:
    """Install or find uv, of a fixed version."""
    log = layout.cache / "logs" / "uv.log"
    folder = layout.cache / f"uv-{UV}"
    program = folder / "bin" / "uv"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        run_logged([Path(sys.executable).resolve(), "-m", "venv", folder], log)
        run_logged([folder / "bin" / "python", "-m", "pip", "install", f"uv=={UV}"], log, env=_environment())
        (folder / "complete").touch()
    return program


def _environment() -> dict[str, str]:
    env = dict(os.environ)
    env.pop("VIRTUAL_ENV", None)
    if _AUTHORITIES.exists():
        # uv and pip bring certificates of their own, that know no company's or mirror's authority.
        env.setdefault("SSL_CERT_FILE", str(_AUTHORITIES))
        env.setdefault("PIP_CERT", str(_AUTHORITIES))
    return env


def source_files(folder: Path) -> list[Path]:
    """Give the files of a source folder, without what builds and imports leave in it."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not {"__pycache__", "build"} & set(path.relative_to(folder).parts)
        and not any(part.endswith(".egg-info") for part in path.relative_to(folder).parts)
    ]


def digest(files: Iterable[Path], facts: Mapping[str, str]) -> str:
    """Hash names and contents of files and some facts into a short key."""
    total = hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode())
    for path in files:
        total.update(f"\0{path.name}\0".encode())
        total.update(path.read_bytes())
    return total.hexdigest()[:16]
