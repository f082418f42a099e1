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

TOO_OLD = (
    "the engine was started by an earlier version of the operator, which downloads no adapters: it does after its next "
    "start; until then use pvc:// or file://"
)


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
    entries = [
        _entry(adapter, uri, told.get((adapter.name, adapter.path)))
        if able([adapter], report)
        else AdapterStatus(name=adapter.name, uri=uri, state=AdapterState.FAILED, message=TOO_OLD)
        for adapter, uri in wanted.items()
    ]
    entries += [
        AdapterStatus(name=item.name, uri=item.path, state=AdapterState.LEAVING)
        for item in reported
        if item.name not in names and item.state is contract.AdapterState.LOADED
    ]
    states = {entry.state for entry in entries}
    unheard = any((adapter.name, adapter.path) not in told for adapter in able(tuple(wanted), report))
    if unheard or AdapterState.LEAVING in states:
        return AdapterStep(entries=tuple(entries), ask=True, requeue_after=ASK_SECONDS)
    if AdapterState.FAILED in states:
        return AdapterStep(entries=tuple(entries), ask=True, requeue_after=RETRY_SECONDS)
    # One that has failed and is no more wanted is in no entry, and is to be forgotten all the same.
    return AdapterStep(entries=tuple(entries), ask=any(item.name not in names for item in reported))


def able(adapters: Sequence[contract.Adapter], report: contract.EngineReport | None) -> tuple[contract.Adapter, ...]:
    """Leave the adapters that an engine can serve: one from before an upgrade does not download any."""
    can = report is None or report.hub_adapters
    return tuple(adapter for adapter in adapters if can or not _is_of_hub(adapter))


def told_commits(report: contract.EngineReport | None) -> dict[tuple[str, str], str]:
    """Give what an engine has downloaded of the hub, by name and address of the adapter."""
    return {(item.name, item.path): item.commit for item in (report.adapters if report else ()) if item.commit}


def reported_adapters(report: contract.EngineReport | None) -> tuple[contract.Adapter, ...]:
    """Give the adapters that an engine was asked for last."""
    return tuple(contract.Adapter(name=item.name, path=item.path) for item in (report.adapters if report else ()))


def shortened(entries: Sequence[AdapterStatus], limit: int) -> list[AdapterStatus]:
    """Leave out those that are loaded, and what is beyond so many."""
    return [entry for entry in entries if entry.state is not AdapterState.LOADED][:limit]


def _is_of_hub(adapter: contract.Adapter) -> bool:
    return adapter.path.startswith("hf://")


def _entry(adapter: contract.Adapter, uri: str, told: contract.AdapterReport | None) -> AdapterStatus:
    if told is None:
        return AdapterStatus(name=adapter.name, uri=uri, state=AdapterState.PENDING)
    return AdapterStatus(
        name=adapter.name,
        uri=uri,
        state=AdapterState(told.state.value),
        message=told.message[:1024],
        commit=told.commit[:64],
    )
