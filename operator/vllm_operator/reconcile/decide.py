"""From what was seen to what is to be done and said; pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, replace

from vllm_bootstrap import contract
from vllm_operator.api.status import (
    EngineReplica,
    EngineState,
    Failure,
    PlanCandidate,
    PlanHost,
    PlanMemory,
    PlanStatus,
    Reason,
)
from vllm_operator.api.status import PodShape as PodShapeStatus
from vllm_operator.lifecycle.actions import (
    Action,
    Adapt,
    Create,
    CreateCode,
    CreateTokens,
    Delete,
    Drain,
    Patch,
    Submit,
)
from vllm_operator.lifecycle.adapters import (
    AdapterStep,
    able,
    compare,
    reported_adapters,
    shortened,
    told_commits,
)
from vllm_operator.lifecycle.conditions import Blocker
from vllm_operator.lifecycle.engine import EngineStep, step
from vllm_operator.lifecycle.engine_view import RayView, own_report
from vllm_operator.reconcile.compare import contains
from vllm_operator.reconcile.departing import remove_engine
from vllm_operator.reconcile.indices import engine_indices
from vllm_operator.reconcile.intent import Intent
from vllm_operator.reconcile.observe import Observation
from vllm_operator.reconcile.seat import Engine, Leaving
from vllm_operator.reconcile.settings import Settings
from vllm_operator.reconcile.tenancies import (
    collections,
    create_tenant,
    endpoint_slices,
    next_sign,
    plan_on_seats,
    releases,
)
from vllm_operator.resources import access, lora
from vllm_operator.resources.deployment import code_config_map, deployment
from vllm_operator.resources.engine import Attempt, engine_plan
from vllm_operator.resources.names import EngineNames, engine_name
from vllm_operator.resources.ray_cluster import ray_cluster
from vllm_operator.resources.revision import Revision
from vllm_operator.resources.service import service

STATUS_RANKS = 64
"""So many ranks of all engines stand in the status; a CR with more would come near etcd's limit with its engines."""

STATUS_ADAPTERS = 64
"""So many LoRA adapters of all engines do."""

RECHECK_SECONDS = 15.0
SOON_SECONDS = 3.0
MESSAGE_LIMIT = 8192

_RECHECKED = (Reason.WAITING_FOR_GPUS, Reason.NO_SUCH_GPUS, Reason.QUOTA_EXCEEDED, Reason.RESOURCES_NOT_STATED)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What is to be done and said."""

    actions: tuple[Action, ...]
    engines: tuple[EngineReplica, ...]
    lasting: frozenset[str]
    joined: frozenset[str]
    failures: tuple[Failure, ...]
    plan: PlanStatus | None
    blocker: Blocker | None
    revision: str
    versions: str
    requeue_after: float | None
    plan_only: bool = False

    @property
    def waits_for_gpus(self) -> bool:
        """GPUs, or quota, that come free may be what it needs."""
        reasons = [engine.reason for engine in self.engines] + ([self.blocker.reason] if self.blocker else [])
        return not {Reason.WAITING_FOR_GPUS, Reason.QUOTA_EXCEEDED}.isdisjoint(reasons)


def decide(
    seen: Observation,
    intent: Intent,
    rays: Mapping[str, RayView],
    settings: Settings,
    now: datetime.datetime,
) -> Decision:
    """Say what is to be done, and what the state is."""
    actions = list(intent.actions)
    if intent.revision and not intent.blocker and not intent.plan_only:
        actions += _service(seen)
        for names in intent.missing:
            actions += _create_engine(seen, names, intent)
    commits = _commits(intent)
    steps: dict[str, EngineStep] = {}
    for name, engine in intent.engines.items():
        view = replace(engine.view, ray=rays.get(name))
        told = step(view, engine.turn, recovery=settings.recovery, deadlines=settings.deadlines, now=now)
        steps[name] = told
        if told.give_back:
            actions += remove_engine(int(engine.names.index), engine.view.cluster)
        elif engine.names.report not in seen.config_maps:
            actions.append(Create(body=access.report_config_map(seen.owner, engine.names, view.report)))
        if told.submit and view.ray and view.front:
            actions.append(_submit(seen, engine, view.ray.session, view.front.ip, settings, commits=commits))
    serving = frozenset(name for name, told in steps.items() if told.replica.state is EngineState.SERVING)
    # Before anybody is asked to drain: it ends when no request comes any more.
    actions += endpoint_slices(seen, intent, serving)
    adapted = _adapt(seen, intent, steps)
    actions += [*releases(intent, rays), *collections(seen)]
    actions += [*_adapt_actions(seen, intent, adapted, settings, commits), *_drains(seen, intent)]
    replicas = _with_adapters(_replicas(seen, intent, steps), adapted)
    requeues = [told.requeue_after for told in steps.values() if told.requeue_after is not None]
    requeues += [wait.seconds for wait in intent.waiting.values() if wait.seconds is not None]
    requeues += [leaving.leave.requeue_after for leaving in intent.leaving.values()]
    requeues += [told.requeue_after for told in adapted.values() if told.requeue_after is not None]
    requeues += next_sign(intent, now)
    if intent.blocker or any(wait.reason in _RECHECKED for wait in intent.waiting.values()):
        requeues.append(RECHECK_SECONDS)
    if intent.blocker and intent.blocker.reason is Reason.RAY_CLUSTER_NOT_READY:
        requeues.append(SOON_SECONDS)
    return Decision(
        actions=tuple(actions),
        engines=replicas,
        lasting=frozenset(
            [name for name, told in steps.items() if told.lasting]
            + [name for name, wait in intent.waiting.items() if wait.lasting]
        ),
        joined=frozenset(name for name, told in steps.items() if told.joined),
        failures=tuple(told.failure for told in steps.values() if told.failure),
        plan=_plan_status(intent.revision, _warnings(intent, intent.revision)) if intent.revision else None,
        blocker=intent.blocker,
        revision=intent.revision.name if intent.revision and not intent.plan_only else seen.status.revision,
        plan_only=intent.plan_only,
        versions=_versions(intent),
        requeue_after=min(requeues) if requeues else None,
    )


Commits = Mapping[tuple[str, str], str]
"""What was downloaded of the hub for an adapter, by its name and its address there."""


def plan_of(
    engine: Engine, seen: Observation, session: str, settings: Settings, commits: Commits
) -> contract.EnginePlan:
    """Give the plan of an engine's due attempt on a Ray session."""
    return engine_plan(
        owner=seen.owner,
        names=engine.names,
        revision=engine.revision.name,
        part=engine.revision.engine,
        attempt=Attempt(number=engine.turn.attempt, ray_session=session),
        deadlines=settings.deadlines,
        hub=settings.hub,
        adapters=_wanted_adapters(engine, seen, settings, commits),
    )


def _wanted_adapters(
    engine: Engine, seen: Observation, settings: Settings, commits: Commits
) -> tuple[contract.Adapter, ...]:
    """Give the LoRA adapters for an engine's next start: while the spec is not carried out, those that it had."""
    report = own_report(engine.view)
    carried_out = seen.spec and not seen.blocker and not seen.plan_only
    wanted = tuple(lora.adapters(seen.spec)) if seen.spec and carried_out else reported_adapters(report)
    # Its own before another's: two engines may have asked for a branch just as it moved.
    known = {**commits, **told_commits(report)}
    return tuple(
        lora.to_download(item, engine.revision.engine, hub=settings.hub, commit=known.get((item.name, item.path), ""))
        for item in wanted
    )


def _commits(intent: Intent) -> Commits:
    """Give what the engines have downloaded of the hub: one that comes later gets the same, though a branch moved."""
    return {
        key: commit
        for engine in intent.engines.values()
        for key, commit in told_commits(own_report(engine.view)).items()
    }


def _adapt(seen: Observation, intent: Intent, steps: Mapping[str, EngineStep]) -> dict[str, AdapterStep]:
    """Compare the LoRA adapters of engines that serve with those that are wanted, by the engine's name."""
    serving = [
        (name, intent.engines[name]) for name, told in steps.items() if told.replica.state is EngineState.SERVING
    ]
    able = [(name, engine) for name, engine in serving if engine.revision.engine.get("lora")]
    if not seen.spec or intent.blocker or intent.plan_only:
        kept = {name: engine.view.previous.adapters for name, engine in able if engine.view.previous}
        return {name: AdapterStep(entries=tuple(entries)) for name, entries in kept.items()}
    wanted = lora.adapters(seen.spec)
    return {name: compare(wanted, own_report(engine.view)) for name, engine in able}


def _adapt_actions(
    seen: Observation, intent: Intent, adapted: Mapping[str, AdapterStep], settings: Settings, commits: Commits
) -> list[Action]:
    asked = [(name, intent.engines[name]) for name, told in adapted.items() if told.ask]
    return [
        Adapt(
            engine=name,
            ip=engine.view.lead.ip,
            secret=engine.names.secret,
            adapters=able(_wanted_adapters(engine, seen, settings, commits), own_report(engine.view)),
            port=engine.view.cluster.ports["supervisor"],
        )
        for name, engine in asked
        if engine.view.lead
    ]


def _with_adapters(
    replicas: tuple[EngineReplica, ...], adapted: Mapping[str, AdapterStep]
) -> tuple[EngineReplica, ...]:
    """Complete the entries of engines with their LoRA adapters; where these would be too many, only by what lacks."""
    many = sum(len(told.entries) for told in adapted.values()) > STATUS_ADAPTERS
    left, told = STATUS_ADAPTERS, []
    for replica in replicas:
        entries = list(adapted[replica.name].entries) if replica.name in adapted else []
        if many:
            entries = shortened(entries, left)
            left -= len(entries)
        told.append(replica.model_copy(update={"adapters": entries}))
    return tuple(told)


def _service(seen: Observation) -> list[Action]:
    shared = bool(seen.spec and seen.spec.ray_cluster_ref)
    wanted = service(seen.owner, selects=not shared)
    live = seen.service
    if live is None:
        return [Create(body=wanted)]
    if shared == bool(live["spec"].get("selector")):
        # Whoever wrote the EndpointSlices until now leaves them there; they go with the Service.
        old = live["metadata"]
        return [Delete(api_version="v1", kind="Service", name=old["name"], uid=old["uid"]), Create(body=wanted)]
    if contains(live, {"spec": wanted["spec"], "metadata": {"labels": wanted["metadata"]["labels"]}}):
        return []
    meta = live["metadata"]
    return [Patch(body=wanted, uid=meta["uid"], resource_version=meta["resourceVersion"])]


def _create_engine(seen: Observation, names: EngineNames, intent: Intent) -> list[Action]:
    owner, revision = seen.owner, intent.revision
    assert revision is not None  # noqa: S101 - the caller looked
    if tenancy := intent.holdings.get(names.ray_cluster):
        return create_tenant(seen, names, revision, tenancy)
    account = seen.spec.pod.service_account_name if seen.spec else None
    # A RayCluster of this name was there before and is gone: what its engine said does not speak of the new one.
    stale: list[Action] = (
        [Delete(api_version="v1", kind="ConfigMap", name=names.report)] if names.ray_cluster in seen.reports else []
    )
    bodies: list[Action] = [
        *stale,
        CreateTokens(body=access.token_secret(owner, names, auth_token="", control_token="")),
        Create(body=access.report_config_map(owner, names)),
        Create(body=access.report_role(owner, names)),
        Create(body=access.report_role_binding(owner, names, accounts=[account or names.service_account])),
    ]
    if not account:
        bodies.append(Create(body=access.service_account(owner, names)))
    rendering = names.fill(revision.cluster_spec)
    if revision.with_ray:
        cluster = ray_cluster(owner=owner, names=names, revision=revision.name, cluster_spec=rendering)
        return [*bodies, Create(body=cluster)]
    return [
        *bodies,
        CreateCode(body=code_config_map(owner, names)),
        Create(body=deployment(owner=owner, names=names, revision=revision.name, rendering=rendering)),
    ]


def _submit(
    seen: Observation, engine: Engine, session: str, ip: str, settings: Settings, *, commits: Commits
) -> Submit:
    plan, tenancy = plan_of(engine, seen, session, settings, commits), engine.view.cluster.tenancy
    if tenancy:
        plan = plan_on_seats(plan, engine.view, engine.revision, engine.names)
    return Submit(plan=plan, ip=ip, secret=engine.names.secret, auth=tenancy.auth if tenancy else None)


def _drains(seen: Observation, intent: Intent) -> list[Action]:
    """Ask those who leave; the last of all actions, because a supervisor that does not answer takes its time."""
    seconds = seen.spec.drain.timeout_seconds if seen.spec else 0
    return [
        Drain(
            engine=name,
            ip=item.view.lead.ip,
            secret=item.names.secret,
            seconds=seconds,
            port=item.view.cluster.ports["supervisor"],
        )
        for name, item in intent.leaving.items()
        if item.leave.ask and item.view.lead
    ]


def _entry(replica: EngineReplica, report: str, *, named: bool) -> EngineReplica:
    """Complete an engine's entry: it names its report, and leaves the ranks to it where they would be too many."""
    return replica.model_copy(update={"report": report} | ({"ranks": [], "engine_cores": []} if named else {}))


def _being_made(revision: Revision, names: EngineNames) -> str:
    if revision.shared_cluster:
        return f"its place on RayCluster {revision.shared_cluster} is being written down"
    return f"{'RayCluster' if revision.with_ray else 'Deployment'} {names.ray_cluster} is being made"


def _ray_cluster(revision: Revision, names: EngineNames) -> str:
    return revision.shared_cluster or (names.ray_cluster if revision.with_ray else "")


def _gpus(revision: Revision) -> int:
    engine = revision.engine
    return int(engine["tensor"] * engine["pipeline"] * engine.get("data", 1))


def _replicas(seen: Observation, intent: Intent, steps: Mapping[str, EngineStep]) -> tuple[EngineReplica, ...]:
    entries: list[EngineReplica] = []
    indices = engine_indices(seen)
    named = len(indices) * (_gpus(intent.revision) if intent.revision else 1) > STATUS_RANKS
    for index in indices:
        name = engine_name(index)
        if name in intent.leaving:
            entries.append(_leaving_entry(intent.leaving[name], named=named))
        elif name in steps:
            entries.append(_entry(steps[name].replica, intent.engines[name].names.report, named=named))
        elif name in intent.waiting:
            entries.append(
                EngineReplica(
                    name=name,
                    state=EngineState.PENDING,
                    reason=intent.waiting[name].reason,
                    message=intent.waiting[name].message[:MESSAGE_LIMIT],
                )
            )
        elif not intent.blocker and not intent.plan_only and intent.revision:
            names = EngineNames.of(seen.owner, index, intent.revision.pods8)
            entries.append(
                EngineReplica(
                    name=name,
                    state=EngineState.PENDING,
                    reason=Reason.CREATING_PODS,
                    message=_being_made(intent.revision, names),
                    revision=intent.revision.name,
                    ray_cluster=_ray_cluster(intent.revision, names),
                    deployment="" if intent.revision.with_ray else names.ray_cluster,
                )
            )
    present = {entry.name for entry in entries}
    surplus = (item for name, item in intent.leaving.items() if name not in present)
    return (*entries, *(_leaving_entry(item, named=named) for item in surplus))


def _leaving_entry(leaving: Leaving, *, named: bool) -> EngineReplica:
    return _entry(leaving.leave.replica, leaving.names.report, named=named)


def _warnings(intent: Intent, revision: Revision) -> str:
    """Give what may go wrong: as it was planned, and as the engines found it."""
    reports = [engine.view.report for engine in intent.engines.values()]
    found = (
        warning for report in reports if report and report.revision == revision.name for warning in report.warnings
    )
    # Each once, in the order of its first mention.
    told = dict.fromkeys(filter(None, (str(revision.plan.get("warning", "")), *found)))
    return "; ".join(told)[:MESSAGE_LIMIT]


def _plan_status(revision: Revision, warning: str) -> PlanStatus:
    engine, told = revision.engine, revision.plan
    executor = engine.get("executor", "ray")
    data = int(engine.get("data", 1))
    return PlanStatus(
        distributed_executor_backend=executor,
        reason=": ".join(part for part in (executor, told.get("reason", "")) if part),
        image=revision.image,
        strategy=engine["strategy"],
        tensor=engine["tensor"],
        pipeline=engine["pipeline"],
        data=data,
        expert=bool(engine.get("expert", False)),
        data_parallel_backend="ray" if data > 1 else "",
        pod_shapes=[PodShapeStatus(**group) for group in engine["groups"]],
        accelerator=told.get("accelerator", ""),
        resource=told.get("resource", ""),
        gpus=_gpus(revision),
        warning=warning,
        facts=told.get("facts", ""),
        memory=PlanMemory.model_validate(told["memory"]) if told.get("memory") else None,
        host=PlanHost.model_validate(told["host"]) if told.get("host") else None,
        candidates=[PlanCandidate.model_validate(item) for item in told.get("candidates", ())],
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _versions(intent: Intent) -> str:
    for engine in intent.engines.values():
        report = engine.view.report
        if report and report.versions:
            return ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()))
    return ""
