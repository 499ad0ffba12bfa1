"""Settings of ``structured``: margins, dependence, and a model of each declared outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from penstock.base.checks import Checks, within
from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.protocol import ABSENT
from penstock.mechanisms.structured.declared import list_exposure_problems, list_outcomes
from penstock.questions.effects import Effect, effect_of, find_effect_problems, read_effect
from penstock.questions.estimands import Estimand
from penstock.schema import Schema

MOST_PLANTED, MOST_EFFECTS, MOST_PER_FIT = 48, 20, 2

LEAST_ROWS, MOST_ROWS = 100, 10**9
"""Of a table that has a share of the rows: fewer would tell little, and save nothing."""

FRESH = 0.1
"""Least share of a table's sampling variance that a refit has, for releases with one refit of each
fit, which do not show it: its points are spread evenly. Measured shares are .1 to .5; what is left
counts for the mechanism, so that intervals are not too narrow."""

FRESH_DEALT = 0.01
"""The same where pairs are counted, and rows are dealt to cells: measured shares are .01 to .7."""


@dataclass(frozen=True, slots=True)
class Structured:
    """Synthetic tables whose outcomes are drawn from models of what the study declares.

    Attributes:
        copies: synthetic data sets per site, 1 to 100.
        refits: tables that a site makes by repeating its whole private procedure on the rows of its
            copies, in turn, 0 to 100, to show the mechanism's own noise; free of budget. 0:
            intervals lack it.
        planted: in how many runs a site changes effects in the released model and repeats its whole
            private procedure, 0 to 48, to show what of an effect the tables hold; free of budget.
            12 or more tell a slope to about ± .1; 0: nothing marks what they do not hold.
        effects: what is planted beside that which estimands ask for: ``"years ~ age:smoker"``
            (:mod:`penstock.questions.effects`).
        per_fit: how many refits in a row are drawn from one fit, 1 or 2. Where two are, each apart,
            they show what of their difference from the copy is a table's own; of one it has to be
            assumed. ``refits`` are as many times this, or 1.
        most_rows: of each table, 100 or more; where the frame has room for more, tables have a
            share of as many rows as the site has. None: as many as the site has.

    Raises:
        InvalidInput: with every problem.
    """

    name: ClassVar[str] = "structured"
    copies: int = 10
    refits: int = 20
    planted: int = 12
    effects: tuple[str, ...] = ()
    per_fit: int = field(default=2, metadata={ABSENT: 1})
    most_rows: int | None = field(default=None, metadata={ABSENT: None})

    def __post_init__(self) -> None:
        check = Checks("mechanism")
        check.whole("copies", self.copies, 1, 100)
        refits = check.whole("refits", self.refits, 0, 100)
        per_fit = check.whole("per_fit", self.per_fit, 1, MOST_PER_FIT)
        if refits and per_fit and refits > 1 and refits % per_fit:
            check.add(
                "refits",
                "are not so many for each fit",
                value=str(refits),
                bound=f"a multiple of per_fit = {per_fit}",
                remedy=f"Set refits to {refits + 1}, or per_fit to 1",
            )
        check.whole("planted", self.planted, 0, MOST_PLANTED)
        if self.most_rows is not None:
            check.whole("most_rows", self.most_rows, LEAST_ROWS, MOST_ROWS)
        effects = check.sequence("effects", self.effects, 0, MOST_EFFECTS) or ()
        for text in effects:
            try:
                read_effect(text)
            except InvalidInput as error:
                check.problems += within("effects", error.problems)
        check.distinct("effects", effects)
        check.done()
        if self.effects and not self.planted:
            check.add("effects", "are to be planted in no run", remedy="Set planted, say to 12")
            check.done()

    @property
    def requested(self) -> tuple[Effect, ...]:
        """:attr:`effects`, read."""
        return tuple(read_effect(text) for text in self.effects)

    def list_effects(self, schema: Schema, estimands: Sequence[Estimand]) -> tuple[Effect, ...]:
        """All that is planted, each once: what estimands ask for, and what is requested."""
        drawn = _name_outcomes(schema, estimands)
        asked = [e for e in estimands if e.regression.compares and e.outcome in drawn]
        declared = map(effect_of, asked)
        return tuple(dict.fromkeys((*declared, *self.requested))) if self.planted else ()

    def problems(self, schema: Schema, estimands: Sequence[Estimand]) -> list[Problem]:
        """What this study and schema ask that the mechanism cannot do."""
        check = Checks("mechanism")
        durations = [c for c in schema.columns if c.event is not None]
        drawn = _name_outcomes(schema, estimands)
        for effect in self.requested:
            if effect.outcome not in drawn:
                check.add(
                    "effects",
                    "has an outcome that is not drawn from a model of its own",
                    value=effect.outcome,
                    bound=f"one of {', '.join(sorted(drawn))}" if drawn else "there is none",
                    remedy="Ask an estimand of it",
                )
            else:
                found = find_effect_problems(effect, schema.columns, estimands)
                check.problems += within("effects", found)
        check.problems += list_exposure_problems(estimands)
        if len(schema.columns) == 2 * len(durations):
            check.add(
                "name",
                "draws each duration given other columns, and the study has none",
                bound="at least one column besides durations and their events",
                remedy="Add one, or choose another mechanism",
            )
        return check.problems


def count_drawn(settings: Structured, rows: int, persons: int) -> int:
    """Persons whose rows a table has room for, by public numbers.

    Args:
        rows: of a person, at most; persons: of the frame.
    """
    if settings.most_rows is None:
        return persons
    return max(1, min(persons, settings.most_rows // rows))


def count_per_fit(settings: Structured) -> int:
    """How many refits in a row are drawn from one fit; of a single refit one."""
    return max(1, min(settings.per_fit, settings.refits))


def _name_outcomes(schema: Schema, estimands: Sequence[Estimand]) -> set[str]:
    """The columns that are drawn from models of their own."""
    return {outcome.column for outcome in list_outcomes(schema, estimands)}
