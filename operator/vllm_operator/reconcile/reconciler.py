"""One round for one deployment: observe, decide, act, write status."""

from __future__ import annotations

import asyncio
import datetime
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm_bootstrap import contract
from vllm_operator.api.status import Reason
from vllm_operator.clients.kubernetes import ApiError, ConflictError, KubernetesClient
from vllm_operator.lifecycle.conditions import Blocker
from vllm_operator.lifecycle.engine import has_lost_report
from vllm_operator.lifecycle.engine_view import RayView
from vllm_operator.reconcile.act import Actor
from vllm_operator.reconcile.decide import Decision, decide, plan_of
from vllm_operator.reconcile.finalizer import finalizers, is_overdue, is_waited_for, keeps_finalizer
from vllm_operator.reconcile.hub_side import HubSide
from vllm_operator.reconcile.indices import whom_to_ask
from vllm_operator.reconcile.intent import Intent, intend, may_be_planned, needs_inventory
from vllm_operator.reconcile.inventory import InventoryReader
from vllm_operator.reconcile.observe import DEPLOYMENT, Observation, Observer
from vllm_operator.reconcile.ray_side import RaySide
from vllm_operator.reconcile.seat import Engine, Leaving
from vllm_operator.reconcile.settings import Settings
from vllm_operator.reconcile.shared import release_id
from vllm_operator.reconcile.shared_side import SharedSide
from vllm_operator.reconcile.status import dump, new_status
from vllm_operator.reconcile.tenancies import release_seed

log = logging.getLogger(__name__)

REFUSED_SECONDS = 10.0
"""When what the API server refused is tried again: what was in its way may be gone."""


@dataclass(frozen=True, order=True)
class Key:
    """A deployment."""

    namespace: str
    name: str


class Reconciler:
    """Brings deployments to what their specs say.

    Parameters
    ----------
    hub
        Tells about models; ``None`` where no hub is asked.
    now
        Gives the present instant, UTC.
    """

    def __init__(
        self,
        *,
        api: KubernetesClient,
        observer: Observer,
        inventory: InventoryReader,
        ray_side: RaySide,
        actor: Actor,
        settings: Settings,
        now: Callable[[], datetime.datetime],
        hub: HubSide | None = None,
    ) -> None:
        self._api = api
        self._observer = observer
        self._inventory = inventory
        self._hub = hub
        self._ray_side = ray_side
        self._shared = SharedSide(api, ray_side, now)
        self._actor = actor
        self._settings = settings
        self._now = now
        self._waiting: set[Key] = set()
        self._placing = asyncio.Lock()

    @property
    def waiting(self) -> frozenset[Key]:
        """Deployments that wait for GPUs or quota; to forget one costs it a few seconds."""
        return frozenset(self._waiting)

    async def reconcile(self, key: Key) -> float | None:
        """Do one round.

        Returns
        -------
        Seconds after which to look again even if nothing is heard (infinite when only the resync should), ``None``
        when the deployment is gone.

        Raises
        ------
        ApiError
            Something could not be read or written: nothing was decided on it, come again.
        """
        body = await self._api.find(DEPLOYMENT, key.namespace, key.name)
        if body is None or "deletionTimestamp" in body["metadata"]:
            self._waiting.discard(key)
            return await self._part(key, body) if body else None
        seen = await self._look(body)
        if self._hub and seen.spec and may_be_planned(seen):
            # Before the lock: a hub that is slow holds up nobody else.
            seen = replace(seen, told=await self._hub.look(seen.owner, seen.spec.model))
        if not needs_inventory(seen):
            return await self._bring(key, seen, intend(seen, self._settings, self._now()))
        rules = await self._observer.rules(seen.owner, len(seen.clusters or ()))
        seen = replace(seen, volume=await self._observer.volume(seen.owner, seen.spec), rules=rules)
        # One at a time, from the look at the nodes to the last object made: two must not be promised the same GPUs.
        async with self._placing:
            seen = replace(seen, inventory=await self._inventory.look())
            seen = await self._shared.look(seen, ask=True)
            intent = intend(seen, self._settings, self._now())
            if intent.missing:
                return await self._bring(key, seen, intent)
        return await self._bring(key, seen, intent)

    async def _part(self, key: Key, body: Mapping[str, Any]) -> float | None:
        """Let a deployment go that is deleted, at once or when its engines have drained.

        What we made carries our ownerReference: the garbage collector removes it, with or without KubeRay.
        """
        if not is_waited_for(body):
            await self._set_finalizer(body, ours=False)
            return None
        try:
            seen = await self._look(body)
            return await self._bring(key, seen, intend(seen, self._settings, self._now()))
        except ConflictError:
            raise
        except ApiError as error:
            if not is_overdue(body, self._now()):
                raise
            log.warning("%s/%s is let go, drained or not: %s", key.namespace, key.name, error)
            await self._set_finalizer(body, ours=False)
            return None

    async def _look(self, body: Mapping[str, Any]) -> Observation:
        """Look at a deployment, and ask its engines what they do where that decides which of them go."""
        seen = await self._shared.look(await self._observer.look(body))
        asked = whom_to_ask(seen)
        # At the same time: one that does not answer takes seconds.
        told = await asyncio.gather(
            *(self._ray_side.requests(seen.owner.namespace, item.ip, item.names.secret, item.port) for item in asked)
        )
        found = zip((item.names.ray_cluster for item in asked), told, strict=True)
        return replace(seen, requests={name: count for name, count in found if count is not None})

    async def _bring(self, key: Key, seen: Observation, intent: Intent) -> float:
        if told := await self._recall(intent, seen):
            seen = replace(seen, reports={**seen.reports, **told})
            intent = intend(seen, self._settings, self._now())
        rays = {name: await self._ask_ray(engine, seen) for name, engine in intent.engines.items() if engine.asks_ray}
        rays |= {
            name: await self._ask_release(item, seen) for name, item in intent.leaving.items() if item.leave.release
        }
        decision = decide(seen, intent, rays, self._settings, self._now())
        self._note(key, decision)
        try:
            refused = await self._carry_out(decision, seen)
        except ConflictError:
            raise
        except ApiError as error:
            # Somebody who waits must see why, also while the round is repeated.
            passing = Blocker(reason=Reason.REFUSED_BY_API_SERVER, message=error.message, lasting=False)
            await self._write(seen.body, dump(new_status(seen, decision, passing, self._now())))
            raise
        body = await self._write(seen.body, dump(new_status(seen, decision, refused, self._now())))
        await self._set_finalizer(body, ours=keeps_finalizer(seen, intent, self._now()))
        again = math.inf if decision.requeue_after is None else decision.requeue_after
        return again if refused is None else min(again, REFUSED_SECONDS)

    async def _carry_out(self, decision: Decision, seen: Observation) -> Blocker | None:
        try:
            return await self._actor.carry_out(decision.actions, seen.owner)
        finally:
            if decision.actions:
                self._inventory.forget()

    async def _recall(self, intent: Intent, seen: Observation) -> dict[str, contract.EngineReport]:
        """Ask for reports that somebody deleted: an engine that serves is not restarted for that."""
        told: dict[str, contract.EngineReport] = {}
        for engine in intent.engines.values():
            if has_lost_report(engine.view, engine.turn):
                secret = engine.names.secret
                report = await self._ray_side.recall(engine.view, namespace=seen.owner.namespace, secret=secret)
                if report:
                    told[engine.names.ray_cluster] = report
        return told

    async def _ask_ray(self, engine: Engine, seen: Observation) -> RayView:
        def job_id(session: str) -> str:
            return contract.job_id(plan_of(engine, seen, session, self._settings, {}))

        return await self._ray_side.look(
            engine.view, namespace=seen.owner.namespace, secret=engine.names.secret, job_id=job_id
        )

    async def _ask_release(self, leaving: Leaving, seen: Observation) -> RayView:
        tenancy, head = leaving.view.cluster.tenancy, leaving.view.head
        if not tenancy or not head:
            return RayView(error="there is no head pod")

        def job_id(session: str) -> str:
            return release_id(release_seed(leaving), session)

        return await self._ray_side.look_at_release(seen.owner.namespace, head.ip, tenancy.auth, job_id)

    def _note(self, key: Key, decision: Decision) -> None:
        if decision.waits_for_gpus:
            self._waiting.add(key)
        else:
            self._waiting.discard(key)

    async def _set_finalizer(self, body: Mapping[str, Any], *, ours: bool) -> None:
        wanted = finalizers(body, ours=ours)
        if wanted is None:
            return
        meta = body["metadata"]
        named = {"name": meta["name"], "namespace": meta["namespace"], "finalizers": wanted}
        change = {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": named}
        await self._api.patch(change, uid=meta["uid"], resource_version=meta["resourceVersion"])

    async def _write(self, body: Mapping[str, Any], status: dict[str, Any]) -> Mapping[str, Any]:
        """Write the status if it changed; gives the object as it is then."""
        if status == (body.get("status") or {}):
            return body
        written = await self._api.replace_status({**body, "status": status})
        ready: dict[str, str] = next(item for item in status["conditions"] if item["type"] == "Ready")
        log.info(
            "%s/%s: Ready=%s %s %s",
            body["metadata"]["namespace"],
            body["metadata"]["name"],
            ready.get("status"),
            ready.get("reason"),
            ready.get("message"),
        )
        return written
