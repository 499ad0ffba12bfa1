"""The mean change of persons since the first time point, at every later one.

A study asks for one change, or for a slope; the others cost nothing, and are read from the same
copies. Each is an estimand of its own (:mod:`penstock.questions.fits.over_time`), of those who were
seen both times: copies are combined (:mod:`penstock.inference.combine`), refits add what the
mechanism does (:mod:`penstock.inference.refits`), and sites are pooled
(:mod:`penstock.inference.pooling`). Intervals are of one time each, not of the whole course.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock.inference.pooling import Pooled, pool, poolable
from penstock.inference.refits import Measured, widen_sites
from penstock.mechanisms.released import Refitting
from penstock.questions.estimands import Estimand
from penstock.questions.models.longitudinal import CHANGE, LongitudinalModel
from penstock.questions.persons import Courses, estimate_courses
from penstock.schema import Coded, Schema

MOST_POINTS = 40
"""Later time points, beyond which a course is not for the eye, and takes long to read."""

LEVEL = 0.95

Asked = tuple[str, str]
"""An outcome, and a subgroup."""


@dataclass(frozen=True, slots=True)
class SiteChanges:
    """One site's: the column of time, its value at each time point, and of each question the
    later ones' changes."""

    time: str
    times: Sequence[float]
    changes: Mapping[Asked, Sequence[Measured]]


@dataclass(frozen=True, slots=True)
class PooledChange:
    """One time's change: of all sites together, None where none can be read; of sites alone."""

    pooled: Pooled | None
    sites: Mapping[str, float]


def list_changes(estimands: Sequence[Estimand]) -> tuple[Asked, ...]:
    """Of each number whose change, or slope, a question is about."""
    models = [(e, e.regression) for e in estimands]
    changing = [e for e, m in models if isinstance(m, LongitudinalModel) and m.changing]
    return tuple(dict.fromkeys((e.outcome, e.where) for e in changing))


def measure_changes(
    schema: Schema,
    estimands: Sequence[Estimand],
    copies: Sequence[Coded],
    refits: Sequence[Coded],
    read_courses: Callable[[Coded], Courses],
    *,
    made: Refitting,
) -> SiteChanges | None:
    """The changes of one site's copies and refits; None where none is asked for.

    Args:
        made: how refits were made.
    """
    asked = list_changes(estimands)
    if not asked:
        return None
    read, again = ([(t, read_courses(t)) for t in tables] for tables in (copies, refits))
    times = [float(time) for time in read[0][1].middles]
    if not 1 < len(times) <= MOST_POINTS + 1:
        return None

    def measure(one: Asked, until: float) -> Measured:
        outcome, where = one
        estimand = Estimand("change", CHANGE.name, outcome, at=times[0], until=until, where=where)
        fitted, refitted = (
            [estimate_courses(table, schema, estimand, courses) for table, courses in tables]
            for tables in (read, again)
        )
        return Measured.of(fitted, refitted, made=made)

    clock = read[0][1].time
    return SiteChanges(
        clock, times, {one: [measure(one, time) for time in times[1:]] for one in asked}
    )


def pool_changes(asked: Asked, sites: Mapping[str, SiteChanges]) -> list[PooledChange]:
    """Of each later time point, of the sites at which it can be read."""
    wide = widen_sites(
        {
            site: {str(i): one for i, one in enumerate(found.changes[asked])}
            for site, found in sites.items()
        }
    )
    count = min(len(found) for found in wide.values())
    changes = []
    for place in range(count):
        known = {
            site: e
            for site, found in wide.items()
            if (e := found[str(place)]).problem is None and poolable(e.estimate, e.variance)
        }
        pooled = pool(
            [e.estimate for e in known.values()],
            [e.variance for e in known.values()],
            degrees=[e.df for e in known.values()],
            level=LEVEL,
        ) if known else None  # fmt: skip
        changes.append(PooledChange(pooled, {site: e.estimate for site, e in known.items()}))
    return changes
