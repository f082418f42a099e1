"""What the API server does with a structural schema, as far as the tests of files need it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def violations(value: Any, schema: Schema, path: str = "") -> Iterator[str]:
    """Give what the schema has against a value; unknown fields count, as under strict validation."""
    if schema.get("x-kubernetes-int-or-string"):
        if type(value) not in (int, str):
            yield f"{path}: neither number nor string"
    elif not isinstance(value, _TYPES[schema["type"]]) or (isinstance(value, bool) and schema["type"] != "boolean"):
        yield f"{path}: not of type {schema['type']}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    if isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"{path}: {value!r} does not match {schema['pattern']}"
        yield from _bounds(len(value), schema, "minLength", "maxLength", path)
    elif isinstance(value, int | float):
        yield from _bounds(value, schema, "minimum", "maximum", path)
    elif isinstance(value, list):
        yield from _bounds(len(value), schema, "minItems", "maxItems", path)
        for index, item in enumerate(value):
            yield from violations(item, schema["items"], f"{path}[{index}]")
    elif isinstance(value, dict):
        yield from _object(value, schema, path)


def _object(value: Schema, schema: Schema, path: str) -> Iterator[str]:
    yield from _bounds(len(value), schema, "minProperties", "maxProperties", path)
    yield from (f"{path}.{name}: required" for name in schema.get("required", ()) if name not in value)
    known = schema.get("properties", {})
    for name, item in value.items():
        if name in known:
            yield from violations(item, known[name], f"{path}.{name}")
        elif "additionalProperties" in schema:
            yield from violations(item, schema["additionalProperties"], f"{path}.{name}")
        elif not schema.get("x-kubernetes-preserve-unknown-fields") and path != ".metadata":
            yield f"{path}.{name}: unknown field"


def _bounds(size: float, schema: Schema, low: str, high: str, path: str) -> Iterator[str]:
    if low in schema and size < schema[low]:
        yield f"{path}: {low} is {schema[low]}"
    if high in schema and size > schema[high]:
        yield f"{path}: {high} is {schema[high]}"
