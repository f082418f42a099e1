"""LoRA adapters of an engine: those that are wanted beside those that it has.

What is wanted stands in the spec, what is there in the engine's report.  As long as the two differ its supervisor is
told what is wanted, and what has failed is tried again: a folder that was missing may be there now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm_bootstrap import contract
from vllm_operator.api.status import AdapterState, AdapterStatus

ASK_SECONDS = 5.0
RETRY_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class AdapterStep:
    """Adapters of an engine, and the next step.

    Attributes
    ----------
    entries
        For the status; those that are wanted first.
    ask
        Its supervisor is to be told what is wanted.
    requeue_after
        Look again after so many seconds even if nothing is heard.
    """

    entries: tuple[AdapterStatus, ...]
    ask: bool = False
    requeue_after: float | None = None


def compare(wanted: Mapping[contract.Adapter, str], report: contract.EngineReport | None) -> AdapterStep:
    """Compare what is wanted with what an engine says.

    Parameters
    ----------
    wanted
        The adapters, each with its ``uri``.
    report
        The engine's own.
    """
    reported = report.adapters if report else ()
    told = {(item.name, item.path): item for item in reported}
    names = {adapter.name for adapter in wanted}
    entries = [_entry(adapter, uri, told.get((adapter.name, adapter.path))) for adapter, uri in wanted.items()]
    entries += [
        AdapterStatus(name=item.name, uri=item.path, state=AdapterState.LEAVING)
        for item in reported
        if item.name not in names and item.state is contract.AdapterState.LOADED
    ]
    states = {entry.state for entry in entries}
    if states & {AdapterState.PENDING, AdapterState.LEAVING}:
        return AdapterStep(entries=tuple(entries), ask=True, requeue_after=ASK_SECONDS)
    if AdapterState.FAILED in states:
        return AdapterStep(entries=tuple(entries), ask=True, requeue_after=RETRY_SECONDS)
    # One that has failed and is no more wanted is in no entry, and is to be forgotten all the same.
    return AdapterStep(entries=tuple(entries), ask=len(reported) > len(wanted))


def reported_adapters(report: contract.EngineReport | None) -> tuple[contract.Adapter, ...]:
    """Give the adapters that an engine was asked for last."""
    return tuple(contract.Adapter(name=item.name, path=item.path) for item in (report.adapters if report else ()))


def shortened(entries: Sequence[AdapterStatus], limit: int) -> list[AdapterStatus]:
    """Leave out those that are loaded, and what is beyond so many."""
    return [entry for entry in entries if entry.state is not AdapterState.LOADED][:limit]


def _entry(adapter: contract.Adapter, uri: str, told: contract.AdapterReport | None) -> AdapterStatus:
    if told is None:
        return AdapterStatus(name=adapter.name, uri=uri, state=AdapterState.PENDING)
    return AdapterStatus(name=adapter.name, uri=uri, state=AdapterState(told.state.value), message=told.message[:1024])
