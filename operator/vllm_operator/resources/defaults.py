"""What an installation adds to every CR: set by the chart, the same for all deployments of one operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RuntimeDefaults:
    """Defaults of the runtime.

    Attributes
    ----------
    image
        Runtime image of CRs that name none.
    ray_version
        ``rayVersion`` of the RayClusters.
    pod_template
        PodTemplateSpec merged under every CR's ``pod.template``.
    """

    image: str = ""
    ray_version: str = "2.60.0"
    pod_template: Mapping[str, Any] = field(default_factory=dict)
