"""The API server's audit log: who changed what."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.testbed.bed import Bed


@dataclass(frozen=True)
class Mutation:
    """One request that changed something."""

    user: str
    verb: str
    resource: str
    name: str


def position(bed: Bed) -> int:
    """Give the present end of the log."""
    return bed.audit_log.stat().st_size


def mutations(bed: Bed, since: int) -> list[Mutation]:
    """Give every request that changed something since a position."""
    with bed.audit_log.open("rb") as log:
        log.seek(since)
        events = [json.loads(line) for line in log.read().splitlines() if line.endswith(b"}")]
    return [
        Mutation(
            user=event["user"]["username"],
            verb=event["verb"],
            resource=(event.get("objectRef") or {}).get("resource", ""),
            name=(event.get("objectRef") or {}).get("name", ""),
        )
        for event in events
        if event["verb"] in ("create", "update", "patch", "delete", "deletecollection")
    ]
