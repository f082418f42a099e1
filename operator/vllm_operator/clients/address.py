"""Addresses of pods."""

from __future__ import annotations


def pod_url(ip: str, port: int) -> str:
    """Give the base address of a server in a pod; an IPv6 address stands in brackets."""
    return f"http://[{ip}]:{port}" if ":" in ip else f"http://{ip}:{port}"
