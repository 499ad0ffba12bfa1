"""Every error that Penstock raises on purpose.

::

    PenstockError                     exit 1
    ├── InvalidInput                  exit 2   what a person wrote; carries all Problems
    ├── PrivacyError                  exit 3
    │   ├── InvalidEvent                       an event that must not be accounted (NaN, zero, ...)
    │   └── BudgetExceeded                     more ε than is left
    ├── Refused                       exit 4   a site's public refusal of a study; has a code
    ├── SignatureError                exit 5
    ├── UploadRejected                exit 6   what a site sent is not what was asked for
    ├── LedgerError                   exit 7
    │   ├── LedgerCorrupt                      the chain or the file is damaged
    │   ├── LedgerLocked                       another process holds the ledger
    │   └── LedgerUnwritable                   a full disk, a read-only file
    ├── GateUnavailable               exit 8   nobody answers on the socket
    ├── CoordinatorError              exit 9
    └── JobFailed                     exit 10

An error says which value, which bound, and what to do. It never holds the value of a row:
messages of errors that are raised while private rows are in reach name columns and counts
of the *schema* only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class PenstockError(Exception):
    """Base of all errors raised on purpose.

    Args:
        message: what is wrong, one line, without a trailing full stop.
        value: the offending value as a person would write it (never a row's value).
        bound: what it should have been.
        remedy: what to do about it.
    """

    code = "error"
    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        value: object = None,
        bound: object = None,
        remedy: str | None = None,
    ) -> None:
        self.message = message
        self.value = value
        self.bound = bound
        self.remedy = remedy
        super().__init__(message)

    def __str__(self) -> str:
        text = self.message
        if self.value is not None:
            text += f" (got {self.value}" + (f"; {self.bound})" if self.bound is not None else ")")
        elif self.bound is not None:
            text += f" ({self.bound})"
        return f"{text}: {self.remedy}" if self.remedy else text


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a file: where, what, the bound, and the remedy.

    ``line`` is 1-based, or None where the problem is an absence.
    """

    where: str
    message: str
    line: int | None = None
    value: str | None = None
    bound: str | None = None
    remedy: str | None = None

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line is not None else ""
        text = f"{place}{self.where}: {self.message}" if self.where else f"{place}{self.message}"
        if self.value is not None:
            text += f", got {self.value}"
        if self.bound is not None:
            text += f"; {self.bound}"
        return f"{text}. {self.remedy}" if self.remedy else text


class InvalidInput(PenstockError):
    """All problems of one file or argument list, reported together."""

    code = "invalid-input"
    exit_code = 2

    def __init__(self, what: str, problems: Sequence[Problem]) -> None:
        self.what = what
        self.problems = tuple(problems)
        count = len(self.problems)
        super().__init__(f"{what}: {count} problem{'s' if count != 1 else ''}")

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"  {p}" for p in self.problems)])


class PrivacyError(PenstockError):
    """Something that would make a privacy guarantee wrong."""

    code = "privacy"
    exit_code = 3


class InvalidEvent(PrivacyError):
    """An event that must not be accounted for: NaN, infinite, zero or negative parameters."""

    code = "invalid-event"


class BudgetExceeded(PrivacyError):
    """A charge that does not fit into what is left."""

    code = "budget"


class Refused(PenstockError):
    """A site's refusal for a public reason (study, schema, public n, ledger, policy).

    Args:
        reason: a short code from :data:`penstock.wire.messages.REFUSALS`.
    """

    code = "refused"
    exit_code = 4

    def __init__(self, reason: str, message: str, *, remedy: str | None = None) -> None:
        self.reason = reason
        super().__init__(message, remedy=remedy)


class SignatureError(PenstockError):
    """A signature that is missing, wrong, or by an unknown key."""

    code = "signature"
    exit_code = 5


class UploadRejected(PenstockError):
    """An upload that is not what the signed study asked of that site."""

    code = "upload"
    exit_code = 6


class LedgerError(PenstockError):
    """The ledger cannot be used; no row is read without it."""

    code = "ledger"
    exit_code = 7


class LedgerCorrupt(LedgerError):
    """The ledger's file or hash chain is damaged; nothing was overwritten."""

    code = "ledger-corrupt"


class LedgerLocked(LedgerError):
    """Another process holds the site's lock."""

    code = "ledger-locked"


class LedgerUnwritable(LedgerError):
    """A charge could not be made durable (full disk, read-only file)."""

    code = "ledger-unwritable"


class GateUnavailable(PenstockError):
    """Nobody answers on the gate's socket."""

    code = "gate-unavailable"
    exit_code = 8


class CoordinatorError(PenstockError):
    """The coordinator's store or study life cycle refuses an operation."""

    code = "coordinator"
    exit_code = 9


class JobFailed(PenstockError):
    """A job ended without a release."""

    code = "failed"
    exit_code = 10
