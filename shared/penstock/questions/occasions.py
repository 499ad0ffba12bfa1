"""What an estimand of persons over time says beside its columns: times, a threshold, two levels.

Whether a time is one of the study's, its mechanism knows
(:mod:`penstock.mechanisms.trajectory.asked_times`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from penstock.base.checks import Checks, shown
from penstock.questions.models.longitudinal import DIRECTIONS, NUMBERS, LongitudinalModel
from penstock.questions.models.model import Model
from penstock.questions.roles import find_role, refuse_level
from penstock.schema import Column

Time = float | str
"""A number, or a level of an ordered column."""

LARGEST = 1e12


def tell_time(time: Time) -> str:
    """A time as a study writes it.

    Example:
        >>> tell_time(6.0), tell_time("m6")
        ('6', 'm6')
    """
    return time if isinstance(time, str) else f"{time:g}"


class Timed(Protocol):
    """What is looked at here of an estimand."""

    @property
    def model(self) -> str: ...
    @property
    def regression(self) -> Model: ...
    @property
    def outcome(self) -> str: ...
    @property
    def term(self) -> str: ...
    @property
    def level(self) -> str | None: ...
    @property
    def outcome_level(self) -> str | None: ...
    @property
    def at(self) -> Time | None: ...
    @property
    def until(self) -> Time | None: ...
    @property
    def times(self) -> tuple[Time, ...]: ...
    @property
    def probability(self) -> float | None: ...
    @property
    def threshold(self) -> float | None: ...
    @property
    def direction(self) -> str: ...


def keep_occasions(check: Checks, estimand: Timed) -> None:
    """Check and keep what is written, whatever the model."""
    for field in ("at", "until"):
        given = getattr(estimand, field)
        if isinstance(given, str):
            check.text(field, given, 64)
        elif given is not None:
            found = check.number(field, given, "a time, or a level", least=-LARGEST, most=LARGEST)
            check.keep(estimand, **{field: found})
    if estimand.probability is not None:
        bound = "between 0 and 1, such as 0.5"
        found = check.number("probability", estimand.probability, bound, above=0, below=1)
        check.keep(estimand, probability=found)
    if estimand.threshold is not None:
        found = check.number(
            "threshold", estimand.threshold, "a number", least=-LARGEST, most=LARGEST
        )
        check.keep(estimand, threshold=found)
    if estimand.direction != "":
        check.choice("direction", estimand.direction, DIRECTIONS)


def check_occasions(
    check: Checks, estimand: Timed, known: Mapping[str, Column], broken: Collection[str]
) -> None:
    """Whether what is said beside columns suits the model, and columns suit what is said."""
    model = estimand.regression
    least, most = count_times(model)
    ends = isinstance(model, LongitudinalModel) and model.ends
    if ends and estimand.at is None:
        _check_end(check, estimand, known)
    elif estimand.until is not None and estimand.at is None:
        check.add("until", "is the second of two times", remedy="Say at, the first one, too")
    elif not least <= len(estimand.times) <= most:
        _refuse_times(check, estimand, least, most)
    outcome = known.get(estimand.outcome)
    named = isinstance(model, LongitudinalModel) and outcome is not None and model.of_level(outcome)
    asks: tuple[str, ...] = ()
    sure = outcome is not None
    if isinstance(model, LongitudinalModel):
        asks = model.asks if outcome is None else model.asks_of(outcome)
        sure = sure or not model.level  # else a level may be all that its outcome needs
    for field in ("probability", "threshold", "direction"):
        given = getattr(estimand, field)
        if field in asks and given in (None, ""):
            if not sure:
                continue
            check.add(field, f"is missing: a {estimand.model} needs it")
        elif field not in asks and given not in (None, ""):
            what = f"has no meaning for a {estimand.model}{' of a level' if named else ''}"
            check.add(field, what, value=shown(given), remedy="Remove it")
    if named and outcome is not None:
        _check_level(check, estimand, "outcome_level", outcome, "must be a level of the outcome")
    numeric = outcome is not None and outcome.kind in NUMBERS
    if estimand.threshold is not None and outcome is not None and numeric:
        lower, upper = outcome.bounds
        if not lower < estimand.threshold < upper:
            value, bound = shown(estimand.threshold), f"between {lower:g} and {upper:g}"
            check.add("threshold", "lies outside the outcome's bounds", value=value, bound=bound)
    if isinstance(model, LongitudinalModel) and model.pairs:
        _check_pair(check, estimand, known, broken)
    if isinstance(model, LongitudinalModel) and model.cells and outcome is not None:
        message = "must be a level of the outcome: from level, to outcome_level"
        for field in ("level", "outcome_level"):
            _check_level(check, estimand, field, outcome, message)
    if model.needs_event and outcome is not None and not ends:
        _check_moments(check, estimand, outcome)


def _check_level(check: Checks, estimand: Timed, field: str, outcome: Column, message: str) -> None:
    given = getattr(estimand, field)
    if given not in outcome.levels:
        refuse_level(check, field, message, given, outcome.levels)


def _check_moment(check: Checks, field: str, at: Time | None, duration: Column) -> None:
    """A time of the duration itself, after its start."""
    if at is None or duration.kind != "duration":
        return  # said already
    upper = duration.bounds[1]
    if isinstance(at, str) or not 0 < at <= upper:
        bound = f"above 0, at most {upper:g}"
        check.add(field, "must be a time of the duration", value=shown(at), bound=bound)


def _check_end(check: Checks, estimand: Timed, known: Mapping[str, Column]) -> None:
    """Up to which time of a duration events count; of other columns there is none."""
    model, outcome = estimand.regression, known.get(estimand.outcome)
    if estimand.until is None and isinstance(model, LongitudinalModel) and model.bounded:
        remedy = "Say a time that all sites' follow-up reaches"
        check.add("until", f"is missing: a {estimand.model} is until a time", remedy=remedy)
    if estimand.until is None or outcome is None:
        return
    if outcome.kind == "duration":
        _check_moment(check, "until", estimand.until, outcome)
    else:
        what = f"has no meaning for a {estimand.model} of a column that is no duration"
        check.add("until", what, value=shown(estimand.until), remedy="Remove it")


def _check_moments(check: Checks, estimand: Timed, duration: Column) -> None:
    """Times of the duration itself: a landmark before its end, any other after its start."""
    if duration.kind != "duration":
        return  # said already
    upper, begins = duration.bounds[1], estimand.regression.compares or estimand.until is not None
    for field, given in (("at", estimand.at), ("until", estimand.until)):
        if given is None:
            continue  # said already, where it is to be there
        landmark = begins and field == "at"
        fits = not isinstance(given, str) and (
            0 <= given < upper if landmark else 0 < given <= upper
        )
        if not fits:
            bound = f"from 0, below {upper:g}" if landmark else f"above 0, at most {upper:g}"
            check.add(field, "must be a time of the duration", value=shown(given), bound=bound)
            return
    first, last = estimand.at, estimand.until
    if isinstance(first, float) and isinstance(last, float) and not first < last:
        check.add("until", "is not after at", value=shown(last), bound=f"above {first:g}")


def count_times(model: Model) -> tuple[int, int]:
    """How many times an estimand of this model names, at least and at most.

    A regression may be of a time, or of columns at one with its outcome at a later one; that of a
    duration is from a landmark on.
    """
    if isinstance(model, LongitudinalModel):
        return model.least, model.most
    return 0, 2 if model.compares and not model.needs_event else 1


def _refuse_times(check: Checks, estimand: Timed, least: int, most: int) -> None:
    if len(estimand.times) < least:
        field, what = ("at", "a time") if estimand.at is None else ("until", "a second time")
        check.add(field, f"is missing: a {estimand.model} is of {what}")
    else:
        field = "at" if most == 0 else "until"
        given = shown(getattr(estimand, field))
        what = f"has no meaning for a {estimand.model}"
        check.add(field, what, value=given, remedy="Remove it")


def _check_pair(
    check: Checks, estimand: Timed, known: Mapping[str, Column], broken: Collection[str]
) -> None:
    kinds = estimand.regression.outcomes
    if estimand.term != estimand.outcome:
        find_role(check, "term", estimand.term, known, broken, kinds)
    elif estimand.until is None:
        check.add(
            "until",
            "is missing: a column is not correlated with itself at one time",
            remedy="Say a second time by until, or another column by term",
        )
