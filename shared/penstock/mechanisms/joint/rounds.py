r"""One release of many sites, sum by sum.

A mechanism that asks rows for nothing but sums of whole numbers (:class:`WholeSum`) is run at every
site on that site's own rows. Where it asks for a sum, a round begins: each site adds its own part,
with its share of the noise, and the sum of all sites is what the run goes on with. All that a site
does between two sums is a function of the signed study and of the sums before, which are public: so
nobody who coordinates the rounds can choose what is asked, and everybody's run goes the same way.

A run is not kept between rounds. :func:`contribute` begins anew with the sums that there are, up to
the first question that none of them answers: whatever dies in between, nothing is lost, and rows
are in a process for one round at a time. A run of many rounds asks first whether a sum is known
(:func:`~penstock.privacy.measurements.is_known`), and then does not add up rows for it.

Machines round differently, and need not agree on a float: sizes and the order of questions follow
from the plan, and nothing that sites compare is computed from floats. Where their parameters differ
in the last digit, a site's part is what its rows say at parameters that are public as well: its
sensitivity is the same, and the sum is off by as little.

:func:`conclude` is the same with all sums and nobody's rows, and goes on to the release, by whoever
has the sums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import JobFailed
from penstock.mechanisms.joint.plan import JointPlan
from penstock.mechanisms.parts import Part, Progress
from penstock.mechanisms.protocol import AnyMechanism
from penstock.privacy.measurements import Addend, WholeSum
from penstock.privacy.noise.discrete import discrete_gaussian
from penstock.privacy.noise.sources import NoiseSource, SeededNoise
from penstock.schema.encoding import Encoding

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Sums = Sequence[Sequence[int]]
"""Of each round that is over, the noisy sum of all sites: whole numbers on the round's grid."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a site's rows add to the sum of a round, without noise.

    Args:
        label: what is asked; addends: by the variance of the sum's noise.
    """

    label: str
    addends: tuple[Addend, ...]

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return sum(len(addend.whole) for addend in self.addends)

    def add_noise(self, sites: int, noise: NoiseSource) -> list[int]:
        """The numbers with one site's share of the noise: discrete Gaussian, of a variance that is
        ``sites`` times smaller than the sum's."""
        return [
            value + drawn
            for addend in self.addends
            for value, drawn in zip(
                addend.whole,
                discrete_gaussian(addend.variance / Fraction(sites), len(addend.whole), noise),
                strict=True,
            )
        ]


class _Unanswered(Exception):
    """The run has come to a question that no sum answers yet."""

    def __init__(self, contribution: Contribution) -> None:
        super().__init__(contribution.label)
        self.contribution = contribution


class _Rounds:
    """Noise of a run whose sums are of many sites.

    Args:
        sums: of the rounds that are over; noise: for all that is no sum.
    """

    def __init__(self, sums: Sums, noise: NoiseSource) -> None:
        self._sums, self._noise, self._at = sums, noise, 0
        self.insecure = noise.insecure

    @property
    def known(self) -> bool:
        return self._at < len(self._sums)

    def agree(self) -> NoiseSource:
        # Whole numbers alone: every site has the same.
        seen = [[int(value) for value in each] for each in self._sums[: self._at]]
        return SeededNoise(int(hashlib.sha256(repr(seen).encode()).hexdigest(), 16))

    def exchange(self, asked: WholeSum, addends: Sequence[Addend]) -> Sequence[Sequence[int]]:
        contribution = Contribution(asked.label, tuple(addends))
        if self._at == len(self._sums):
            raise _Unanswered(contribution)
        found, self._at = self._sums[self._at], self._at + 1
        if len(found) != contribution.size:
            raise JobFailed("a sum is not of the size that was asked for")
        ends = np.cumsum([len(addend.whole) for addend in addends]).tolist()
        return [
            found[end - len(addend.whole) : end] for end, addend in zip(ends, addends, strict=True)
        ]

    def random_bytes(self, count: int) -> bytes:
        return self._noise.random_bytes(count)

    def normal(self, shape: int | tuple[int, ...]) -> Array:
        return self._noise.normal(shape)

    def uniform(self, shape: int | tuple[int, ...]) -> Array:
        return self._noise.uniform(shape)

    def generator(self) -> np.random.Generator:
        return self._noise.generator()

    def child(self) -> NoiseSource:
        """For refits and the like: what they ask for is no sum of sites."""
        return self._noise.child()


def contribute(
    mechanism: AnyMechanism,
    plan: JointPlan,
    encoding: Encoding,
    rows: Array,
    present: Bools,
    sums: Sums,
    noise: NoiseSource,
) -> Contribution:
    """What a site's rows add to the next sum.

    Relation: zero-out with public n; what leaves with noise (:meth:`Contribution.add_noise`) is
    charged as ``plan.events``, all rounds together. Work follows from public numbers.

    Args:
        rows: (n, k, d), encoded with the column that says of which site they are; n the site's.
        sums: of the rounds before.
        noise: for nothing that leaves.

    Raises:
        JobFailed: no sum is asked for any more.
    """
    try:
        for _ in mechanism.run(plan.carried, encoding, rows, present, _Rounds(sums, noise)):
            break
    except _Unanswered as question:
        return question.contribution
    raise JobFailed("all sums have been asked for")


def conclude(
    mechanism: AnyMechanism,
    plan: JointPlan,
    encoding: Encoding,
    sums: Sums,
    noise: NoiseSource,
    *,
    progress: Progress | None = None,
    threads: int = 1,
) -> Iterator[Part]:
    """The parts of the release, from the sums alone: post-processing, by whoever has them.

    Raises:
        JobFailed: sums are missing.
    """
    nobody = np.zeros((1, plan.carried.rows, encoding.d))
    absent = np.zeros(nobody.shape[:2], dtype=np.bool_)
    try:
        yield from mechanism.run(
            plan.carried,
            encoding,
            nobody,
            absent,
            _Rounds(sums, noise),
            progress=progress,
            threads=threads,
        )
    except _Unanswered as question:
        raise JobFailed("a sum is missing", value=question.contribution.label) from None
