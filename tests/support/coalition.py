"""What a coordinator and sites that collude with it can work out, from all that they saw.

Masks whose keys the coalition can compute are known to it. Every other key's mask is a *free
variable*: uniform, as far as ChaCha20 and HKDF hide their keys, and the same variable wherever the
same key is used. So what honest sites sent is, number by number, x + A·m with free m: it tells
those combinations of the x that a row vector k with k·A = 0 takes, and nothing else, since A·m
takes all values of A's span alike whatever the x are.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from tests.support.summing import Summing

from penstock.aggregation import masks
from penstock.aggregation.adverts import KINDS, Advert, read_meeting, read_posting
from penstock.aggregation.residues import MaskKey, Residues, apply_masks
from penstock.aggregation.secret_shares import SECRET_BYTES, from_bytes, join_shares, to_bytes


@dataclass(frozen=True)
class Sent:
    """A masked vector of an honest site, and what it stands for: the test's own knowledge."""

    site: str
    round: int
    numbers: list[int]
    masks: list[MaskKey]
    vector: Residues


@dataclass
class Coalition:
    """The coordinator with ``colluders``; everything that honest sites sent it is in here.

    Attributes:
        shares: by round, owner and kind of secret: who holds which share.
        seeds: of every site, by round: the test's own, to say what a mask is made of.
    """

    world: Summing
    colluders: Collection[str]
    shares: dict[tuple[int, str, str], dict[int, int]] = field(default_factory=dict)
    seeds: dict[tuple[int, str, str], bytes] = field(default_factory=dict)
    adverts: dict[tuple[int, str], Advert] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    contexts: set[str] = field(default_factory=set)

    @property
    def honest(self) -> list[str]:
        return [site for site in self.world.roster.sites if site not in self.colluders]

    def see_postings(self, round_: int, meeting: bytes) -> None:
        """All postings of a round, and the colluders' letters, opened."""
        roster = self.world.roster
        keys = {each.site: each.letter_key for each in read_meeting(meeting, roster)}
        for owner, member in self.world.members.items():
            posting = read_posting(member.advertise(round_), roster, round_)
            self.adverts[round_, owner] = posting.advert
            seeds = read_row(self.world, owner, "self_seed, pair_seed", round_)
            self.seeds.update({(round_, owner, k): s for k, s in zip(KINDS, seeds, strict=True)})
            for holder in self.colluders:
                if holder == owner:
                    continue
                (private,) = read_study(self.world, holder, "letter_seed")
                text = masks.open_letter(
                    X25519PrivateKey.from_private_bytes(private),
                    keys[owner],
                    (roster.digest, round_, owner, holder),
                    posting.letters[holder],
                )
                assert text is not None
                for i, kind in enumerate(KINDS):
                    share = text[i * SECRET_BYTES : (i + 1) * SECRET_BYTES]
                    self.keep_share(round_, owner, kind, holder, share)

    def keep_share(self, round_: int, owner: str, kind: str, holder: str, share: bytes) -> None:
        held = self.shares.setdefault((round_, owner, kind), {})
        held[self.world.roster.place(holder)] = from_bytes(share)

    def see_masked(
        self, site: str, round_: int, context: str, numbers: list[int], vector: Residues,
        members: Collection[str],
    ) -> None:  # fmt: skip
        """A masked vector, taken apart into the masks that the protocol says are in it."""
        private = masks.open_mask_seed(self.seeds[round_, site, "pair"])
        keys = [masks.self_mask(self.seeds[round_, site, "self"], context, site)]
        keys += [
            masks.pair_mask(private, self.adverts[round_, peer].mask_key, context, site, peer)
            for peer in members
            if peer != site
        ]
        self.contexts.add(context)
        self.sent.append(Sent(site, round_, numbers, keys, vector))

    def see_reveal(
        self, site: str, round_: int, survivors: Collection[str], shares: Mapping[str, bytes]
    ) -> None:
        for owner, share in shares.items():
            self.keep_share(round_, owner, KINDS[owner not in survivors], site, share)

    def learn_seeds(self) -> dict[tuple[int, str, str], bytes]:
        """Every secret of which threshold many shares are known, and the colluders' own; in every
        round where an advert says that it is this one."""
        threshold = self.world.roster.threshold
        known = {name: seed for name, seed in self.seeds.items() if name[1] in self.colluders}
        for name, held in self.shares.items():
            if len(held) >= threshold:
                first = sorted(held)[:threshold]
                found = to_bytes(join_shares({place: held[place] for place in first}))
                assert found == self.seeds[name], "shares that fit give the secret"
                known.update(dict.fromkeys(self.find_uses(found, *name[1:]), found))
        return known

    def find_uses(self, seed: bytes, owner: str, kind: str) -> list[tuple[int, str, str]]:
        """The rounds whose adverts fit a secret."""
        digest = self.world.roster.digest
        return [
            (round_, owner, kind)
            for (round_, name), advert in self.adverts.items()
            if name == owner
            and (
                advert.commitment == masks.commit(seed, digest, round_, owner)
                if kind == "self"
                else advert.mask_key == masks.public_bytes(masks.open_mask_seed(seed))
            )
        ]

    def learn_keys(self) -> set[bytes]:
        """Every mask's key that follows from the secrets that are known."""
        known = set()
        for (round_, owner, kind), seed in self.learn_seeds().items():
            for context in self.contexts:
                if kind == "self":
                    known.add(masks.self_mask(seed, context, owner).key)
                    continue
                private = masks.open_mask_seed(seed)
                for (other, peer), advert in self.adverts.items():
                    if other == round_ and peer != owner:
                        pair = masks.pair_mask(private, advert.mask_key, context, owner, peer)
                        known.add(pair.key)
        return known

    def learn_sums(self) -> list[dict[tuple[int, str], Fraction]]:
        """A basis of the combinations of honest vectors that are determined: by round and site."""
        for each in self.sent:
            made = apply_masks(Residues.from_numbers(each.numbers, each.vector.bits), each.masks)
            assert made.to_bytes() == each.vector.to_bytes(), "the model is what was sent"
        known = self.learn_keys()
        columns = sorted({m.key for each in self.sent for m in each.masks} - known)
        place = {key: i for i, key in enumerate(columns)}
        rows = []
        for each in self.sent:
            row = [Fraction(0)] * len(columns)
            for mask in each.masks:
                if mask.key in place:
                    row[place[mask.key]] += 1 if mask.added else -1
            rows.append(row)
        names = [(each.round, each.site) for each in self.sent]
        return [
            {name: weight for name, weight in zip(names, weights, strict=True) if weight}
            for weights in find_left_kernel(rows)
        ]

    def find_leaks(self) -> list[dict[tuple[int, str], Fraction]]:
        """What is determined and holds fewer honest sites than are promised, or not alike."""
        return [
            found
            for found in self.learn_sums()
            if len(found) < self.world.roster.honest or len(set(found.values())) > 1
        ]


def find_left_kernel(rows: list[list[Fraction]]) -> list[list[Fraction]]:
    """A basis of all k with k·A = 0, in reduced form, by elimination in fractions."""
    count = len(rows)
    work = [
        [*row, *(Fraction(i == j) for j in range(count))] for i, row in enumerate(rows)
    ]  # fmt: skip
    width = len(rows[0]) if rows else 0
    done = 0
    for column in range(width + count):
        pivot = next((i for i in range(done, count) if work[i][column]), None)
        if pivot is None:
            continue
        work[done], work[pivot] = work[pivot], work[done]
        lead = work[done][column]
        work[done] = [value / lead for value in work[done]]
        for i in range(count):
            if i != done and work[i][column]:
                factor = work[i][column]
                work[i] = [a - factor * b for a, b in zip(work[i], work[done], strict=True)]
        done += 1
    return [row[width:] for row in work if not any(row[:width])]


def read_row(world: Summing, site: str, columns: str, round_: int) -> tuple[bytes, ...]:
    with sqlite3.connect(world.folder / f"{site}.db") as connection:
        sql = f"SELECT {columns} FROM sum_round WHERE round = ?"
        return tuple(connection.execute(sql, (round_,)).fetchone())


def read_study(world: Summing, site: str, columns: str) -> tuple[bytes, ...]:
    with sqlite3.connect(world.folder / f"{site}.db") as connection:
        return tuple(connection.execute(f"SELECT {columns} FROM sum_study").fetchone())
