"""The LoRA adapters of one attempt: what is wanted, what is downloaded, what the engine has said of it.

The engine is asked for folders, one question at a time.  An adapter of the hub has one only after its download, which
may take longer than a load does; until then the engine serves without it, or with what it had under that name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_bootstrap.clock import Clock
from vllm_bootstrap.contract import Adapter, AdapterReport, AdapterState
from vllm_bootstrap.supervising.events import AdapterFetched, AdaptersSeen

AGAIN_SECONDS = 20.0
"""What has failed is not tried again sooner, however often it is asked for."""

WAITING = "waiting for its download"
LOADING = "it is downloaded; the engine is asked to load it"

Key = tuple[str, str]


@dataclass(frozen=True)
class _Folder:
    """Where a downloaded adapter is, and which commit that is."""

    path: str
    commit: str


@dataclass(frozen=True)
class _Fault:
    """Why a download failed, and when."""

    message: str
    at: float


class Adapters:
    """Keeps what follows from one another: wanted, downloaded, asked for, answered.

    Parameters
    ----------
    wanted
        From the beginning on.
    """

    def __init__(self, wanted: Sequence[Adapter], clock: Clock) -> None:
        self._clock = clock
        self._wanted = tuple(wanted)
        self._running: dict[Key, str] = {}
        """Downloads, and how far they are."""
        self._folders: dict[Key, _Folder] = {}
        self._faults: dict[Key, _Fault] = {}
        self._asked: tuple[Adapter, ...] | None = None
        self._asked_at = clock.monotonic()
        self._answers: dict[Key, AdapterReport] = {}
        """By name and folder, as the engine last said."""
        self._origins: dict[Key, Adapter] = {}
        """By name and folder: the adapter that this is, as it is wanted."""
        self._served: dict[str, str] = {}
        """By name: the folder that the engine serves."""

    @property
    def wanted(self) -> tuple[Adapter, ...]:
        """What the operator asked for last."""
        return self._wanted

    def want(self, adapters: Sequence[Adapter]) -> None:
        """Take what is wanted from now on; what is not forgets its download, so that it is another one afterwards."""
        self._wanted = tuple(adapters)
        keys = set(map(_key, adapters))
        self._running = {key: told for key, told in self._running.items() if key in keys}
        self._folders = {key: folder for key, folder in self._folders.items() if key in keys}
        self._faults = {key: fault for key, fault in self._faults.items() if key in keys}

    def next_downloads(self) -> list[Adapter]:
        """Give those whose download is to begin, also where one has failed a while ago; they count as begun."""
        now = self._clock.monotonic()
        begun = [adapter for adapter in self._wanted if adapter.source.repository and self._is_due(_key(adapter), now)]
        self._running |= dict.fromkeys(map(_key, begun), WAITING)
        return begun

    def take(self, event: AdapterFetched) -> None:
        """Take how far a download is."""
        key = _key(event.adapter)
        if key not in self._running:
            return  # it is wanted no more
        self._running[key] = event.message
        if event.folder:
            self._folders[key] = _Folder(event.folder, event.commit)
            self._faults.pop(key, None)
        elif event.failed:
            self._faults[key] = _Fault(event.message, self._clock.monotonic())
        if event.folder or event.failed:
            del self._running[key]

    def next_question(self, *, again: bool = False) -> tuple[Adapter, ...] | None:
        """Give what the engine is to be asked for; ``None`` while an answer is to come, or nothing has changed.

        Parameters
        ----------
        again
            Ask also for what has failed: what was wrong with it may be mended.
        """
        if self._asked is not None:
            return None
        question = self._question()
        if {_key(item) for item in question} == set(self._answers) and not (again and self._has_failed()):
            return None
        self._asked, self._asked_at = question, self._clock.monotonic()
        return question

    @property
    def is_asked(self) -> bool:
        """Whether an answer is to come."""
        return self._asked is not None

    def answered(self, seen: AdaptersSeen) -> None:
        """Take the engine's answer."""
        asked, self._asked = self._asked or (), None
        told = seen.adapters
        if seen.fault:
            told = tuple(
                AdapterReport(name=item.name, path=item.path, state=AdapterState.FAILED, message=seen.fault)
                for item in asked
            )
        self._answers = {(item.name, item.path): item for item in told}
        names = {item.name for item in told}
        self._served = {name: folder for name, folder in self._served.items() if name in names}
        self._served |= {item.name: item.path for item in told if item.state is AdapterState.LOADED}
        self._origins = {key: origin for key, origin in self._origins.items() if key in self._answers}

    def reports(self) -> tuple[AdapterReport, ...]:
        """Give what is to be told of each, also of those that are no more wanted as long as the engine has them."""
        told: dict[Key, AdapterReport] = {}
        for adapter in self._wanted:
            if report := self._report(adapter):
                told[_key(adapter)] = report
        for key, answer in self._answers.items():
            origin = self._origins.get(key) or Adapter(name=answer.name, path=answer.path)
            told.setdefault(_key(origin), _as_wanted(answer, origin, ""))
        return tuple(told.values())

    def _is_due(self, key: Key, now: float) -> bool:
        fault = self._faults.get(key)
        is_recent = fault is not None and now - fault.at < AGAIN_SECONDS
        return key not in self._running and key not in self._folders and not is_recent

    def _has_failed(self) -> bool:
        failed = any(item.state is AdapterState.FAILED for item in self._answers.values())
        return failed and self._clock.monotonic() - self._asked_at >= AGAIN_SECONDS

    def _question(self) -> tuple[Adapter, ...]:
        question = []
        for adapter in self._wanted:
            if folder := self._folder(adapter) or self._served.get(adapter.name):
                question.append(Adapter(name=adapter.name, path=folder))
                if self._folder(adapter):
                    self._origins[adapter.name, folder] = adapter
        return tuple(question)

    def _folder(self, adapter: Adapter) -> str:
        if not adapter.source.repository:
            return adapter.path
        found = self._folders.get(_key(adapter))
        return found.path if found else ""

    def _report(self, adapter: Adapter) -> AdapterReport | None:
        found = self._folders.get(_key(adapter))
        commit = found.commit if found else adapter.commit
        if answer := self._answers.get((adapter.name, self._folder(adapter))):
            return _as_wanted(answer, adapter, commit)
        if not adapter.source.repository:
            return None
        state, message = AdapterState.PENDING, LOADING if found else self._running.get(_key(adapter), WAITING)
        if fault := self._faults.get(_key(adapter)):
            # Also while it is tried again: a state that came and went with each try would be news without end.
            state, message = AdapterState.FAILED, fault.message
        return AdapterReport(name=adapter.name, path=adapter.path, state=state, message=message, commit=commit)


def _key(adapter: Adapter) -> Key:
    return adapter.name, adapter.path


def _as_wanted(answer: AdapterReport, adapter: Adapter, commit: str) -> AdapterReport:
    return AdapterReport(
        name=adapter.name, path=adapter.path, state=answer.state, message=answer.message, commit=commit
    )
