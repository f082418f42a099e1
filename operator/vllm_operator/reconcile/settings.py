"""What the installation sets and decisions depend on."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm_bootstrap import contract
from vllm_operator.lifecycle.recovery import Recovery
from vllm_operator.planning.catalogue import BUILT_IN, Catalogue
from vllm_operator.resources.defaults import RuntimeDefaults


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the installation sets and decisions depend on.

    Attributes
    ----------
    hub
        Address that the engines download models from.
    """

    defaults: RuntimeDefaults = field(default_factory=RuntimeDefaults)
    recovery: Recovery = field(default_factory=Recovery)
    deadlines: contract.Deadlines = field(default_factory=contract.Deadlines)
    catalogue: Catalogue = BUILT_IN
    hub: str = "https://huggingface.co"
