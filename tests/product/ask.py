"""Ask a served model something, through its Service."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from tests.testbed.bed import Bed


def service_url(bed: Bed, namespace: str, name: str) -> str:
    """Address of a deployment's Service that this machine can reach: kube-proxy serves the host, too."""
    body = bed.api.json("get", "service", name, "-n", namespace)
    return f"http://{body['spec']['clusterIP']}:{body['spec']['ports'][0]['port']}"


def post(
    url: str, path: str, body: dict[str, Any], timeout: float = 120.0, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    """POST JSON and read JSON; an HTTP error is raised with the server's words."""
    request = urllib.request.Request(  # noqa: S310 - an address of the test bed
        url + path, data=json.dumps(body).encode(), headers={"Content-Type": "application/json", **(headers or {})}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
            data: dict[str, Any] = json.load(answer)
            return data
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{path}: HTTP {error.code}: {error.read().decode(errors='replace')[:500]}") from error


def ask(
    connection: http.client.HTTPConnection, method: str, path: str, *, key: str = "", body: Any = None
) -> tuple[int, str]:
    """Ask on a connection that may be kept, and give status and text, whatever they are."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(errors="replace")


def metrics(url: str) -> str:
    """Read the engine's metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:  # noqa: S310 - an address of the test bed
        return str(answer.read().decode())


def complete(url: str, model: str, prompt: str, tokens: int = 1) -> str:
    """Give the model's greedy continuation of a prompt."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    return str(post(url, "/v1/completions", body)["choices"][0]["text"])


def chat(url: str, model: str, question: str, tokens: int = 64) -> str:
    """Give the model's answer to a question."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": tokens,
        "temperature": 0,
    }
    return str(post(url, "/v1/chat/completions", body)["choices"][0]["message"]["content"])
