"""What went wrong with the hub, in words for who wrote the CR or runs the operator.

The library's own messages speak of Python arguments and of logging in; these name the field to change.  No message
holds the token, whatever a server or a library puts into its own.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

import httpx2
from huggingface_hub import errors

from vllm_operator.planning.known import HubTrouble, Trouble

_TOLD = 200


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A model of a hub.

    Attributes
    ----------
    repository
        ``org/name``, or the name alone.
    revision
        Branch, tag or commit; empty: the default branch.
    token
        Empty when there is none; never shown.
    named_by
        What names the token, for messages.
    """

    endpoint: str
    repository: str
    revision: str = ""
    token: str = field(default="", repr=False)
    named_by: str = "spec.model.hfTokenSecret"

    def trouble(self, trouble: Trouble, message: str) -> HubTrouble:
        """Give a trouble with this model; the message is made safe and short."""
        return HubTrouble(trouble=trouble, message=self.safe(message, 1000))

    def safe(self, text: str, length: int = _TOLD) -> str:
        """Give a text of somebody else's on one line, cut, and without the token."""
        # A token of a few letters is none, and stands in every other word.
        clean = text.replace(self.token, "(the token)") if len(self.token) > 5 else text
        return " ".join("".join(part if part.isprintable() else " " for part in clean).split())[:length]


class TooLargeError(Exception):
    """An answer is larger than anything that is expected."""


def refused(wanted: Wanted, error: errors.HfHubHTTPError) -> HubTrouble:
    """Say what an answer of the hub with an error status means."""
    match error:
        case errors.GatedRepoError():
            return _gated(wanted)
        case errors.RevisionNotFoundError():
            message = f"spec.model.revision: {wanted.repository} has no revision {wanted.revision or 'main'}"
            return wanted.trouble(Trouble.MISSING, f"{message} on {wanted.endpoint}")
        case errors.EntryNotFoundError():
            return no_config(wanted)
    return _of_status(wanted, error)


def _of_status(wanted: Wanted, error: errors.HfHubHTTPError) -> HubTrouble:
    status = error.response.status_code
    said = wanted.safe(error.response.headers.get("X-Error-Message", ""))
    if status == 401 and wanted.token:
        message = f"{wanted.named_by}: {wanted.endpoint} refuses the token; it is wrong or no longer valid"
        return wanted.trouble(Trouble.DENIED, message)
    if status in (401, 404):
        return _missing(wanted)
    if status in (403, 451):
        message = f"{wanted.named_by}: reading {wanted.repository} on {wanted.endpoint} is forbidden"
        return wanted.trouble(Trouble.DENIED, f"{message}: {said or 'the token needs the right to read it'}")
    return unavailable(wanted, f"HTTP {status}{': ' if said else ''}{said}")


def _gated(wanted: Wanted) -> HubTrouble:
    page = f"{wanted.endpoint}/{wanted.repository}"
    if wanted.token:
        message = (
            f"spec.model.uri: {wanted.repository} is gated and the token of {wanted.named_by} has no access; "
            f"accept its licence at {page} with the token's account"
        )
    else:
        message = (
            f"spec.model.uri: {wanted.repository} is gated; accept its licence at {page} and give the token of that "
            f"account by {wanted.named_by}"
        )
    return wanted.trouble(Trouble.DENIED, message)


def _missing(wanted: Wanted) -> HubTrouble:
    unseen = f"the token of {wanted.named_by} may not see it" if wanted.token else f"{wanted.named_by} gives no token"
    return wanted.trouble(
        Trouble.MISSING,
        f"spec.model.uri: {wanted.endpoint} has no model {wanted.repository}, or it is private and {unseen}",
    )


def no_config(wanted: Wanted) -> HubTrouble:
    """Say that a repository holds no description of its model."""
    return unreadable(wanted, "has no config.json: repositories of GGUF files or of adapters have none")


def unreadable(wanted: Wanted, why: str) -> HubTrouble:
    """Say that what is there cannot be used; ``why`` goes on from the name of the model."""
    at = f" at revision {wanted.revision}" if wanted.revision else ""
    return wanted.trouble(Trouble.UNREADABLE, f"{wanted.repository}{at} on {wanted.endpoint} {why}")


def unavailable(wanted: Wanted, why: str) -> HubTrouble:
    """Say that the hub gave no answer that counts."""
    return wanted.trouble(
        Trouble.UNAVAILABLE, f"the hub {wanted.endpoint} cannot tell about {wanted.repository} now: {why}"
    )


def timed_out(wanted: Wanted, seconds: float) -> HubTrouble:
    """Say that there was no answer in time."""
    return unavailable(wanted, f"no answer within {seconds:g} s")


def is_down(error: Exception) -> bool:
    """Say whether an error is the hub's as a whole: nobody could be talked to, whatever was asked."""
    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError)


def unanswered(wanted: Wanted, error: Exception, seconds: float) -> HubTrouble:
    """Say why there was no answer."""
    said = wanted.safe(str(error)) or type(error).__name__
    match error:
        case errors.OfflineModeIsEnabled():
            why = "HF_HUB_OFFLINE is set for the operator: unset it, or set hub.enabled to false in the chart's values"
            return unavailable(wanted, why)
        case httpx2.TimeoutException() if not is_down(error):
            return timed_out(wanted, seconds)
        case httpx2.ProxyError():
            said = f"the proxy refuses ({said}), see HTTPS_PROXY and NO_PROXY of the operator"
        case httpx2.ConnectTimeout():
            said = "no connection in time"
        case httpx2.ConnectError() if _is_tls(error):
            said = f"TLS fails ({said}), the certificate of an own authority goes into SSL_CERT_FILE of the operator"
        case ssl.SSLError() | FileNotFoundError():
            said = f"SSL_CERT_FILE of the operator cannot be read ({said})"
        case _ if not is_down(error):
            return unavailable(wanted, said)
    remedy = "let the operator reach it, set hub.endpoint to a mirror, or hub.enabled to false"
    return wanted.trouble(Trouble.UNAVAILABLE, f"the hub {wanted.endpoint} cannot be reached: {said}; {remedy}")


def _is_tls(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False
