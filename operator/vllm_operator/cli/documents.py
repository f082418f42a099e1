"""What people give to the command: files with deployments, files with nodes; and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from vllm_operator.api import identity
from vllm_operator.api.spec import VLLMDeploymentSpec, explain
from vllm_operator.planning.inventory import GpuNode
from vllm_operator.planning.inventory_file import InventoryError, parse_inventory, parse_rules
from vllm_operator.planning.quota import NamespaceRules


class InputError(Exception):
    """A file cannot be used; the message names it and says why."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A deployment out of a file; its namespace is empty where the file does not say it."""

    name: str
    spec: VLLMDeploymentSpec
    namespace: str = ""


def read_deployments(path: Path) -> tuple[Document, ...]:
    """Read every VLLMDeployment of a file; other objects in it are passed over.

    Raises
    ------
    InputError
        It cannot be read, holds none, or one that does not obey the API.
    """
    found = tuple(_documents(path))
    if not found:
        raise InputError(f"{path}: there is no {identity.KIND} in it")
    return found


def read_nodes(path: Path) -> tuple[GpuNode, ...]:
    """Read an inventory.

    Raises
    ------
    InputError
        It cannot be read, or describes no nodes.
    """
    try:
        return parse_inventory(_read(path))
    except InventoryError as error:
        raise InputError(f"{path}: {error}") from error


def read_quotas(path: Path, namespace: str) -> NamespaceRules:
    """Read the quotas and limits of a namespace out of an inventory that holds its objects; else there are none.

    Raises
    ------
    InputError
        It cannot be read.
    """
    try:
        return parse_rules(_read(path), namespace)
    except InventoryError as error:
        raise InputError(f"{path}: {error}") from error


def _documents(path: Path) -> Iterator[Document]:
    try:
        parts = list(yaml.safe_load_all(_read(path)))
    except yaml.YAMLError as error:
        raise InputError(f"{path}: no YAML: {' '.join(str(error).split())}") from error
    for part in parts:
        for body in part["items"] if isinstance(part, dict) and isinstance(part.get("items"), list) else [part]:
            if isinstance(body, dict) and body.get("kind") == identity.KIND:
                yield _document(path, body)


def _document(path: Path, body: dict[str, Any]) -> Document:
    stated = body.get("metadata")
    meta = stated if isinstance(stated, dict) else {}
    name, namespace = str(meta.get("name") or "unnamed"), str(meta.get("namespace") or "")
    try:
        return Document(name=name, namespace=namespace, spec=VLLMDeploymentSpec.model_validate(body.get("spec") or {}))
    except ValidationError as error:
        raise InputError(f"{path}: {name}: {explain(error)}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from error
