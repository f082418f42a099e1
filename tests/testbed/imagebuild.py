"""Builds real Dockerfiles without a registry: the base comes from Debian's archive, the rest is buildah's.

The Dockerfile must take its base as ``ARG BASE_IMAGE`` / ``FROM ${BASE_IMAGE}``.
"""

from __future__ import annotations

import configparser
import hashlib
import json
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from . import archive, components, dockerfile, mounts
from .errors import BedError
from .layout import REPOSITORY, Layout
from .process import Command, run, run_logged
from .progress import part
from .python_runtime import digest

SUITE = "bookworm"
BASE_PACKAGES = ("ca-certificates", "python3", "python3-pip", "python3-venv")
_KEPT = 3
_MOST_IMAGES = 80
_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_PIP_FILES = ("/etc/pip.conf", "~/.config/pip/pip.conf", "~/.pip/pip.conf")
_PIP_KEYS = ("index-url", "extra-index-url", "trusted-host", "timeout")


def build(
    layout: Layout,
    file: Path,
    tag: str,
    *,
    build_args: Mapping[str, str] | None = None,
    context: Path = REPOSITORY,
) -> Path:
    """Build an image, or find the one that was built from the same content.

    Parameters
    ----------
    layout
        Whose cache is used.
    file
        The Dockerfile.
    tag
        Name and tag of the image.
    build_args
        Further build arguments; ``BASE_IMAGE`` is given by this function.
    context
        Folder that ``COPY`` copies from.

    Returns
    -------
    Path
        A docker-archive.
    """
    components.install_packages(layout)
    base = ensure_base(layout)
    arguments = {"BASE_IMAGE": _base_name(), **(build_args or {})}
    files = dockerfile.context_files(context, file.read_text(encoding="utf-8"))
    facts = {"tag": tag, "base": base.name, "arguments": json.dumps(arguments, sort_keys=True)}
    modes = {name: oct(path.stat().st_mode & 0o111) for name, path in files.items()}
    key = digest([file, *files.values()], {**facts, "files": json.dumps(modes)})
    name = archive_name(tag)
    target = layout.cache / "images" / f"{name}-{key}.tar"
    if not target.exists():
        with part(f"image {tag}"):
            _build(layout, file, tag, arguments=arguments, files=files, target=target)
        _prune(target.parent, name)
    return target


def _build(
    layout: Layout, file: Path, tag: str, *, arguments: Mapping[str, str], files: Mapping[str, Path], target: Path
) -> None:
    log = layout.cache / "logs" / "image-build.log"
    storage = _storage(layout)
    _limit_storage(layout)
    _ensure_base_in_storage(layout, log)
    # One name for all versions: the one before becomes nameless, and its layers serve as cache.
    local = f"localhost/testbed-build/{archive_name(tag)}"
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="image-", dir=layout.cache) as folder:
        context = Path(folder, "context")
        context.mkdir()
        dockerfile.stage(files, context)
        pip = Path(folder, "pip.conf")
        pip.write_text(pip_configuration(), encoding="utf-8")
        # Mounted, not set by ENV: nothing of this machine shall be in the image.
        volumes = [f"--volume={pip}:/etc/pip.conf:ro"]
        if _AUTHORITIES.exists():
            volumes.append(f"--volume={_AUTHORITIES}:{_AUTHORITIES}:ro")
        command: Command = ["buildah", *storage, "bud", "--isolation=chroot", "--layers", "--pull-never", *volumes]
        values = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        run_logged([*command, *values, f"--file={file}", f"--tag={local}", context], log)
    try:
        run_logged(["buildah", *storage, "push", local, f"docker-archive:{temporary}:{tag}"], log)
        temporary.rename(target)
    finally:
        temporary.unlink(missing_ok=True)


def archive_name(tag: str) -> str:
    """Give the name under which all versions of an image are kept: the tag's name without its version."""
    repository = re.sub(r":[^:/]*$", "", tag)
    return re.sub(r"[^a-z0-9]+", "-", repository.lower()).strip("-")


def _storage(layout: Layout) -> list[str]:
    """Keep buildah's storage apart from the user's; its layers make a rebuild after a change of code quick."""
    folder = layout.cache / "buildah"
    return ["--root", f"{folder}/storage", "--runroot", f"{folder}/run", "--storage-driver", "overlay"]


def pip_configuration() -> str:
    """Write the pip configuration for builds: this machine's certificates and index, where it has its own."""
    found = configparser.ConfigParser(interpolation=None)
    found.read([Path(name).expanduser() for name in _PIP_FILES], encoding="utf-8")
    lines = ["[global]"]
    if _AUTHORITIES.exists():
        lines.append(f"cert = {_AUTHORITIES}")
    for key in _PIP_KEYS:
        value = os.environ.get(f"PIP_{key.upper().replace('-', '_')}") or found.get("global", key, fallback=None)
        if value:
            lines.append(f"{key} = {value}")
    return "\n".join(lines) + "\n"


def _base_key() -> str:
    return hashlib.sha256(" ".join((SUITE, *BASE_PACKAGES)).encode()).hexdigest()[:12]


def _base_name() -> str:
    return f"localhost/vllm-operator/base:{SUITE}-{_base_key()}"


def ensure_base(layout: Layout) -> Path:
    """Make or find the base image: a minimal Debian with Python."""
    target = layout.cache / "images" / f"base-{SUITE}-{_base_key()}.tar"
    if target.exists():
        return target
    log = layout.cache / "logs" / "debootstrap.log"
    target.parent.mkdir(parents=True, exist_ok=True)
    with part(f"base image: Debian {SUITE}"), tempfile.TemporaryDirectory(prefix="base-", dir=layout.cache) as folder:
        root = Path(folder, "root")
        include = f"--include={','.join(BASE_PACKAGES)}"
        run_logged(["debootstrap", "--variant=minbase", include, SUITE, root, _mirror()], log)
        for path in ("var/cache/apt/archives", "var/lib/apt/lists"):
            shutil.rmtree(root / path)
            (root / path).mkdir()
        tarball = Path(folder, "layer.tar")
        # Neither devices (chroot isolation and runtimes make their own) nor the host's names.
        excluded = [f"--exclude=./{path}" for path in ("dev/*", "proc/*", "sys/*", "etc/hostname", "etc/resolv.conf")]
        run_logged(["tar", "--create", "--numeric-owner", f"--file={tarball}", *excluded, "-C", root, "."], log)
        temporary = Path(folder, "image.tar")
        _write_base(tarball, temporary)
        temporary.rename(target)
    return target


def _write_base(tarball: Path, target: Path) -> None:
    with tarball.open("rb") as data:
        layer = hashlib.file_digest(data, "sha256").hexdigest()
    config = archive.configuration(layer)
    with tarfile.open(target, "w") as tar:
        archive.add_bytes(tar, archive.configuration_name(config), config)
        tar.add(tarball, f"{layer}/layer.tar")
        archive.add_bytes(tar, "manifest.json", archive.manifest(_base_name(), config, layer))


def _mirror() -> str:
    """Give the mirror that this machine installs from, which may be the only one it reaches."""
    sites = run(["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"]).split()
    own = [site for site in sites if site.rstrip("/").endswith("/debian")]
    if not own:
        raise BedError("apt knows no mirror of Debian (no site that ends in /debian): the base image comes from it")
    return own[0]


def _ensure_base_in_storage(layout: Layout, log: Path) -> None:
    storage = _storage(layout)
    try:
        run(["buildah", *storage, "inspect", "--type=image", _base_name()])
    except BedError:
        run_logged(["buildah", *storage, "pull", f"docker-archive:{ensure_base(layout)}"], log)


def _limit_storage(layout: Layout) -> None:
    """Throw buildah's storage away when too many nameless layers have gathered in it."""
    if len(run(["buildah", *_storage(layout), "images", "--all", "--quiet"]).split()) > _MOST_IMAGES:
        mounts.remove_tree(layout.cache / "buildah")


def _prune(folder: Path, name: str) -> None:
    """Keep the newest archives of an image; each is as large as a Debian."""
    archives = sorted(folder.glob(f"{name}-*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in archives[_KEPT:]:
        path.unlink()
