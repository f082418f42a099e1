"""A repository to every node of an engine: all get the commit that the lead found, and a shared cache is filled once.

How far it is goes into the engine's report, at a rate that a person reads and an API server does not notice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from vllm_bootstrap.clock import Clock
from vllm_bootstrap.contract import DownloadReport, EnginePlan
from vllm_bootstrap.download.model_files import load_format
from vllm_bootstrap.download.process import Order, Sight
from vllm_bootstrap.failure import EngineFailure

GIB = 1024**3
LOOK_SECONDS = 1.0
TELL_SECONDS = 3.0
SLOW_SECONDS = 300.0
"""After so long any byte is told: to the operator an engine that says nothing for half an hour is lost."""

TOLD_PODS = 4


class Site(Protocol):
    """A pod that downloads."""

    @property
    def pod(self) -> str:
        """Its name, for messages."""

    def start(self, order: Order) -> None:
        """Begin."""

    def look(self) -> Sight:
        """Say how far it is."""

    def close(self) -> None:
        """End it, if it still runs."""


Tell = Callable[[tuple[DownloadReport, ...], str], None]


def model_order(plan: EnginePlan) -> Order:
    """Order the model of a plan; an engine that is started again keeps the commit that it had."""
    return Order(
        source=plan.source,
        token_file=plan.hub_token_file,
        load_format=load_format(plan.arguments),
        keep=plan.attempt > 1,
        environment=plan.environment,
    )


def fetch(sites: Sequence[Site], order: Order, *, tell: Tell, check: Callable[[], None], clock: Clock) -> str:
    """Bring a repository to all nodes of an engine.

    Parameters
    ----------
    sites
        One for each pod, the lead's first; who made them closes them.
    order
        Of the lead; the others get what the lead finds.
    tell
        Takes how far each pod is, and the same in words.
    check
        Raises what ends the waiting.

    Returns
    -------
    str
        Folder of the repository, the same in each pod.

    Raises
    ------
    EngineFailure
        A pod could not get it.
    """
    lead, *others = sites
    started: list[Site] = []
    teller = _Teller(order.source.repository, tell, clock)

    def start(chosen: Sequence[Site], given: Order) -> None:
        for site in chosen:
            site.start(given)
            started.append(site)

    start([lead], order)
    while True:
        sights = [site.look() for site in started]
        _raise_first(started, sights)
        teller.see(started, sights)
        first = sights[0]
        if len(sights) == len(sites) and all(sight.path for sight in sights):
            return first.path
        # In a shared cache the others find all that the lead has brought.
        ready = bool(first.path) if order.source.shared else first.snapshot is not None
        if ready and len(sights) == 1 and others:
            start(others, replace(order, snapshot=first.snapshot))
        check()
        clock.sleep(LOOK_SECONDS)


def describe(repository: str, downloads: Sequence[DownloadReport]) -> str:
    """Say how far the pods are, those that lag first."""
    known = sorted((item for item in downloads if item.total), key=lambda item: (item.done / item.total, item.pod))
    if not known:
        return f"asking the hub for hf://{repository}"
    told = ", ".join(f"{item.pod} {_share(item)}" for item in known[:TOLD_PODS])
    more = f", {len(known) - TOLD_PODS} more pods are further" if len(known) > TOLD_PODS else ""
    return f"downloading hf://{repository}: {told}{more}"


def _share(item: DownloadReport) -> str:
    percent = 100 * item.done // item.total
    return f"{percent}% ({item.done / GIB:.2f} of {item.total / GIB:.2f} GiB)"


def _raise_first(sites: Sequence[Site], sights: Sequence[Sight]) -> None:
    for site, sight in zip(sites, sights, strict=True):
        if sight.reason:
            raise EngineFailure(sight.reason, f"{sight.message} (pod {site.pod})")


class _Teller:
    """Tells what has changed by a per cent, and not too often."""

    def __init__(self, repository: str, tell: Tell, clock: Clock) -> None:
        self._repository = repository
        self._tell = tell
        self._clock = clock
        self._told: dict[str, int] | None = None
        self._done: list[int] = []
        self._at = 0.0

    def see(self, sites: Sequence[Site], sights: Sequence[Sight]) -> None:
        percents = {
            site.pod: 100 * sight.done // sight.total for site, sight in zip(sites, sights, strict=True) if sight.total
        }
        now, done = self._clock.monotonic(), [sight.done for sight in sights]
        moved = done != self._done if now - self._at >= SLOW_SECONDS else percents != self._told
        if self._told is not None and not (moved and now - self._at >= TELL_SECONDS):
            return
        self._told, self._done, self._at = percents, done, now
        downloads = tuple(
            DownloadReport(pod=site.pod, done=sight.done, total=sight.total)
            for site, sight in zip(sites, sights, strict=True)
        )
        self._tell(downloads, describe(self._repository, downloads))
