"""One run of a forecast: a cohort of nobody, its release, and what is estimated on both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile

import numpy as np

from penstock.forecast.recipe import Recipe, make_recipe
from penstock.mechanisms.joint.consortium import SITE
from penstock.mechanisms.protocol import AnyMechanism, Asked, Bools, Plan, Settings
from penstock.mechanisms.released import Kind
from penstock.privacy.noise.sources import NoiseSource
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Coded, Floats, Schema
from penstock.schema.encoding import Encoding
from penstock.study.study import Study


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one run: the variance of the rows' own estimate, and how far the released one is off.

    NaN where there is none.
    """

    variance: float
    off: float


@dataclass(frozen=True, slots=True)
class Trials:
    """What all runs at a size share.

    Args:
        asked, plan: of the mechanism; of one release of all sites each row's site is a column.
        sizes: the persons of each site of one release; one of a site's own.
    """

    study: Study
    mechanism: AnyMechanism
    asked: Asked[Settings]
    plan: Plan
    sizes: tuple[int, ...]
    _recipe: Recipe = field(init=False)
    _encoding: Encoding = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_recipe", make_recipe(self.study))
        object.__setattr__(self, "_encoding", Encoding(self.asked.schema))

    def run(self, noise: NoiseSource) -> dict[str, Seen]:
        """One cohort, one release, and each estimand on both."""
        rng = noise.generator()
        held = np.concatenate([self._hold(persons) for persons in self.sizes])
        coded = self._draw(rng)
        laid_out = self._lay_out(coded, held, rng)
        public = None
        if self.study.privacy.guarantee == "public-flow":  # of other persons, as like as can be
            public = self._lay_out(self._draw(rng), held, rng)
        own = {name: values[np.repeat(held, self.plan.rows)] for name, values in coded.items()}
        if self.mechanism.tells_estimates:
            return self._compare_answer(own, laid_out, noise)
        copies = list(self._release(*laid_out, public, noise))
        share = self.mechanism.share_rows(self.asked, self.plan.persons)
        estimands = self.asked.estimands
        return {e.name: _compare(self.asked.schema, e, own, copies, share) for e in estimands}

    def _hold(self, persons: int) -> Bools:
        """Which places of a frame have a person."""
        return np.arange(persons) < max(round(self.study.planning.filled * persons), 1)

    def _compare_answer(
        self, own: Coded, laid_out: tuple[Floats, Bools], noise: NoiseSource
    ) -> dict[str, Seen]:
        """Of an answer, which is the estimates."""
        part, *_ = self.mechanism.run(self.plan, self._encoding, *laid_out, noise)
        told = self.mechanism.read_answer(self.asked, part.columns)
        real = {e.name: estimate(own, self.asked.schema, e) for e in self.asked.estimands}
        return {name: Seen(one.variance, told[name] - one.estimate) for name, one in real.items()}

    def _draw(self, rng: np.random.Generator) -> Coded:
        coded = self._recipe.draw(self.plan.persons * self.plan.rows, rng)
        if SITE in self.asked.schema.names and SITE not in coded:
            own = np.repeat(np.arange(float(len(self.sizes))), self.sizes)
            coded[SITE] = np.repeat(own, self.plan.rows)
        return coded

    def _lay_out(self, coded: Coded, held: Bools, rng: np.random.Generator) -> tuple[Floats, Bools]:
        """Rows (n, k, d) and presence (n, k), as a site's worker has them."""
        rows, present = self._encoding.encode(coded, rng)
        present = present & np.repeat(held, self.plan.rows)
        rows[~present] = 0.0
        n, k = self.plan.persons, self.plan.rows
        return rows.reshape(n, k, -1), present.reshape(n, k)

    def _release(
        self,
        rows: Floats,
        present: Bools,
        public: tuple[Floats, Bools] | None,
        noise: NoiseSource,
    ) -> Iterator[Coded]:
        """The copies alone: they come first, and nothing is repeated on them."""
        shape = self.mechanism.shape(self.asked, self.plan.persons)
        parts = self.mechanism.run(self.plan, self._encoding, rows, present, noise, public=public)
        copies = takewhile(lambda part: shape.part(part.name).kind is Kind.COPY, parts)
        for _, pieces in groupby(copies, key=lambda part: part.name):
            held = [piece.columns for piece in pieces]
            yield {name: np.concatenate([h[name] for h in held]) for name in held[0]}


def _compare(
    schema: Schema, asked: Estimand, own: Coded, copies: Sequence[Coded], share: float
) -> Seen:
    real = estimate(own, schema, asked)
    of_all = share if asked.regression.total else 1.0
    found = [estimate(copy, schema, asked).estimate for copy in copies]
    good = [value for value in found if not math.isnan(value)]
    if 2 * len(good) < len(found):  # as a coordinator decides
        return Seen(real.variance, math.nan)
    return Seen(real.variance, float(np.mean(good)) / of_all - real.estimate)
