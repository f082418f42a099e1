"""``spec.model``: the model that is served, where it is, and what the planner is to know of it."""

from __future__ import annotations

from typing import Self

from pydantic import ConfigDict, Field, model_validator

from vllm_operator.api.fields import FreeForm, Name, ShortText
from vllm_operator.api.references import TokenSecret
from vllm_operator.api.schema import ApiModel, rule, rules


class ModelCache(ApiModel):
    """Where downloaded models are kept."""

    persistent_volume_claim: Name = Field(
        description="PersistentVolumeClaim that keeps downloaded models; ReadWriteMany when an engine has several pods."
    )


_COUNT = r"^[0-9]+(\.[0-9]+)?[KMBT]?$"


class ModelFacts(ApiModel):
    """What the planner cannot read itself: the size of the model, or its whole config.json."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("has(self.parameters) || has(self.config)", "facts needs parameters or config"),
        )
    )

    parameters: ShortText | None = Field(
        default=None, pattern=_COUNT, description="Number of weights: 36B, 0.6B or 134515008."
    )
    active_parameters: ShortText | None = Field(
        default=None, pattern=_COUNT, description="Weights that a token passes through, for a mixture of experts."
    )
    precision: ShortText | None = Field(
        default=None,
        pattern="^(bf16|fp16|fp32|fp8|int8|int4|nvfp4|mxfp4|mxfp8|awq|gptq)$",
        description="How the weights are stored; bf16 when absent.",
    )
    context_length: int | None = Field(default=None, ge=1, le=2**31 - 1, description="Longest sequence of the model.")
    checkpoint_bytes: int | None = Field(
        default=None, ge=1, le=2**53, description="Size of all weights: metadata.total_size of the safetensors index."
    )
    config: FreeForm | None = Field(
        default=None, description="Content of the model's config.json; exacter than a size."
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.parameters is None and self.config is None:
            raise ValueError("facts needs parameters or config")
        return self


_HUB_URI = r"hf://[A-Za-z0-9][-._A-Za-z0-9]*(/[A-Za-z0-9][-._A-Za-z0-9]*)?"
URI = rf"^({_HUB_URI}|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[^/]+)*/?|file:///.+)$"
"""Where a model or an adapter may be."""


class Model(ApiModel):
    """The model that is served."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.cache) || self.uri.startsWith('hf://')",
                "cache is for hf:// models: pvc:// and file:// models are already on a volume",
                fieldPath=".cache",
            ),
            rule(
                "!has(self.revision) || self.uri.startsWith('hf://')",
                "revision is for hf:// models: a pvc:// or file:// model has none",
                fieldPath=".revision",
            ),
        )
    )

    uri: str = Field(
        min_length=6,
        max_length=512,
        pattern=URI,
        description=(
            "Where the model is: hf://org/name on the Hugging Face hub, pvc://claim/path on a PersistentVolumeClaim, "
            "file:///path in the image or on a volume of pod.template."
        ),
    )
    revision: ShortText | None = Field(default=None, description="Branch, tag or commit of an hf:// model.")
    name: ShortText | None = Field(
        default=None, description="Name of the model in the OpenAI API; the name of the VLLMDeployment when absent."
    )
    hf_token_secret: TokenSecret | None = Field(
        default=None,
        description=(
            "Hugging Face token for private and gated models, and for adapters; it is sent to the installation's hub."
        ),
    )
    cache: ModelCache | None = Field(default=None, description="Where an hf:// model is kept after its download.")
    facts: ModelFacts | None = Field(
        default=None,
        description="What the planner is to know of the model; without it the hub is asked about an hf:// model.",
    )

    @model_validator(mode="after")
    def _hub_only(self) -> Self:
        if self.uri.startswith("hf://"):
            return self
        if self.cache:
            raise ValueError("cache is for hf:// models: pvc:// and file:// models are already on a volume")
        if self.revision is not None:
            raise ValueError("revision is for hf:// models: a pvc:// or file:// model has none")
        return self
