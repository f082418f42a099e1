"""The supervisor's control port on the lead pod: what it would report, for when its report is lost."""

from __future__ import annotations

import json

import aiohttp

from vllm_bootstrap import contract
from vllm_operator.clients.address import pod_url

_TIMEOUT = aiohttp.ClientTimeout(total=5)


class SupervisorError(Exception):
    """The supervisor did not answer, or refused."""


class SupervisorClient:
    """Calls of supervisors."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def report(self, ip: str, token: str) -> contract.EngineReport | None:
        """Read the newest report; ``None`` while there is none.

        Raises
        ------
        SupervisorError
            No answer, or none that can be read.
        """
        url = f"{pod_url(ip, contract.SUPERVISOR_PORT)}/status"
        try:
            async with self._session.get(
                url, headers={"Authorization": f"Bearer {token}"}, timeout=_TIMEOUT
            ) as response:
                if response.status != 200:
                    raise SupervisorError(f"{url}: HTTP {response.status}")
                told = (await response.json()).get("report")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise SupervisorError(f"{url}: {error or type(error).__name__}") from error
        try:
            return contract.loads(contract.EngineReport, json.dumps(told)) if told else None
        except contract.ContractError as error:
            raise SupervisorError(f"{url}: {error}") from error
