"""Images written here are what a container runtime expects."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

from tests.testbed import archive


def read(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {member.name: (tar.extractfile(member) or io.BytesIO()).read() for member in tar}


def test_an_archive_holds_manifest_configuration_and_layer_that_agree(tmp_path: Path) -> None:
    image = archive.Image("localhost/x:1", {"bin/run": archive.Entry(b"#!", mode=0o755)}, entrypoint=["/bin/run"])
    archive.write(image, tmp_path / "x.tar")
    files = read(tmp_path / "x.tar")
    (entry,) = json.loads(files["manifest.json"])
    assert entry["RepoTags"] == ["localhost/x:1"]
    config = json.loads(files[entry["Config"]])
    assert config["config"]["Entrypoint"] == ["/bin/run"]
    assert entry["Config"] == hashlib.sha256(files[entry["Config"]]).hexdigest() + ".json"
    (layer,) = entry["Layers"]
    assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(files[layer]).hexdigest()]


def test_equal_entries_make_an_equal_layer_whatever_their_order() -> None:
    first = {"a": archive.Entry(b"1"), "b": archive.folder(), "c": archive.link("a")}
    assert archive.layer(first) == archive.layer(dict(reversed(first.items())))


def test_a_layer_keeps_kinds_modes_and_links() -> None:
    entries = {"tmp": archive.folder(0o1777), "bin": archive.link("usr/bin"), "x": archive.Entry(b"abc", mode=0o755)}
    with tarfile.open(fileobj=io.BytesIO(archive.layer(entries))) as tar:
        members = {member.name: member for member in tar}
    assert members["tmp"].isdir()
    assert members["tmp"].mode == 0o1777
    assert (members["bin"].issym(), members["bin"].linkname) == (True, "usr/bin")
    assert (members["x"].size, members["x"].mode) == (3, 0o755)


def test_the_thin_image_has_no_program_but_the_places_for_them() -> None:
    entries = archive.thin("t").entries
    assert {entries[name].data for name in ("bin", "sbin", "lib", "lib64")} == {
        b"usr/bin",
        b"usr/sbin",
        b"usr/lib",
        b"usr/lib64",
    }
    assert not [path for path in entries if path.startswith("usr/")]
    assert entries["etc/passwd"].data.startswith(b"root:")
    assert entries["tmp"].mode == 0o1777
    for path in entries:
        parent = str(Path(path).parent)
        assert parent == "." or parent in entries, path
