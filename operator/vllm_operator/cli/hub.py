"""What the command asks a hub, with the token of the user's own environment; only when it is told to."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence

from vllm_operator.cli.documents import Document, InputError
from vllm_operator.clients.address import hub_url
from vllm_operator.planning.known import HUB, HubAnswer

TOKEN_VARIABLE = "HF_TOKEN"  # noqa: S105 - its name


def hub_answers(documents: Sequence[Document], endpoint: str) -> tuple[HubAnswer | None, ...]:
    """Ask for the model of each deployment; ``None`` where the file says enough, or the model is none of a hub's.

    Raises
    ------
    InputError
        The endpoint is no address of a hub.
    """
    try:
        address = hub_url(endpoint)
    except ValueError as error:
        raise InputError(f"--hub-endpoint {error}") from error
    return asyncio.run(_ask(documents, address, os.environ.get(TOKEN_VARIABLE, "").strip()))


async def _ask(documents: Sequence[Document], endpoint: str, token: str) -> tuple[HubAnswer | None, ...]:
    # Only here: its library would make every other command slower.
    from vllm_operator.clients.hub import Hub  # noqa: PLC0415

    hub = Hub(endpoint, clock=time.monotonic, named_by=TOKEN_VARIABLE)

    async def ask(document: Document) -> HubAnswer | None:
        model = document.spec.model
        if model.facts or not model.uri.startswith(HUB):
            return None
        return await hub.ask(model.uri.removeprefix(HUB), revision=model.revision or "", token=token)

    try:
        return tuple(await asyncio.gather(*(ask(document) for document in documents)))
    finally:
        hub.close()
