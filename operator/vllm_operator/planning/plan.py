"""From a spec and what the nodes offer to the plan of an engine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm_operator.api.model import ModelFacts as StatedFacts
from vllm_operator.api.placement import Executor, Strategy
from vllm_operator.api.pods import RayHead
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.api.vllm_config import VLLMConfig
from vllm_operator.planning.candidate import Candidate, Choice
from vllm_operator.planning.catalogue import Catalogue
from vllm_operator.planning.choose import choose
from vllm_operator.planning.devices import product_label
from vllm_operator.planning.eligibility import PodRules
from vllm_operator.planning.estimate import estimate, read_count
from vllm_operator.planning.facts import FactsError, ModelFacts, read_config
from vllm_operator.planning.host import HostEstimate, estimate_host, host_warnings
from vllm_operator.planning.hosts import HostNeeds
from vllm_operator.planning.inventory import GIB, MIB, GpuNode
from vllm_operator.planning.known import HubAnswer, Known, known
from vllm_operator.planning.parameters import model_bytes
from vllm_operator.planning.precision import BYTES_OF_TYPE, Precision, named_precision
from vllm_operator.planning.proof import Verdict
from vllm_operator.planning.shapes import Shape, group_pods
from vllm_operator.planning.sizing import Load
from vllm_operator.planning.wish import AcceleratorWish, Wish

TOLD_CANDIDATES = 8
TOLD_NUMBER = 2**31 - 1
"""The largest number of the status; a nonsensical config.json leads to larger ones."""

UNKNOWN_CONTEXT = 8192
"""Length of a request where neither the spec nor the model says one."""


class NoSuchGPUsError(Exception):
    """No set of nodes of this cluster could ever hold the engine; the message says what is there."""


class GPUsTakenError(Exception):
    """The nodes could hold the engine, but not now; the message says what is in the way."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Where an engine goes.

    Attributes
    ----------
    survey
        What it was chosen from.
    host
        What its largest pod is thought to use beside GPUs.
    warnings
        What contradicts that.
    """

    shape: Shape
    chosen: Candidate
    survey: Survey
    host: HostEstimate | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Survey:
    """All ways to place an engine, before one is taken.

    Attributes
    ----------
    known
        What is known of the model, and from whom.
    load
        What is planned for.
    executor, executor_reason
        For the best candidate, and why it is this one.
    needs
        What its pods ask for beside GPUs.
    checkpoint_bytes
        Size of the checkpoint as it is stored; 0 when nothing is known of the model.
    """

    known: Known
    load: Load
    choice: Choice
    executor: Executor = Executor.RAY
    executor_reason: str = ""
    needs: HostNeeds | None = None
    checkpoint_bytes: int = 0

    @property
    def facts(self) -> ModelFacts | None:
        """The model, ``None`` when nothing is known of it."""
        return self.known.facts


def survey(
    spec: VLLMDeploymentSpec,
    nodes: Iterable[GpuNode],
    catalogue: Catalogue,
    *,
    rules: PodRules | None = None,
    told: HubAnswer | None = None,
    needs: HostNeeds | None = None,
    bare: HostNeeds | None = None,
) -> Survey:
    """Look at all ways to place an engine.

    Parameters
    ----------
    rules
        What its pods will say of their nodes, templates and all; without them what the fields of ``pod`` say.
    told
        What the hub says of the model, ``None`` when it was not asked.
    needs
        What its pods ask for beside GPUs; ``None`` when only GPUs are looked at.
    bare
        The same of an engine without Ray, which has no head.

    Raises
    ------
    FactsError
        What the spec says of the model cannot be read.
    ModelUnknownError
        Sizes were left out, and the hub did not tell what they depend on.
    """
    stored = known_model(spec, told)
    model = replace(stored, facts=_loaded(stored.facts, spec.vllm_config)) if stored.facts else stored
    load = load_of(spec, model.facts)
    wish, there = wish_of(spec, rules), tuple(nodes)

    def look(asked: HostNeeds | None) -> tuple[Choice, Executor, str]:
        choice = choose(replace(wish, needs=asked), model.facts, load, there, catalogue)
        return choice, *executor_of(spec, choice.best)

    asked = needs if spec.distributed_executor_backend is Executor.RAY else bare
    choice, executor, why = look(asked)
    if executor is Executor.RAY and asked is not needs:
        # It comes to Ray, and a head must have a place, too.
        asked = needs
        choice, executor, why = look(asked)
    return Survey(
        known=model,
        load=load,
        choice=choice,
        executor=executor,
        executor_reason=why,
        needs=asked,
        checkpoint_bytes=_stored_bytes(stored.facts),
    )


def plan(
    spec: VLLMDeploymentSpec,
    nodes: Iterable[GpuNode],
    catalogue: Catalogue,
    *,
    rules: PodRules | None = None,
    told: HubAnswer | None = None,
    needs: HostNeeds | None = None,
    bare: HostNeeds | None = None,
) -> Plan:
    """Choose or check the GPUs, the parallel sizes and the pods of an engine; parameters as for :func:`survey`.

    Raises
    ------
    FactsError
        What the spec says of the model cannot be read.
    ModelUnknownError
        Sizes were left out, and the hub did not tell what they depend on.
    NoSuchGPUsError
        It can never be placed on these nodes.
    GPUsTakenError
        It cannot be placed now.
    """
    there = tuple(nodes)
    seen = survey(spec, there, catalogue, rules=rules, told=told, needs=needs, bare=bare)
    chosen = seen.choice.best
    if chosen is None:
        raise NoSuchGPUsError(seen.choice.reason)
    if chosen.verdict is Verdict.NOT_NOW:
        raise GPUsTakenError(seen.choice.reason)
    host, warnings = host_of(spec, seen, there)
    return Plan(shape=shape_of(spec, chosen, there), chosen=chosen, survey=seen, host=host, warnings=warnings)


def shape_of(spec: VLLMDeploymentSpec, chosen: Candidate, nodes: Iterable[GpuNode]) -> Shape:
    """Give the pods of a candidate, bound to GPUs of its product where the nodes have several."""
    several = len({node.product for node in nodes if node.gpus and node.resource == chosen.resource}) > 1
    return Shape(
        tensor=chosen.tensor,
        pipeline=chosen.pipeline,
        data=chosen.data,
        expert=spec.expert,
        strategy=spec.placement.strategy,
        groups=group_pods(chosen.sizes, chosen.seats),
        node_selector=chosen.selector if several else {},
        without_label=product_label(chosen.resource) if several and not chosen.selector else "",
        resource=chosen.resource,
        gpu_memory_utilization=chosen.utilization,
        executor=executor_of(spec, chosen)[0],
    )


def executor_of(spec: VLLMDeploymentSpec, chosen: Candidate | None) -> tuple[Executor, str]:
    """Give vLLM's executor for the pods of a candidate, and why it is this one."""
    wanted = spec.distributed_executor_backend
    if wanted is not Executor.AUTO:
        return wanted, "as the spec says"
    if chosen is None:
        return Executor.RAY, ""
    if why := _why_ray(spec, chosen):
        return Executor.RAY, why
    one = "one GPU" if chosen.gpus == 1 else f"one pod of {chosen.gpus} GPUs"
    return Executor.UNI if chosen.gpus == 1 else Executor.MP, f"{one} does it, Ray would only add a layer"


def _why_ray(spec: VLLMDeploymentSpec, chosen: Candidate) -> str:
    """Say what Ray is needed for; empty when nothing asks for it."""
    if spec.ray_cluster_ref:
        return f"rayClusterRef: on RayCluster {spec.ray_cluster_ref.name}"
    pods, gpus = len(chosen.sizes), chosen.gpus
    if chosen.data > 1:
        return f"{chosen.data} data parallel ranks of {gpus // chosen.data} over {_pods(pods)}"
    if pods > 1:
        return f"{gpus} ranks over {_pods(pods)}"
    if spec.ray_head != RayHead():
        return "one pod would do it, but rayHead asks for a Ray cluster"
    if spec.placement.strategy in (Strategy.SPREAD, Strategy.STRICT_SPREAD):
        return f"{spec.placement.strategy} asks for a placement group"
    return ""


def _pods(number: int) -> str:
    return f"{number} pod{'' if number == 1 else 's'}"


def host_of(
    spec: VLLMDeploymentSpec, seen: Survey, nodes: Sequence[GpuNode]
) -> tuple[HostEstimate | None, tuple[str, ...]]:
    """Estimate what the largest pod of the best candidate uses of its host, and say what contradicts it."""
    best = seen.choice.best
    if best is None or not best.sizes:
        return None, ()
    ranks, weights = max(best.sizes), best.need.weights if best.need else 0.0
    host = estimate_host(
        spec.vllm_config,
        ranks=ranks,
        world=best.gpus,
        cores=max(1, ranks * best.data // best.gpus),
        checkpoint=seen.checkpoint_bytes,
        weights=weights,
        has_towers=bool(seen.facts and seen.facts.tower_parameters),
    )
    return host, host_warnings(host, seen.needs, best.seats, nodes, ranks=ranks) if seen.needs else ()


def describe(planned: Plan, notes: Sequence[str] = ()) -> dict[str, Any]:
    """Give what ``status.plan`` tells of a plan beside its sizes, as JSON data; ``notes`` are further warnings."""
    chosen = planned.chosen
    warnings = (chosen.warning, planned.survey.known.doubt, *planned.warnings, *notes)
    told: dict[str, Any] = {
        "accelerator": chosen.product,
        "resource": chosen.resource,
        "gpus": chosen.gpus,
        "reason": planned.survey.executor_reason,
        "warning": "; ".join(part for part in warnings if part),
        "facts": planned.survey.known.source,
        "candidates": [
            {
                "accelerator": item.product,
                "tensor": item.tensor,
                "pipeline": item.pipeline,
                "data": item.data,
                "gpus": item.gpus,
                "fits": item.verdict is Verdict.FITS,
                "reason": "; ".join(part for part in (item.reason, item.warning) if part),
            }
            for item in planned.survey.choice.candidates[:TOLD_CANDIDATES]
        ],
    }
    if planned.host:
        told["host"] = host_data(planned.host)
    facts = planned.survey.facts
    if chosen.need and facts:
        told["memory"] = {
            "weightsMiB": _told(chosen.need.weights / MIB),
            "marginMiB": _told(chosen.need.margin / MIB),
            "cachedTokens": _told(chosen.cached_tokens),
            "maxModelLen": _told(planned.survey.load.max_model_len),
            "guessed": "; ".join(facts.guessed),
        }
    return told


def host_data(host: HostEstimate) -> dict[str, Any]:
    """Give an estimate as ``status.plan.host`` tells it."""
    return {
        "hostMemoryMiB": _told(math.ceil(host.memory / MIB)),
        "shmMiB": _told(math.ceil(host.shm / MIB)),
        "cpus": host.cpus,
    }


def _told(number: float) -> int:
    return min(round(number), TOLD_NUMBER)


def wish_of(spec: VLLMDeploymentSpec, rules: PodRules | None = None) -> Wish:
    """Give what the user said of GPUs and sizes; parameters as for :func:`survey`."""
    parallelism = spec.parallelism
    one_pod = spec.distributed_executor_backend in (Executor.MP, Executor.UNI)
    return Wish(
        tensor=_size(spec, parallelism.tensor if parallelism else None),
        pipeline=_size(spec, parallelism.pipeline if parallelism else None),
        data=spec.data,
        expert=spec.expert,
        strategy=Strategy.STRICT_PACK if one_pod else spec.placement.strategy,
        gpus_per_pod=spec.placement.gpus_per_pod,
        topology_key=spec.placement.topology_key or "",
        accelerators=tuple(
            AcceleratorWish(
                product=item.product or "",
                kind=item.accelerator_class or "",
                memory=round((item.memory_gib or 0) * GIB),
            )
            for item in spec.accelerators
        ),
        utilization=spec.vllm_config.gpu_memory_utilization,
        pod_rules=rules
        or PodRules(node_selector=spec.pod.node_selector, tolerations=spec.pod.tolerations, affinity=spec.pod.affinity),
    )


def _size(spec: VLLMDeploymentSpec, size: int | None) -> int | None:
    """Give a parallel size that the user set; uni leaves no choice."""
    return 1 if spec.distributed_executor_backend is Executor.UNI else size


def load_of(spec: VLLMDeploymentSpec, facts: ModelFacts | None) -> Load:
    """Give what the engine must be able to do."""
    config = spec.vllm_config
    cache = BYTES_OF_TYPE.get(config.kv_cache_dtype or "", 0.0)
    given = {
        "max_num_seqs": config.max_num_seqs,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "cache_bytes": cache or None,
    }
    return Load(
        max_model_len=config.max_model_len or (facts.context if facts else UNKNOWN_CONTEXT),
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
    )


def known_model(spec: VLLMDeploymentSpec, told: HubAnswer | None) -> Known:
    """Give what is known of the model of a spec, as its checkpoint is stored.

    Raises
    ------
    FactsError
        What the spec says of the model cannot be read.
    ModelUnknownError
        Sizes were left out, and the hub did not tell what they depend on.
    """
    return known(spec.model.uri, stated_facts(spec), told, is_explicit=wish_of(spec).is_explicit)


def stated_facts(spec: VLLMDeploymentSpec) -> ModelFacts | None:
    """Give what the spec says of its model, as it is stored; ``None`` when it says nothing.

    Raises
    ------
    FactsError
        It cannot be read.
    """
    stated = spec.model.facts
    if stated is None:
        return None
    facts = _read(stated)
    if stated.context_length:
        facts = replace(facts, context=stated.context_length)
    return facts


def _stored_bytes(facts: ModelFacts | None) -> int:
    """Give the size of a checkpoint; 0 when nothing is known of it."""
    return facts.checkpoint_bytes or round(model_bytes(facts)) if facts else 0


def _loaded(facts: ModelFacts, config: VLLMConfig) -> ModelFacts:
    """Give a model as vLLM loads it; a checkpoint of known size grows or shrinks with its weights."""
    loaded = replace(facts, precision=_precision(config, facts.precision))
    growth = model_bytes(loaded) / model_bytes(facts)
    return replace(loaded, checkpoint_bytes=round(facts.checkpoint_bytes * growth))


def _read(stated: StatedFacts) -> ModelFacts:
    if stated.config is not None:
        return read_config(stated.config, checkpoint_bytes=stated.checkpoint_bytes or 0)
    if stated.parameters is None:
        raise FactsError("model.facts needs parameters or config")
    facts = estimate(
        read_count(stated.parameters),
        active=read_count(stated.active_parameters) if stated.active_parameters else 0.0,
        precision=stated.precision or "bf16",
    )
    return replace(facts, checkpoint_bytes=stated.checkpoint_bytes or facts.checkpoint_bytes)


def _precision(config: VLLMConfig, stored: Precision) -> Precision:
    """Give the precision that vLLM makes of the stored one: a type and a quantization at load time."""
    base = BYTES_OF_TYPE.get(config.dtype or "", stored.base_bytes)
    if stored.method:
        return replace(stored, base_bytes=base)
    if not config.quantization:
        return replace(stored, base_bytes=base, weight_bytes=base)
    try:
        return replace(named_precision(config.quantization), base_bytes=base)
    except ValueError:
        return replace(stored, base_bytes=base, weight_bytes=base)
