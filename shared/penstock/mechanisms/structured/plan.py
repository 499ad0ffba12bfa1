"""The plan of ``structured``: from a study and the public n to noise multipliers and charges.

Pure and public: no row is read, and no torch is imported, so that the gate can price a study before
it starts a worker. :mod:`~penstock.mechanisms.structured.run` carries the plan out.

=======================  ===============================================  =================
measurement              what is released                                 event
=======================  ===============================================  =================
margins                  counts of each column's cells, each duration's   DiscreteGaussian
                         times by event, and the number of rows
means                    a sum of clipped values of columns of which a    DiscreteGaussian
                         mean, a share or a count is declared, and of
                         numbers that are outcomes
moments                  second moments of weighted, clipped scores; not  DiscreteGaussian
                         of levels whose pairs are counted
pairs                    counts of each pair of columns, where there are  DiscreteGaussian
                         many levels or nobody asks of an outcome
outcome, round 1, 2, …   a sum of clipped scores for each outcome         DiscreteGaussian
=======================  ===============================================  =================

The last rounds ask for declared coefficients alone: a duration of which nobody asks has but the
first ones. One scale of noise for all, divided by the root of each one's share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from penstock.base.errors import InvalidInput
from penstock.mechanisms.classes.pair_counts import (
    GROUPS,
    choose_groups,
    measure_pairs,
    share_error,
)
from penstock.mechanisms.copula.densities import STIFFNESS, STIFFNESSES
from penstock.mechanisms.copula.grids import Grid, make_grid, part
from penstock.mechanisms.copula.told_means import Meant
from penstock.mechanisms.refusals import list_informal
from penstock.mechanisms.released import Copied
from penstock.mechanisms.structured.counting import measure_margins
from penstock.mechanisms.structured.declared import (
    Drawn,
    list_covariates,
    list_durations,
    list_outcomes,
)
from penstock.mechanisms.structured.matching import EXPLORED
from penstock.mechanisms.structured.outcomes.baselines import count_deviations
from penstock.mechanisms.structured.outcomes.hazards import BLOCKS
from penstock.mechanisms.structured.outcomes.links import count_own
from penstock.mechanisms.structured.regressors import most_columns, most_linear, most_pairs
from penstock.mechanisms.structured.score_clipping import UNIT
from penstock.mechanisms.structured.settings import Structured, count_drawn, count_per_fit
from penstock.mechanisms.structured.strata import count_strata
from penstock.mechanisms.tables.moments import measure_moments
from penstock.mechanisms.tables.plan import size_problems
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Event
from penstock.privacy.measurements import WholeSum, charge
from penstock.privacy.request import PrivacyRequest
from penstock.questions.effects import Effect
from penstock.questions.estimands import Estimand
from penstock.questions.models.longitudinal import DIRECTIONS
from penstock.schema import Schema

_ROOM = 1.0
"""By how much a row (scores, 1) may be longer than the root of how many entries it has."""


ROWS_AT_ONCE = 1 << 16
"""That are drawn, of all copies together."""

UNIFORMS = 3
"""By which one person has an outcome."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What part of the budget (1/σ² summed over releases) each measurement has; together 1."""

    margins: float
    moments: float
    rounds: tuple[float, ...]
    pairs: float = 0.0


WITH_OUTCOMES = Shares(0.18, 0.15, (0.14, 0.18, 0.15, 0.20))
"""Most goes to what is drawn from a model of its own. Frozen on simulated cohorts."""

ONE_UNASKED, ONE = Shares(0.47, 0.31, (0.09, 0.13)), Shares(0.4, 0.6, ())
"""Of one covariate: where nobody asks of an outcome, and where there is none."""

PAIRS_WITH_OUTCOMES = Shares(0.16, 0.10, (0.13, 0.17, 0.14, 0.18), 0.12)
"""Where pairs of columns are counted, too."""

PAIRS_UNASKED, PAIRS_ALONE = Shares(0.28, 0.20, (0.07, 0.10), 0.35), Shares(0.33, 0.24, (), 0.43)
"""The same where nobody asks of an outcome, whose models have but the first rounds, and where there
is none; of a table in which all has an order. Moments of less have less, and pairs the rest."""

MEANS = 0.08
"""Part of the budget for declared means and shares of columns, before all else has its share:
frozen on tables that the study of coverage does not name."""

_FINE = 4e-3
"""Error of a cell's count, as a share of the rows, below which bins of numbers are divided finely,
if nobody asks: with more noise than this hardly any would be."""

_WIDE = 12
"""Levels of columns without an order, beyond the first of each, from which pairs are counted even
where somebody asks: a copula would have a latent for each."""


@dataclass(frozen=True, slots=True)
class StructuredPlan:
    """All public parameters of one run.

    Args:
        persons: public n; rows: k, rows per person at most.
        covariates: names of the columns that the population holds.
        outcomes: what is drawn from models of its own, in order, given the covariates and the
            outcomes before it.
        radius: to which rows (scores, 1) are clipped before their moments are summed.
        rounds: each is one release for each outcome, the last ones for those that are asked about.
        pairs: the counts of each pair of covariates; None: these are of a copula.
        stiffnesses: of columns' densities, where pairs are counted.
        fine: bins of numbers are divided by narrow parts, or by their values, and not by wide
            parts alone; groups: of a number's bins, in pairs.
        moments: None, where no score is left: pairs hold all that levels have in common.
        planted: runs with effects planted into the released model; effects: those.
        per_fit: how many refits in a row are drawn from one fit.
        drawn: persons whose rows a table has room for; None: all of them.
        epsilon: of the events at the requested δ.
    """

    persons: int
    rows: int
    copies: int
    refits: int
    covariates: tuple[str, ...]
    outcomes: tuple[Drawn, ...]
    radius: float
    margins: WholeSum
    moments: WholeSum | None
    rounds: tuple[WholeSum, ...]
    planted: int = 0
    effects: tuple[Effect, ...] = ()
    epsilon: float = math.inf
    pairs: WholeSum | None = None
    stiffnesses: tuple[float, ...] = (STIFFNESS,)
    fine: bool = False
    groups: int = GROUPS
    per_fit: int = 1
    drawn: int | None = None
    meant: tuple[Meant, ...] = ()
    means: WholeSum | None = None

    @property
    def room(self) -> int:
        """Rows of a table, at most."""
        return (self.persons if self.drawn is None else self.drawn) * self.rows

    @property
    def share(self) -> float:
        """Of as many rows as were counted, that a table has."""
        return 1.0 if self.drawn is None else self.drawn / self.persons

    def of_tables(self) -> StructuredPlan:
        """The same procedure for a table's rows: as much noise for its size as rows have for
        theirs, so that what it adds to an answer is as large."""
        if self.drawn is None or self.drawn == self.persons:
            return self
        return replace(self, persons=self.drawn, drawn=None).with_noise(self.share)

    def rounds_of(self, outcome: Drawn) -> tuple[WholeSum, ...]:
        """Those that an outcome has a release of."""
        return self.rounds[: _count_rounds(outcome, self.outcomes, len(self.rounds))]

    @property
    def fits(self) -> int:
        """From how many fits to rows of copies the refits are drawn."""
        return -(-self.refits // self.per_fit)

    @property
    def guarantee(self) -> str:
        """There is no other."""
        return "formal"

    @property
    def measurements(self) -> tuple[WholeSum, ...]:
        """All that is asked of rows, and the noise with which it leaves, in order."""
        further = (each for each in (self.means, self.moments, self.pairs) if each is not None)
        return (self.margins, *further, *self.rounds)

    @property
    def events(self) -> tuple[Event, ...]:
        """What the run is charged as."""
        return charge(self.measurements)

    def with_noise(self, factor: float) -> StructuredPlan:
        """The same with so many times the noise."""
        more = partial(_with_noise, factor=factor)
        return replace(
            self,
            margins=self.margins.with_noise(factor),
            means=more(self.means),
            moments=more(self.moments),
            rounds=tuple(each.with_noise(factor) for each in self.rounds),
            pairs=more(self.pairs),
        )


def _with_noise(measurement: WholeSum | None, factor: float) -> WholeSum | None:
    return None if measurement is None else measurement.with_noise(factor)


def plan(
    mechanism: Structured,
    schema: Schema,
    persons: int,
    privacy: PrivacyRequest,
    estimands: Sequence[Estimand] = (),
) -> StructuredPlan:
    """Noise multipliers and charges for a study at a site of ``persons`` persons; reads no row.

    Raises:
        InvalidInput: the study asks for what this mechanism does not do.
        BudgetExceeded: no amount of noise meets ε.
    """
    _check(mechanism, schema, persons, privacy, estimands)
    outcomes = list_outcomes(schema, estimands)
    grids = make_grids(schema, outcomes)
    shares, unasked = _share_budget(grids, outcomes, mechanism), not _is_asked(outcomes, mechanism)
    meant = list_meant(list_counted(schema, outcomes), outcomes, estimands)

    def made(scale: float) -> StructuredPlan:
        return at_scale(mechanism, schema, grids, outcomes, persons, shares, scale, unasked, meant)

    scale = smallest_scale(lambda s: made(s).events, privacy.epsilon, privacy.delta)
    found = made(scale)
    effects = mechanism.list_effects(schema, estimands)
    return replace(
        found,
        per_fit=count_per_fit(mechanism),
        drawn=None
        if mechanism.most_rows is None
        else count_drawn(mechanism, schema.max_rows_per_person, persons),
        planted=mechanism.planted if effects else 0,
        effects=effects,
        epsilon=epsilon(found.events, privacy.delta),
    )


def counts_pairs(grids: Sequence[Grid], outcomes: Sequence[Drawn], mechanism: Structured) -> bool:
    """Whether pairs of covariates are counted as they are, and persons are of classes.

    Where somebody asks of an outcome, most of the budget is for that, and what is left tells more
    of the moments of a few columns than of all their pairs.
    """
    levels = sum(grid.latents for grid in grids if not grid.ordered)
    return len(grids) > 1 and (levels >= _WIDE or not _is_asked(outcomes, mechanism))


def _is_asked(outcomes: Sequence[Drawn], mechanism: Structured) -> bool:
    """For a coefficient of an outcome, or to plant one."""
    return any(outcome.asked for outcome in outcomes) or bool(mechanism.effects)


def _share_budget(
    grids: Sequence[Grid], outcomes: Sequence[Drawn], mechanism: Structured
) -> Shares:
    pairs = counts_pairs(grids, outcomes, mechanism)
    if _is_asked(outcomes, mechanism):
        return PAIRS_WITH_OUTCOMES if pairs else WITH_OUTCOMES
    if not pairs:
        return ONE_UNASKED if outcomes else ONE
    shares = PAIRS_UNASKED if outcomes else PAIRS_ALONE
    ordered = sum(grid.ordered for grid in grids) / len(grids)
    rest = shares.moments * (1 - ordered**2)
    return replace(shares, moments=shares.moments - rest, pairs=shares.pairs + rest)


def make_grids(schema: Schema, outcomes: Sequence[Drawn] = (), fine: bool = False) -> list[Grid]:
    """The cells of each covariate: of every column but outcomes and durations' events.

    Args:
        fine: parts of bins, where values are not counted, are narrow.
    """
    return [part(make_grid(column), fine) for column in list_covariates(schema, outcomes)]


def list_counted(schema: Schema, outcomes: Sequence[Drawn], fine: bool = False) -> list[Grid]:
    """The cells of all columns that have some: covariates, then outcomes but durations."""
    drawn = [make_grid(schema[outcome.column]) for outcome in outcomes if not outcome.lasting]
    return [*make_grids(schema, outcomes, fine), *drawn]


def list_given(schema: Schema, outcomes: Sequence[Drawn], index: int) -> list[Grid]:
    """The columns given which an outcome is drawn: covariates, and outcomes before it."""
    counted, covariates = list_counted(schema, outcomes), len(make_grids(schema, outcomes))
    before = sum(not outcome.lasting for outcome in outcomes[:index])
    return counted[: covariates + before]


def list_asked(grids: Sequence[Grid], outcomes: Sequence[Drawn]) -> list[str]:
    """Numbers whose coefficients are asked for."""
    terms = {name for outcome in outcomes for name in outcome.terms}
    return [grid.column.name for grid in grids if grid.numeric and grid.column.name in terms]


def list_meant(
    grids: Sequence[Grid], outcomes: Sequence[Drawn], estimands: Sequence[Estimand]
) -> tuple[Meant, ...]:
    """Declared means, shares and counts of single columns, over all rows, each once, but of levels
    that are outcomes, which counts and scores know; and the mean of each number that is an outcome:
    of its tail, which few rows have and which moves a regression most, counts are mostly noise."""
    names = {one.column for one in outcomes}
    drawn = [grid.column.name for grid in grids if grid.numeric and grid.column.name in names]
    columns = {g.column.name: g for g in grids if g.numeric or g.column.name not in names}
    found = [
        _mean_of(columns[e.outcome], e)
        for e in estimands
        if e.regression.averages and e.outcome in columns and not (e.where or e.times)
    ]
    found += map(Meant, drawn)
    return tuple(dict.fromkeys(found))


def _mean_of(grid: Grid, asked: Estimand) -> Meant:
    name = asked.outcome
    if not grid.numeric:
        level = asked.outcome_level
        return Meant(name, "level", 1 if level is None else grid.column.levels.index(level))
    if asked.threshold is None:
        return Meant(name)
    return Meant(name, "above" if asked.direction == DIRECTIONS[0] else "below", asked.threshold)


def measure_means(sigma: float, means: int) -> WholeSum:
    """A sum of whole vectors of norm at most 1, one of each person, with an entry for each mean:
    of k rows a person, each is clipped to 1/k.

    Sensitivity: 1 in L2, zero-out of one person, exactly, as of :func:`measure_outcome`.
    """
    return WholeSum(
        label="means",
        noise_multiplier=sigma,
        sensitivity=1.0,
        squared=Fraction(1),
        unit=UNIT,
        size=means,
    )


def most_score(grids: Sequence[Grid], outcome: Drawn) -> int:
    """The most entries of an outcome's score, given these columns.

    Of a duration: of events, of the baseline, of censoring, and of strata's own baselines.
    Curvatures are of pairs.
    """
    linear = most_linear(grids, outcome.extras, outcome.twice)
    strata = count_strata(grids, outcome.strata)
    own = BLOCKS + linear if outcome.lasting else count_own(outcome.regression)
    own += strata * count_deviations(strata)
    columns = outcome.contrasts * most_columns(grids, outcome.extras, outcome.twice)
    return columns + own + most_pairs(grids, outcome.named, outcome.extras, outcome.plain)


def most_scores(schema: Schema, outcomes: Sequence[Drawn]) -> int:
    """The most entries of any outcome's score."""
    given = [(list_given(schema, outcomes, i), o) for i, o in enumerate(outcomes)]
    return max((most_score(*each) for each in given), default=0)


def measure_outcome(sigma: float, number: int, outcomes: int, size: int) -> WholeSum:
    """One round's sum of scores for each outcome, each a release of its own of at most ``size``.

    Sensitivity: 1 in L2 each, zero-out of one person, exactly: the sum is of whole vectors of norm
    at most 1, one of each person (:func:`~penstock.mechanisms.tables.moments.whole_vectors`).
    """
    return WholeSum(
        label=f"outcome, round {number}",
        noise_multiplier=sigma,
        sensitivity=1.0,
        squared=Fraction(1),
        unit=UNIT,
        size=size,
        count=outcomes,
    )


def at_scale(
    tables: Copied,
    schema: Schema,
    grids: Sequence[Grid],
    outcomes: tuple[Drawn, ...],
    persons: int,
    shares: Shares,
    scale: float,
    unasked: bool = False,
    meant: tuple[Meant, ...] = (),
) -> StructuredPlan:
    """The plan whose releases together are as one Gaussian of noise multiplier ``scale``; its ε is
    left open.

    Args:
        grids: of :func:`make_grids`; unasked: nobody asks of an outcome; meant: of
            :func:`list_meant`.
    """
    means = None
    if meant:
        means = measure_means(scale / math.sqrt(MEANS), len(meant))
        scale = scale / math.sqrt(1 - MEANS)
    rows = schema.max_rows_per_person
    # Where pairs are counted, levels have no scores.
    scored = [grid for grid in grids if grid.ordered or not shares.pairs]
    told = sum(grid.latents for grid in scored) + len(list_asked(grids, outcomes))
    radius = math.sqrt(told + 1) + _ROOM
    if shares.pairs and not told:
        shares = replace(shares, pairs=shares.pairs + shares.moments, moments=0.0)
    durations, fine, most = len(list_durations(schema)), False, GROUPS
    own = scale / math.sqrt(shares.margins)
    margins = measure_margins(own, list_counted(schema, outcomes), durations, rows)
    pairs = None
    if shares.pairs:
        among = scale / math.sqrt(shares.pairs)
        pairs = measure_pairs(among, grids, rows)
        # Public: of n and the noise alone.
        fine = unasked and share_error(margins.sd, persons * rows) < _FINE
        if fine:
            most = choose_groups(pairs.sd, persons * rows)
            parted = list_counted(schema, outcomes, fine)
            margins = measure_margins(own, parted, durations, rows)
            pairs = measure_pairs(among, parted[: len(grids)], rows, most, fine)
    size = most_scores(schema, outcomes)
    return StructuredPlan(
        persons=persons,
        rows=rows,
        copies=tables.copies,
        refits=tables.refits,
        covariates=tuple(grid.column.name for grid in grids),
        outcomes=outcomes,
        radius=radius,
        margins=margins,
        moments=measure_moments(scale / math.sqrt(shares.moments), radius, told, rows)
        if shares.moments
        else None,
        rounds=tuple(
            measure_outcome(scale * math.sqrt(there / share), i + 1, there, size)
            for i, share in enumerate(shares.rounds)
            if (there := sum(i < _count_rounds(o, outcomes, len(shares.rounds)) for o in outcomes))
        ),
        pairs=pairs,
        stiffnesses=STIFFNESSES if unasked else (STIFFNESS,),
        fine=fine,
        groups=most,
        meant=meant,
        means=means,
    )


def _count_rounds(outcome: Drawn, outcomes: Sequence[Drawn], rounds: int) -> int:
    """How many an outcome takes part in; all, where nobody asks of any."""
    return rounds if outcome.asked or not any(o.asked for o in outcomes) else EXPLORED


def _check(
    mechanism: Structured,
    schema: Schema,
    persons: int,
    privacy: PrivacyRequest,
    estimands: Sequence[Estimand],
) -> None:
    """What a valid study may still ask and this mechanism cannot do."""
    problems = size_problems(len(schema.columns), schema.max_rows_per_person, persons)
    problems += mechanism.problems(schema, estimands)
    problems += list_informal(privacy)
    if problems:
        raise InvalidInput("mechanism", problems)
