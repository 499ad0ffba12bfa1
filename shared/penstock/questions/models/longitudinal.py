"""Models of persons over time: a number at a time, between two times, or along all of them.

They need rows of which is known when they were taken and, of two times or more, whose they are: a
mechanism that follows persons. No regression is behind them, but for the random-intercept model.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.questions.models.model import Measure, Model

NUMBERS = ("continuous", "integer")
DIRECTIONS = ("above", "below")
"""Strictly: a value that is the threshold lies on neither side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongitudinalModel(Model):
    """A model of persons over time.

    Attributes:
        least, most: how many times an estimand names, ``at`` and ``until``.
        asks: which of ``probability``, ``threshold`` and ``direction`` it has to say.
        pairs: the estimate is of two columns, or of one at two times; the term may be another one.
        cells: it names two levels of its outcome: ``level``, and ``outcome_level``.
        slope: the estimate is of all times, along its term, and may be adjusted for columns.
        link: the scale on which copies and sites are combined, as
            :attr:`penstock.questions.models.model.Model.scale` has it.
    """

    outcomes: tuple[str, ...] = NUMBERS
    ratio: bool = False
    compares: bool = False
    in_outcome_units: bool = True
    least: int = 1
    most: int = 1
    asks: tuple[str, ...] = ()
    pairs: bool = False
    cells: bool = False
    slope: bool = False
    link: str = "plain"

    @property
    def per_time(self) -> bool:
        return self.slope

    @property
    def scale(self) -> str:
        return self.link


QUANTILE = LongitudinalModel(
    name="quantile",
    title="Quantile of persons",
    measure=Measure("quantile", "Quantile", "lower", "higher"),
    asks=("probability",),
)
SHARE = LongitudinalModel(
    name="share",
    title="Share of persons",
    measure=Measure("share", "Share", "lower", "higher"),
    asks=("threshold", "direction"),
    link="logit",
)
CHANGE = LongitudinalModel(
    name="change",
    title="Change within persons",
    measure=Measure("mean change", "Change", "lower", "higher"),
    least=2,
    most=2,
)
CHANGE_SD = LongitudinalModel(
    name="change-sd",
    title="Change within persons",
    measure=Measure("standard deviation of the change", "SD", "lower", "higher"),
    least=2,
    most=2,
    ratio=True,
    link="log",
)
CORRELATION = LongitudinalModel(
    name="correlation",
    title="Correlation over persons",
    measure=Measure("correlation", "Correlation", "lower", "higher"),
    in_outcome_units=False,
    most=2,
    pairs=True,
    link="fisher",
)
TRANSITION = LongitudinalModel(
    name="transition",
    title="Transition between levels",
    measure=Measure("probability", "Probability", "lower", "higher"),
    outcomes=("binary", "ordered", "categorical"),
    in_outcome_units=False,
    least=2,
    most=2,
    cells=True,
    link="logit",
)
MIXED = LongitudinalModel(
    name="mixed",
    title="Random-intercept model (REML)",
    measure=Measure("mean slope", "Slope", "lower", "higher"),
    least=0,
    most=0,
    slope=True,
)
