"""The one exception that ends an attempt: a reason of the contract, and a sentence for who reads the status."""

from __future__ import annotations

from vllm_bootstrap.contract import FailureReason


class EngineFailure(Exception):  # noqa: N818 - it is the failure of the engine, not an error in this program
    """The attempt is over.

    Attributes
    ----------
    reason
        Of the contract.
    message
        What failed, what is missing, and what would mend it.
    rank
        The rank to blame, -1 when there is none.
    """

    def __init__(self, reason: FailureReason, message: str, rank: int = -1) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.rank = rank
