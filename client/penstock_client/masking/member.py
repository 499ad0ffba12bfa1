r"""A gate's part in the sums of one study: it masks its vector, and helps to unmask the sum alone.

Protocol and proof: :mod:`penstock.aggregation.roster`. What the coordinator can learn follows from
what a gate says *once*: one advert, one masked vector and one set of survivors a round. So each is
kept before it leaves; asked again, a gate says the same bytes again, and asked for something else
it refuses. An answer depends on rows by the vector that is masked and by nothing else: sizes
are public, and no refusal, nor any other message, looks at it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from penstock.aggregation import masks, secret_shares
from penstock.aggregation.adverts import (
    KINDS,
    read_meeting,
    read_posting,
    write_introduction,
    write_posting,
)
from penstock.aggregation.exchanges import (
    MAX_ROUND,
    Opening,
    SumTerms,
    find_context,
    read_asking,
    read_opening,
    write_masked,
    write_reveal,
)
from penstock.aggregation.residues import MaskKey, Residues, apply_masks
from penstock.aggregation.roster import Roster
from penstock.aggregation.secret_shares import SECRET_BYTES
from penstock.base.errors import MaskingRefused, UploadRejected
from penstock.wire.canonical import canonical
from penstock.wire.signatures import public_hex
from penstock_client.ledger.sqlite_file import Database
from penstock_client.masking.sum_record import RoundRow, StudyRow, SumRecord


@dataclass(frozen=True, slots=True)
class _Secrets:
    """What a site makes for a round, before it is shared out."""

    self_seed: int
    pair_seed: int

    @classmethod
    def make(cls) -> _Secrets:
        return cls(secret_shares.make_secret(), secret_shares.make_secret())


class Member:
    """One site in the sums of one study, over its gate's database.

    Every method raises:
        MaskingRefused: something else was answered before, or its secrets are erased.
        UploadRejected, SignatureError: what the coordinator sent is not what it should be.

    Args:
        roster: of the signed study, with the keys that the steward pinned.
        site: this one; ``key``: its gate's.

    Raises:
        MaskingRefused: not in the roster with this key; or the study had another roster before.
    """

    def __init__(
        self, database: Database, roster: Roster, site: str, key: Ed25519PrivateKey
    ) -> None:
        if site not in roster.sites or roster.key(site) != public_hex(key):
            raise MaskingRefused(
                "this site is not in the roster with its gate's key",
                value=site,
                remedy="compare the keys that stewards pinned",
            )
        self._roster, self._site, self._key = roster, site, key
        self._record = SumRecord(database, roster.study)
        found = self._record.study()
        if found is not None and found.roster != roster.digest:
            raise MaskingRefused("the sums of this study have other sites", value=roster.study)

    def introduce(self) -> bytes:
        """This site's introduction: the key for letters of this study."""
        if self._record.study() is None:
            private = X25519PrivateKey.generate()
            introduction = write_introduction(
                self._roster, self._site, self._key, masks.public_bytes(private)
            )
            seed = private.private_bytes_raw()
            self._record.keep_introduction(self._roster.digest, introduction, seed)
        return self._study().introduction

    def meet(self, meeting: bytes) -> None:
        """Take the sites' introductions, once: among them this site's own."""
        study = self._study()
        if study.meeting is None:
            met = {each.site: each.data for each in read_meeting(meeting, self._roster)}
            if met.get(self._site) != study.introduction:
                raise UploadRejected("a meeting without this site", value=self._site)
            self._record.keep_meeting(meeting)
            study = self._study()
        if study.meeting is None:
            raise _refuse_erased()
        if study.meeting != meeting:
            raise MaskingRefused("other sites were introduced before", value=self._roster.study)

    def advertise(self, round_: int) -> bytes:
        """This site's posting for a round: fresh secrets, in shares, in letters to its peers."""
        if not 0 <= round_ <= MAX_ROUND:
            raise MaskingRefused("no round of a sum", value=round_, bound=f"0 to {MAX_ROUND}")
        found = self._record.round(round_)
        if found is None:
            made = _Secrets.make()
            posting, own = self._write_posting(round_, made)
            self_seed, pair_seed = map(secret_shares.to_bytes, (made.self_seed, made.pair_seed))
            self._record.keep_posting(round_, posting, self_seed, pair_seed, own)
            found = self._round(round_)
        return found.posting

    def _write_posting(self, round_: int, made: _Secrets) -> tuple[bytes, bytes]:
        private, peers = self._letters()
        roster, site = self._roster, self._site
        holders = roster.sort(set(peers))
        split = [
            secret_shares.split_secret(secret, roster.threshold, len(roster.sites))
            for secret in (made.self_seed, made.pair_seed)
        ]
        texts, tags = {}, {}
        for holder in holders:
            shares = [secret_shares.to_bytes(kind[roster.place(holder) - 1]) for kind in split]
            texts[holder] = b"".join(shares)
            for kind, share in zip(KINDS, shares, strict=True):
                tags[kind, holder] = masks.tag_share(
                    share, roster.digest, round_, site, holder, kind
                )
        letters = {
            holder: masks.seal_letter(
                private, peers[holder], (roster.digest, round_, site, holder), texts[holder]
            )
            for holder in holders
            if holder != site
        }
        self_seed, pair_seed = map(secret_shares.to_bytes, (made.self_seed, made.pair_seed))
        posting = write_posting(
            roster,
            round_,
            site,
            self._key,
            mask_key=masks.public_bytes(masks.open_mask_seed(pair_seed)),
            commitment=masks.commit(self_seed, roster.digest, round_, site),
            tags=tags,
            letters=letters,
        )
        return posting, texts[site]

    def contribute(self, opening: bytes, terms: SumTerms, draw: Callable[[], Residues]) -> bytes:
        """This site's masked vector for a round.

        Args:
            opening: from the coordinator.
            terms: from the plan and from the sums that *this gate* was told.
            draw: makes the noisy vector. It is called only where none was kept: nothing leaves
                before the masked vector is on disk, and noise that is drawn again after a crash
                takes the place of noise that nobody saw.
        """
        found = self._round(terms.round)
        given = read_opening(opening, self._roster, terms.round)
        context = find_context(self._roster, terms, given.adverts)
        if found.masked is None:
            self._check_opening(given, found)
            keys = self._find_masks(given, found, context)
            shares = self._read_letters(given, found)
            vector = draw()
            if (vector.size, vector.bits) != (terms.size, terms.bits):
                raise MaskingRefused(
                    "a vector that is not of the round's shape",
                    value=f"{vector.size} numbers of {vector.bits} bits",
                    bound=f"{terms.size} of {terms.bits}",
                )
            masked = write_masked(
                self._roster, self._site, self._key, context, apply_masks(vector, keys)
            )
            self._record.keep_masked(
                terms.round, context, _write(given.members), _write(shares), masked
            )
            found = self._round(terms.round)
        if found.masked is None:
            raise _refuse_erased()
        if found.context != context:
            raise MaskingRefused(
                "this round was answered for another plan, other sums or other sites",
                value=f"round {terms.round}",
                remedy="send the opening that was sent first",
            )
        return found.masked

    def check_opening(self, opening: bytes, round_: int) -> None:
        """Whether a round may be opened so, before anything is made for it."""
        given = read_opening(opening, self._roster, round_)
        self._check_opening(given, self._round(round_))

    def _check_opening(self, given: Opening, found: RoundRow) -> None:
        own = read_posting(found.posting, self._roster, given.adverts[0].round).advert
        if own not in given.adverts:
            raise UploadRejected("an opening without this site's own advert", value=self._site)
        _, peers = self._letters()
        for advert in given.adverts:
            if advert.site not in peers:
                raise UploadRejected("an advert of a site that was not met", value=advert.site)

    def _find_masks(self, given: Opening, found: RoundRow, context: str) -> list[MaskKey]:
        if found.self_seed is None or found.pair_seed is None:
            raise _refuse_erased()
        private = masks.open_mask_seed(found.pair_seed)
        return [
            masks.self_mask(found.self_seed, context, self._site),
            *(
                masks.pair_mask(private, advert.mask_key, context, self._site, advert.site)
                for advert in given.adverts
                if advert.site != self._site
            ),
        ]

    def _read_letters(self, given: Opening, found: RoundRow) -> dict[str, str]:
        """Shares by owner, in hex; none of an owner whose letter is not what its advert says."""
        if found.own_shares is None:
            raise _refuse_erased()
        private, peers = self._letters()
        shares = {self._site: found.own_shares.hex()}
        for advert in given.adverts:
            owner = advert.site
            if owner == self._site or owner not in given.letters:
                continue
            address = (self._roster.digest, advert.round, owner, self._site)
            text = masks.open_letter(private, peers[owner], address, given.letters[owner])
            if text is not None and all(
                masks.tag_share(
                    _pick_share(text, kind),
                    self._roster.digest,
                    advert.round,
                    owner,
                    self._site,
                    kind,
                )
                == advert.tags.get((kind, self._site))
                for kind in KINDS
            ):
                shares[owner] = text.hex()
        return shares

    def reveal(self, asking: bytes, round_: int) -> bytes:
        """This site's shares for one set of survivors: the only one it answers in this round."""
        survivors = read_asking(asking, self._roster)
        found = self._round(round_)
        if found.reveal is None:
            if found.context is None or found.members is None or found.shares is None:
                raise MaskingRefused(
                    "no vector of this site in this round, or its shares are erased",
                    value=f"round {round_}",
                )
            members = json.loads(found.members)
            if self._site not in survivors or not set(survivors) <= set(members):
                raise MaskingRefused(
                    "survivors are sites of the round, and this one is among them",
                    value=", ".join(survivors),
                )
            shares = {
                owner: _pick_share(bytes.fromhex(text), KINDS[owner not in survivors])
                for owner, text in json.loads(found.shares).items()
            }
            reveal = write_reveal(
                self._roster, self._site, self._key, found.context, survivors, shares
            )
            self._record.keep_reveal(round_, _write(survivors), reveal)
            found = self._round(round_)
        if found.reveal is None:
            raise _refuse_erased()
        if found.survivors != _write(survivors):
            raise MaskingRefused(
                "this round was answered for other survivors",
                value=f"round {round_}",
                remedy="ask for the survivors that were named first",
            )
        return found.reveal

    def leave(self) -> None:
        """The study is over: erase its secrets. What was said before can still be said again."""
        self._record.erase()

    def _letters(self) -> tuple[X25519PrivateKey, dict[str, bytes]]:
        """The private key for letters, and the public ones of all that were met."""
        study = self._study()
        if study.letter_seed is None:
            raise _refuse_erased()
        if study.meeting is None:
            raise MaskingRefused(
                "no other sites were introduced yet",
                value=self._roster.study,
                remedy="send the meeting first",
            )
        met = read_meeting(study.meeting, self._roster)
        private = X25519PrivateKey.from_private_bytes(study.letter_seed)
        return private, {each.site: each.letter_key for each in met}

    def _study(self) -> StudyRow:
        found = self._record.study()
        if found is None:
            raise MaskingRefused(
                "this site has not introduced itself",
                value=self._roster.study,
                remedy="ask for its introduction first",
            )
        return found

    def _round(self, round_: int) -> RoundRow:
        found = self._record.round(round_)
        if found is None:
            raise MaskingRefused(
                "no advert of this site for this round",
                value=f"round {round_}",
                remedy="ask for its advert first",
            )
        return found


def _pick_share(text: bytes, kind: str) -> bytes:
    start = KINDS.index(kind) * SECRET_BYTES
    return text[start : start + SECRET_BYTES]


def _write(value: object) -> str:
    return canonical(value).decode()


def _refuse_erased() -> MaskingRefused:
    return MaskingRefused("the secrets of this study's sums are erased", remedy="ask a new study")
