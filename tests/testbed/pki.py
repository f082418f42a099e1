"""Keys and certificates of a bed, made by the openssl program (the operator's own dependencies hold no X.509)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .process import Command, run

_DAYS = "365"


def make_authority(folder: Path) -> None:
    """Make the certificate authority and the key pair that signs service account tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    _key(folder / "ca.key")
    authority: Command = [
        "openssl",
        "req",
        "-x509",
        "-new",
        "-key",
        folder / "ca.key",
        "-subj",
        "/CN=vllm-operator-testbed",
    ]
    run([*authority, "-days", _DAYS, "-out", folder / "ca.crt"])
    _key(folder / "sa.key")
    run(["openssl", "pkey", "-in", folder / "sa.key", "-pubout", "-out", folder / "sa.pub"])


def issue(folder: Path, name: str, subject: str, alternatives: Sequence[str] = ()) -> None:
    """Issue ``name.crt`` and ``name.key`` for server and client use."""
    _key(folder / f"{name}.key")
    request = folder / f"{name}.csr"
    run(["openssl", "req", "-new", "-key", folder / f"{name}.key", "-subj", subject, "-out", request])
    lines = ["keyUsage=digitalSignature,keyEncipherment", "extendedKeyUsage=serverAuth,clientAuth"]
    if alternatives:
        lines.append(f"subjectAltName={','.join(alternatives)}")
    extensions = folder / f"{name}.ext"
    extensions.write_text("\n".join(lines) + "\n", encoding="utf-8")
    authority: Command = ["-CA", folder / "ca.crt", "-CAkey", folder / "ca.key", "-CAcreateserial"]
    sign: Command = ["openssl", "x509", "-req", "-in", request, *authority, "-days", _DAYS, "-extfile", extensions]
    run([*sign, "-out", folder / f"{name}.crt"])


def _key(path: Path) -> None:
    run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path])
    path.chmod(0o600)
