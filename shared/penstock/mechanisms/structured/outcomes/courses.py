r"""Scores of whatever may come of a person in time, in sums that are never laid out.

Who leaves in interval k has, of one kind of hazard,

.. math:: \sum_{j<k} w_j (μ_j - ζ) + r_k (μ_k - ζ) \quad [\; + \; c_k (ζ - μ_k)\; ]

with ζ the person's entries and μⱼ their means among those at risk, w what was expected in an
interval that is passed and r in the one that is left; the last part is of who leaves by this kind.
There are two ways to leave in each interval, and the end: of a thousand persons, tens of thousands
of vectors. Their lengths follow from the products of ζ and μ alone, and so do weighted sums of
them: all is done in arrays of an interval and a person, (K, N).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Places = NDArray[np.intp]
Some: TypeAlias = "slice[None, None, int | None] | Places"
"""Of persons: all, every so many, or these."""


def sum_before(values: Array) -> Array:
    """(K, …) of what stands above each, without it. A row at a time, for the sake of speed: numpy's
    running sum goes from row to row for each number."""
    found = np.empty_like(values)
    found[0] = 0.0
    for at in range(1, len(values)):
        np.add(found[at - 1 : at], values[at - 1 : at], out=found[at : at + 1])
    return found


def sum_after(values: Array, last: Array | float = 0.0) -> Array:
    """(K, …) of what stands below each, without it, and of ``last``, which is below them all."""
    found = np.empty_like(values)
    found[-1] = last
    for at in range(len(values) - 1, 0, -1):
        np.add(found[at : at + 1], values[at : at + 1], out=found[at - 1 : at])
    return found


@dataclass(frozen=True)
class Ways:
    """A number for each way: an event or a loss in each interval, (K, N), or the end, (N,)."""

    event: Array
    loss: Array
    end: Array

    @cached_property
    def leaving(self) -> Array:
        """Either way, (K, N)."""
        return self.event + self.loss

    @cached_property
    def later(self) -> Array:
        """What is to come after each interval, (K, N)."""
        return sum_after(self.leaving, self.end)

    def times(self, other: Ways) -> Ways:
        return Ways(self.event * other.event, self.loss * other.loss, self.end * other.end)

    def only(self, some: Places) -> Ways:
        """Of some persons."""
        return Ways(self.event[:, some], self.loss[:, some], self.end[some])

    def lay_out(self) -> Array:
        """(2 K + 1, N)."""
        return np.concatenate([self.event, self.loss, self.end[None]])


@dataclass(frozen=True)
class Change:
    """By how much chances change with the logarithm of each interval's hazard of one kind: those of
    all that comes later fall in proportion to ``own``, (K, N), and those of leaving there change by
    ``event`` and ``loss``; each times what is summed."""

    own: Array
    event: Array
    loss: Array
    ways: Ways

    @cached_property
    def both(self) -> Array:
        """Of leaving in an interval either way, (K, N)."""
        return self.event + self.loss

    @cached_property
    def falling(self) -> Array:
        """By how much less is to come after each interval, (K, N)."""
        return self.own * self.ways.later

    def only(self, some: Places) -> Change:
        """Of some persons."""
        parts = (self.own[:, some], self.event[:, some], self.loss[:, some])
        return Change(*parts, self.ways.only(some))


@dataclass(frozen=True)
class Kind:
    """The scores of one kind of hazard.

    Args:
        entries: ζ, (N, q); means: μ, (K, q); whole: w, part: r, counted: c; (K, N).
    """

    entries: Array
    means: Array
    whole: Array
    part: Array
    counted: Array

    def weigh(self, weights: Array) -> Kind:
        return replace(self, entries=self.entries * weights, means=self.means * weights)

    @cached_property
    def passed(self) -> Array:
        """What was expected before each interval, (K, N)."""
        return sum_before(self.whole)

    def square(self) -> tuple[Array, Array, Array]:
        """Squared lengths: of who leaves, (K, N), by this kind and otherwise, and at the end."""
        zeta, mu, w, r = self.entries, self.means, self.whole, self.part
        among, own = mu @ mu.T, np.einsum("nq,nq->n", zeta, zeta)
        each, meets = np.diag(among)[:, None], mu @ zeta.T
        until = self.passed
        # ‖Σ w μ‖², and its products with the μ that comes next and with ζ.
        along = np.tril(among, -1) @ w
        size, towards = w * (2 * along + w * each), w * meets
        risen, met = sum_before(size), sum_before(towards)
        at = until + r
        mine = met + r * meets - at * own
        other = risen + r * (2 * along + r * each) - at * (met + r * meets + mine)
        turned = mine - along - r * each + at * meets
        itself = other + self.counted * (2 * turned + own - 2 * meets + each)
        last = until[-1] + w[-1]
        ended = risen[-1] + size[-1] + last * (last * own - 2 * (met[-1] + towards[-1]))
        return itself, other, ended

    def spread(self, ways: Ways, mine: Array) -> Array:
        """Σ over ways of each interval's μ - ζ, weighted, (K, N).

        Args:
            mine: the weight of those that leave by this kind.
        """
        found: Array = self.whole * ways.later
        found += self.part * ways.leaving
        found -= self.counted * mine
        return found

    def sum_ways(self, spread: Array) -> Array:
        """(q, N) Σ over ways of a person's scores, weighted as a :meth:`spread` is."""
        return np.asarray(self.means.T @ spread - spread.sum(axis=0) * self.entries.T)

    def look(self, spread: Array) -> Array:
        """(q,) Σ of scores, weighted as a :meth:`spread` is."""
        return np.asarray(spread.sum(axis=1) @ self.means - spread.sum(axis=0) @ self.entries)

    def change(self, by: Change, moved: Array, spread: Array) -> Array:
        """(K, q) the same of a change of each interval's hazard.

        Args:
            moved: what :class:`Change` says of those that leave by this kind.
            spread: of the chances that change.
        """
        w, own, less = self.whole, by.own, by.both - by.falling
        # By which μ's: of those before, of the interval's own, and of those after.
        turn = np.tril(less @ w.T, -1) - np.triu(own @ spread.T, 1)
        stays = by.both * self.part
        stays -= moved * self.counted
        stays -= by.falling * w
        turn += np.diag(stays.sum(axis=1))
        apart = np.multiply(less, self.passed, out=less)
        apart += stays
        apart -= own * sum_after(spread)
        return np.asarray(turn @ self.means - apart @ self.entries)

    def only(self, some: Some) -> Kind:
        """Of some persons."""
        parts = (np.ascontiguousarray(x[:, some]) for x in (self.whole, self.part, self.counted))
        return Kind(self.entries[some], self.means, *parts)

    def has(self, entry: int) -> bool:
        """Whether an entry is of this kind."""
        return bool(self.entries[:, entry].any() or self.means[:, entry].any())

    def lay_out(self, entry: int) -> tuple[Array, Array, Array]:
        """One entry: (K, N) of who leaves by this kind, and otherwise; (N,) at the end."""
        steps = self.means[:, entry, None] - self.entries[:, entry]
        passed = self.whole * steps
        risen = sum_before(passed)
        other = risen + self.part * steps
        return other - self.counted * steps, other, risen[-1] + passed[-1]


@dataclass(frozen=True, slots=True)
class Bend:
    """One curvature: w and r times a person's square in each interval, (K, N); in these entries."""

    whole: Array
    part: Array
    entries: Array

    def weigh(self, weights: Array) -> Bend:
        return replace(self, entries=self.entries * weights)

    def values(self) -> tuple[Array, Array]:
        """(K, N) of who leaves, and (N,) at the end."""
        risen = sum_before(self.whole)
        return risen + self.part, risen[-1] + self.whole[-1]

    def spread(self, ways: Ways) -> Array:
        """(N,) Σ over ways, weighted."""
        return np.asarray((self.whole * ways.later + self.part * ways.leaving).sum(axis=0))

    def change(self, by: Change) -> Array:
        """(K, q) as of a :class:`Kind`."""
        ways = by.ways
        after = sum_after(self.whole * ways.later + self.part * ways.leaving)
        risen = sum_before(self.whole)
        found = by.both * (risen + self.part)
        found -= by.falling * (risen + self.whole) + by.own * after
        return np.asarray(np.outer(found.sum(axis=1), self.entries))


@dataclass(frozen=True, slots=True)
class Courses:
    """Sums of entries of the scores of all persons, for all that may come of them.

    Args:
        events, losses: of either kind, on columns of their own; bends: curvatures.
        kept: by how much each is shortened; 0 of who has no part.
    """

    events: Kind
    losses: Kind | None
    bends: Sequence[Bend]
    kept: Ways

    def weigh(self, weights: Array) -> Courses:
        """Each entry times its weight."""
        events, bends = self.events.weigh(weights), [bend.weigh(weights) for bend in self.bends]
        losses = None if self.losses is None else self.losses.weigh(weights)
        return replace(self, events=events, losses=losses, bends=bends)

    def square(self) -> list[Array]:
        """Squared lengths of those who have an event, who are lost, (K, N), and at the end."""
        happened, other, ended = self.events.square()
        lost = other
        if self.losses is not None:
            left, nothing, gone = self.losses.square()
            happened, lost, ended = happened + nothing, other + left, ended + gone
        found = [(*bend.values(), bend.entries) for bend in self.bends]
        for at, (left_at, end, one) in enumerate(found):
            for twice, (left_by, end_by, two) in enumerate(found[: at + 1]):
                share = (1 if twice == at else 2) * float(one @ two)
                if share:
                    square = share * left_at * left_by
                    happened, lost = happened + square, lost + square
                    ended = ended + share * end * end_by
        return [happened, lost, ended]

    def shorten(self, squares: Sequence[Array]) -> Courses:
        """Vectors of which these are the squared lengths at most of length 1."""
        factors = Ways(*(1 / np.sqrt(np.maximum(s, 1.0)) for s in squares))
        return replace(self, kept=self.kept.times(factors))

    def look(self, chances: Ways) -> Array:
        """(q,) Σ over persons of what is expected."""
        ways = self.kept.times(chances)
        found = self.events.look(self.events.spread(ways, ways.event))
        if self.losses is not None:
            found = found + self.losses.look(self.losses.spread(ways, ways.loss))
        for bend in self.bends:
            found = found + float(bend.spread(ways).sum()) * bend.entries
        return found

    def sum_ways(self, weights: Ways) -> Array:
        """(q, N) Σ over ways of a person's scores, weighted."""
        ways = self.kept.times(weights)
        found = self.events.sum_ways(self.events.spread(ways, ways.event))
        if self.losses is not None:
            found += self.losses.sum_ways(self.losses.spread(ways, ways.loss))
        for bend in self.bends:
            found += np.outer(bend.entries, bend.spread(ways))
        return found

    def change(self, changes: Sequence[Change]) -> list[Array]:
        """(K, q) by which the sum changes with the logarithm of each interval's hazard; of each of
        some changes, all of the same chances."""
        kept = self.kept
        ways = kept.times(changes[0].ways)
        spread = self.events.spread(ways, ways.event)
        lost = None if self.losses is None else self.losses.spread(ways, ways.loss)
        each = []
        for by in changes:
            mine = Change(by.own, by.event * kept.event, by.loss * kept.loss, ways)
            found = self.events.change(mine, mine.event, spread)
            if self.losses is not None and lost is not None:
                found = found + self.losses.change(mine, mine.loss, lost)
            for bend in self.bends:
                found = found + bend.change(mine)
            each.append(found)
        return each

    def lay_out(self, every: int = 1) -> Array:
        """(2 K + 1, N / every, q) of some persons."""
        return self.lay_some(slice(None, None, every))

    def lay_some(self, some: Some) -> Array:
        """(2 K + 1, some, q) of these."""
        kept = self.kept.lay_out()[:, some]
        kinds = [(self.events.only(some), True)]
        if self.losses is not None:
            kinds.append((self.losses.only(some), False))
        bends = [([each[..., some] for each in bend.values()], bend.entries) for bend in self.bends]
        # Entry by entry: the numbers of one stay in the processor's cache.
        found = np.zeros((self.events.entries.shape[1], *kept.shape))
        for entry, laid in enumerate(found):
            (event, loss), end = np.split(laid[:-1], 2), laid[-1]
            for kind, of_events in kinds:
                if kind.has(entry):
                    mine, other, ended = kind.lay_out(entry)
                    event += mine if of_events else other
                    loss += other if of_events else mine
                    end += ended
            for (left, ended), entries in bends:
                if by := float(entries[entry]):
                    event += by * left
                    loss += by * left
                    end += by * ended
            laid *= kept
        return np.moveaxis(found, 0, 2)


@dataclass(frozen=True, slots=True)
class Divided:
    """Courses of persons that are looked at apart: of each stratum, with means of its own.

    Args:
        parts: the places of some persons, and their courses; together everybody, each once.
    """

    parts: Sequence[tuple[Places, Courses]]

    def weigh(self, weights: Array) -> Divided:
        """As :meth:`Courses.weigh`."""
        return Divided([(some, part.weigh(weights)) for some, part in self.parts])

    def square(self) -> list[Array]:
        """As :meth:`Courses.square`, of one part after the other."""
        return [square for _, part in self.parts for square in part.square()]

    def shorten(self, squares: Sequence[Array]) -> Divided:
        """As :meth:`Courses.shorten`."""
        each = len(squares) // len(self.parts)
        own = [squares[at : at + each] for at in range(0, len(squares), each)]
        return Divided(
            [(some, part.shorten(s)) for (some, part), s in zip(self.parts, own, strict=True)]
        )

    def look(self, chances: Ways) -> Array:
        """As :meth:`Courses.look`."""
        return np.asarray(sum(part.look(chances.only(some)) for some, part in self.parts))

    def sum_ways(self, weights: Ways) -> Array:
        """As :meth:`Courses.sum_ways`."""
        each = [part.sum_ways(weights.only(some)) for some, part in self.parts]
        places = np.concatenate([some for some, _ in self.parts])
        return np.concatenate(each, axis=1)[:, np.argsort(places)]

    def change_each(self, by: Change) -> list[Array]:
        """(K, q) of each part, as :meth:`Courses.change`."""
        return [part.change([by.only(some)])[0] for some, part in self.parts]

    def change(self, changes: Sequence[Change]) -> list[Array]:
        """As :meth:`Courses.change`."""
        return [np.asarray(sum(self.change_each(by))) for by in changes]

    def lay_out(self, every: int = 1) -> Array:
        """As :meth:`Courses.lay_out`."""
        kept = [(some % every == 0, some, part) for some, part in self.parts]
        laid = [part.lay_some(np.flatnonzero(mine)) for mine, _, part in kept]
        places = np.concatenate([some[mine] // every for mine, some, _ in kept])
        return np.concatenate(laid, axis=1)[:, np.argsort(places)]
