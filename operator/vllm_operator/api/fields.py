"""Annotated field types that carry what a CRD schema knows and JSON schema does not.

Every list, map and string has a bound: the API server refuses a CRD whose CEL rules could cost too much,
and reckons an unbounded field as endless.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

Name = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
"""Name of another Kubernetes object (DNS-1123 subdomain)."""

Key = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
"""Key of a Secret or ConfigMap."""

ShortText = Annotated[str, Field(max_length=256)]
LongText = Annotated[str, Field(max_length=1024)]
Message = Annotated[str, Field(max_length=8192)]

Count = Annotated[int, Field(ge=-1, le=2**31 - 1)]
"""Number that the operator or an engine counts; -1 where it is unknown."""

Generation = Annotated[int, Field(ge=-1, le=2**53)]
"""``metadata.generation`` as it was seen; -1 before the first sight."""

_QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)

Quantity = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    Field(max_length=64, pattern=_QUANTITY),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": 64,
            "pattern": _QUANTITY,
            "x-kubernetes-int-or-string": True,
        }
    ),
]
"""Kubernetes quantity: ``4``, ``500m``, ``16Gi``."""

MAX_DEPTH = 64


def _shallow(value: Any) -> Any:
    """Refuse what is nested deeper than any object of Kubernetes: neither pydantic nor we could write it down."""
    level = [value]
    for _ in range(MAX_DEPTH):
        parts = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = [item for part in parts for item in part]
    if level:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    return value


FreeForm = Annotated[
    dict[str, Any],
    AfterValidator(_shallow),
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
"""A Kubernetes object that is passed on as it is; checked by the API server when it is used."""

FreeFormList = Annotated[
    list[dict[str, Any]],
    AfterValidator(_shallow),
    Field(max_length=64),
    WithJsonSchema(
        {
            "type": "array",
            "maxItems": 64,
            "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "x-kubernetes-list-type": "atomic",
        }
    ),
]
