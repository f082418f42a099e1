"""What goes into the pods of an engine: variables, resources, and where the scheduler may put them."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator

from vllm_bootstrap.contract import RESERVED_ENVIRONMENT
from vllm_operator.api.fields import FreeForm, FreeFormList, LongText, Name, Quantity, ShortText
from vllm_operator.api.references import ConfigMapKey, LocalReference, ObjectReference, SecretKey
from vllm_operator.api.schema import ApiModel, rule, rules


class EnvSource(ApiModel):
    """Where the value of a variable comes from."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "has(self.secretKeyRef) != has(self.configMapKeyRef)",
                "exactly one of secretKeyRef and configMapKeyRef must be given",
            )
        )
    )

    secret_key_ref: SecretKey | None = None
    config_map_key_ref: ConfigMapKey | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if bool(self.secret_key_ref) == bool(self.config_map_key_ref):
            raise ValueError("exactly one of secretKeyRef and configMapKeyRef must be given")
        return self


class EnvVar(ApiModel):
    """A variable that reaches every rank."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("!(has(self.value) && has(self.valueFrom))", "value and valueFrom exclude each other"),
            rule(
                "!(self.name in [" + ", ".join(f"'{name}'" for name in sorted(RESERVED_ENVIRONMENT)) + "])",
                "the operator sets this variable itself, from the pod's address and the placement: "
                + ", ".join(sorted(RESERVED_ENVIRONMENT)),
                fieldPath=".name",
            ),
        )
    )

    name: str = Field(min_length=1, max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    value: str | None = Field(default=None, max_length=4096)
    value_from: EnvSource | None = None

    @model_validator(mode="after")
    def _settable(self) -> Self:
        if self.value is not None and self.value_from:
            raise ValueError("value and valueFrom exclude each other")
        if self.name in RESERVED_ENVIRONMENT:
            raise ValueError(f"the operator sets {self.name} itself, from the pod's address and the placement")
        return self


class EnvFromSource(ApiModel):
    """All keys of a Secret or ConfigMap as variables."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "has(self.secretRef) != has(self.configMapRef)",
                "exactly one of secretRef and configMapRef must be given",
            )
        )
    )

    prefix: ShortText = Field(default="", description="Put before each key.")
    secret_ref: ObjectReference | None = None
    config_map_ref: ObjectReference | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if bool(self.secret_ref) == bool(self.config_map_ref):
            raise ValueError("exactly one of secretRef and configMapRef must be given")
        return self


class Resources(ApiModel):
    """CPU, memory and ephemeral storage of a container; GPUs follow from the parallelism."""

    requests: dict[str, Quantity] = Field(default_factory=dict, max_length=32)
    limits: dict[str, Quantity] = Field(default_factory=dict, max_length=32)


Labels = Annotated[dict[str, ShortText], Field(max_length=64)]


class Pod(ApiModel):
    """The pods that hold the ranks."""

    resources: Resources | None = Field(default=None, description="Resources of the vLLM container.")
    shm_size: Quantity | None = Field(default=None, description="Size of /dev/shm; 16Gi when absent.")
    node_selector: Labels = Field(default_factory=dict)
    tolerations: FreeFormList = Field(default_factory=list)
    affinity: FreeForm | None = None
    service_account_name: Name | None = Field(
        default=None, description="ServiceAccount of head and lead pod; one of the operator's making when absent."
    )
    image_pull_secrets: list[LocalReference] = Field(
        default_factory=list, max_length=16, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    labels: Labels = Field(default_factory=dict, description="Further labels of head and GPU pods.")
    annotations: Annotated[dict[str, LongText], Field(max_length=64)] = Field(
        default_factory=dict, description="Further annotations of head and GPU pods."
    )
    template: FreeForm | None = Field(
        default=None,
        description=(
            "PodTemplateSpec laid over head and GPU pods: objects are merged, lists of named items by name; "
            "the main container is called vllm."
        ),
    )


class RayHead(ApiModel):
    """The CPU-only Ray head pod."""

    resources: Resources | None = Field(default=None, description="Resources of the head; 1 CPU and 4Gi when absent.")
    node_selector: Labels = Field(default_factory=dict)
    tolerations: FreeFormList = Field(default_factory=list)
    affinity: FreeForm | None = None


def reserved_in(template: Any) -> list[str]:
    """Give the variables of the operator that a pod template sets; its shape is the API server's to judge."""
    found: set[str] = set()
    waiting = [template]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            variables = item.get("env")
            for entry in variables if isinstance(variables, list) else []:
                # A name may be a list here, which no set takes.
                if isinstance(entry, dict) and str(entry.get("name")) in RESERVED_ENVIRONMENT:
                    found.add(entry["name"])
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return sorted(found)
