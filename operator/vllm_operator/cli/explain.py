"""What ``kubectl vllm explain`` says: how the operator came to the plan of a deployment, and what holds it now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.api.spec import explain as explain_fault
from vllm_operator.api.status import Condition, ConditionType, PlanCandidate, PlanStatus, Reason
from vllm_operator.cli.documents import Document, InputError
from vllm_operator.cli.loose import dig, harmless, items, mapping, models, number, text, words
from vllm_operator.cli.plain import plain
from vllm_operator.cli.plans import Answer, answer
from vllm_operator.cli.sights import PodSight, see_pod
from vllm_operator.cli.tables import fold, table
from vllm_operator.planning.catalogue import Catalogue
from vllm_operator.planning.facts import FactsError
from vllm_operator.planning.inventory import GIB, MIB, GpuNode
from vllm_operator.planning.known import HUB, HubAnswer, ModelUnknownError
from vllm_operator.planning.plan import wish_of
from vllm_operator.planning.quota import NO_RULES, NamespaceRules

PLANNED, UNSEEN, NOT_NOW, NEVER, BLOCKED = 0, 2, 3, 4, 5
"""Exit statuses: there is a plan; none was made yet; others hold the GPUs; no GPUs would do; something else."""

TITLE = 13


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Something that a plan made now would choose otherwise."""

    what: str
    planned: str
    now: str


@dataclass(frozen=True, kw_only=True)
class LivePlan:
    """What a plan made now, on the nodes as they are, would be.

    Attributes
    ----------
    verdict
        ``Fits``, ``NotNow``, ``Never``, or empty when the spec cannot be planned at all.
    """

    verdict: str
    reason: str
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """How a deployment is planned.

    Attributes
    ----------
    plan
        ``None`` when there has never been one.
    blocker
        Why the present spec has no plan, ``None`` when it has one; a plan beside it is of an earlier spec.
    behind
        The operator has not looked at the present spec yet.
    unread
        What could not be read, and why.
    """

    namespace: str
    name: str
    replicas: int
    revision: str
    plan: PlanStatus | None
    blocker: Condition | None
    behind: bool
    pods: tuple[PodSight, ...]
    unread: tuple[str, ...] = ()
    live: LivePlan | None = None

    @property
    def exit_code(self) -> int:
        """Exit status of the command."""
        if self.behind:
            return UNSEEN
        if self.blocker:
            known = {
                Reason.WAITING_FOR_GPUS.value: NOT_NOW,
                Reason.QUOTA_EXCEEDED.value: NOT_NOW,
                Reason.NO_SUCH_GPUS.value: NEVER,
            }
            return known.get(self.blocker.reason, BLOCKED)
        return PLANNED if self.plan else UNSEEN

    def data(self) -> dict[str, Any]:
        """Give it for programs."""
        pods = [
            {"name": pod.name, "role": pod.role, "gpus": pod.gpus, "node": pod.node, "phase": pod.phase}
            for pod in self.pods
        ]
        told: dict[str, Any] = plain(self)
        return told | {"pods": pods}

    def text(self, *, wide: bool, width: int) -> str:
        """Give it for people.

        Parameters
        ----------
        width
            Columns to keep to.
        """
        parts = [self._head(width)]
        if self.plan:
            parts += [_shape(self.plan), _candidates(self.plan.candidates, width)]
        parts += [_pods(self.pods, wide=wide), "\n".join(f"({item})" for item in self.unread), self._live(width)]
        return harmless("\n\n".join(part for part in parts if part))

    def _head(self, width: int) -> str:
        state = "planned" if self.plan else "no plan yet"
        if self.blocker:
            state = f"not planned: {self.blocker.reason}"
        lines = [f"{self.namespace}/{self.name}: {state}"]
        if self.behind:
            lines += _line("", "the operator has not looked at the present spec yet", width)
        if self.blocker:
            lines += _line("why", self.blocker.message, width)
        if self.blocker and self.plan:
            lines += _line("", "the plan below is of an earlier spec, whose engines stay as they are", width)
        return "\n".join([*lines, *(_plan(self, self.plan, width) if self.plan else [])])

    def _live(self, width: int) -> str:
        live = self.live
        if not live:
            return ""
        if not live.verdict:
            return "\n".join(_line("now", live.reason, width))
        if not live.differences and live.verdict == "Fits" and self.plan and not self.blocker:
            return "\n".join(_line("now", "a plan made now would be the same", width))
        lines = _line("now", f"a plan made now would be: {live.verdict}: {live.reason}", width)
        rows = [[item.what, item.planned, item.now] for item in live.differences]
        return "\n".join([*lines, *([table(["differs", "planned", "now"], rows)] if rows else [])])


def explain(deployment: Mapping[str, Any], pods: Iterable[Mapping[str, Any]], *, unread: str = "") -> Explanation:
    """Say how a deployment is planned.

    Parameters
    ----------
    deployment, pods
        As the API server gives them; what has not the expected form counts as absent.
    unread
        Why the pods could not be read.
    """
    status = mapping(deployment, "status")
    plans, bad = models(PlanStatus, [mapping(status, "plan")] if mapping(status, "plan") else [])
    conditions, _ = models(Condition, items(status, "conditions"))
    planned = next((item for item in conditions if item.type == ConditionType.PLANNED), None)
    missing = [f"pods: {unread}"] if unread else []
    if bad:
        missing.append("status.plan: of another form than this command knows; is it of the operator's version?")
    seen = sorted((see_pod(pod) for pod in pods), key=lambda pod: (pod.cluster, pod.role != "head", pod.name))
    return Explanation(
        namespace=text(deployment, "metadata", "namespace"),
        name=text(deployment, "metadata", "name"),
        replicas=number(deployment, "spec", "replicas") if dig(deployment, "spec", "replicas") is not None else 1,
        revision=text(status, "revision"),
        plan=next(iter(plans), None),
        blocker=planned if planned and planned.status == "False" else None,
        behind=number(status, "observedGeneration") < number(deployment, "metadata", "generation"),
        pods=tuple(seen),
        unread=tuple(missing),
    )


def read_live(deployment: Mapping[str, Any]) -> Document:
    """Read the spec of a deployment of a cluster.

    Raises
    ------
    InputError
        It does not obey the API.
    """
    try:
        spec = VLLMDeploymentSpec.model_validate(mapping(deployment, "spec"))
    except ValidationError as error:
        raise InputError(explain_fault(error)) from error
    return Document(name=text(deployment, "metadata", "name"), spec=spec)


def plan_live(
    document: Document,
    plan: PlanStatus | None,
    nodes: Iterable[GpuNode],
    catalogue: Catalogue,
    told: HubAnswer | None = None,
    *,
    rules: NamespaceRules | None = NO_RULES,
) -> LivePlan:
    """Plan a deployment anew, and compare with the plan that it has.

    Parameters
    ----------
    nodes
        What they offer when the deployment's own pods hold nothing.
    told
        What the hub says of its model, ``None`` when it was not asked.
    rules
        Quotas and limits of its namespace; ``None`` when they may not be read.
    """
    model = document.spec.model
    if told is None and not model.facts and model.uri.startswith(HUB) and not wish_of(document.spec).is_explicit:
        return LivePlan(verdict="", reason="its sizes follow from what the hub says of its model: ask it with --hub")
    try:
        found = answer(document, nodes, catalogue, rules=rules, told=told)
    except FactsError as error:
        return LivePlan(verdict="", reason=f"it cannot be planned: spec.model.facts: {error}")
    except ModelUnknownError as error:
        return LivePlan(verdict="", reason=f"it cannot be planned: {error}")
    return LivePlan(
        verdict=found.verdict.value,
        reason="; ".join((found.reason, *found.notes)),
        differences=tuple(_differences(plan, found)) if plan else (),
    )


def _differences(plan: PlanStatus, found: Answer) -> list[Difference]:
    best = found.survey.choice.best
    if best is None:
        return []
    sizes = sorted((shape.gpus for shape in plan.pod_shapes for _ in range(shape.pods)), reverse=True)
    pairs = [
        ("accelerator", plan.accelerator, best.product),
        # Plans of earlier versions name no resource.
        ("resource", plan.resource or best.resource, best.resource),
        ("tensor", str(plan.tensor), str(best.tensor)),
        ("pipeline", str(plan.pipeline), str(best.pipeline)),
        ("data", str(plan.data), str(best.data)),
        ("GPUs of its pods", "+".join(map(str, sizes)), "+".join(map(str, sorted(best.sizes, reverse=True)))),
    ]
    return [Difference(what=what, planned=then, now=now) for what, then, now in pairs if then != now]


def _plan(told: Explanation, plan: PlanStatus, width: int) -> list[str]:
    gpus = f"{plan.gpus} GPU{'' if plan.gpus == 1 else 's'} an engine"
    data = f"data {plan.data} x " if plan.data > 1 else ""
    experts = ", expert parallel" if plan.expert else ""
    sizes = f"{data}tensor {plan.tensor} x pipeline {plan.pipeline}{experts}, {plan.strategy or '?'}: {gpus}"
    product = plan.accelerator or "unknown: no label of the nodes tells it"
    accelerator = f"{product} ({plan.resource})" if plan.resource else product
    backend = plan.distributed_executor_backend or "?"
    executor = plan.reason if plan.reason.startswith(f"{backend}:") else f"{backend}; {plan.reason}"
    lines = [
        *_line("revision", told.revision or "none", width),
        *_line("image", plan.image or "none", width),
        *_line("accelerator", accelerator, width),
        *_line("parallel", f"{sizes}, {told.replicas} engine{'' if told.replicas == 1 else 's'}", width),
        *_line("executor", executor, width),
        *_line("memory", _memory(plan), width),
    ]
    if plan.facts:
        lines += _line("facts", plan.facts, width)
    if plan.memory and plan.memory.guessed:
        lines += _line("guessed", plan.memory.guessed, width)
    return lines + (_line("warning", plan.warning, width) if plan.warning else [])


def _memory(plan: PlanStatus) -> str:
    memory = plan.memory
    if not memory:
        return "nothing is known of the model: it was not checked"
    weights, margin = (value * MIB / GIB for value in (memory.weights_mi_b, memory.margin_mi_b))
    share = memory.cached_tokens / memory.max_model_len if memory.max_model_len > 0 else 0.0
    return (
        f"neediest rank: weights {weights:.1f} GiB, margin {margin:.1f} GiB; its cache holds {memory.cached_tokens} "
        f"tokens, {share:.1f} requests of maxModelLen {memory.max_model_len}"
    )


def _shape(plan: PlanStatus) -> str:
    rows = [[item.name, item.pods, item.gpus] for item in plan.pod_shapes]
    return table(["shape", "pods", "gpus each"], rows) if rows else ""


def _candidates(candidates: Iterable[PlanCandidate], width: int) -> str:
    rows = [
        [item.accelerator, item.tensor, item.pipeline, item.data, item.gpus, item.fits, words(item.reason)]
        for item in candidates
    ]
    head = ["candidate", "tensor", "pipeline", "data", "gpus", "fits", "reason"]
    return table(head, rows, width=width) if rows else ""


def _pods(pods: Iterable[PodSight], *, wide: bool) -> str:
    head = ["pod", "role", "gpus", "node", "phase", "ready", *(["raycluster", "restarts"] if wide else [])]
    rows = [
        [pod.name, pod.role, pod.gpus, pod.node, "Terminating" if pod.deleting else pod.phase, pod.ready]
        + ([pod.cluster, pod.restarts] if wide else [])
        for pod in pods
    ]
    return table(head, rows) if rows else "there is no pod"


def _line(title: str, value: str, width: int) -> list[str]:
    lead = f"{title}:" if title else ""
    first, *more = fold(words(value), width - TITLE if width else 0)
    return [lead.ljust(TITLE) + first, *(" " * TITLE + line for line in more)]
