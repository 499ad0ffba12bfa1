"""Versions, states and public codes: the vocabulary that both sides share."""

from __future__ import annotations

import re
from enum import StrEnum
from itertools import chain
from typing import Literal, get_args

WIRE_VERSION = "1.3"
"""major.minor; 1.1: the refits of a release are made from the rows of its copies, in turn; 1.2: a
release is named parts, one after the other, and its manifest tells of each; 1.3: sites add to the
sums of one release, step by step. A study is signed with the oldest version that can say it."""
LABELLED_VERSION = "1.1"
"""The last one whose releases are one table, in which labels tell the parts apart."""
SERVED_MAJORS = (1,)
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")

MAX_STUDY_BYTES = 1_000_000
MAX_MANIFEST_BYTES = 200_000
PART_BYTES = 1_000_000
"""Tables leave a gate in parts of at most this size; gRPC refuses messages over 4 MB."""
PIECE_BYTES = 8_000_000
"""Of a table in one message between site and coordinator: a broken line costs at most this."""

Copies = Literal["one", "all", "refits", "imputations"]
COPIES: tuple[Copies, ...] = get_args(Copies)
"""What of a study's tables an analyst fetches: the first copy, all of them, or refits, too."""


class JobState(StrEnum):
    """State of a study's job at one site."""

    AWAITING = "awaiting-approval"
    QUEUED = "queued"
    RUNNING = "running"
    DELIVERED = "delivered"
    FAILED = "failed"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


class SiteState(StrEnum):
    """State of a site in a study, as the coordinator knows it."""

    INVITED = "invited"
    AWAITING = "awaiting-approval"
    RUNNING = "running"
    DELIVERED = "delivered"
    REFUSED = "refused"
    FAILED = "failed"
    TIMED_OUT = "timed-out"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self not in (SiteState.INVITED, SiteState.AWAITING, SiteState.RUNNING)


class StudyState(StrEnum):
    """State of a study at the coordinator.

    ``open`` while sites may still answer; ``pooling`` from the last answer until its results are
    made; then one of the others, for good.
    """

    OPEN = "open"
    POOLING = "pooling"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self not in (StudyState.OPEN, StudyState.POOLING)


RefusalCode = Literal[
    "malformed",
    "wire-version",
    "signature",
    "unknown-signer",
    "trust-expired",
    "federation",
    "not-invited",
    "not-yet-valid",
    "expired",
    "schema",
    "not-ready",
    "mechanism",
    "guarantee",
    "study-budget",
    "delta",
    "least-epsilon",
    "signer-budget",
    "yearly-budget",
    "budget",
    "closed",
    "no-public-data",
    "plan",
    "frame",
    "gate-key",
    "peers",
    "half",
    "alone",
    "hopeless",
    "wire-limit",
    "memory",
    "rehearsal",
]
"""Why a site does not answer a study: a public reason."""

EndCode = Literal[
    "failed",
    "interrupted",
    "cancelled",
    "rejected",
    "no-answer",
    "late",
    "late-run",
    "sum-left",
    "sum-ended",
    "unreachable",
    "gate-away",
    "upload-rejected",
]
"""How a job ended without a release."""

GateCode = Literal[
    "unknown-request",
    "not-delivered",
    "not-awaiting",
    "ledger",
    "misconfigured",
    "rolled-back",
    "bundle",
    "busy",
    "no-round",
    "conflict",
    "internal",
]
"""What else a gate may answer."""

Code = RefusalCode | EndCode | GateCode


def read_version(wire: str) -> tuple[int, int] | None:
    """Major and minor of a wire version; None of what is none."""
    found = _VERSION.fullmatch(wire)
    return None if found is None else (int(found[1]), int(found[2]))


def names_parts(wire: str) -> bool:
    """Whether a release of this wire version is named parts."""
    return (read_version(wire) or (0, 0)) >= (1, 2)


def is_newer(wire: str, other: str) -> bool:
    """Whether a wire version is newer than another."""
    return (read_version(wire) or (0, 0)) > (read_version(other) or (0, 0))


def choose_version(asked: str) -> str:
    """The wire version of a release that answers a study of this one.

    A study of before 1.2 may have come through a coordinator that reads labels only: sites are
    upgraded first, and what such a coordinator rejected would have been charged all the same.
    """
    if not names_parts(asked):
        return LABELLED_VERSION
    return WIRE_VERSION if is_newer(asked, WIRE_VERSION) else asked


REFUSAL_WORDS: dict[RefusalCode, tuple[str, str]] = {
    "malformed": ("the study cannot be read", "write it with `penstock study new` and check it"),
    "wire-version": ("this wire version is not served here", "upgrade the older side"),
    "signature": ("the study's signature does not match", "sign the study again"),
    "unknown-signer": (
        "the signer's key is not trusted here",
        "ask the site's steward to compare your fingerprint and `penstock site trust add` it",
    ),
    "trust-expired": ("the signer's trust has expired here", "ask the steward to renew it"),
    "federation": ("the study names another federation", "correct `federation`"),
    "not-invited": ("the study does not name this site", "add the site to `sites`"),
    "not-yet-valid": ("the study is not valid yet", "wait, or correct `not_before`"),
    "expired": ("the study has expired", "renew `expires` and sign again"),
    "schema": ("the site's dictionary does not carry this schema", "compare with its join.json"),
    "not-ready": ("the site's data are not certified", "ask the steward to run `site check`"),
    "mechanism": (
        "the site does not allow this mechanism",
        "choose one that it allows, or ask its steward to add this one to `mechanisms` in "
        "policy.toml",
    ),
    "guarantee": ("the site does not allow this guarantee class", "ask for `formal`"),
    "study-budget": ("ε or δ is above what the site allows a study", "ask for less"),
    "delta": (
        "δ is too large for so many persons",
        "ask for δ of at most 1/(10 n), n the largest site's number of persons",
    ),
    "least-epsilon": ("ε is below the least that the site lets a release cost", "ask for more"),
    "signer-budget": ("ε is above what is left of your allowance", "ask for less"),
    "yearly-budget": (
        "ε is above what is left of the site's allowance for this year",
        "ask for less, or again from the first of January (UTC)",
    ),
    "budget": ("ε is above what is left at the site", "ask for less, or leave this site out"),
    "closed": ("the data set's formal budget has ended", "leave this site out"),
    "no-public-data": ("the site holds no public table for this flow", "ask for `formal`"),
    "plan": ("the mechanism cannot meet this ε with these settings", "raise ε or lower w"),
    "frame": (
        "the study says another number of persons of this site than it declared",
        "take it from the site's newest join.json",
    ),
    "gate-key": (
        "the study names another key of this site's gate than it has",
        "take it from the site's newest join.json",
    ),
    "peers": (
        "the site's steward has not pinned the keys that the study names of these sites",
        "ask the steward to compare their fingerprints and `penstock site peers add` them",
    ),
    "half": (
        "the other half of the study has not begun at the site, and both are charged at once",
        "see how the other half ended there; or sign release + 1 of both",
    ),
    "alone": (
        "ε if all other sites collude is above what the site allows",
        "ask for less ε, or fewer sites; or ask its steward for more `alone_epsilon`",
    ),
    "hopeless": (
        "the answer would be noise whatever the rows are",
        "raise ε, ask about fewer columns, or leave this site out",
    ),
    "wire-limit": ("the release would be larger than the wire allows", "ask for fewer copies"),
    "memory": (
        "the run may need more memory than the site has set aside for it",
        "ask for fewer steps, directions, particles or columns, or the site for more `memory_gb`",
    ),
    "rehearsal": (
        "a rehearsal on synthetic rows of this schema failed at the site; nothing was charged",
        "the site's log says where; sign other settings, or release + 1 once it is mended",
    ),
}
"""Functions of the study, the schema, the public n, the policy and the ledger only."""

END_WORDS: dict[EndCode, tuple[str, str]] = {
    "failed": ("the run ended without a release; its charge stays", "sign release + 1 to retry"),
    "interrupted": (
        "the gate or its worker was killed during the run; its charge stays",
        "sign release + 1 to retry",
    ),
    "cancelled": ("cancelled by the analyst", ""),
    "rejected": ("the steward said no", "talk to the site"),
    "no-answer": ("the site did not answer before the deadline", "talk to the site"),
    "late": (
        "its analyst closed the study, and the site was not known to have begun: it was told so, "
        "and where no run had begun nothing is charged",
        "ask it in a study of its own",
    ),
    "late-run": (
        "its analyst closed the study while the site worked on it: what it reserved stays charged, "
        "and what it made stays at the site",
        "give a site that has begun its time: `penstock study status` shows its progress",
    ),
    "sum-left": (
        "the site was gone before the last round: its rows are in the sums before, and what it "
        "reserved stays charged",
        "see in the report what the release lacks",
    ),
    "sum-ended": (
        "the sums of all sites could not be finished; what the site has reserved stays charged",
        "sign release + 1, with sites that can stay, or with more drop-outs allowed",
    ),
    "unreachable": ("the site could not be reached", "ask the site whether its gate runs"),
    "gate-away": (
        "the site is connected, but its gate does not answer",
        "ask the site whether its gate runs",
    ),
    "upload-rejected": (
        "what the site sent is not what was asked for",
        "see the coordinator's log",
    ),
}

GATE_WORDS: dict[GateCode, tuple[str, str]] = {
    "unknown-request": ("no such request here", "check the request id"),
    "not-delivered": ("there is no release to collect yet", "poll until it is delivered"),
    "not-awaiting": ("this request is not waiting for approval", "see `penstock site requests`"),
    "ledger": ("the site's ledger cannot be used", "ask the steward to look at the gate"),
    "misconfigured": (
        "the site's settings have a problem",
        "the steward sees it in the gate's log; it is asked again until the deadline",
    ),
    "rolled-back": (
        "the site's ledger is older than what it has shown",
        "the steward must recover it: `penstock site ledger recover`",
    ),
    "bundle": (
        "the coordinator's app is not one that this site's version accepts",
        "upgrade the older side",
    ),
    "busy": ("the gate is stopping", "try again"),
    "no-round": ("the request takes part in no sum now", "poll it"),
    "conflict": (
        "this was asked before, and answered for something else",
        "send what was sent first; a round has one input, and one set of survivors",
    ),
    "internal": ("the gate met an error of its own", "ask the steward to look at its log"),
}

CODES: dict[str, tuple[str, str]] = dict(
    chain[tuple[str, tuple[str, str]]](REFUSAL_WORDS.items(), END_WORDS.items(), GATE_WORDS.items())
)
"""Every code that may leave a gate, with its meaning and what the analyst can do."""

STANDINGS: dict[str, tuple[str, str]] = {
    SiteState.INVITED: ("the site has not answered yet", "if it stays so, ask whether it runs"),
    SiteState.AWAITING: (
        "the site decides by hand: its data steward has the study, and has not said yes or no",
        "tell the steward that it waits (`penstock site requests`, then preview and approve); "
        "nothing is charged before a yes, and the study's deadline does not wait",
    ),
    SiteState.RUNNING: ("the site works on it", ""),
}
"""What a site's state means that has no code, and what the analyst can do."""

REFUSALS: frozenset[RefusalCode] = frozenset(REFUSAL_WORDS)
"""Codes with which a site refuses a study for a public reason."""


def explain_part(state: str, code: str) -> tuple[str, str]:
    """Meaning and remedy of where a site stands in a study: by its code, else by its state."""
    return explain(code) if code else STANDINGS.get(state, ("", ""))


def explain(code: str) -> tuple[str, str]:
    """Meaning and remedy of a code; unknown codes (from a newer site) are named as such."""
    return CODES.get(code, (f"code {code!r}, which this version does not know", "upgrade"))
