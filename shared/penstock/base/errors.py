"""Every error that Penstock raises on purpose.

::

    PenstockError                     exit 1
    ├── InvalidInput                  exit 2   what a person wrote; carries all Problems
    ├── PrivacyError                  exit 3
    │   ├── InvalidEvent                       an event that must not be accounted (NaN, zero, ...)
    │   ├── BudgetExceeded                     more ε than is left
    │   ├── Hopeless                           an answer that would be noise, whatever the rows
    │   ├── ClaimBroken                        an attack shows more ε than is claimed
    │   └── MaskingRefused                     a step that could unmask more than a sum
    ├── Refused                       exit 4   a site's public refusal of a study; has a code
    ├── SignatureError                exit 5
    ├── UploadRejected                exit 6   what a site sent is not what was asked for
    ├── LedgerError                   exit 7
    │   ├── LedgerCorrupt                      the chain or the file is damaged
    │   ├── LedgerLocked                       another process holds the ledger
    │   └── LedgerUnwritable                   a full disk, a read-only file
    ├── GateUnavailable               exit 8   nobody answers on the socket
    ├── CoordinatorError              exit 9
    │   └── SumSpoiled                         a sum of many sites that cannot be had any more
    ├── JobFailed                     exit 10
    │   └── Unfinished                         the time to wait was over first
    ├── Unreachable                   exit 11  no Penstock coordinator answers at an address
    └── NotAllowed                    exit 12  no valid token, or one for another role

An error says which value, which bound, and what to do. It never holds the value of a row:
messages of errors that are raised while private rows are in reach name columns and counts
of the *schema* only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath

from penstock.base.documents import Json, JsonView
from penstock.base.printable import make_printable


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

    def to_dict(self) -> Json:
        """For the wire; :func:`error_from_dict` makes the same error of it.

        A path is left out: it says nothing on another machine but how this one is laid out.
        """
        value = None if isinstance(self.value, PurePath) else self.value
        return {
            "code": self.code,
            "message": self.message,
            "value": None if value is None else str(value),
            "bound": None if self.bound is None else str(self.bound),
            "remedy": self.remedy,
        }


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
    """All problems of one file or argument list, reported together.

    Args:
        count: of what is wrong, where it was listed before; else the problems are counted.
    """

    code = "invalid-input"
    exit_code = 2

    def __init__(self, what: str, problems: Sequence[Problem], *, count: int | None = None) -> None:
        self.what = what
        self.problems = tuple(problems)
        count = len(self.problems) if count is None else count
        super().__init__(f"{what}: {count} problem{'s' if count != 1 else ''}")

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"  {p}" for p in self.problems)])

    def to_dict(self) -> Json:
        problems = [asdict(p) for p in self.problems]
        return {**super().to_dict(), "what": self.what, "problems": problems}


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


class Hopeless(PrivacyError):
    """What would be released says nothing, whatever the rows are: planned from public numbers."""

    code = "hopeless"


class ClaimBroken(PrivacyError):
    """An audit's lower bound on ε lies above what the mechanism claims."""

    code = "claim-broken"


class MaskingRefused(PrivacyError):
    """What a gate does not say in a sum of many sites: it could unmask more than the sum."""

    code = "masking-refused"


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

    def to_dict(self) -> Json:
        return {**super().to_dict(), "reason": self.reason}


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


class SumSpoiled(CoordinatorError):
    """A sum of many sites that cannot be had: too few take part, or what they sent does not fit."""

    code = "sum-spoiled"


class JobFailed(PenstockError):
    """A job ended without a release."""

    code = "failed"
    exit_code = 10


class Unfinished(JobFailed):
    """Something goes on, and the time to wait for it is over."""

    code = "unfinished"


class Unreachable(PenstockError):
    """No Penstock coordinator answers at an address.

    Args:
        passing: it may pass by itself (a restart, a lost connection), so that waiting makes sense.
    """

    code = "unreachable"
    exit_code = 11

    def __init__(
        self,
        message: str,
        *,
        value: object = None,
        bound: object = None,
        remedy: str | None = None,
        passing: bool = False,
    ) -> None:
        self.passing = passing
        super().__init__(message, value=value, bound=bound, remedy=remedy)


class NotAllowed(PenstockError):
    """No valid token, or one that may not do what was asked."""

    code = "not-allowed"
    exit_code = 12


# -- from the wire -----------------------------------------------------------------------------

_TEXT_LIMIT = 2000
_MAX_PROBLEMS = 100


def error_from_dict(data: JsonView) -> PenstockError:
    """The error that :meth:`PenstockError.to_dict` wrote, from whoever sent it.

    Texts are cut and made printable: what a terminal shows must not be the sender's to rule.
    Codes that are not known (of a newer version) become a :class:`CoordinatorError`.
    """
    texts = {k: _text(data.get(k)) for k in ("code", "message", "value", "bound", "remedy")}
    kind = next((c for c in _kinds(PenstockError) if c.code == texts["code"]), CoordinatorError)
    message = texts["message"] or "an error without a text"
    if issubclass(kind, InvalidInput):
        given = data.get("problems")
        listed = given[:_MAX_PROBLEMS] if isinstance(given, list) else []
        problems = [_problem(p) for p in listed if isinstance(p, Mapping)]
        return kind(_text(data.get("what")) or "input", problems)
    if issubclass(kind, Refused):
        return kind(_text(data.get("reason")) or "", message, remedy=texts["remedy"])
    return kind(message, value=texts["value"], bound=texts["bound"], remedy=texts["remedy"])


def _kinds(base: type[PenstockError]) -> Iterator[type[PenstockError]]:
    yield base
    for kind in base.__subclasses__():
        yield from _kinds(kind)


def _problem(data: JsonView) -> Problem:
    line = data.get("line")
    return Problem(
        _text(data.get("where")) or "",
        _text(data.get("message")) or "",
        line if isinstance(line, int) and not isinstance(line, bool) else None,
        _text(data.get("value")),
        _text(data.get("bound")),
        _text(data.get("remedy")),
    )


def _text(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    return make_printable(value[:_TEXT_LIMIT])
