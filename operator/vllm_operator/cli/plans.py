"""What ``kubectl vllm plan`` says: the candidates of a deployment, as a table or as data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vllm_operator.cli.documents import Document
from vllm_operator.cli.tables import table
from vllm_operator.planning.candidate import Candidate
from vllm_operator.planning.catalogue import Catalogue
from vllm_operator.planning.eligibility import PodRules
from vllm_operator.planning.host import HostEstimate
from vllm_operator.planning.inventory import GIB, GpuNode
from vllm_operator.planning.known import HubAnswer
from vllm_operator.planning.plan import Survey, host_data, host_of, survey
from vllm_operator.planning.proof import Verdict
from vllm_operator.planning.quota import NamespaceRules, QuotaError, UnstatedResourcesError, check_quotas
from vllm_operator.planning.shapes import Shape, group_pods
from vllm_operator.resources.defaults import RuntimeDefaults
from vllm_operator.resources.needs import engine_pods, host_needs, rendered
from vllm_operator.resources.pod import node_rules

EXIT_CODES = {Verdict.FITS: 0, Verdict.NOT_NOW: 3, Verdict.NEVER: 4}
SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The plan of one deployment.

    Attributes
    ----------
    barred
        Why its namespace keeps it out although the best candidate fits; ``None`` when it does not.
    notes
        What may go wrong beside, and what could not be looked at.
    host
        What the largest pod is thought to use beside GPUs.
    """

    name: str
    survey: Survey
    host: HostEstimate | None = None
    barred: QuotaError | None = None
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Verdict of the best candidate, or that of the quotas on it."""
        if self.barred:
            return Verdict.NEVER if isinstance(self.barred, UnstatedResourcesError) else Verdict.NOT_NOW
        return self.survey.choice.verdict

    @property
    def reason(self) -> str:
        """Why, in a sentence."""
        return str(self.barred) if self.barred else self.survey.choice.reason

    def data(self) -> dict[str, Any]:
        """Give it for programs."""
        facts = self.survey.facts
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "distributedExecutorBackend": self.survey.executor.value,
            "executorReason": self.survey.executor_reason,
            "notes": list(self.notes),
            "host": host_data(self.host) if self.host else None,
            "maxModelLen": self.survey.load.max_model_len,
            "facts": self.survey.known.source,
            "guessed": list(facts.guessed) if facts else [self.survey.known.doubt],
            "candidates": [_candidate(item) for item in self.survey.choice.candidates],
        }

    def text(self, *, wide: bool) -> str:
        """Give it for people."""
        choice = self.survey.choice
        lines = [f"{self.name}: {self.verdict.value}: {self.reason}"]
        if choice.best:
            lines.append(f"executor: {self.survey.executor}, {self.survey.executor_reason}")
        lines += [f"warning: {note}" for note in self.notes]
        if choice.best and choice.best.warning:
            lines.append(f"warning: {choice.best.warning}")
        if self.host:
            lines.append(
                f"host, an estimate for the largest pod: {self.host.memory / GIB:.1f} GiB of memory, "
                f"{self.host.shm / GIB:.1f} GiB of it in /dev/shm, and {self.host.cpus} cores"
            )
        if facts := self.survey.facts:
            lines += [f"facts: {self.survey.known.source}"] if self.survey.known.source != "spec" else []
            lines += [f"guessed: {guess}" for guess in facts.guessed]
        else:
            lines.append(f"warning: {self.survey.known.doubt}")
        shown = choice.candidates if wide else choice.candidates[:SHOWN]
        head = [
            "accelerator",
            "tensor",
            "pipeline",
            "data",
            "gpus",
            "pods",
            "weights",
            "cache tokens",
            "cost",
            "verdict",
        ]
        rows = [_row(item) + ([item.reason] if wide else []) for item in shown]
        lines += ["", table([*head, *(["reason"] if wide else [])], rows)] if rows else []
        if len(choice.candidates) > len(shown):
            lines.append(f"and {len(choice.candidates) - len(shown)} more: -o wide")
        return "\n".join(lines)


def answer(
    document: Document,
    nodes: Iterable[GpuNode],
    catalogue: Catalogue,
    *,
    rules: NamespaceRules | None,
    told: HubAnswer | None = None,
) -> Answer:
    """Plan a deployment.

    Parameters
    ----------
    rules
        Quotas and limits of its namespace; ``None`` when they may not be read.
    told
        What the hub says of its model, ``None`` when it was not asked.

    Raises
    ------
    FactsError
        What it says of its model cannot be read.
    ModelUnknownError
        Sizes were left out, and the hub did not tell what they depend on.
    """
    if reference := document.spec.ray_cluster_ref:
        note = (
            f"rayClusterRef: planned as if the nodes were the pods of RayCluster {reference.name}; what is left of it "
            "only the operator knows: apply with planOnly: true"
        )
        seen = survey(document.spec, nodes, catalogue, rules=PodRules(), told=told)
        return Answer(name=document.name, survey=seen, host=None, barred=None, notes=(note,))
    spec, defaults, there = document.spec, RuntimeDefaults(), tuple(nodes)
    given = rules.defaults if rules else None
    needs, bare = (host_needs(spec, defaults, given, with_ray=with_ray) for with_ray in (True, False))
    seen = survey(spec, there, catalogue, rules=node_rules(spec, defaults), told=told, needs=needs, bare=bare)
    barred, notes = _quotas(document, seen, rules)
    host, warnings = host_of(spec, seen, there)
    return Answer(name=document.name, survey=seen, host=host, barred=barred, notes=(*warnings, *notes))


def _quotas(
    document: Document, seen: Survey, rules: NamespaceRules | None
) -> tuple[QuotaError | None, tuple[str, ...]]:
    """Say what keeps the best candidate out of its namespace, and what could not be judged."""
    if rules is None:
        where = f"namespace {document.namespace}" if document.namespace else "its namespace"
        return None, (f"the quotas of {where} may not be read and are not looked at",)
    best = seen.choice.best
    if best is None or best.verdict is not Verdict.FITS:
        return None, ()
    shape = Shape(
        tensor=best.tensor,
        pipeline=best.pipeline,
        data=best.data,
        expert=document.spec.expert,
        strategy=document.spec.placement.strategy,
        groups=group_pods(best.sizes, best.seats),
        resource=best.resource,
        executor=seen.executor,
    )
    try:
        return None, check_quotas(
            rules, engine_pods(rendered(document.spec, shape, RuntimeDefaults())), with_ray=shape.with_ray
        )
    except QuotaError as error:
        return error, ()


def _row(item: Candidate) -> list[object]:
    return [
        item.product,
        item.tensor,
        item.pipeline,
        item.data,
        item.gpus,
        "+".join(map(str, item.sizes)),
        f"{item.need.weights / GIB:.1f} GiB" if item.need else "",
        item.cached_tokens or "",
        f"{item.cost:.2f}",
        item.verdict.value,
    ]


def _candidate(item: Candidate) -> dict[str, Any]:
    return {
        "accelerator": item.product,
        "resource": item.resource,
        "tensor": item.tensor,
        "pipeline": item.pipeline,
        "data": item.data,
        "gpus": item.gpus,
        "podGpus": list(item.sizes),
        "nodes": list(item.seats),
        "weightsBytesPerRank": round(item.need.weights) if item.need else None,
        "marginBytesPerRank": round(item.need.margin) if item.need else None,
        "cachedTokens": item.cached_tokens,
        "cost": round(item.cost, 4),
        "verdict": item.verdict.value,
        "reason": item.reason,
        "warning": item.warning,
    }
