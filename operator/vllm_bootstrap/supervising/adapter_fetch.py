"""LoRA adapters of the hub, brought to every pod of an engine while it loads or serves."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from vllm_bootstrap.clock import Clock
from vllm_bootstrap.contract import Adapter, DownloadReport, EnginePlan, FailureReason
from vllm_bootstrap.download.adapter_files import ADAPTER_FORMAT
from vllm_bootstrap.download.fetch import Site, fetch
from vllm_bootstrap.download.process import Order
from vllm_bootstrap.failure import EngineFailure
from vllm_bootstrap.supervising.events import AdapterFetched, Inbox

LOG = logging.getLogger(__name__)

LANES = 4
"""So many are downloaded at a time: one that stalls must not hold up all others."""


class AdapterFetcher:
    """Downloads adapters, each in a thread of its own; ``AdapterFetched`` follows, again and again until it has ended.

    Parameters
    ----------
    sites
        Makes a site in each pod that holds ranks, the lead's first.
    """

    def __init__(self, plan: EnginePlan, *, sites: Callable[[], Sequence[Site]], inbox: Inbox, clock: Clock) -> None:
        self._plan = plan
        self._sites = sites
        self._inbox = inbox
        self._clock = clock
        self._lanes = threading.BoundedSemaphore(LANES)
        self._wanted: frozenset[tuple[str, str]] = frozenset()

    def keep(self, adapters: Sequence[Adapter]) -> None:
        """Give up the downloads of all others."""
        self._wanted = frozenset((adapter.name, adapter.path) for adapter in adapters)

    def fetch(self, adapter: Adapter) -> None:
        """Begin a download; it is among those that are kept."""
        threading.Thread(target=self._run, args=(adapter,), name="adapter-fetch", daemon=True).start()

    def close(self) -> None:
        """Give up all of them."""
        self.keep(())

    def _run(self, adapter: Adapter) -> None:
        with self._lanes:
            try:
                self._check(adapter)
                folder = self._bring(adapter)
                event = AdapterFetched(adapter, folder=folder, commit=Path(folder).name)
            except EngineFailure as failure:
                event = AdapterFetched(adapter, failed=True, message=failure.message)
            except Exception as error:
                LOG.exception("the download of the adapter %s failed", adapter.name)
                event = AdapterFetched(adapter, failed=True, message=f"the download failed: {error!r}")
        LOG.info("adapter %s: %s", adapter.name, event.message or event.folder)
        self._inbox.put(event)

    def _bring(self, adapter: Adapter) -> str:
        def tell(_: tuple[DownloadReport, ...], message: str) -> None:
            self._inbox.put(AdapterFetched(adapter, message=message))

        order, sites = adapter_order(self._plan, adapter), self._sites()
        try:
            return fetch(sites, order, tell=tell, check=lambda: self._check(adapter), clock=self._clock)
        finally:
            for site in sites:
                site.close()

    def _check(self, adapter: Adapter) -> None:
        if (adapter.name, adapter.path) not in self._wanted:
            raise EngineFailure(FailureReason.DOWNLOAD_FAILED, "it is wanted no more")


def adapter_order(plan: EnginePlan, adapter: Adapter) -> Order:
    """Order an adapter; one that had a commit before keeps it."""
    source = adapter.source
    return Order(
        source=replace(source, revision=adapter.commit or source.revision),
        token_file=plan.hub_token_file,
        load_format=ADAPTER_FORMAT,
        keep=bool(adapter.commit),
        environment=plan.environment,
    )
