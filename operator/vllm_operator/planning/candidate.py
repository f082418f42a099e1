"""Ways to place an engine, with a verdict each, in the order in which they would be taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from vllm_operator.planning.devices import GPU_RESOURCE, Sharing
from vllm_operator.planning.proof import Verdict
from vllm_operator.planning.sizing import RankNeed


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to place an engine.

    Attributes
    ----------
    sizes
        GPUs of each pod.
    selector
        Node selector for the product; empty where no label tells it.
    need
        The neediest rank; ``None`` when the model is not known.
    cached_tokens
        Tokens that the cache of the neediest rank holds.
    cost
        Of all GPUs, an hour.
    preference
        Place of the accelerator in the user's list.
    warning
        What may go wrong although it can be placed.
    data
        Data parallel size.
    is_hint
        It is shown, and not chosen: only the user asks for data parallel.
    resource
        Name under which its pods ask for GPUs.
    utilization
        What vLLM must be told to use of a GPU's memory; ``None`` when its own default, or the user's, is right.
    """

    product: str
    tensor: int
    pipeline: int
    sizes: tuple[int, ...]
    verdict: Verdict
    reason: str
    selector: Mapping[str, str] = field(default_factory=dict)
    seats: tuple[str, ...] = ()
    need: RankNeed | None = None
    cached_tokens: int = 0
    cost: float = 0.0
    preference: int = 0
    warning: str = ""
    data: int = 1
    is_hint: bool = False
    resource: str = GPU_RESOURCE
    sharing: Sharing = Sharing.NONE
    utilization: float | None = None

    @property
    def gpus(self) -> int:
        """GPUs of the engine."""
        return self.tensor * self.pipeline * self.data

    @property
    def is_torn(self) -> bool:
        """A tensor group lies in more than one pod."""
        return any(size % self.tensor for size in self.sizes)

    def warned(self, text: str) -> Candidate:
        """Give the same with one warning more."""
        return replace(self, warning="; ".join(part for part in (self.warning, text) if part))

    @property
    def rank(self) -> tuple[object, ...]:
        """Sort key: the best first."""
        return (
            self.is_hint,
            self.verdict.place,
            self.preference,
            # Whole GPUs have the more telling reason for a no.
            self.sharing is not Sharing.NONE if self.verdict is Verdict.NEVER else not self.sharing.is_isolated,
            self.is_torn,
            round(self.cost, 6),
            self.pipeline,
            len(self.sizes),
            self.product,
            self.resource,
            self.tensor,
        )


@dataclass(frozen=True, kw_only=True)
class Choice:
    """All candidates, the best first."""

    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate | None:
        """The one that is taken, whether it fits now or is waited for."""
        return next((item for item in self.candidates if not item.is_hint and item.verdict is not Verdict.NEVER), None)

    @property
    def verdict(self) -> Verdict:
        """Verdict of the best."""
        return self.best.verdict if self.best else Verdict.NEVER

    @property
    def reason(self) -> str:
        """Why, in a sentence."""
        if self.best:
            return self.best.reason
        return self.candidates[0].reason if self.candidates else "no node has a GPU"
