"""Fixtures of the tests on the test bed: the operator as a pod, installed by its chart, under the chart's roles."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.hub.server import HubServer, serving_hub
from tests.product.install import Installation, install
from tests.testbed.bed import Bed
from tests.testbed.render import GATEWAY


@pytest.fixture(scope="session")
def hub_server(bed: Bed) -> Iterator[HubServer]:
    """Serve a stand-in for the hub on the bed's bridge; its own log says who asked for what."""
    with serving_hub(GATEWAY) as server:
        yield server


@pytest.fixture(scope="session")
def operator(bed: Bed, hub_server: HubServer) -> Installation:
    """Give the installed operator; its chart names the hub."""
    return install(bed, values={"hub": {"endpoint": hub_server.url}})
