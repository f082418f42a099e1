"""The file of figures: one entry a name, the newest measurement of each."""

from __future__ import annotations

import json
from typing import Any

from tests.product.install import REPOSITORY

RESULTS = REPOSITORY / "docs" / "benchmarks.json"


def record(*entries: dict[str, Any]) -> None:
    """Put entries in the place of those of the same name; others stay."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    names = {entry["name"] for entry in entries}
    kept = [entry for entry in known if entry["name"] not in names]
    RESULTS.write_text(json.dumps([*kept, *entries], indent=1) + "\n")
