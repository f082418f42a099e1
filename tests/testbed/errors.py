"""The one error that the test bed raises for its user: what failed, and which log to read."""

from __future__ import annotations

from pathlib import Path


class BedError(Exception):
    """Something that the test bed was asked for could not be done.

    Parameters
    ----------
    message
        What failed, in one or two lines.
    log
        The file that tells why, when there is one.
    """

    def __init__(self, message: str, log: Path | None = None) -> None:
        super().__init__(message if log is None else f"{message} (log: {log})")
        self.log = log
