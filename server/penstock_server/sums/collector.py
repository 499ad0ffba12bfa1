"""One round of a sum, collected: what came, what is sent next to whom, and the sum at the end.

A collector does nothing by itself: whoever drives it hands it what came, decides when waiting is
over, and sends on what it says. Its state follows from the messages that it took and from the two
that it wrote (the opening's members, the asking's survivors): handed those again, in any order
within a stage, it stands where it stood. What a site sends is hostile until proven: a message that
is not as it should be is named in ``faults``, and its site counts as lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from penstock.aggregation import masks
from penstock.aggregation.adverts import KINDS, Advert, Posting, read_posting
from penstock.aggregation.exchanges import (
    Masked,
    Reveal,
    SumTerms,
    find_context,
    read_masked,
    read_reveal,
    write_asking,
    write_opening,
)
from penstock.aggregation.residues import MaskKey, Residues, apply_masks
from penstock.aggregation.roster import Roster
from penstock.aggregation.secret_shares import PRIME, from_bytes, join_shares, to_bytes
from penstock.base.errors import PenstockError, SumSpoiled, UploadRejected

Message = TypeVar("Message", Posting, Masked, Reveal)


class Collector:
    """The coordinator's side of one round.

    ``take_posting``, ``open_round``, ``take_masked``, ``ask_survivors``, ``take_reveal``,
    ``find_sum``: in this order, each of the first and third of a pair as often as messages come.

    Args:
        roster: of the signed study; terms: of the round.

    Attributes:
        faults: what was wrong with a site's messages, by site: the last of it.
    """

    def __init__(self, roster: Roster, terms: SumTerms) -> None:
        self._roster, self._terms = roster, terms
        self._postings: dict[str, Posting] = {}
        self._masked: dict[str, Masked] = {}
        self._reveals: dict[str, Reveal] = {}
        self._members: tuple[str, ...] = ()
        self._survivors: tuple[str, ...] = ()
        self._context = ""
        self.faults: dict[str, PenstockError] = {}

    @property
    def members(self) -> tuple[str, ...]:
        """The roster of the round; empty before it is opened."""
        return self._members

    @property
    def survivors(self) -> tuple[str, ...]:
        """Whose vectors are summed; empty before they are asked."""
        return self._survivors

    @property
    def waiting(self) -> tuple[str, ...]:
        """Whose answer to the present stage has not come."""
        if self._survivors:
            return self._without(self._survivors, self._reveals)
        if self._members:
            return self._without(self._members, self._masked)
        return self._without(self._roster.sites, self._postings)

    def _without(self, sites: Iterable[str], there: Mapping[str, object]) -> tuple[str, ...]:
        return tuple(site for site in sites if site not in there)

    def next_messages(self) -> dict[str, bytes]:
        """What is to be sent, again if need be, to whom; nothing before the round is opened."""
        if self._survivors:
            return dict.fromkeys(self.waiting, write_asking(self._survivors))
        adverts = self._adverts()
        return {
            site: write_opening(
                adverts,
                {
                    sender: posting.letters[site]
                    for sender, posting in self._postings.items()
                    if site in posting.letters and sender in self._members
                },
            )
            for site in self.waiting
            if self._members
        }

    def take_posting(self, sender: str, data: bytes) -> bool:
        """Whether it is the sender's posting for this round; the first one stays."""
        return self._take(
            sender,
            data,
            lambda: read_posting(data, self._roster, self._terms.round),
            lambda found: found.advert.site,
            self._postings,
            late=bool(self._members),
        )

    def open_round(self, members: Iterable[str] | None = None) -> None:
        """Fix who takes part: all whose posting came, or those of an opening that was sent.

        Raises:
            SumSpoiled: fewer than S - t, or one without a posting.
        """
        if self._members:
            return
        chosen = self._choose(members, self._postings, "sites in the round")
        self._members = chosen
        self._context = find_context(self._roster, self._terms, self._adverts())

    def take_masked(self, sender: str, data: bytes) -> bool:
        """Whether it is the sender's vector of this round. After :meth:`ask_survivors` none is
        taken: it would stay masked."""
        return self._take(
            sender,
            data,
            lambda: read_masked(data, self._roster, self._context, self._terms),
            lambda found: found.site if found.site in self._members else "",
            self._masked,
            late=bool(self._survivors) or not self._members,
        )

    def ask_survivors(self, survivors: Iterable[str] | None = None) -> None:
        """Fix whose vectors are summed: all that came, or those of an asking that was sent. Sites
        answer one set, so that there is no second try.

        Raises:
            SumSpoiled: fewer than S - t, or one without a vector.
        """
        if self._survivors:
            return
        self._survivors = self._choose(survivors, self._masked, "masked vectors")

    def take_reveal(self, sender: str, data: bytes) -> bool:
        """Whether it is the sender's answer for these survivors. A share that is not the one that
        its owner tagged is left out, and names the sender."""
        return self._take(
            sender,
            data,
            self._read_reveal(sender, data),
            lambda found: found.site if found.site in self._survivors else "",
            self._reveals,
            late=not self._survivors,
        )

    def _read_reveal(self, sender: str, data: bytes) -> Callable[[], Reveal]:
        def read() -> Reveal:
            found = read_reveal(data, self._roster, self._context)
            if found.survivors != self._survivors:
                raise UploadRejected(
                    "an answer for other survivors than were asked", value=found.site
                )
            good = {
                owner: share
                for owner, share in found.shares.items()
                if self._fits_tag(owner, found.site, share)
            }
            false = self._without(found.shares, good)
            if false:
                self.faults[sender] = UploadRejected(
                    "shares that their owners did not give", value=", ".join(false)
                )
            return Reveal(found.site, found.survivors, good, found.data)

        return read

    def _fits_tag(self, owner: str, holder: str, share: bytes) -> bool:
        if owner not in self._members:
            return False
        kind = self._kind(owner)
        tag = masks.tag_share(share, self._roster.digest, self._terms.round, owner, holder, kind)
        return tag == self._postings[owner].advert.tags.get((kind, holder))

    def _kind(self, owner: str) -> str:
        return KINDS[owner not in self._survivors]

    def _take(
        self,
        sender: str,
        data: bytes,
        read: Callable[[], Message],
        name: Callable[[Message], str],
        kept: dict[str, Message],
        *,
        late: bool,
    ) -> bool:
        """Read a message and keep the first good one of its sender."""
        if sender in kept:
            return True
        try:
            if late:
                raise UploadRejected("a message of a stage that is not now", value=sender)
            found = read()
            if name(found) != sender:
                raise UploadRejected("a message of another site", value=name(found) or sender)
        except PenstockError as error:
            self.faults[sender] = error
            return False
        kept[sender] = found
        return True

    def _choose(
        self, sites: Iterable[str] | None, there: Mapping[str, object], what: str
    ) -> tuple[str, ...]:
        chosen = self._roster.sort(set(there if sites is None else sites))
        absent = self._without(chosen, there)
        if absent:
            raise SumSpoiled(f"no message of some {what}", value=", ".join(absent))
        if not len(chosen) >= self._roster.quorum:
            raise SumSpoiled(
                f"too few {what}",
                value=len(chosen),
                bound=f"at least {self._roster.quorum}",
                remedy="nothing was unmasked; begin another round",
            )
        return chosen

    def _adverts(self) -> list[Advert]:
        return [self._postings[site].advert for site in self._members]

    @property
    def ready(self) -> bool:
        """Whether enough shares of every secret are there."""
        return bool(self._survivors) and all(
            len(self._shares(owner)) >= self._roster.threshold for owner in self._members
        )

    def _shares(self, owner: str) -> dict[int, int]:
        return {
            self._roster.place(holder): from_bytes(reveal.shares[owner])
            for holder, reveal in self._reveals.items()
            if owner in reveal.shares
        }

    def find_sum(self) -> list[int]:
        """The sum of the survivors' vectors, as whole numbers from -2^(bits-1) on.

        Raises:
            SumSpoiled: too few shares of a site's secret came, or they do not give what its advert
                promised; it names the site.
        """
        total = Residues.from_bytes(
            bytes(self._terms.size * self._terms.bits // 8), self._terms.bits, self._terms.size
        )
        for site in self._survivors:
            total = total + self._masked[site].vector
        taken_off = [
            MaskKey(each.key, not each.added)
            for owner in self._members
            for each in self._find_masks(owner)
        ]
        return apply_masks(total, taken_off).to_numbers()

    def _find_masks(self, owner: str) -> list[MaskKey]:
        """What is still in the sum because of a site: a survivor's self mask, or what survivors
        masked towards one that was lost."""
        advert = self._postings[owner].advert
        seed = self._find_seed(owner)
        if owner in self._survivors:
            fits = advert.commitment == masks.commit(
                seed, self._roster.digest, self._terms.round, owner
            )
            found = [masks.self_mask(seed, self._context, owner)]
        else:
            private = masks.open_mask_seed(seed)
            fits = advert.mask_key == masks.public_bytes(private)
            towards = (
                masks.pair_mask(
                    private, self._postings[site].advert.mask_key, self._context, owner, site
                )
                for site in self._survivors
            )
            # The survivor has the other sign.
            found = [MaskKey(each.key, not each.added) for each in towards]
        if not fits:
            raise SumSpoiled(
                "a site gave shares of another secret than it promised",
                value=owner,
                remedy="leave it out of the next round",
            )
        return found

    def _find_seed(self, owner: str) -> bytes:
        shares = self._shares(owner)
        if not len(shares) >= self._roster.threshold:
            raise SumSpoiled(
                f"too few shares of a secret of {owner}",
                value=len(shares),
                bound=f"at least {self._roster.threshold}",
                remedy=f"wait for {', '.join(self.waiting)}" if self.waiting else None,
            )
        first = sorted(shares)[: self._roster.threshold]
        return to_bytes(join_shares({place: shares[place] % PRIME for place in first}))
