"""kubectl's watch is read object by object."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.testbed.errors import BedError
from tests.testbed.kube import Kubectl
from tests.testbed.layout import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    found = Layout(cache=tmp_path / "cache", state=tmp_path / "state")
    found.bin.mkdir(parents=True)
    return found


def _kubectl(layout: Layout, script: str) -> Kubectl:
    program = layout.bin / "kubectl"
    program.write_text("#!/bin/sh\n" + script)
    program.chmod(0o755)
    return Kubectl(layout)


def test_each_change_is_given_as_it_comes(layout: Layout) -> None:
    bodies = [{"metadata": {"name": "a"}, "status": {"text": "}\n{"}}, {"status": {}}]
    text = "\n".join(json.dumps(body, indent=4) for body in bodies)
    kubectl = _kubectl(layout, f"cat <<'END'\n{text}\nEND\nexec sleep 60\n")
    seen = kubectl.follow("things", "-l", "a=b", deadline=10.0)
    assert [next(seen), next(seen)] == bodies


def test_it_ends_at_the_deadline(layout: Layout) -> None:
    kubectl = _kubectl(layout, "exec sleep 60\n")
    assert list(kubectl.follow("things", "-l", "a=b", deadline=0.2)) == []


def test_a_watch_that_ends_is_no_deadline(layout: Layout) -> None:
    kubectl = _kubectl(layout, "exit 1\n")
    with pytest.raises(BedError, match="get things --watch has ended"):
        list(kubectl.follow("things", "-l", "a=b", deadline=10.0))


def test_a_watch_that_the_server_closes_is_begun_again(layout: Layout) -> None:
    kubectl = _kubectl(
        layout, 'echo x >> calls; cat <<END\n{\n"call": $(wc -l < calls)\n}\nEND\n'.replace("calls", str(layout.cache))
    )
    seen = kubectl.follow("things", "-l", "a=b", deadline=10.0)
    assert [next(seen), next(seen)] == [{"call": 1}, {"call": 2}]
