"""Base of all models of the API, and the CEL rules that their schemas carry."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel


def rule(expression: str, message: str, **more: str) -> dict[str, Any]:
    """Give one CEL rule of the CRD (``x-kubernetes-validations``)."""
    return {"rule": expression, "message": message, **more}


def rules(*given: dict[str, Any]) -> dict[str, Any]:
    """Give the part of a schema that holds CEL rules."""
    return {"x-kubernetes-validations": list(given)}


class ApiModel(BaseModel):
    """Base of all models of the API: camelCase outside, unknown fields dropped as the API server does."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        """Drop what is null, as the API server does: ``env:`` with nothing behind it is a file that many write."""
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data
