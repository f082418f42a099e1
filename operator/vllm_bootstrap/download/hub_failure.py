"""What went wrong with the hub, in words for who wrote the CR.

The library's own words speak of Python arguments and of logging in; these name the field to change.  No message holds
the token, whatever a server or a library puts into its own.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from huggingface_hub import errors

from vllm_bootstrap.contract import ADAPTER_CACHE, FailureReason, HubSource
from vllm_bootstrap.download import snapshot as snapshots
from vllm_bootstrap.download.snapshot import Snapshot
from vllm_bootstrap.failure import EngineFailure

GIB = 1024**3
TOLD = 200
TOKEN_FIELD = "spec.model.hfTokenSecret"  # noqa: S105 - the name of a field

_NETWORK = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3"})
"""Packages whose errors say that the hub was not reached, by whichever of them the library goes there."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class HubWords:
    """Puts errors about one repository into words.

    Parameters
    ----------
    token
        That was sent; empty when there was none.
    """

    def __init__(self, source: HubSource, token: str) -> None:
        self._source = source
        self._token = token

    @property
    def name(self) -> str:
        """Name the repository and its revision."""
        source = self._source
        return f"hf://{source.repository}" + (f" at revision {source.revision}" if source.revision else "")

    def failure(self, error: Exception) -> EngineFailure:
        """Say what an error of the library, of the network or of the disk means."""
        causes = list(_causes(error))
        answer = next((cause for cause in causes if isinstance(cause, errors.HfHubHTTPError)), None)
        if _is_full(causes):
            return EngineFailure(FailureReason.DISK_FULL, self._safe(str(error)))
        if any(isinstance(cause, errors.OfflineModeIsEnabled) for cause in causes):
            return EngineFailure(
                FailureReason.HUB_UNAVAILABLE,
                f"{self.name} is not in {self._source.folder}, and HF_HUB_OFFLINE is set in the pods: unset it, or "
                "bring it there",
            )
        if answer is not None:
            return self._refused(answer)
        if isinstance(error, errors.HFValidationError):
            message = f"{self._source.named_by}.uri: {self._source.repository} is no possible name of a repository"
            return EngineFailure(FailureReason.MODEL_NOT_ON_HUB, message)
        if reached := next(filter(_is_of_network, causes), None):
            return self._unreached(reached)
        said = self._safe(f"{type(causes[-1]).__name__}: {causes[-1]}")
        return EngineFailure(FailureReason.DOWNLOAD_FAILED, f"{self.name} could not be downloaded: {said}")

    def full(self, snapshot: Snapshot, needed: int) -> EngineFailure:
        """Say that the cache has no room for so many bytes more."""
        source = self._source
        free = snapshots.free_bytes(Path(source.folder), source.room)
        limit = f" (its volume may hold {source.room / GIB:.2f} GiB)" if source.room else ""
        return EngineFailure(
            FailureReason.DISK_FULL,
            f"{self.name} needs {needed / GIB:.2f} GiB more (of {snapshot.size / GIB:.2f} GiB) in {source.folder}"
            f"{limit}, {free / GIB:.2f} GiB are free: {self._more_room()}",
        )

    def _more_room(self) -> str:
        if self._source.folder == ADAPTER_CACHE:
            return f"make room on the node, or mount a larger volume at {ADAPTER_CACHE} by spec.pod.template"
        return "name a claim with more room by spec.model.cache, or enlarge the volume"

    def _unreached(self, error: BaseException) -> EngineFailure:
        said = self._safe(str(error)) or type(error).__name__
        return EngineFailure(
            FailureReason.HUB_UNAVAILABLE,
            f"the hub {self._source.endpoint} cannot be reached: {said}; let the pods reach it, set hub.endpoint of "
            "the operator's chart to a mirror, or put it on a volume (pvc://)",
        )

    def _refused(self, error: errors.HfHubHTTPError) -> EngineFailure:
        source = self._source
        match error:
            case errors.GatedRepoError():
                return self._gated()
            case errors.RevisionNotFoundError():
                return EngineFailure(
                    FailureReason.MODEL_NOT_ON_HUB,
                    f"{source.named_by}.revision: hf://{source.repository} has no revision {source.revision or 'main'} "
                    f"on {source.endpoint}: name one of its branches, tags or commits",
                )
            case errors.EntryNotFoundError():
                path = error.response.url.path
                message = f"{source.endpoint} lists a file of {self.name} that it does not have ({path})"
                return EngineFailure(FailureReason.MODEL_INCOMPLETE, message)
        return self._of_status(error)

    def _of_status(self, error: errors.HfHubHTTPError) -> EngineFailure:
        source, status = self._source, error.response.status_code
        said = self._safe(error.response.headers.get("X-Error-Message", ""))
        if status == 401 and self._token:
            return EngineFailure(
                FailureReason.HUB_ACCESS_DENIED,
                f"{TOKEN_FIELD}: {source.endpoint} refuses the token (401): it is wrong or no longer valid; put a "
                "valid one into the Secret, the next attempt reads it",
            )
        if status in (401, 404):
            unseen = f"the token of {TOKEN_FIELD} may not see it" if self._token else f"{TOKEN_FIELD} names no token"
            return EngineFailure(
                FailureReason.MODEL_NOT_ON_HUB,
                f"{source.named_by}.uri: {source.endpoint} has no {source.repository}, or it is private and {unseen}",
            )
        if status in (403, 451):
            return EngineFailure(
                FailureReason.HUB_ACCESS_DENIED,
                f"{TOKEN_FIELD}: reading hf://{source.repository} on {source.endpoint} is forbidden ({status}): "
                f"{said or 'the token needs the right to read it'}",
            )
        told = f": {said}" if said else ""
        message = f"the hub {source.endpoint} answers {status} for hf://{source.repository}{told}; it is asked again"
        return EngineFailure(FailureReason.HUB_UNAVAILABLE, message)

    def _gated(self) -> EngineFailure:
        source = self._source
        page = f"{source.endpoint}/{source.repository}"
        if self._token:
            whom, how = f"the token of {TOKEN_FIELD}", "with the account of the token"
        else:
            whom, how = "who has no token", f"and give the token of that account by {TOKEN_FIELD}"
        message = f"hf://{source.repository} is gated and not open to {whom}: accept its licence at {page} {how}"
        return EngineFailure(FailureReason.HUB_ACCESS_DENIED, message)

    def _safe(self, text: str) -> str:
        """Give somebody else's words on one line, cut, and without a token."""
        for token in (self._token, os.environ.get("HF_TOKEN", "")):
            text = text.replace(token, "(the token)") if len(token) > 5 else text
        return " ".join("".join(part if part.isprintable() else " " for part in text).split())[:TOLD]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Give an error and what it came from: the library wraps most of them in one that says only that it failed."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _is_full(causes: Sequence[BaseException]) -> bool:
    """Tell a full disk, also by its words: the library's download in Rust has no error numbers."""
    numbered = any(isinstance(cause, OSError) and cause.errno in _NO_ROOM for cause in causes)
    return numbered or any(os.strerror(number) in str(cause) for cause in causes for number in _NO_ROOM)


def _is_of_network(cause: BaseException) -> bool:
    return type(cause).__module__.partition(".")[0] in _NETWORK or isinstance(cause, ConnectionError | TimeoutError)
