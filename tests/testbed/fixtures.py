"""Pytest fixtures of the test bed; a ``conftest.py`` imports them by name.

A bed that is up before the tests is used and left up: a developer's bed survives.  One that the tests brought up goes
down with them; its logs stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from .bed import Bed
from .kube import Kubectl
from .python_runtime import Runtime


@pytest.fixture(scope="session")
def bed() -> Iterator[Bed]:
    """Give a healthy bed."""
    present = Bed.find()
    found = present or Bed.up()
    if not found.spec.kuberay:
        found.install_kuberay()
    yield found
    if present is None:
        found.down()


@pytest.fixture(scope="session")
def runtime(bed: Bed) -> Runtime:
    """Give the CPU runtime with the demo model."""
    return bed.runtime()


@pytest.fixture(scope="session")
def kubectl(bed: Bed) -> Kubectl:
    """Give kubectl with the administrator's rights: ``kubectl("get", "pods")``, ``kubectl.json(...)``."""
    return bed.api


@pytest.fixture(scope="module")
def kwok(bed: Bed) -> Iterator[None]:
    """Let nodes of :func:`.kwok.node` be played; a test removes its own before it ends."""
    bed.start_kwok()
    yield
    bed.stop_kwok()


@pytest.fixture(scope="module")
def namespace(request: pytest.FixtureRequest, bed: Bed) -> Iterator[str]:
    """Give a fresh namespace, named after the test module, that goes with it."""
    module = str(request.module.__name__).rpartition(".")[2]
    name = re.sub(r"[^a-z0-9]+", "-", module.lower()).strip("-")[:50]
    bed.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=true", "--timeout=120s")
    bed.kubectl("create", "namespace", name)
    # Pods are refused until the namespace has its service account.
    bed.wait_for(f"service account of {name}", lambda: bed.kubectl("get", "serviceaccount", "default", "-n", name))
    yield name
    bed.kubectl("delete", "namespace", name, "--wait=false")
