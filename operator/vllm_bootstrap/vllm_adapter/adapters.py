"""LoRA adapters of a running engine, changed from inside its HTTP server.

vLLM's own endpoints for it ask for a key under some paths only, and open whatever path a client names.  So they stay
off, and the supervisor asks here, through the gate.  What a client sees of it is the list of models.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm_bootstrap.contract import (
    Adapter,
    AdapterList,
    AdapterReport,
    AdapterReports,
    AdapterState,
    dumps,
    loads,
)
from vllm_bootstrap.download.adapter_files import BaseModel, adapter_fault

LOOK_SECONDS = 5.0
"""Between two looks whether a removed adapter is still used; a request that was let in is seen within that time."""

RANK_TOO_HIGH = "greater than max_lora_rank"
MESSAGE_LIMIT = 2000


def make_request(name: str, number: int, path: str, *, inplace: bool = False) -> Any:
    """Make vLLM's own description of an adapter; ``inplace`` makes the ranks read it though they hold its number."""
    from vllm.lora.request import LoRARequest  # noqa: PLC0415 - what follows from it can be tested without vLLM

    return LoRARequest(lora_name=name, lora_int_id=number, lora_path=path, load_inplace=inplace)


def judge(path: str, config: Any) -> None:
    """Let vLLM judge an adapter's own configuration; it raises what it has against it."""
    from vllm.lora.peft_helper import PEFTHelper  # noqa: PLC0415 - as above

    PEFTHelper.from_local_dir(path, None).validate_legal(config)


class Adapters:
    """The adapters of one engine.

    Parameters
    ----------
    state
        ``app.state`` of vLLM's HTTP server, which vLLM fills while it starts.
    request, judge
        What is vLLM's.
    """

    def __init__(
        self,
        state: Any,
        *,
        request: Callable[..., Any] = make_request,
        judge: Callable[[str, Any], None] = judge,
    ) -> None:
        self._state = state
        self._request = request
        self._judge = judge
        self._lock = asyncio.Lock()
        self._held: dict[str, Any] = {}
        """What the ranks hold, by name: also what is removed and still used."""
        self._leaving: dict[str, asyncio.Task[None]] = {}

    async def order(self, text: str) -> str:
        """Serve the adapters of a list and no others; tell what became of each.

        Raises
        ------
        ContractError
            The text is no list of adapters.
        """
        wanted = loads(AdapterList, text).adapters
        async with self._lock:
            for name in set(self._served) - {adapter.name for adapter in wanted}:
                self._withdraw(name)
            told = [await self._serve(adapter) for adapter in wanted]
        return dumps(AdapterReports(adapters=tuple(told)))

    @property
    def _served(self) -> dict[str, Any]:
        served: dict[str, Any] = self._state.openai_serving_models.lora_requests
        return served

    async def _serve(self, adapter: Adapter) -> AdapterReport:
        served = self._served.get(adapter.name)
        if served is not None and served.lora_path == adapter.path:
            return _loaded(adapter)
        fault = await asyncio.to_thread(self._fault, adapter) or await self._load(adapter)
        if not fault:
            return _loaded(adapter)
        if served is not None:
            fault += f"; {served.lora_path} is served under this name as before"
        return AdapterReport(
            name=adapter.name, path=adapter.path, state=AdapterState.FAILED, message=fault[:MESSAGE_LIMIT]
        )

    def _fault(self, adapter: Adapter) -> str:
        """Say what can be seen before the engine is asked: it answers nobody else meanwhile."""
        models, config = self._state.openai_serving_models, self._state.vllm_config
        if config.lora_config is None:
            return "the engine was started without LoRA"
        if models.is_base_model(adapter.name):
            return "the base model has this name: rename the adapter"
        text = config.model_config.hf_text_config
        extra = getattr(text, "num_nextn_predict_layers", 0) or 0
        layers = getattr(text, "num_hidden_layers", 0) or 0
        base = BaseModel(hidden=getattr(text, "hidden_size", 0) or 0, layers=layers + extra if layers else 0)
        if fault := adapter_fault(Path(adapter.path), base):
            return fault
        try:
            self._judge(adapter.path, config.lora_config)
        except Exception as error:
            return _refusal(error)
        return ""

    async def _load(self, adapter: Adapter) -> str:
        """Load into every rank; say what went wrong, with all ranks as they were."""
        models, engine = self._state.openai_serving_models, self._state.engine_client
        held = self._held.get(adapter.name)
        number = held.lora_int_id if held else models.lora_id_counter.inc(1)
        # A name keeps its number while it is in use: the ranks tell requests of a batch apart by name.
        other = held is not None and held.lora_path != adapter.path
        try:
            await engine.add_lora(self._request(adapter.name, number, adapter.path, inplace=other))
        except Exception as error:
            fault = _refusal(error)
            try:
                await self._restore(held, number)
            except Exception as second:
                served = self._served.pop(adapter.name, None)
                self._held.pop(adapter.name, None)
                fault += f"; and what was served under this name could not be restored: {second}" if served else ""
            return fault
        # Kept without `load_inplace`: the ranks would read it anew at each step of each request.
        self._held[adapter.name] = self._request(adapter.name, number, adapter.path)
        models.lora_requests[adapter.name] = self._held[adapter.name]
        return ""

    async def _restore(self, held: Any, number: int) -> None:
        """Bring all ranks back to one state: some may have loaded what others refused."""
        engine = self._state.engine_client
        if held is None:
            await engine.remove_lora(number)
        else:
            await engine.add_lora(self._request(held.lora_name, number, held.lora_path, inplace=True))

    def _withdraw(self, name: str) -> None:
        """Serve it to nobody who comes from now on; the ranks forget it when nobody uses it any more."""
        del self._served[name]
        if name in self._held and name not in self._leaving:
            self._leaving[name] = asyncio.create_task(self._forget(name))

    async def _forget(self, name: str) -> None:
        # A rank that had forgotten it too early would look for its files again, which may be gone.
        try:
            idle = 0
            while idle < 2 and name not in self._served:
                await asyncio.sleep(LOOK_SECONDS)
                idle = 0 if self._is_used(name) else idle + 1
            async with self._lock:
                if name not in self._served and not self._is_used(name):
                    await self._state.engine_client.remove_lora(self._held.pop(name).lora_int_id)
        finally:
            del self._leaving[name]

    def _is_used(self, name: str) -> bool:
        requests = self._state.engine_client.output_processor.request_states.values()
        return any(request.lora_name == name for request in requests)


def _loaded(adapter: Adapter) -> AdapterReport:
    return AdapterReport(name=adapter.name, path=adapter.path, state=AdapterState.LOADED)


def _refusal(error: BaseException) -> str:
    words = " ".join(str(error).split()) or type(error).__name__
    remedy = "; raise lora.maxLoraRank, which starts the engines anew" if RANK_TOO_HIGH in words else ""
    return f"vLLM refuses it: {words}{remedy}"
