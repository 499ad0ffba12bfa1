"""A cohort of nobody, drawn from a study's planning values: what a forecast is made on.

Numbers have a beta distribution on their bounds, or a log-normal one where ``scale = "log"``, with
the planned mean and sd; levels their shares; both come of correlated normal scores (a Gaussian
copula). Outcomes with a planned effect follow, given what they come of, with η the sum of effects:

============  =====================================================================================
duration      exponential, of hazard λ e^η, beside an exponential time to censoring; the end of
              follow-up is at ``upper``
levels        cumulative logits η; of two levels a logistic model
whole number  of a ratio: Poisson of mean m e^η; with a gamma factor where the sd asks for more.
              Where it is asked per unit of an exposure, its logarithm is part of η
number        of a difference: its distribution about η, shrunk so that its sd stays
============  =====================================================================================

λ, thresholds and m are set once, on a fixed public cohort, so that shares and means are as planned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincinv, expit, gammaincinv, logit, ndtr

from penstock.base.errors import InvalidInput, Problem
from penstock.questions.grammar import Comparison
from penstock.questions.terms import DesignTerm, find_subgroup
from penstock.schema import LEVEL_KINDS, Coded, Column, Floats
from penstock.study.planning import (
    PlannedColumn,
    asked_term,
    correlation,
    list_origins,
    order_outcomes,
)
from penstock.study.study import Study

EVENTS, CENSORED, SPIKED = 0.2, 0.1, 0.2
"""Of a duration, and of a column with a spike, where nothing is planned."""

_WIDEST = 40.0
"""Of a logarithm of a ratio, over all persons: what no planning value can mean."""

_SIXTH = 6.0
_REFERENCE = 4096
_FOLLOWED = 1e-3
"""The least share that is followed to the end: constant hazards leave nobody only in infinity."""

_EDGE = 1e-12


class Source(Protocol):
    """One column of a cohort, or a duration's two, given those before."""

    def draw(self, before: Coded, score: Floats, rng: np.random.Generator) -> Coded: ...


@dataclass(frozen=True, slots=True)
class Recipe:
    """How rows are drawn: correlated scores, and of these each column in turn.

    Args:
        names: of the columns that have a correlated score; root: (c, c), of their correlations.
        sources: each with its column's name, after those of which it comes.
        order: of the schema's columns.
    """

    names: tuple[str, ...]
    root: Floats
    sources: tuple[tuple[str, Source], ...]
    order: tuple[str, ...]

    def draw(self, rows: int, rng: np.random.Generator) -> Coded:
        """So many rows of nobody, coded; missing where the plan says so."""
        scores = rng.standard_normal((rows, len(self.names))) @ self.root.T
        place = {name: i for i, name in enumerate(self.names)}
        drawn: Coded = {}
        for name, source in self.sources:
            score = scores[:, place[name]] if name in place else rng.standard_normal(rows)
            drawn |= source.draw(drawn, score, rng)
        return {name: drawn[name] for name in self.order}


def make_recipe(study: Study) -> Recipe:
    """How the rows of a study are drawn that are as its analyst expects."""
    columns, planning = study.schema.columns, study.planning
    events = {c.event for c in columns if c.event is not None}
    effects = _list_effects(study)
    # A study has checked that there is an order.
    last = order_outcomes(list_origins(planning, study.estimands)) or []
    drawn = [c.name for c in columns if c.name not in events]
    names = tuple(c.name for c in columns if c.kind not in ("duration", "event"))
    root = np.asarray(np.linalg.cholesky(correlation(planning, names)), dtype=np.float64)
    sources: list[tuple[str, Source]] = []
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((_REFERENCE, len(names))) @ root.T
    reference: Coded = {}
    for name in [*(n for n in drawn if n not in last), *last]:
        planned, column = planning.column(name), study.schema[name]
        eta = _Sum(tuple(effects.get(name, ())))
        _check_reach(study, name, eta, reference)
        source = _make_source(column, planned, eta, reference)
        of = scores[:, names.index(name)] if name in names else rng.standard_normal(_REFERENCE)
        reference |= source.draw(reference, of, rng)
        sources.append((name, source))
    return Recipe(names, root, tuple(sources), study.schema.names)


def _check_reach(study: Study, outcome: str, eta: _Sum, reference: Coded) -> None:
    """Refuse effects that make a hazard, odds or a rate e⁴⁰ times as large in one as in another.

    Raises:
        InvalidInput: naming each planned effect of this outcome.
    """
    found = eta.of(reference, ratio=True)
    if found is None or np.ptp(found) <= _WIDEST:
        return
    planned = [(e, study.planning.effect(e.name)) for e in study.estimands if e.outcome == outcome]
    message = f"makes one person's {outcome} e^{np.ptp(found):.0f} times as likely as another's"
    remedy = "Say the logarithm of the ratio, per the estimand's per"
    problems = [
        Problem(f"planning.effects.{e.name}", message, value=f"{size:g}", remedy=remedy)
        for e, size in planned
        if size and e.regression.ratio
    ]
    raise InvalidInput("forecast", problems)


@dataclass(frozen=True, slots=True)
class _Effect:
    """What a unit of a design column adds to η; ``ratio``: to a logarithm.

    Args:
        subgroup: of which rows, empty of all; columns: those that it compares, by name.
    """

    term: DesignTerm
    size: float
    ratio: bool
    subgroup: tuple[Comparison, ...]
    columns: Mapping[str, Column]

    def of(self, table: Coded) -> Floats:
        added = self.size * self.term.of(table)
        if self.subgroup:
            added = np.where(find_subgroup(self.columns, self.subgroup, table), added, 0.0)
        return np.asarray(added)


@dataclass(frozen=True, slots=True)
class _Exposure:
    """The logarithm of the column that a count is per unit of."""

    column: str
    ratio: ClassVar[bool] = True

    def of(self, table: Coded) -> Floats:
        return np.asarray(np.log(table[self.column]))


@dataclass(frozen=True, slots=True)
class _Sum:
    """η of rows: the sum of their effects."""

    effects: tuple[_Effect | _Exposure, ...]

    def of(self, table: Coded, *, ratio: bool) -> Floats | None:
        """None where nothing has an effect of this kind. What is missing counts as the mean."""
        chosen = [e for e in self.effects if e.ratio is ratio]
        if not chosen:
            return None
        whole = {
            name: np.where(np.isnan(values), np.nanmean(values), values)
            for name, values in table.items()
        }
        return np.asarray(np.sum([effect.of(whole) for effect in chosen], axis=0))

    def both(self, table: Coded, count: int) -> Floats:
        """All effects, whatever their kind."""
        found = [self.of(table, ratio=ratio) for ratio in (True, False)]
        return np.asarray(sum((f for f in found if f is not None), start=np.zeros(count)))


def _list_effects(study: Study) -> dict[str, list[_Effect | _Exposure]]:
    """Of each outcome, what is planned of the terms that it is asked about, each term once; and its
    exposure.

    In a subgroup its own effect stands for that of all rows.
    """
    listed: dict[str, list[_Effect | _Exposure]] = {}
    for estimand in study.estimands:
        if estimand.exposure:  # of one outcome there is one
            listed[estimand.outcome] = [_Exposure(estimand.exposure)]
    found: dict[tuple[str, DesignTerm, str], _Effect] = {}
    columns = {column.name: column for column in study.schema.columns}
    for estimand in sorted(study.estimands, key=lambda e: e.where != ""):  # of all rows first
        size = study.planning.effect(estimand.name) / estimand.per
        term = asked_term(estimand, study.schema.columns)
        if size and term is not None:
            of_all = found.get((estimand.outcome, term, ""))
            if estimand.where and of_all is not None:
                size -= of_all.size
            ratio, subgroup = estimand.regression.ratio, estimand.subgroup
            key = (estimand.outcome, term, estimand.where)
            found.setdefault(key, _Effect(term, size, ratio, subgroup, columns))
    for (outcome, _, _), effect in found.items():
        listed.setdefault(outcome, []).append(effect)
    return listed


def _make_source(column: Column, planned: PlannedColumn, eta: _Sum, reference: Coded) -> Source:
    if column.event is not None:
        return _plan_duration(column, planned, eta, reference)
    if column.kind in LEVEL_KINDS:
        levels = _plan_levels(column, planned, eta, reference)
        return _Holed(levels, column.name, planned.missing or 0.0)
    number = _plan_number(column, planned, eta, reference)
    return _Holed(number, column.name, planned.missing or 0.0)


@dataclass(frozen=True, slots=True)
class _Holed:
    """A column, missing in a share of the rows."""

    whole: Source
    name: str
    share: float

    def draw(self, before: Coded, score: Floats, rng: np.random.Generator) -> Coded:
        drawn = self.whole.draw(before, score, rng)
        if not self.share:
            return drawn
        gone = rng.random(len(score)) < self.share
        return {name: np.where(gone, np.nan, values) for name, values in drawn.items()}


# Levels ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Levels:
    """The level above as many thresholds as a logistic error and η pass."""

    name: str
    thresholds: Floats
    eta: _Sum

    def draw(self, before: Coded, score: Floats, rng: np.random.Generator) -> Coded:
        chance = np.clip(ndtr(score), _EDGE, 1 - _EDGE)
        behind = logit(chance) + self.eta.both(before, len(score))
        return {self.name: np.searchsorted(self.thresholds, behind).astype(np.float64)}


def _plan_levels(column: Column, planned: PlannedColumn, eta: _Sum, reference: Coded) -> Source:
    count = len(column.levels)
    shares = np.array(planned.shares or [1 / count] * count)
    at = eta.both(reference, _REFERENCE)
    reach = float(np.abs(at).max()) + 40.0

    def threshold(below: float) -> float:
        if not _EDGE < below < 1 - _EDGE:
            return math.copysign(reach, below - 0.5)
        return _solve(lambda t: float(expit(t - at).mean()) - below, -reach, reach)

    below = np.cumsum(shares)[:-1]
    return _Levels(column.name, np.array([threshold(float(b)) for b in below]), eta)


# Numbers -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shape:
    """A number's distribution within its bounds: beta, or log-normal of the value plus a step.

    Args:
        mean, sd: planned; step: what is added before a logarithm is taken, None without one.
    """

    column: Column
    mean: float
    sd: float
    step: float | None

    def quantile(self, score: Floats) -> Floats:
        lower, upper = self.column.bounds
        if self.step is not None:
            center = self.mean + self.step
            squared = math.log1p((self.sd / center) ** 2)
            log = math.log(center) - squared / 2 + math.sqrt(squared) * score
            return np.asarray(np.exp(log) - self.step)
        width = upper - lower
        share, spread = (self.mean - lower) / width, self.sd / width
        total = share * (1 - share) / spread**2 - 1  # the beta's a + b
        where = betaincinv(total * share, total * (1 - share), ndtr(score))
        return np.asarray(lower + width * where)


@dataclass(frozen=True, slots=True)
class _Number:
    """A number about the sum of its effects; ``kept``: what share of its own spread is left.

    Args:
        center: of η, so that the mean stays.
    """

    shape: _Shape
    spiked: float
    eta: _Sum
    center: float
    kept: float

    def draw(self, before: Coded, score: Floats, rng: np.random.Generator) -> Coded:
        column, values = self.shape.column, self.shape.quantile(score)
        shift = self.eta.of(before, ratio=False)
        if shift is not None:
            own = self.shape.mean + self.kept * (values - self.shape.mean)
            values = own + shift - self.center
        return {column.name: _with_spike(column, column.snap(values), self.spiked, rng)}


@dataclass(frozen=True, slots=True)
class _Count:
    """A count of mean m e^η; ``extra``: variance of the factor that makes it more than Poisson."""

    column: Column
    mean: float
    extra: float
    spiked: float
    eta: _Sum

    def draw(self, before: Coded, score: Floats, rng: np.random.Generator) -> Coded:
        risk = self.eta.of(before, ratio=True)
        mean = self.mean * np.exp(np.zeros(len(score)) if risk is None else risk)
        if self.extra:
            chance = np.clip(ndtr(score), _EDGE, 1 - _EDGE)
            mean = mean * gammaincinv(1 / self.extra, chance) * self.extra
        values = self.column.snap(rng.poisson(np.minimum(mean, 1e9)).astype(np.float64))
        return {self.column.name: _with_spike(self.column, values, self.spiked, rng)}


def _with_spike(column: Column, values: Floats, share: float, rng: np.random.Generator) -> Floats:
    if column.spike is None:
        return values
    return np.where(rng.random(len(values)) < share, column.spike, values)


def _plan_number(column: Column, planned: PlannedColumn, eta: _Sum, reference: Coded) -> Source:
    shape = _plan_shape(column, planned)
    spiked = SPIKED if planned.spike is None else planned.spike
    risk = eta.of(reference, ratio=True)
    if risk is not None:
        grown = np.exp(risk)
        mean = shape.mean / float(grown.mean())
        spread = mean**2 * float(np.var(grown))
        extra = max(shape.sd**2 - shape.mean - spread, 0.0) / float(np.mean((mean * grown) ** 2))
        return _Count(column, mean, extra if extra > 1e-3 else 0.0, spiked, eta)
    shift = eta.of(reference, ratio=False)
    if shift is None:
        return _Number(shape, spiked, eta, 0.0, 1.0)
    left = 1 - float(np.var(shift)) / shape.sd**2
    return _Number(shape, spiked, eta, float(shift.mean()), math.sqrt(max(left, 0.01)))


def _plan_shape(column: Column, planned: PlannedColumn) -> _Shape:
    lower, upper = column.bounds
    if column.scale == "log":
        step = 0.0 if column.grid is None else 10.0 ** -(column.decimals or 0)
        ends = math.log(lower + step), math.log(upper + step)
        squared = ((ends[1] - ends[0]) / _SIXTH) ** 2
        middle = math.exp(sum(ends) / 2 + squared / 2) - step
        mean = min(middle, (lower + upper) / 2) if planned.mean is None else planned.mean
        usual = (mean + step) * math.sqrt(math.expm1(squared))
        return _Shape(column, mean, usual if planned.sd is None else planned.sd, step)
    mean = (lower + upper) / 2 if planned.mean is None else planned.mean
    usual = min((upper - lower) / _SIXTH, (mean - lower) / 2, (upper - mean) / 2)
    return _Shape(column, mean, usual if planned.sd is None else planned.sd, None)


# Durations ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Duration:
    """A time to event, to censoring or to the end of follow-up; hazards are per follow-up."""

    column: Column
    event: Column
    hazard: float
    censoring: float
    eta: _Sum
    missing: float

    def draw(self, before: Coded, score: Floats, rng: np.random.Generator) -> Coded:
        eta, count = self.eta.both(before, len(score)), len(score)
        dies = rng.exponential(size=count) / (self.hazard * np.exp(eta))
        leaves = np.full(count, np.inf)
        if self.censoring:
            leaves = rng.exponential(size=count) / self.censoring
        event = (dies <= leaves) & (dies <= 1)
        time = np.minimum(np.minimum(dies, leaves), 1.0) * self.column.bounds[1]
        gone = rng.random(count) < self.missing
        drawn = {self.column.name: self.column.snap(time), self.event.name: event.astype(float)}
        return {name: np.where(gone, np.nan, values) for name, values in drawn.items()}


def _plan_duration(column: Column, planned: PlannedColumn, eta: _Sum, reference: Coded) -> Source:
    events = EVENTS if planned.events is None else planned.events
    censored = min(CENSORED, 1 - events) if planned.censored is None else planned.censored
    most = (1 - _FOLLOWED) / max(events + censored, _EDGE)
    events, censored = events * min(most, 1.0), censored * min(most, 1.0)
    grown = np.exp(eta.both(reference, _REFERENCE))

    def hazard(leaving: float) -> float:
        """The hazard at which the planned share has the event, beside this one of censoring."""

        def excess(log_hazard: float) -> float:
            risk = np.exp(log_hazard) * grown
            return float((risk * _reached(risk + leaving)).mean()) - events

        return math.exp(_solve(excess, -30.0, 30.0))

    def lost(log_leaving: float) -> float:
        leaving = math.exp(log_leaving)
        risk = hazard(leaving) * grown
        return float((leaving * _reached(risk + leaving)).mean()) - censored

    leaving = math.exp(_solve(lost, -20.0, 8.0)) if censored > _EDGE else 0.0
    missing = planned.missing or 0.0
    name = column.event or ""
    event = Column(name, "event", nullable=column.nullable)
    return _Duration(column, event, hazard(leaving), leaving, eta, missing)


def _reached(rate: Floats) -> Floats:
    """∫ e^(−rate·t) dt over the follow-up, which is 1."""
    return np.asarray(-np.expm1(-rate) / rate)


def _solve(excess: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function is 0; the nearer end where it is nowhere."""
    if excess(low) >= 0:
        return low
    if excess(high) <= 0:
        return high
    return float(brentq(excess, low, high, xtol=1e-10))
