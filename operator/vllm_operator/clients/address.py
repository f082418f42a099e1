"""Addresses of pods, and the address of the hub."""

from __future__ import annotations

from urllib.parse import urlsplit


def pod_url(ip: str, port: int) -> str:
    """Give the base address of a server in a pod; an IPv6 address stands in brackets."""
    return f"http://[{ip}]:{port}" if ":" in ip else f"http://{ip}:{port}"


def hub_url(text: str) -> str:
    """Give the address of a hub without a slash at its end.

    Raises
    ------
    ValueError
        It is no http(s) address, or it holds what would stand in messages or get lost: a password, a query.
    """
    try:
        parts = urlsplit(text)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ValueError(f"is no address: {error}") from error
    if parts.scheme not in ("http", "https") or not has_host:
        raise ValueError("must be an address that begins with http:// or https://, as in https://huggingface.co")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("must not hold blanks or characters that are not ASCII")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("must hold no user, no query and no fragment: a token is named by model.hfTokenSecret")
    return text.rstrip("/")
