"""Planning values: what an analyst expects of the sites' rows, declared before anybody looks.

They stand in the signed study, so that analyst and stewards forecast the same
(:mod:`penstock.forecast`). They come from the literature and from experience, never from the sites'
rows: a forecast from rows would tell of them. Nothing is charged or released by them; answers that
they show to be noise are refused before a charge. Each of them may be left out; what stands for it
follows from the dictionary:

============  =====================================================================================
of a column   where it is not said
============  =====================================================================================
numbers       mean in the middle of the bounds, and an sd of a sixth of their distance; of
              ``scale = "log"`` both in logarithms, so that the column is skewed
levels        all equally often
duration      a fifth has the event by the end of follow-up, a tenth is censored before it
spike         a fifth of the rows has it
missing       none
============  =====================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from penstock.base.checks import Checks, nearest, record, shown, unknown_keys, within
from penstock.base.documents import Json, JsonView
from penstock.base.errors import InvalidInput, PenstockError, Problem
from penstock.questions.estimands import Estimand
from penstock.questions.terms import DesignTerm, design_terms
from penstock.schema import Column, Schema

Pairs = tuple[tuple[str, float], ...]
Array = NDArray[np.float64]

_SHARES = 1e-6
"""By how much shares may miss 1 in all: .333 and .667 are meant."""

_LARGEST = 1e6
_BY_KIND = ("mean", "sd", "shares", "spike", "missing", "events", "censored")


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """What is expected of a column; all but its name may be left out.

    Attributes:
        name: of the column.
        mean, sd: of a number; where it has a spike, of its other values.
        shares: of each level, in order; together 1.
        spike: share of the rows that hold the spike.
        missing: share of the rows in which it is missing.
        events: of a duration, the share with the event by the end of follow-up.
        censored: the share that is censored before the end.
        correlations: with other columns, each pair once: of normal scores, so that it holds for
            numbers on any scale; of levels it is that of what lies behind them.

    Raises:
        InvalidInput: with every problem.
    """

    name: str
    mean: float | None = None
    sd: float | None = None
    shares: tuple[float, ...] = ()
    spike: float | None = None
    missing: float | None = None
    events: float | None = None
    censored: float | None = None
    correlations: Pairs = ()

    def __post_init__(self) -> None:
        check = Checks(f"planning of {shown(self.name)}")
        for field in ("mean", "sd"):
            if getattr(self, field) is not None:
                found = check.number(field, getattr(self, field), "a number")
                check.keep(self, **{field: found})
        for field in ("spike", "missing", "events", "censored"):
            if getattr(self, field) is not None:
                value = getattr(self, field)
                most = 0.99 if field == "missing" else 1.0
                found = check.number(field, value, f"a share, 0 to {most:g}", least=0, most=most)
                check.keep(self, **{field: found})
        if check.sequence("shares", self.shares, 0, 100):
            found_all = [
                check.number("shares", each, "each a share, from 0 to 1", least=0, most=1)
                for each in self.shares
            ]
            sound = [each for each in found_all if each is not None]
            check.keep(self, shares=tuple(sound))
            if len(sound) == len(found_all) and abs(sum(sound) - 1) > _SHARES:
                check.add("shares", "do not add up to 1", value=f"{sum(sound):g}")
        check.keep(self, correlations=_read_pairs(check, "correlations", self.correlations, 1.0))
        check.done()

    def to_dict(self) -> Json:
        """What is said of it, but its name."""
        said = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "name"}
        said["shares"], said["correlations"] = list(self.shares), dict(self.correlations)
        return {key: value for key, value in said.items() if value not in (None, [], {})}


@dataclass(frozen=True, slots=True)
class Planning:
    """What a study says is expected; the empty one says nothing, and is not in a study's text.

    Attributes:
        columns: of columns, each once.
        effects: of estimands, each once: on the scale of coefficients (the logarithm of a ratio, a
            difference), per :attr:`~penstock.questions.estimands.Estimand.per`; 0 where it is not
            said.
        filled: share of a site's frame that holds persons, above 0: frames are declared larger than
            the count.
    """

    columns: tuple[PlannedColumn, ...] = ()
    effects: Pairs = ()
    filled: float = 1.0

    def __post_init__(self) -> None:
        check = Checks("planning")
        if not all(isinstance(c, PlannedColumn) for c in self.columns):
            check.add("columns", "are of the wrong type")
        else:  # in one order, as canonical bytes have them, and none that says nothing
            check.distinct("columns", [c.name for c in self.columns])
            said = (c for c in self.columns if c != PlannedColumn(c.name))
            check.keep(self, columns=tuple(sorted(said, key=lambda c: c.name)))
        check.keep(self, effects=_read_pairs(check, "effects", self.effects, _LARGEST))
        filled = check.number("filled", self.filled, "above 0, at most 1", above=0, most=1)
        check.keep(self, filled=filled)
        check.done()

    def column(self, name: str) -> PlannedColumn:
        """What is said of a column, maybe nothing."""
        return next((c for c in self.columns if c.name == name), PlannedColumn(name))

    def effect(self, estimand: str) -> float:
        """What is expected of an estimand: 0 where nothing is said."""
        return dict(self.effects).get(estimand, 0.0)

    def list_rarest(self) -> Pairs:
        """By column, the share of the rows that have its rarest level, or a duration's event; of
        those of which it is said."""
        found = ((c.name, min(c.shares) if c.shares else c.events) for c in self.columns)
        return tuple((name, share) for name, share in found if share is not None)

    def without(self, names: Sequence[str]) -> Planning:
        """The same, of a study that lacks these columns, which no estimand needs."""
        kept = tuple(
            PlannedColumn(
                **{f.name: getattr(c, f.name) for f in fields(c) if f.name != "correlations"},
                correlations=tuple(pair for pair in c.correlations if pair[0] not in names),
            )
            for c in self.columns
            if c.name not in names
        )
        return Planning(kept, self.effects, self.filled)

    def to_dict(self) -> Json:
        """The canonical JSON form: what is said, and nothing else."""
        said: Json = {
            "columns": {c.name: c.to_dict() for c in self.columns},
            "effects": dict(self.effects),
        }
        said = {key: value for key, value in said.items() if value}
        return said if self.filled == 1 else said | {"filled": self.filled}

    @classmethod
    def from_dict(cls, data: object) -> Planning:
        """Inverse of :meth:`to_dict`.

        Raises:
            InvalidInput: with every problem, whose ``where`` is such as ``columns.age.mean``.
        """
        if not isinstance(data, Mapping):
            raise InvalidInput("planning", [Problem("", "must be a table", value=shown(data))])
        problems = unknown_keys(data, [f.name for f in fields(cls)])
        tables = {key: _table(data, key, problems) for key in ("columns", "effects")}
        columns: list[PlannedColumn] = []
        for name, said in tables["columns"].items():
            try:
                columns.append(_read_column(name, said))
            except InvalidInput as error:
                problems += within(f"columns.{name}", error.problems)
        try:
            found = cls(tuple(columns), tuple(tables["effects"].items()), data.get("filled", 1.0))
        except InvalidInput as error:
            problems += error.problems
        if problems:
            raise InvalidInput("planning", problems)
        return found


def planning_problems(
    planning: Planning, columns: Sequence[Column], estimands: Sequence[Estimand]
) -> list[Problem]:
    """Whether planning values suit a study's columns and estimands, and can all be true at once."""
    check = Checks("planning")
    known = {c.name: c for c in columns}
    for planned in planning.columns:
        column = known.get(planned.name)
        if column is None:
            remedy = nearest(planned.name, known)
            check.add(f"columns.{planned.name}", "is not a column of the study", remedy=remedy)
        else:
            found = _column_problems(planned, column, known)
            check.problems += within(f"columns.{planned.name}", found)
    _check_correlations(check, planning)
    _check_effects(check, planning, columns, estimands)
    return check.problems


def _read_column(name: object, said: object) -> PlannedColumn:
    if isinstance(said, Mapping) and "name" in said:  # the table's own name is
        raise InvalidInput("planning", [Problem("name", "is not a known key")])
    given = said
    if isinstance(said, Mapping) and isinstance(said.get("correlations"), Mapping):
        given = dict(said) | {"correlations": tuple(said["correlations"].items())}
    return record(PlannedColumn, given, f"planning of {shown(name)}", {"name": name})


def _table(data: JsonView, key: str, problems: list[Problem]) -> JsonView:
    found = data.get(key, {})
    if isinstance(found, Mapping):
        return found
    problems.append(Problem(key, "must be a table", value=shown(found)))
    return {}


def _read_pairs(check: Checks, where: str, pairs: object, most: float) -> Pairs | None:
    """Numbers by names, each of at most this magnitude."""
    if not isinstance(pairs, tuple) or not all(
        isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs
    ):
        check.add(where, "must be a table of numbers", value=shown(pairs))
        return None
    bound = f"a number from {-most:g} to {most:g}"
    found = [
        (name, check.number(f"{where}.{name}", value, bound, least=-most, most=most))
        for name, value in pairs
    ]
    check.distinct(where, [name for name, _ in found])
    return tuple(sorted((name, value) for name, value in found if value is not None))


_MEANT = {
    "continuous": ("mean", "sd"),
    "integer": ("mean", "sd"),
    "duration": ("events", "censored"),
    "event": (),
}


def _column_problems(
    planned: PlannedColumn, column: Column, known: Mapping[str, Column]
) -> list[Problem]:
    check = Checks("planning")
    meant = list(_MEANT.get(column.kind, ("shares",)))
    meant += ["missing"] if column.nullable else []
    meant += ["spike"] if column.spike is not None else []
    meant += [] if column.kind in ("duration", "event") else ["correlations"]
    for field in (*_BY_KIND, "correlations"):
        if field not in meant and getattr(planned, field) not in (None, ()):
            text = f"has no meaning for this column of kind {column.kind!r}"
            check.add(field, text, bound=f"one of {', '.join(meant) or 'none'}")
    if check.problems:
        return check.problems
    if planned.shares and len(planned.shares) != len(column.levels):
        value = f"{len(planned.shares)} shares of {len(column.levels)} levels"
        check.add("shares", "are not one for each level", value=value)
    events, censored = planned.events, planned.censored
    if events == 0:
        check.add("events", "is 0: nothing could be estimated", bound="above 0")
    if (events or 0.0) + (censored or 0.0) > 1 + _SHARES:
        check.add("censored", "is more than those without the event", value=shown(censored))
    if column.kind in ("continuous", "integer"):
        _check_number(check, planned, column)
    for other, _ in planned.correlations:
        kind = known[other].kind if other in known else None
        if other == planned.name or kind in (None, "duration", "event"):
            text = "is no other column than a duration or an event"
            check.add(f"correlations.{other}", text, remedy=nearest(other, known))
    return check.problems


def _check_number(check: Checks, planned: PlannedColumn, column: Column) -> None:
    lower, upper = column.bounds
    mean = (lower + upper) / 2 if planned.mean is None else planned.mean
    if not lower < mean < upper:
        bound = f"between the bounds, {lower:g} and {upper:g}"
        check.add("mean", "is out of range", value=shown(mean), bound=bound)
        return
    if planned.sd is None:
        return
    most = math.sqrt((mean - lower) * (upper - mean))
    if not 0 < planned.sd < most:
        bound = f"above 0, below {most:.4g}: no column within its bounds has more at this mean"
        check.add("sd", "is out of range", value=shown(planned.sd), bound=bound)


def _check_correlations(check: Checks, planning: Planning) -> None:
    """Each pair once, and all of them together possible."""
    pairs = [
        tuple(sorted((c.name, other))) for c in planning.columns for other, _ in c.correlations
    ]
    for pair in sorted({pair for pair in pairs if pairs.count(pair) > 1}):
        text = f"is said twice of {pair[0]} and {pair[1]}"
        check.add(f"columns.{pair[0]}.correlations", text, remedy="Say it once")
    names = sorted({name for pair in pairs for name in pair})
    if np.linalg.eigvalsh(correlation(planning, names)).min(initial=1.0) < _SHARES:
        text = "correlations that no columns can have at once"
        check.add("columns", text, remedy="Leave out, or weaken, some of them")


def correlation(planning: Planning, names: Sequence[str]) -> Array:
    """The matrix of planned correlations of these columns' normal scores."""
    place = {name: i for i, name in enumerate(names)}
    matrix = np.eye(len(names))
    for column in planning.columns:
        for other, value in column.correlations:
            if column.name in place and other in place:
                matrix[place[column.name], place[other]] = value
                matrix[place[other], place[column.name]] = value
    return matrix


def asked_term(estimand: Estimand, columns: Sequence[Column]) -> DesignTerm | None:
    """The design column whose coefficient an estimand is; None where there is none."""
    try:
        return design_terms(Schema(tuple(columns)), estimand)[-1]
    except (InvalidInput, PenstockError, KeyError, IndexError):
        return None  # a mean; or the estimand's own problems are listed


def _check_effects(
    check: Checks,
    planning: Planning,
    columns: Sequence[Column],
    estimands: Sequence[Estimand],
) -> None:
    known = {e.name: e for e in estimands}
    kinds = {c.name: c.kind for c in columns}
    said: dict[tuple[str, DesignTerm, str], float] = {}
    for name, value in planning.effects:
        where = f"effects.{name}"
        if name not in known:
            check.add(where, "is not an estimand of the study", remedy=nearest(name, known))
            continue
        asked = known[name]
        if not asked.regression.compares:
            check.add(where, f"has no meaning for a {asked.model}", remedy="Say the column's mean")
            continue
        if kinds.get(asked.outcome) == "event" and value:
            text = "is of an event, which is drawn with its duration"
            check.add(where, text, remedy="Give the effect to a model of the duration")
            continue
        if asked.regression.names_level and value:
            text = "is of one level of several, of which no forecast is made"
            check.add(where, text, remedy="Leave it out: what is forecast is then of no effect")
            continue
        term = asked_term(asked, columns)
        if term is None or value == 0:
            continue
        of = (asked.outcome, term, asked.where)
        if said.setdefault(of, value / asked.per) != value / asked.per:
            text = "is not what another estimand of the same outcome and term says"
            check.add(where, text, value=shown(value))
    if order_outcomes(list_origins(planning, estimands)) is None:
        check.add("effects", "go in a circle: an outcome would come of itself")


def list_origins(planning: Planning, estimands: Sequence[Estimand]) -> dict[str, set[str]]:
    """Of each outcome with a planned effect, or an exposure, the columns of which it comes."""
    found: dict[str, set[str]] = {}
    for estimand in estimands:
        if estimand.exposure:
            found.setdefault(estimand.outcome, set()).add(estimand.exposure)
        if estimand.regression.compares and planning.effect(estimand.name):
            compared = {comparison.column for comparison in estimand.subgroup}
            found.setdefault(estimand.outcome, set()).update(estimand.target.columns, compared)
    return found


def order_outcomes(follows: Mapping[str, set[str]]) -> list[str] | None:
    """Outcomes, each after those of which it comes; None where they go in a circle."""
    order: list[str] = []
    while len(order) < len(follows):
        ready = [
            name
            for name, terms in follows.items()
            if name not in order and all(t in order or t not in follows for t in terms)
        ]
        if not ready:
            return None
        order += ready
    return order


NOTHING = Planning()
"""What a study says that expects nothing."""
