"""100 deployments that wait for GPUs, looked at again after something happened to a node: whole rounds of the operator.

The API server is one in memory whose nodes and pods come as the text that a real one sends, so that decoding them is
in the time; the network is not.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import time
import tracemalloc
from collections.abc import Mapping
from typing import Any

from tests.bench.fleet import node_list, pod_list
from tests.unit.planning import models
from tests.unit.reconcile.world import FakeApi, World, deployment

from vllm_operator.api import identity
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.clients.kubernetes import Kind
from vllm_operator.planning.catalogue import BUILT_IN
from vllm_operator.planning.inventory_file import read_inventory
from vllm_operator.planning.plan import GPUsTakenError, plan
from vllm_operator.reconcile.reconciler import Key

NODES = 100
DEPLOYMENTS = 100
FEW, MANY = 2, 10
"""Events after which memory is compared."""

Object = dict[str, Any]


class Fleet(FakeApi):
    """An API server with a large fleet; the GPUs of all nodes are held."""

    def __init__(self, now: Any) -> None:
        super().__init__(now)
        self._answers = [node_list(NODES), node_list(NODES, cordoned="node-0")]
        self._pods = pod_list(NODES)

    def happen(self) -> None:
        """Let a node be cordoned, or uncordoned."""
        self._answers.reverse()

    @property
    def texts(self) -> tuple[str, str]:
        """What it answers when it is asked for all nodes and for all pods."""
        return self._answers[0], self._pods

    async def list(self, kind: Kind, namespace: str = "", labels: Mapping[str, str] | None = None) -> list[Object]:
        if kind.kind == "Node" or (kind.kind == "Pod" and not labels):
            found: list[Object] = json.loads(self.texts[kind.kind == "Pod"])["items"]
            return found
        return await super().list(kind, namespace, labels)


class Waiting:
    """The operator, with deployments of all kinds of models that wait."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        logging.getLogger("vllm_operator").setLevel(logging.WARNING)
        self.world = World()
        self.api = Fleet(self.world.now)
        self.world.api = self.api
        self.keys = [Key("models", f"model-{index}") for index in range(DEPLOYMENTS)]
        for index, key in enumerate(self.keys):
            self.api.put({**deployment(_spec(index), name=key.name, uid=f"uid-{index}")})
        self.world.restart()

    def event(self) -> float:
        """Let something happen, and look at every deployment again; gives the seconds."""
        self.api.happen()
        self.world.clock += 60
        begin = time.perf_counter()
        self._runner.run(self._rounds())
        spent = time.perf_counter() - begin
        reasons = {_ready(self.api.body(identity.KIND, key.name)) for key in self.keys}
        assert reasons == {"WaitingForGPUs"}, reasons
        return spent

    async def _rounds(self) -> None:
        for key in self.keys:
            await self.world.reconciler.reconcile(key)


def replanned() -> float:
    """Give the seconds of the fastest of some events."""
    with asyncio.Runner() as runner:
        waiting = Waiting(runner)
        return min(waiting.event() for _ in range(4))


def parts() -> tuple[float, float]:
    """Give the seconds of what it consists of: one look at nodes and pods, and all plans without anything else."""
    texts = Fleet(None).texts
    begin = time.perf_counter()
    nodes, pods = (json.loads(text)["items"] for text in texts)
    there = read_inventory({"items": [*nodes, *pods]})
    looked = time.perf_counter() - begin
    specs = [VLLMDeploymentSpec.model_validate(_spec(index)) for index in range(DEPLOYMENTS)]
    begin = time.perf_counter()
    for spec in specs:
        try:
            plan(spec, there, BUILT_IN)
        except GPUsTakenError:
            continue
    return looked, time.perf_counter() - begin


def growth() -> float:
    """Give the memory that is held after many events, by what is held after few."""
    tracemalloc.start()
    held = []
    with asyncio.Runner() as runner:
        waiting = Waiting(runner)
        for count in range(1, MANY + 1):
            waiting.event()
            gc.collect()
            if count in (FEW, MANY):
                held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    return held[1] / held[0]


def _spec(index: int) -> Object:
    names = sorted(models.PARAMETERS)
    config = models.PARAMETERS[names[index % len(names)]][0]
    facts = {"config": config} if index % 3 else {"parameters": f"{index + 1}B"}
    strategy = ("PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD")[index % 4]
    return {
        "model": {"uri": "file:///m", "facts": facts},
        "placement": {"strategy": strategy},
        "vllmConfig": {"maxModelLen": 8192},
    }


def _ready(body: Object) -> str:
    return next(str(item["reason"]) for item in body["status"]["conditions"] if item["type"] == "Ready")
