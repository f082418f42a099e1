"""Knock at an HTTP server as nobody should: any method, any spelling of a path, a websocket; read the status alone."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator, Mapping

WEBSOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def knock(host: str, method: str, target: str, headers: Mapping[str, str] | None = None) -> int:
    """Send one request, with an empty JSON object if it opens no websocket, and give the status.

    Parameters
    ----------
    target
        As it stands in the request's first line: nothing is put right in it.
    """
    given = headers or {}
    body = b"" if "Upgrade" in given else b"{}"
    content = {"Content-Type": "application/json", "Content-Length": str(len(body))} if body else {}
    connection = http.client.HTTPConnection(host, timeout=30)
    try:
        connection.putrequest(method, target)
        for name, value in {**content, **given}.items():
            connection.putheader(name, value)
        connection.endheaders(body or None)
        return connection.getresponse().status
    finally:
        connection.close()


def concrete(path: str) -> str:
    """Fill in what a route's path leaves open."""
    return re.sub(r"\{[^}]*\}", "x", path)


def spellings(path: str) -> Iterator[str]:
    """Write a path in ways that a server, or what stands before it, may take for it or for an open one."""
    yield from (f"{path}/", f"/{path}", path.replace("/", "//"), path.upper(), f"{path}?/health", f"{path};/health")
    yield from (f"/health/..{path}", f"/metrics/..{path}", f"/health%2f..{path}", f"/metrics/%2e%2e{path}")
    yield from (f"/.{path}", f"{path}%00", f"{path}/../health", f"{path}%2f..%2fmetrics", f"http://health{path}")
    yield "/" + "".join(f"%{ord(letter):02x}" for letter in path[1:])
