"""What sites tell each other before a sum: a key for letters once, then secrets in shares.

An *introduction* has a site's key for letters, made for one study and erased at its end. A
*meeting* carries all introductions to all sites. A *posting* is a site's *advert* for one round,
which every site will see, and one letter to each peer, which that peer alone can read. All that a
site says is signed by its gate key, and bound to study, sites and round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from penstock.aggregation.envelopes import (
    Envelope,
    check_names,
    pack_parts,
    read_signed,
    sign_parts,
    unpack_parts,
)
from penstock.aggregation.masks import HASH_BYTES, KEY_BYTES, check_public_key
from penstock.aggregation.roster import Roster
from penstock.aggregation.secret_shares import SECRET_BYTES
from penstock.base.errors import UploadRejected

INTRODUCTION = "introduction to a sum"
ADVERT = "advert of a sum"
KINDS = ("self", "pair")
"""The two secrets of a site in a round, in the order in which letters and tags have them."""

LETTER_TEXT_BYTES = SECRET_BYTES * len(KINDS)
LETTER_BYTES = 12 + LETTER_TEXT_BYTES + 16
"""Nonce, text and the cipher's tag."""

_PER_SITE = 256
_FIXED = 8192


@dataclass(frozen=True, slots=True)
class Introduction:
    """Constructed from a verified signature only."""

    site: str
    letter_key: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Advert:
    """What all may know of a site's secrets of a round. From a verified signature only.

    Attributes:
        mask_key: the public half of the round's pair masks.
        commitment: of the self mask's seed.
        holders: who was given shares, itself among them.
        tags: of each share, by kind and holder.
        letters_hash: of all letters, one after the other.
        data: the bytes as they came.
    """

    site: str
    round: int
    mask_key: bytes
    commitment: bytes
    holders: tuple[str, ...]
    tags: Mapping[tuple[str, str], bytes]
    letters_hash: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Posting:
    """An advert with its letters, by receiver."""

    advert: Advert
    letters: Mapping[str, bytes]


def limit_message(roster: Roster) -> int:
    """How large any message but a masked vector may be."""
    return _FIXED + len(roster.sites) * (_FIXED + _PER_SITE * len(roster.sites))


def write_introduction(
    roster: Roster, site: str, key: Ed25519PrivateKey, letter_key: bytes
) -> bytes:
    """Signed by the gate; the same key makes the same bytes."""
    return sign_parts(INTRODUCTION, key, roster, site, {}, [letter_key])


def read_introduction(data: bytes, roster: Roster) -> Introduction:
    """Raises:
    UploadRejected: not an introduction to these sums.
    SignatureError: not signed by the site that it names.
    """
    site, found = read_signed(INTRODUCTION, roster, data, _FIXED)
    found.take(INTRODUCTION)
    _check_sizes(found, INTRODUCTION, [KEY_BYTES])
    check_public_key(found.parts[0], site)
    return Introduction(site, found.parts[0], data)


def write_meeting(introductions: Sequence[bytes]) -> bytes:
    """From the coordinator to every site: the introductions, in the roster's order."""
    return pack_parts({}, introductions)


def read_meeting(data: bytes, roster: Roster) -> tuple[Introduction, ...]:
    """Raises:
    UploadRejected: not introductions of different sites in their order, or fewer than S - t.
    SignatureError: one is not signed by the site that it names.
    """
    found = unpack_parts(data, "meeting", limit_message(roster))
    found.take("meeting")
    met = tuple(read_introduction(part, roster) for part in found.parts)
    check_names([each.site for each in met], roster, "those who met")
    check_quorum(len(met), roster, "sites that were introduced")
    return met


def write_posting(
    roster: Roster,
    round_: int,
    site: str,
    key: Ed25519PrivateKey,
    *,
    mask_key: bytes,
    commitment: bytes,
    tags: Mapping[tuple[str, str], bytes],
    letters: Mapping[str, bytes],
) -> bytes:
    """A site's advert, signed, and its letters.

    Args:
        tags: of every share, by kind and holder.
        letters: to every holder but itself.
    """
    holders = roster.sort({holder for _, holder in tags})
    ordered = [letters[holder] for holder in holders if holder != site]
    head = {
        "round": round_,
        "holders": list(holders),
        "letters": hashlib.sha256(b"".join(ordered)).hexdigest(),
    }
    joined = b"".join(tags[kind, holder] for kind in KINDS for holder in holders)
    advert = sign_parts(ADVERT, key, roster, site, head, [mask_key, commitment, joined])
    return pack_parts({}, [advert, *ordered])


def read_advert(data: bytes, roster: Roster, round_: int) -> Advert:
    """Raises:
    UploadRejected: not an advert of this round.
    SignatureError: not signed by the site that it names.
    """
    site, found = read_signed(ADVERT, roster, data, _FIXED + _PER_SITE * len(roster.sites))
    found.take(ADVERT, round=int, holders=list, letters=str)
    if found.head["round"] != round_:
        raise UploadRejected(
            "an advert of another round", value=f"{site}, {found.head['round']}", bound=round_
        )
    holders = check_names(found.head["holders"], roster, "holders of shares")
    if site not in holders:
        raise UploadRejected("an advert without a share of its own", value=site)
    _check_sizes(found, ADVERT, [KEY_BYTES, HASH_BYTES, len(KINDS) * len(holders) * HASH_BYTES])
    mask_key, commitment, joined = found.parts
    check_public_key(mask_key, site)
    names = [(kind, holder) for kind in KINDS for holder in holders]
    tags = {name: joined[i * HASH_BYTES : (i + 1) * HASH_BYTES] for i, name in enumerate(names)}
    letters = str(found.head["letters"])
    return Advert(site, round_, mask_key, commitment, holders, tags, letters, data)


def read_posting(data: bytes, roster: Roster, round_: int) -> Posting:
    """Raises:
    UploadRejected: not an advert of this round with the letters that it signs.
    SignatureError: not signed by the site that it names.
    """
    found = unpack_parts(data, "posting", limit_message(roster))
    found.take("posting")
    advert = read_advert(found.parts[0] if found.parts else b"", roster, round_)
    receivers = [holder for holder in advert.holders if holder != advert.site]
    letters = found.parts[1:]
    if len(letters) != len(receivers) or any(len(each) != LETTER_BYTES for each in letters):
        raise UploadRejected("a posting without a letter for each holder", value=advert.site)
    if hashlib.sha256(b"".join(letters)).hexdigest() != advert.letters_hash:
        raise UploadRejected("letters that their site did not sign", value=advert.site)
    return Posting(advert, dict(zip(receivers, letters, strict=True)))


def check_quorum(count: int, roster: Roster, what: str) -> None:
    """Raises:
    UploadRejected: fewer than S - t.
    """
    if not count >= roster.quorum:
        raise UploadRejected(f"too few {what}", value=count, bound=f"at least {roster.quorum}")


def _check_sizes(found: Envelope, what: str, sizes: list[int]) -> None:
    if [len(part) for part in found.parts] != sizes:
        raise UploadRejected(
            f"the parts of this {what} have the wrong sizes",
            value=str([len(part) for part in found.parts[:8]]),
            bound=str(sizes),
        )
