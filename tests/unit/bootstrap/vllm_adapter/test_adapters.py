"""LoRA adapters of a running engine, on ranks that are played: what they hold, and what clients are served."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.product.lora import write_adapter

from vllm_bootstrap.contract import Adapter, AdapterList, AdapterReport, AdapterReports, dumps, loads
from vllm_bootstrap.vllm_adapter import adapters as subject
from vllm_bootstrap.vllm_adapter.adapters import Adapters


@dataclass(frozen=True)
class Request:
    lora_name: str
    lora_int_id: int
    lora_path: str
    load_inplace: bool = False


@dataclass
class Engine:
    """Two ranks: each has a table of number → path, and may refuse a path."""

    ranks: list[dict[int, str]] = field(default_factory=lambda: [{}, {}])
    refused: dict[int, set[str]] = field(default_factory=dict)
    reads: int = 0
    output_processor: Any = field(default_factory=lambda: SimpleNamespace(request_states={}))

    async def add_lora(self, request: Request) -> bool:
        faults = []
        for rank, table in enumerate(self.ranks):
            if request.lora_int_id in table and not request.load_inplace:
                continue
            if request.lora_path in self.refused.get(rank, ()):
                faults.append(f"rank {rank}: no")
            else:
                self.reads += 1
                table[request.lora_int_id] = request.lora_path
        if faults:
            raise RuntimeError(faults[0])
        return True

    async def remove_lora(self, number: int) -> bool:
        found = [table.pop(number, None) for table in self.ranks]
        return None not in found

    def use(self, name: str) -> None:
        self.output_processor.request_states["r"] = SimpleNamespace(lora_name=name)

    def answer(self) -> None:
        self.output_processor.request_states.clear()


class Rig:
    def __init__(self, folder: Path) -> None:
        self.engine = Engine()
        self.numbers = itertools.count(1)
        self.served: dict[str, Request] = {}
        self.folder = folder
        self.refusals: dict[str, Exception] = {}
        models = SimpleNamespace(
            lora_requests=self.served,
            lora_id_counter=SimpleNamespace(inc=lambda _: next(self.numbers)),
            is_base_model=lambda name: name == "base",
        )
        text = SimpleNamespace(hidden_size=32, num_hidden_layers=2)
        config = SimpleNamespace(lora_config=object(), model_config=SimpleNamespace(hf_text_config=text))
        self.state = SimpleNamespace(openai_serving_models=models, vllm_config=config, engine_client=self.engine)
        self.adapters = Adapters(
            self.state,
            request=lambda name, number, path, inplace=False: Request(name, number, path, inplace),
            judge=self.judge,
        )

    def judge(self, path: str, _: object) -> None:
        if path in self.refusals:
            raise self.refusals[path]

    def path(self, name: str) -> str:
        if not (self.folder / name).exists():
            write_adapter(self.folder / name, seed=1, hidden=32)
        return str(self.folder / name)

    async def want(self, **paths: str) -> dict[str, AdapterReport]:
        wanted = AdapterList(adapters=tuple(Adapter(name=name, path=self.path(path)) for name, path in paths.items()))
        told = loads(AdapterReports, await self.adapters.order(dumps(wanted)))
        return {item.name: item for item in told.adapters}

    @property
    def offered(self) -> dict[str, str]:
        return {name: Path(request.lora_path).name for name, request in self.served.items()}

    @property
    def held(self) -> list[list[str]]:
        return [sorted(Path(path).name for path in table.values()) for table in self.engine.ranks]


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(subject, "LOOK_SECONDS", 0.0)
    return Rig(tmp_path)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


async def test_they_come_stay_and_go(rig: Rig) -> None:
    told = await rig.want(sql="sql", poems="poems")
    assert {item.state for item in told.values()} == {"Loaded"}
    assert rig.offered == {"sql": "sql", "poems": "poems"}
    reads = rig.engine.reads
    assert (await rig.want(sql="sql"))["sql"].state == "Loaded"
    assert rig.engine.reads == reads, "one that is there is not read again"
    assert rig.offered == {"sql": "sql"}
    await until(lambda: rig.held == [["sql"], ["sql"]])


async def test_other_weights_take_the_place_of_those_under_their_name(rig: Rig) -> None:
    await rig.want(sql="one")
    number = rig.served["sql"].lora_int_id
    await rig.want(sql="two")
    assert rig.held == [["two"], ["two"]]
    assert rig.served["sql"].lora_int_id == number
    assert not rig.served["sql"].load_inplace, "the ranks would read it at each step"


@pytest.mark.parametrize("refusing", [{0}, {1}, {0, 1}])
async def test_what_ranks_refuse_leaves_no_trace(rig: Rig, refusing: set[int]) -> None:
    await rig.want(sql="one")
    rig.engine.refused = {rank: {rig.path("two")} for rank in refusing}
    told = await rig.want(sql="two", poems="two")
    assert rig.offered == {"sql": "one"}
    assert rig.held == [["one"], ["one"]]
    assert told["poems"].message == f"vLLM refuses it: rank {min(refusing)}: no"
    assert told["sql"].message.endswith("one is served under this name as before")


async def test_what_cannot_be_restored_is_not_served(rig: Rig) -> None:
    await rig.want(sql="one")
    rig.engine.refused = {0: {rig.path("two"), rig.path("one")}}
    told = await rig.want(sql="two")
    assert "could not be restored" in told["sql"].message
    assert rig.offered == {}


async def test_one_that_is_used_is_forgotten_only_afterwards(rig: Rig) -> None:
    await rig.want(sql="one")
    rig.engine.use("sql")
    await rig.want()
    assert rig.offered == {}
    for _ in range(20):
        await asyncio.sleep(0)
    assert rig.held == [["one"], ["one"]]
    rig.engine.answer()
    await until(lambda: rig.held == [[], []])


async def test_one_that_comes_back_while_it_is_used_keeps_its_number(rig: Rig) -> None:
    """The ranks tell requests of a batch apart by name: a second number of one name would be lost."""
    await rig.want(sql="one")
    number = rig.served["sql"].lora_int_id
    rig.engine.use("sql")
    await rig.want()
    await rig.want(sql="two")
    assert rig.served["sql"].lora_int_id == number
    rig.engine.answer()
    for _ in range(20):
        await asyncio.sleep(0)
    assert rig.held == [["two"], ["two"]]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("LoRA rank 64 is greater than max_lora_rank 16."), "raise lora.maxLoraRank"),
        (ValueError("vLLM does not yet support DoRA."), "vLLM refuses it: vLLM does not yet support DoRA."),
        (TypeError(), "vLLM refuses it: TypeError"),
    ],
)
async def test_vllms_judgement_comes_before_any_rank_is_asked(rig: Rig, error: Exception, words: str) -> None:
    rig.refusals = {rig.path("bad"): error}
    assert words in (await rig.want(sql="bad"))["sql"].message
    assert rig.engine.reads == 0


async def test_a_folder_that_is_none_a_name_that_is_taken_and_an_engine_without_lora(rig: Rig) -> None:
    gone = AdapterList(adapters=(Adapter(name="sql", path="/no/such"), Adapter(name="base", path=rig.path("one"))))
    told = json.loads(await rig.adapters.order(dumps(gone)))["adapters"]
    assert [item["state"] for item in told] == ["Failed", "Failed"]
    assert "/no/such does not exist" in told[0]["message"]
    assert told[1]["message"] == "the base model has this name: rename the adapter"
    rig.state.vllm_config.lora_config = None
    assert (await rig.want(sql="one"))["sql"].message == "the engine was started without LoRA"
