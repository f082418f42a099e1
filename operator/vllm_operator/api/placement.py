"""How an engine is divided over GPUs, and which and where they are: sizes, executor, strategy, kinds of GPUs."""

from __future__ import annotations

import enum
from typing import Self

from pydantic import ConfigDict, Field, model_validator

from vllm_operator.api.fields import ShortText
from vllm_operator.api.schema import ApiModel, rule, rules


class Executor(enum.StrEnum):
    """vLLM's ``distributed_executor_backend``."""

    AUTO = "auto"
    RAY = "ray"
    MP = "mp"
    UNI = "uni"


class Strategy(enum.StrEnum):
    """Placement group strategy, with Ray's meaning."""

    PACK = "PACK"
    STRICT_PACK = "STRICT_PACK"
    SPREAD = "SPREAD"
    STRICT_SPREAD = "STRICT_SPREAD"


class AcceleratorChoice(ApiModel):
    """A kind of GPU that will do."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "has(self.product) || has(self.class) || has(self.memoryGiB)",
                "an accelerator needs a product, a class or memoryGiB",
            ),
        )
    )

    product: ShortText | None = Field(
        default=None, description="Pattern (* and ?) for the product as its feature discovery labels it: *A100*."
    )
    accelerator_class: ShortText | None = Field(
        default=None, alias="class", description="A class of the operator's accelerator catalogue."
    )
    memory_gib: int | None = Field(
        default=None, alias="memoryGiB", ge=1, le=4096, description="Least memory of one GPU, in GiB."
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not (self.product or self.accelerator_class or self.memory_gib):
            raise ValueError("an accelerator needs a product, a class or memoryGiB")
        return self


MAX_GPUS = 4096
TOO_MANY_GPUS = f"tensor x pipeline x data is at most {MAX_GPUS}"


class Parallelism(ApiModel):
    """How the model is divided over GPUs; what is left out, the operator chooses."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.data) || self.data == 1 || (has(self.tensor) ? self.tensor : 1) * "
                f"(has(self.pipeline) ? self.pipeline : 1) * self.data <= {MAX_GPUS}",
                TOO_MANY_GPUS,
            ),
        )
    )

    tensor: int | None = Field(default=None, ge=1, le=1024, description="Tensor parallel size.")
    pipeline: int | None = Field(default=None, ge=1, le=1024, description="Pipeline parallel size.")
    data: int = Field(
        default=1,
        ge=1,
        le=1024,
        description=(
            "Data parallel size: so many copies of a dense model, or of all but the experts of a mixture of experts, "
            "each of tensor x pipeline GPUs, behind one server; never chosen by the operator."
        ),
    )
    expert: bool = Field(
        default=False,
        description=(
            "Expert parallel: whole experts of a mixture of experts are divided among tensor x data ranks, instead of "
            "a slice of each."
        ),
    )

    @model_validator(mode="after")
    def _is_of_this_world(self) -> Self:
        if self.data > 1 and (self.tensor or 1) * (self.pipeline or 1) * self.data > MAX_GPUS:
            raise ValueError(TOO_MANY_GPUS)
        return self


class Placement(ApiModel):
    """How ranks are laid out over pods and nodes."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.strategy != 'STRICT_SPREAD' || !has(self.gpusPerPod) || self.gpusPerPod == 1",
                "STRICT_SPREAD puts every rank on a node of its own: gpusPerPod must be 1 or absent",
                fieldPath=".gpusPerPod",
            ),
        )
    )

    strategy: Strategy = Field(
        default=Strategy.PACK,
        description=(
            "Ray placement group strategy. PACK prefers few nodes, STRICT_PACK demands one, "
            "SPREAD prefers and STRICT_SPREAD demands different nodes."
        ),
    )
    topology_key: str | None = Field(
        default=None,
        min_length=1,
        max_length=317,
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$",
        description=(
            "Label of nodes (a zone, a rack, an NVLink domain): all GPU pods of an engine go to nodes with one and the "
            "same value of it; each engine has its own."
        ),
    )
    gpus_per_pod: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description=(
            "GPUs of one pod. When absent: all for STRICT_PACK, 1 for SPREAD and STRICT_SPREAD, "
            "and as many as the largest node has for PACK."
        ),
    )
