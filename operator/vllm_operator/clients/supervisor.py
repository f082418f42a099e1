"""The supervisor's control port on the lead pod: what it would report, and without Ray what takes plans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from vllm_bootstrap import contract
from vllm_operator.clients.address import pod_url

_TIMEOUT = aiohttp.ClientTimeout(total=5)


class SupervisorError(Exception):
    """The supervisor did not answer, or refused."""


@dataclass(frozen=True, kw_only=True)
class SupervisorView:
    """What a supervisor says.

    Attributes
    ----------
    report
        The newest; ``None`` while there is none.
    session
        Of the process that takes plans; empty where Ray's jobs bring them.
    job
        Job id of the plan that it has taken last.
    requests
        In flight; ``None`` when it does not know.
    """

    report: contract.EngineReport | None
    session: str = ""
    job: str = ""
    requests: int | None = None


class SupervisorClient:
    """Calls of supervisors."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def look(self, ip: str, token: str, port: int | None = None) -> SupervisorView:
        """Read what it says.

        Raises
        ------
        SupervisorError
            No answer, or none that can be read.
        """
        url = f"{pod_url(ip, port or contract.SUPERVISOR_PORT)}/status"
        told = await self._json("GET", url, token)
        report = told.get("report")
        try:
            return SupervisorView(
                report=contract.loads(contract.EngineReport, json.dumps(report)) if report else None,
                session=str(told.get("session", "")),
                job=str(told.get("job", "")),
                requests=told["requests"] if isinstance(told.get("requests"), int) else None,
            )
        except contract.ContractError as error:
            raise SupervisorError(f"{url}: {error}") from error

    async def start(self, ip: str, token: str, plan: contract.EnginePlan) -> str:
        """Hand over a plan, and give its job id.

        Raises
        ------
        SupervisorError
            No answer, or the plan is refused.
        """
        url = f"{pod_url(ip, contract.SUPERVISOR_PORT)}/start"
        return str((await self._json("POST", url, token, data=contract.dumps(plan))).get("job", ""))

    async def drain(self, ip: str, token: str, seconds: float, port: int | None = None) -> None:
        """Ask it to let its engine finish what it answers within so many seconds, and to end it then.

        Raises
        ------
        SupervisorError
            No answer, or it has no engine.
        """
        url = f"{pod_url(ip, port or contract.SUPERVISOR_PORT)}/drain"
        await self._text("POST", url, token, data=json.dumps({"timeoutSeconds": seconds}))

    async def adapt(self, ip: str, token: str, adapters: tuple[contract.Adapter, ...], port: int | None = None) -> None:
        """Tell it which LoRA adapters its engine is to serve; what becomes of them stands in its report.

        Raises
        ------
        SupervisorError
            No answer, or it has no engine.
        """
        url = f"{pod_url(ip, port or contract.SUPERVISOR_PORT)}/adapters"
        await self._text("POST", url, token, data=contract.dumps(contract.AdapterList(adapters=adapters)))

    async def _json(self, method: str, url: str, token: str, **body: Any) -> Mapping[str, Any]:
        try:
            told = json.loads(await self._text(method, url, token, **body))
        except ValueError as error:
            raise SupervisorError(f"{url}: {error}") from error
        if not isinstance(told, Mapping):
            raise SupervisorError(f"{url}: the answer is no JSON object")
        return told

    async def _text(self, method: str, url: str, token: str, **body: Any) -> str:
        headers = {"Authorization": f"Bearer {token}"}
        try:
            async with self._session.request(method, url, headers=headers, timeout=_TIMEOUT, **body) as response:
                words = await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise SupervisorError(f"{url}: {error or type(error).__name__}") from error
        if response.status >= 300:
            raise SupervisorError(f"{url}: HTTP {response.status} {words[:300].strip()}".strip())
        return words
