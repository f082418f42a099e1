"""Carry actions out, in order; the first that cannot be ends the round and says why."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from vllm_operator.api.status import Reason
from vllm_operator.clients.kubernetes import ApiError, ConflictError, Kind, KubernetesClient, NotFoundError, kind_of
from vllm_operator.clients.package import encoded_package
from vllm_operator.clients.ray import RayError
from vllm_operator.clients.supervisor import SupervisorError
from vllm_operator.lifecycle.actions import (
    Action,
    Adapt,
    Create,
    CreateCode,
    CreateTokens,
    Delete,
    Drain,
    Patch,
    Release,
    Submit,
)
from vllm_operator.lifecycle.conditions import Blocker
from vllm_operator.reconcile.intent import KUBERAY_MISSING
from vllm_operator.reconcile.observe import Observer, is_ours, name_conflict
from vllm_operator.reconcile.ray_side import RaySide
from vllm_operator.resources import access
from vllm_operator.resources.deployment import with_code
from vllm_operator.resources.names import Owner

log = logging.getLogger(__name__)


class Actor:
    """Carries out what was decided.

    Parameters
    ----------
    token
        Gives a new secret token at each call.
    """

    def __init__(self, api: KubernetesClient, observer: Observer, ray_side: RaySide, token: Callable[[], str]) -> None:
        self._api = api
        self._observer = observer
        self._ray_side = ray_side
        self._token = token

    async def carry_out(self, actions: Sequence[Action], owner: Owner) -> Blocker | None:
        """Carry actions out in order.

        Returns
        -------
        What stopped them and needs the user, ``None`` when nothing did.

        Raises
        ------
        ApiError
            The API server did not answer or is overloaded: the round is repeated.
        """
        if blocker := await self._conflicts(actions, owner):
            return blocker
        for action in actions:
            try:
                await self._one(action, owner)
            except ConflictError as error:
                log.info("%s/%s: %s; looking again", owner.namespace, owner.name, error)
                raise
            except NotFoundError as error:
                return _not_found(action, error)
            except ApiError as error:
                if error.code in (400, 403, 422):
                    return _refused(action, error)
                raise
            except (RayError, SupervisorError) as error:
                log.warning("%s/%s: %s", owner.namespace, owner.name, error)
        return None

    async def _conflicts(self, actions: Sequence[Action], owner: Owner) -> Blocker | None:
        """Look for names that others hold, before the first object is made: nothing is half-created."""
        for action in actions:
            if isinstance(action, Create | CreateCode | CreateTokens):
                kind, name = kind_of(action.body), action.body["metadata"]["name"]
                if await self._observer.is_foreign(kind, owner, name):
                    return name_conflict(kind.kind, name)
        return None

    async def _one(self, action: Action, owner: Owner) -> None:
        match action:
            case Create(body=body):
                await self._create(body, owner)
            case CreateTokens(body=body, with_ray=with_ray):
                ray = self._token() if with_ray else ""
                data = access.token_data(auth_token=ray, control_token=self._token())
                await self._create({**body, "data": data}, owner)
            case CreateCode(body=body):
                await self._create(with_code(body, encoded_package()), owner)
            case Patch(body=body, uid=uid, resource_version=version):
                await self._api.patch(body, uid=uid, resource_version=version)
                log.info("%s/%s: patched %s %s", owner.namespace, owner.name, body["kind"], body["metadata"]["name"])
            case Delete(api_version=api_version, kind=kind, name=name, uid=uid):
                await self._delete(Kind(api_version=api_version, kind=kind), name, uid, owner)
            case Drain(engine=engine, ip=ip, secret=secret, seconds=seconds, port=port):
                await self._ray_side.drain(owner.namespace, ip, secret, seconds, port)
                log.info("%s/%s: asked %s to drain within %g s", owner.namespace, owner.name, engine, seconds)
            case Adapt(engine=engine, ip=ip, secret=secret, adapters=adapters, port=port):
                await self._ray_side.adapt(owner.namespace, ip, secret, adapters, port)
                names = ", ".join(adapter.name for adapter in adapters) or "none"
                log.info("%s/%s: told %s its LoRA adapters: %s", owner.namespace, owner.name, engine, names)
            case Submit(plan=plan, ip=ip, secret=secret, auth=auth):
                job = await self._ray_side.submit(plan, ip, secret, auth)
                log.info("%s/%s: brought plan %s to %s", owner.namespace, owner.name, job, plan.engine)

            case Release(plan=release, cluster=cluster, job_id=job_id):
                await self._ray_side.release(owner.namespace, action)
                stems = ", ".join(item.stem for item in release.tenancies)
                log.info("%s/%s: %s releases %s on %s", owner.namespace, owner.name, job_id, stems, cluster)

    async def _delete(self, kind: Kind, name: str, uid: str, owner: Owner) -> None:
        if not uid:
            # Known by its name alone: somebody else's object of that name stays.
            live = await self._api.find(kind, owner.namespace, name)
            if live is None or not is_ours(live, owner):
                return
            uid = live["metadata"]["uid"]
        await self._api.delete(kind, owner.namespace, name, uid=uid)
        log.info("%s/%s: removed %s %s", owner.namespace, owner.name, kind.kind, name)

    async def _create(self, body: object, owner: Owner) -> None:
        assert isinstance(body, dict)  # noqa: S101 - actions hold API objects
        kind, name = kind_of(body), body["metadata"]["name"]
        try:
            await self._api.create(body)
        except ConflictError:
            live = await self._api.find(kind, owner.namespace, name)
            if live is None or "deletionTimestamp" in live["metadata"] or not is_ours(live, owner):
                raise
            return
        log.info("%s/%s: made %s %s", owner.namespace, owner.name, kind.kind, name)


def _not_found(action: Action, error: ApiError) -> Blocker:
    if isinstance(action, Create) and action.body["kind"] == "RayCluster":
        return KUBERAY_MISSING
    return Blocker(reason=Reason.REFUSED_BY_API_SERVER, message=error.message, lasting=False)


def _refused(action: Action, error: ApiError) -> Blocker:
    target = f"{action.body['kind']} {action.body['metadata']['name']}: " if isinstance(action, Create | Patch) else ""
    if error.code == 403:
        return Blocker(
            reason=Reason.FORBIDDEN,
            message=f"{target}{error.message}",
            # A namespace that goes away and a quota that is full say 403, too, and pass.
            lasting="quota" not in error.message and "being terminated" not in error.message,
        )
    return Blocker(reason=Reason.REFUSED_BY_API_SERVER, message=f"{target}{error.message}")
