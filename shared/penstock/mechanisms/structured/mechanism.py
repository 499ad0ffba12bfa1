"""``structured`` as the rest of the package knows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.base.text import count_text
from penstock.mechanisms.memory import Memory
from penstock.mechanisms.parts import Part, Progress
from penstock.mechanisms.protocol import Array, Asked, Bools, Mechanism
from penstock.mechanisms.released import Shape, shape_copies, shape_planted, shape_refits
from penstock.mechanisms.structured.settings import Structured, count_drawn, count_per_fit
from penstock.mechanisms.tables.words import FILES, NOTES, tables_returned
from penstock.questions.effects import Effect, tell_effects
from penstock.schema import Coded, Schema

if TYPE_CHECKING:
    from penstock.mechanisms.structured.plan import StructuredPlan
    from penstock.privacy.noise.sources import NoiseSource
    from penstock.schema.encoding import Encoding


class _Mechanism(Mechanism[Structured, "StructuredPlan"]):
    settings = Structured
    summed = True
    head = "releases synthetic tables whose outcomes are drawn from models of what is asked."
    notes = NOTES | {
        "per_fit": "refits drawn from each fit, 1 or 2: two show what a table's own drawing adds",
        "most_rows": "of each table: those of larger sites have a share of their number of rows",
        "planted": "runs that plant effects and show what comes back, 0 to 48; free of budget",
        "effects": 'what to plant beside what estimands ask for, such as "years ~ age:smoker"',
    }
    leaves = "a table of synthetic rows"
    product = "a synthetic table"
    priced_alone = True

    def plan(self, asked: Asked[Structured], persons: int) -> StructuredPlan:
        from penstock.mechanisms.structured.plan import plan

        return plan(asked.settings, asked.schema, persons, asked.privacy, asked.estimands)

    def lay_out(self, schema: Schema) -> Encoding:
        from penstock.schema.plain_encoding import PlainEncoding

        return PlainEncoding(schema)

    def memory(
        self,
        plan: StructuredPlan,
        schema: Schema,
        dictionary: Schema | None = None,
        threads: int = 1,
    ) -> Memory:
        from penstock.mechanisms.structured.memory import release_memory

        return release_memory(plan, schema, dictionary or schema, threads)

    def shape(self, asked: Asked[Structured], persons: int) -> Shape:
        drawn = count_drawn(asked.settings, asked.schema.max_rows_per_person, persons)
        given = (asked.settings, asked.schema, drawn)
        runs = asked.settings.planted if self.list_effects(asked) else 0
        return Shape(
            shape_copies(*given, counted=True)
            + shape_refits(*given, counted=True)
            + shape_planted(runs, *given[1:], counted=True)
        )

    def list_effects(self, asked: Asked[Structured]) -> tuple[Effect, ...]:
        return asked.settings.list_effects(asked.schema, asked.estimands)

    def list_coarse(self, asked: Asked[Structured], table: Coded) -> tuple[str, ...]:
        from penstock.mechanisms.copula.grids import list_coarse

        return list_coarse(asked.schema, table)

    def counts_rows(self, asked: Asked[Structured]) -> bool:
        return True

    def run(
        self,
        plan: StructuredPlan,
        encoding: Encoding,
        rows: Array,
        present: Bools,
        noise: NoiseSource,
        *,
        progress: Progress | None = None,
        device: str = "cpu",
        threads: int = 1,
        public: tuple[Array, Bools] | None = None,
    ) -> Iterator[Part]:
        """Tables have as many rows as were counted with noise, or a share of them."""
        from penstock.mechanisms.structured import run

        # Nothing here holds the rows, which the run lets go once the model is fitted.
        drawn = run.draw(plan, encoding, rows, present, noise, progress, threads)
        return (Part(name, table) for name, table in drawn)

    def share_rows(self, asked: Asked[Structured], persons: int) -> float:
        rows = asked.schema.max_rows_per_person
        return count_drawn(asked.settings, rows, persons) / persons

    def count_per_fit(self, settings: Structured) -> int:
        return count_per_fit(settings)

    def shortened(self, settings: Structured, steps: int, copies: int, refits: int) -> Structured:
        """A fit has no steps that could be left out; copies, refits and planted runs can be."""
        return replace(
            settings,
            copies=min(copies, settings.copies),
            refits=min(refits, settings.refits),
            planted=min(1, settings.planted),
        )

    def returned(self, asked: Asked[Structured]) -> list[str]:
        shown = []
        if effects := self.list_effects(asked):
            runs = count_text(asked.settings.planted, "run")
            shown.append(f"and {runs} that show what the tables hold of {tell_effects(effects)}")
        elif any(estimand.regression.compares for estimand in asked.estimands):
            shown.append("planted = 0: nothing will show what the tables hold of what is asked")
        if not asked.estimands:
            shown.append(
                "without an estimand the tables hold each column, and how pairs rise and fall "
                "together; regressions of them come back weakened: declare those that you will ask"
            )
        told = tables_returned(asked, counted=True, most=asked.settings.most_rows)
        return [told, *shown, f"pull writes {FILES}"]


STRUCTURED = _Mechanism()
