"""What an image build depends on, and what a runtime pod mounts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.testbed import dockerfile, imagebuild
from tests.testbed.bed import overlay
from tests.testbed.errors import BedError
from tests.testbed.python_runtime import Runtime, digest, source_files

DOCKERFILE = """\
# COPY not/this /x
ARG BASE_IMAGE
FROM ${BASE_IMAGE} AS build
COPY pyproject.toml \\
     operator /src/
COPY --chown=1:1 ["with blank.txt", "/src/"]
ADD https://example.test/file /src/
FROM ${BASE_IMAGE}
COPY --from=build /opt/venv /opt/venv
"""


def test_sources_are_what_is_copied_from_the_context() -> None:
    assert dockerfile.sources(DOCKERFILE) == ["pyproject.toml", "operator", "with blank.txt"]


def test_here_documents_are_refused_not_missed() -> None:
    with pytest.raises(BedError, match="here-documents"):
        dockerfile.sources("COPY <<EOF /x\nhello\nEOF\n")


def test_only_copied_files_are_staged_without_what_python_leaves(tmp_path: Path) -> None:
    context = tmp_path / "context"
    for name in ("operator/a.py", "operator/__pycache__/a.pyc", "tests/b.py", "pyproject.toml", "with blank.txt"):
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).write_text(name, encoding="utf-8")
    files = dockerfile.context_files(context, DOCKERFILE)
    assert sorted(files) == ["operator/a.py", "pyproject.toml", "with blank.txt"]
    dockerfile.stage(files, tmp_path / "staged")
    assert (tmp_path / "staged" / "operator" / "a.py").read_text(encoding="utf-8") == "operator/a.py"
    assert (tmp_path / "staged" / "pyproject.toml").stat().st_mtime == 1_577_836_800


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(BedError, match=r"COPY lost\.txt: no such file"):
        dockerfile.context_files(tmp_path, "COPY lost.txt /x\n")


@pytest.mark.parametrize("tag", ["localhost/vllm-operator/operator:1", "localhost/vllm-operator/operator:0123abc"])
def test_all_versions_of_an_image_share_a_name_so_that_old_ones_are_removed(tag: str) -> None:
    assert imagebuild.archive_name(tag) == "localhost-vllm-operator-operator"
    assert imagebuild.archive_name("registry:5000/x") == "registry-5000-x"


def test_pip_in_a_build_uses_the_index_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.test/simple")
    assert "index-url = https://mirror.test/simple" in imagebuild.pip_configuration().splitlines()


def test_a_digest_follows_names_contents_and_facts(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("1", encoding="utf-8")
    first = digest([file], {"x": "1"})
    assert digest([file], {"x": "2"}) != first
    file.write_text("2", encoding="utf-8")
    assert digest([file], {"x": "1"}) != first
    file.write_text("1", encoding="utf-8")
    assert digest([file], {"x": "1"}) == first


def test_the_plugin_is_its_sources_not_what_a_build_left(tmp_path: Path) -> None:
    for name in ("p/a.py", "p/__pycache__/a.pyc", "build/lib/a.py", "p.egg-info/PKG-INFO"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [path.name for path in source_files(tmp_path)] == ["a.py"]


@pytest.mark.parametrize(
    ("base", "names"),
    [
        ("/usr", {"host-usr", "runtime-venv", "demo-model"}),
        ("/opt/python", {"host-usr", "runtime-venv", "demo-model", "host-python"}),
    ],
)
def test_the_interpreter_is_mounted_when_it_is_not_the_systems(base: str, names: set[str]) -> None:
    runtime = Runtime(venv=Path("/c/venv"), base=Path(base), model=Path("/c/model"))
    assert set(runtime.mounts) == names
    assert runtime.env["PATH"].startswith("/c/venv/bin:")


def test_the_overlay_mounts_folders_read_only_at_their_own_paths() -> None:
    made = overlay({"demo-model": Path("/c/model")}, {"PATH": "/c/bin"}, ["vllm"])["spec"]
    assert made["volumes"] == [{"name": "demo-model", "hostPath": {"path": "/c/model", "type": "Directory"}}]
    assert made["containers"] == [
        {
            "name": "vllm",
            "volumeMounts": [{"name": "demo-model", "mountPath": "/c/model", "readOnly": True}],
            "env": [{"name": "PATH", "value": "/c/bin"}],
        }
    ]
