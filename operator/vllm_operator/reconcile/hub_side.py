"""What the hub says of a deployment's model, with the token that the deployment names."""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING

from vllm_operator.api.model import Model
from vllm_operator.api.references import TokenSecret
from vllm_operator.clients.kubernetes import Kind, KubernetesClient
from vllm_operator.planning.known import HUB, HubAnswer, HubTrouble, Trouble
from vllm_operator.resources.names import Owner

if TYPE_CHECKING:
    # Where no hub is asked, its library is not loaded.
    from vllm_operator.clients.hub import Hub

_SECRET = Kind(api_version="v1", kind="Secret")
_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")


class HubSide:
    """Asks the hub for one deployment at a time."""

    def __init__(self, api: KubernetesClient, hub: Hub) -> None:
        self._api = api
        self._hub = hub

    async def look(self, owner: Owner, model: Model) -> HubAnswer | None:
        """Ask for a model; ``None`` when it is none of a hub's, or when the spec says enough.

        Raises
        ------
        ApiError
            The Secret of the token could not be read.
        """
        if model.facts or not model.uri.startswith(HUB):
            return None
        token = await self._token(owner, model.hf_token_secret) if model.hf_token_secret else ""
        if isinstance(token, HubTrouble):
            return token
        return await self._hub.ask(model.uri.removeprefix(HUB), revision=model.revision or "", token=token)

    async def _token(self, owner: Owner, secret: TokenSecret) -> str | HubTrouble:
        """Read the token; it goes to the hub and to nowhere else."""
        found = await self._api.find(_SECRET, owner.namespace, secret.name)
        try:
            text = base64.b64decode(((found or {}).get("data") or {}).get(secret.key) or "").decode().strip()
        except (binascii.Error, UnicodeDecodeError):
            text = ""
        if _TOKEN.fullmatch(text):
            return text
        message = (
            f"spec.model.hfTokenSecret: key {secret.key} of Secret {secret.name} holds no token: "
            "it must be one line of ASCII characters, not empty"
        )
        return HubTrouble(trouble=Trouble.DENIED, message=message)
