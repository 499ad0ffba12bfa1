"""The two exchanges of a round: adverts for a masked vector, survivors for shares.

The coordinator's *opening* has the adverts of a round's sites and the letters to the receiver; the
site answers with its *masked vector*. The coordinator's *asking* names the survivors, whose vectors
came; the site answers, once, with its *reveal*.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from penstock.aggregation.adverts import (
    Advert,
    check_quorum,
    limit_message,
    read_advert,
)
from penstock.aggregation.envelopes import (
    check_names,
    pack_parts,
    read_signed,
    sign_parts,
    unpack_parts,
)
from penstock.aggregation.residues import Residues, check_shape
from penstock.aggregation.roster import Roster
from penstock.aggregation.secret_shares import SECRET_BYTES
from penstock.base.checks import Checks
from penstock.base.errors import UploadRejected
from penstock.wire.canonical import digest

MASKED = "masked vector of a sum"
REVEAL = "reveal of a sum"
MAX_ROUND = 2**31
SUM_BITS = 96
"""Of every number of a joint release's sums. A person's part is some 2^47 widths of a grid, at any
ε, so that the sum of a hundred sites of 10^9 persons each is below 2^84; its noise is far less. A
choice by the plan would be one thing more that all sides have to agree on."""
MAX_VECTOR = 4_000_000
"""Bytes of the largest masked vector: what one message holds."""
MAX_ROUNDS, MAX_SUM_BYTES = 500, 3_000_000
"""Of one release of many sites; an opening of a round has the sum before it in one message."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FIXED = 8192


def fits_wire(rounds: int, numbers: int) -> bool:
    """Whether so many rounds, with so many numbers in the largest, can be gone through."""
    return rounds <= MAX_ROUNDS and numbers * SUM_BITS // 8 <= MAX_SUM_BYTES


@dataclass(frozen=True, slots=True)
class SumTerms:
    """What both sides know of a round before it begins, from the signed plan.

    Args:
        round: 0, 1, ...
        size, bits: so many whole numbers modulo 2^bits (``residues.choose_bits``).
        transcript: SHA-256, in hex, of the signed plan and all sums that were public before. Each
            gate computes it from what *it* was told; sites that were told different things have
            masks that do not cancel.

    Raises:
        InvalidInput: out of range.
    """

    round: int
    size: int
    bits: int
    transcript: str

    def __post_init__(self) -> None:
        check = Checks("terms of a sum")
        check.whole("round", self.round, 0, MAX_ROUND)
        check.pattern("transcript", self.transcript, _DIGEST, "SHA-256 in hexadecimal digits")
        check.done()
        check_shape(self.size, self.bits)


def find_transcript(study: str, sums: Sequence[bytes]) -> str:
    """SHA-256 of the signed study's id and of all sums that are public: what a round follows on."""
    return digest({"study": study, "sums": [hashlib.sha256(each).hexdigest() for each in sums]})


def write_sum(numbers: Sequence[int]) -> bytes:
    """A public sum, as sites are told of it: its numbers modulo 2^:data:`SUM_BITS`."""
    return Residues.from_numbers(numbers, SUM_BITS).to_bytes()


def read_sum(data: bytes) -> list[int]:
    """Inverse of :func:`write_sum`.

    Raises:
        UploadRejected: not whole numbers of that size.
    """
    return Residues.from_bytes(data, SUM_BITS).to_numbers()


def find_context(roster: Roster, terms: SumTerms, adverts: Sequence[Advert]) -> str:
    """SHA-256 of all that sites must have been told alike for their masks to cancel: the roster of
    the study, the terms, and the adverts, which are the roster of the round."""
    return digest(
        {
            "roster": roster.digest,
            "round": terms.round,
            "size": terms.size,
            "bits": terms.bits,
            "transcript": terms.transcript,
            "adverts": [hashlib.sha256(advert.data).hexdigest() for advert in adverts],
        }
    )


@dataclass(frozen=True, slots=True)
class Opening:
    """A round's adverts in the roster's order, and the letters to one site, by sender."""

    adverts: tuple[Advert, ...]
    letters: Mapping[str, bytes]

    @property
    def members(self) -> tuple[str, ...]:
        """The roster of the round."""
        return tuple(advert.site for advert in self.adverts)


def write_opening(adverts: Sequence[Advert], letters: Mapping[str, bytes]) -> bytes:
    """From the coordinator to one site; letters by their senders, of whom some may have none."""
    senders = [advert.site for advert in adverts if advert.site in letters]
    parts = [*(advert.data for advert in adverts), *(letters[sender] for sender in senders)]
    return pack_parts({"senders": senders}, parts)


def read_opening(data: bytes, roster: Roster, round_: int) -> Opening:
    """An untrusted opening of a round.

    Raises:
        UploadRejected: not adverts of at least S - t different sites, in their order, with letters
            of some of them.
        SignatureError: an advert is not signed by the site that it names.
    """
    found = unpack_parts(data, "opening of a sum", limit_message(roster))
    found.take("opening of a sum", senders=list)
    senders = check_names(found.head["senders"], roster, "senders of letters")
    count = len(found.parts) - len(senders)
    adverts = tuple(read_advert(part, roster, round_) for part in found.parts[: max(count, 0)])
    members = check_names([advert.site for advert in adverts], roster, "members of a round")
    check_quorum(len(members), roster, "sites in the round")
    if not set(senders) <= set(members):
        raise UploadRejected("letters of sites that are not in the round")
    return Opening(adverts, dict(zip(senders, found.parts[count:], strict=True)))


@dataclass(frozen=True, slots=True)
class Masked:
    """A site's masked vector. From a verified signature only."""

    site: str
    vector: Residues
    data: bytes


def write_masked(
    roster: Roster, site: str, key: Ed25519PrivateKey, context: str, vector: Residues
) -> bytes:
    """Signed by the gate, over the context too."""
    head = {"context": context}
    return sign_parts(MASKED, key, roster, site, head, [vector.to_bytes()])


def read_masked(data: bytes, roster: Roster, context: str, terms: SumTerms) -> Masked:
    """Raises:
    UploadRejected: not a vector of these terms, or of a site that was told something else.
    SignatureError: not signed by the site that it names.
    """
    limit = _FIXED + terms.size * terms.bits // 8
    site, found = read_signed(MASKED, roster, data, limit)
    found.take(MASKED, context=str)
    _check_context(found.head["context"], context, site)
    if len(found.parts) != 1:
        raise UploadRejected("a masked vector is one part", value=site)
    return Masked(site, Residues.from_bytes(found.parts[0], terms.bits, terms.size), data)


def measure_masked(data: bytes, bits: int) -> int:
    """How many numbers of so many bits a masked vector claims to have, before it is believed; 0 of
    what is none."""
    try:
        found = unpack_parts(data, MASKED, MAX_VECTOR)
    except UploadRejected:
        return 0
    return 8 * len(found.parts[0]) // bits if found.parts else 0


def write_asking(survivors: Sequence[str]) -> bytes:
    """From the coordinator to every survivor: whose vectors are to be summed."""
    return pack_parts({"survivors": list(survivors)}, [])


def read_asking(data: bytes, roster: Roster) -> tuple[str, ...]:
    """Raises:
    UploadRejected: not at least S - t sites in their order.
    """
    found = unpack_parts(data, "asking", limit_message(roster))
    found.take("asking", survivors=list)
    survivors = check_names(found.head["survivors"], roster, "survivors")
    check_quorum(len(survivors), roster, "survivors")
    return survivors


@dataclass(frozen=True, slots=True)
class Reveal:
    """A site's shares: of each survivor's self mask, of each lost site's pair masks.

    From a verified signature only. ``shares`` has none of a site whose letter could not be read.
    """

    site: str
    survivors: tuple[str, ...]
    shares: Mapping[str, bytes]
    data: bytes


def write_reveal(
    roster: Roster,
    site: str,
    key: Ed25519PrivateKey,
    context: str,
    survivors: Sequence[str],
    shares: Mapping[str, bytes],
) -> bytes:
    """Signed by the gate, over the context and the survivors."""
    owners = roster.sort(set(shares))
    head = {"context": context, "survivors": list(survivors), "owners": list(owners)}
    joined = b"".join(shares[owner] for owner in owners)
    return sign_parts(REVEAL, key, roster, site, head, [joined])


def read_reveal(data: bytes, roster: Roster, context: str) -> Reveal:
    """Raises:
    UploadRejected: not a reveal of this round.
    SignatureError: not signed by the site that it names.
    """
    site, found = read_signed(REVEAL, roster, data, limit_message(roster))
    found.take(REVEAL, context=str, survivors=list, owners=list)
    _check_context(found.head["context"], context, site)
    survivors = check_names(found.head["survivors"], roster, "survivors")
    owners = check_names(found.head["owners"], roster, "owners of shares")
    if [len(part) for part in found.parts] != [len(owners) * SECRET_BYTES]:
        raise UploadRejected("not a share of each owner", value=site)
    joined = found.parts[0]
    shares = {
        owner: joined[i * SECRET_BYTES : (i + 1) * SECRET_BYTES] for i, owner in enumerate(owners)
    }
    return Reveal(site, survivors, shares, data)


def _check_context(found: object, context: str, site: str) -> None:
    if found != context:
        raise UploadRejected(
            "a site was told another plan, other sums or other sites",
            value=site,
            remedy="send every site the same opening",
        )
