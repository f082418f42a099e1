"""Container images without a registry or an engine: a docker-archive is three files in a tar."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_DEFAULT_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
_AUTHORITIES = "certs/ca-certificates.crt"


@dataclass(frozen=True)
class Entry:
    """One file, folder or link of an image.

    Parameters
    ----------
    data
        Content of a file; target of a link; ignored for a folder.
    kind
        ``tarfile``'s type.
    mode
        Permission bits.
    """

    data: bytes = b""
    kind: bytes = tarfile.REGTYPE
    mode: int = 0o644


def folder(mode: int = 0o755) -> Entry:
    """Make a folder."""
    return Entry(kind=tarfile.DIRTYPE, mode=mode)


def link(target: str) -> Entry:
    """Make a symbolic link."""
    return Entry(data=target.encode(), kind=tarfile.SYMTYPE, mode=0o777)


@dataclass(frozen=True)
class Image:
    """An image of one layer.

    Parameters
    ----------
    name
        Name with tag.
    entries
        Path in the image, without leading slash, to what is there.
    entrypoint
        Command that is always run.
    env
        Environment.
    """

    name: str
    entries: Mapping[str, Entry]
    entrypoint: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=lambda: dict(_DEFAULT_ENV))


def layer(entries: Mapping[str, Entry]) -> bytes:
    """Write a layer; the same entries give the same bytes, so that an image keeps its digest."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in sorted(entries):
            entry = entries[path]
            info = tarfile.TarInfo(path)
            info.type, info.mode = entry.kind, entry.mode
            if entry.kind == tarfile.SYMTYPE:
                info.linkname = entry.data.decode()
                tar.addfile(info)
            elif entry.kind == tarfile.DIRTYPE:
                tar.addfile(info)
            else:
                info.size = len(entry.data)
                tar.addfile(info, io.BytesIO(entry.data))
    return buffer.getvalue()


def write(image: Image, target: Path) -> None:
    """Write an image as a docker-archive."""
    data = layer(image.entries)
    digest = hashlib.sha256(data).hexdigest()
    config = configuration(digest, image.entrypoint, image.env)
    with tarfile.open(target, "w") as tar:
        add_bytes(tar, configuration_name(config), config)
        add_bytes(tar, f"{digest}/layer.tar", data)
        add_bytes(tar, "manifest.json", manifest(image.name, config, digest))


def configuration(digest: str, entrypoint: Sequence[str] = (), env: Mapping[str, str] = _DEFAULT_ENV) -> bytes:
    """Write the configuration of an image of one layer."""
    settings = {
        "Entrypoint": list(entrypoint) or None,
        "Env": [f"{name}={value}" for name, value in env.items()],
    }
    return json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created_by": "testbed"}],
        }
    ).encode()


def configuration_name(config: bytes) -> str:
    """Give the name of the configuration in the archive."""
    return f"{hashlib.sha256(config).hexdigest()}.json"


def manifest(name: str, config: bytes, digest: str) -> bytes:
    """Write the manifest of an image of one layer."""
    entry = {"Config": configuration_name(config), "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}
    return json.dumps([entry]).encode()


def add_bytes(tar: tarfile.TarFile, path: str, data: bytes) -> None:
    """Add a file with given content."""
    info = tarfile.TarInfo(path)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def pause(name: str, program: Path) -> Image:
    """Make the image that holds a pod's namespaces."""
    return Image(name, {"pause": Entry(program.read_bytes(), mode=0o755)}, entrypoint=("/pause",))


def thin(name: str) -> Image:
    """Make the image for pods that get everything by read-only mounts of the host: folders and links only.

    The links are those of a merged ``/usr``; what is copied from ``/etc`` makes users, names and the loader work as on
    the host, whose programs these pods run.
    """
    folders = "usr proc sys dev run var var/run etc etc/ssl etc/ssl/certs root opt home mnt"
    entries: dict[str, Entry] = {path: folder() for path in folders.split()}
    entries |= {path: folder(0o1777) for path in ("tmp", "var/tmp")}
    entries |= {path: link(f"usr/{path}") for path in ("bin", "sbin", "lib", "lib64")}
    # Half of /usr/bin are links into /etc/alternatives.
    alternatives = Path("/etc/alternatives")
    entries["etc/alternatives"] = folder()
    entries |= {str(path)[1:]: link(str(path.readlink())) for path in alternatives.glob("*") if path.is_symlink()}
    for path in ("etc/passwd", "etc/group", "etc/nsswitch.conf", "etc/ld.so.cache", f"etc/ssl/{_AUTHORITIES}"):
        source = Path("/", path)
        if source.is_file():
            entries[path] = Entry(source.read_bytes())
    entries["etc/ssl/cert.pem"] = link(_AUTHORITIES)
    return Image(name, entries)
