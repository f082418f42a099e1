"""The Kubernetes API server as a pod reaches it: with its ServiceAccount, by the standard library alone."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REQUEST_SECONDS = 10.0
ANSWER_LIMIT = 4 * 1024 * 1024


class RefusedError(OSError):
    """The API server refused.

    Attributes
    ----------
    status
        HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ApiServer:
    """Calls with the token of the pod's ServiceAccount.

    Parameters
    ----------
    host, port
        As the kubelet put it into the environment.
    account
        Folder with ``token`` and ``ca.crt``.
    """

    def __init__(self, *, host: str, port: int, account: Path = ACCOUNT_DIR) -> None:
        self._host = host
        self._port = port
        self._account = account

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> ApiServer | None:
        """Find it in a pod's environment; ``None`` outside Kubernetes."""
        host = environment.get("KUBERNETES_SERVICE_HOST")
        return cls(host=host, port=int(environment.get("KUBERNETES_SERVICE_PORT", "443"))) if host else None

    def patch(self, path: str, change: Any) -> None:
        """Merge-patch an object.

        Raises
        ------
        OSError
            There is no answer, or it is refused.
        """
        self._call("PATCH", path, json.dumps(change), "application/merge-patch+json")

    def get(self, path: str) -> dict[str, Any]:
        """Read an object.

        Raises
        ------
        OSError
            There is no answer, or it is refused.
        """
        value = json.loads(self._call("GET", path, None, "application/json"))
        if not isinstance(value, dict):
            raise OSError(f"GET {path}: no JSON object")
        return value

    def _call(self, method: str, path: str, body: str | None, kind: str) -> str:
        # Read each time: the kubelet renews the token, and the first one lasts an hour.
        token = (self._account / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=REQUEST_SECONDS, context=context)
        try:
            connection.request(method, path, body=body, headers=headers)
            response = connection.getresponse()
            answer = response.read(ANSWER_LIMIT).decode(errors="replace")
        except http.client.HTTPException as error:
            raise OSError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise RefusedError(response.status, f"{method} {path}: {response.status} {answer[:2000]}")
        return answer
