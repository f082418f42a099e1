"""The settings file: what it may hold, and what is said about one that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_bootstrap.contract import Deadlines
from vllm_operator.runtime.settings import ProcessSettings, SettingsError, read_settings


def written(folder: Path, data: Any) -> Path:
    path = folder / "config.yaml"
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return path


@pytest.mark.parametrize("data", ["", "{}", "# nothing\n", None])
def test_nothing_is_all_defaults(tmp_path: Path, data: str | None) -> None:
    assert read_settings(None if data is None else written(tmp_path, data)) == ProcessSettings()


def test_all_of_it(tmp_path: Path) -> None:
    settings = read_settings(
        written(
            tmp_path,
            {
                "watchNamespaces": ["a", "b"],
                "concurrency": 2,
                "resyncSeconds": 60,
                "logging": {"level": "debug", "format": "json"},
                "leaderElection": {"enabled": False, "leaseName": "l"},
                "probes": {"port": 1},
                "metrics": {"port": 0},
                "runtime": {"image": "i", "rayVersion": "2", "podTemplate": {"spec": {"hostIPC": True}}},
                "deadlines": {"load": 9},
                "recovery": {"backoffSeconds": 1, "maxBackoffSeconds": 2},
                "hub": {"enabled": False, "endpoint": "http://mirror:8080/hf/"},
            },
        )
    )
    decisions = settings.decisions()
    assert decisions.defaults.image == "i"
    assert decisions.defaults.ray_version == "2"
    assert decisions.defaults.pod_template == {"spec": {"hostIPC": True}}
    assert decisions.deadlines == Deadlines(load=9)
    assert [decisions.recovery.delay(attempt) for attempt in (1, 2, 3)] == [1, 2, 2]
    assert not settings.leader_election.enabled
    assert settings.leader_election.lease_duration_seconds == 15
    assert settings.watch_namespaces == ["a", "b"]
    assert (settings.hub.enabled, settings.hub.endpoint) == (False, "http://mirror:8080/hf")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"concurency": 3}, ["concurency", "Extra inputs are not permitted"]),
        ({"runtime": {"img": "x"}}, ["runtime.img", "Extra inputs"]),
        ({"concurrency": "many"}, ["concurrency", "valid integer"]),
        ({"concurrency": 0}, ["concurrency", "greater than or equal to 1"]),
        ({"logging": {"level": "loud"}}, ["logging.level"]),
        ({"probes": {"port": 70000}}, ["probes.port"]),
        ({"probes": {}}, ["probes.port", "required"]),
        ({"watchNamespaces": "all"}, ["watchNamespaces", "valid list"]),
        ({"recovery": {"backoffSeconds": 0}}, ["recovery.backoffSeconds"]),
        ({"hub": {"endpoint": "mirror:8080"}}, ["hub.endpoint", "begins with http:// or https://"]),
        ({"hub": {"endpoint": "https://u:p@mirror"}}, ["hub.endpoint", "must hold no user"]),
        ({"hub": {"token": "x"}}, ["hub.token", "Extra inputs"]),
        ({"a": 1, "b": 2}, ["a: ", "; b: "]),
        ("- a list\n", ["the file: "]),
        ("a: [", ["no YAML"]),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, data: Any, words: list[str]) -> None:
    path = written(tmp_path, data)
    with pytest.raises(SettingsError) as error:
        read_settings(path)
    for word in [str(path), *words]:
        assert word in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent\.yaml: No such file"):
        read_settings(tmp_path / "absent.yaml")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="no YAML"):
        read_settings(tmp_path / "config.yaml")
