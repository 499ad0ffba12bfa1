"""``structured`` as the rest of the package knows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.mechanisms.memory import Memory
from penstock.mechanisms.parts import Part, Progress
from penstock.mechanisms.protocol import Array, Asked, Bools, Mechanism
from penstock.mechanisms.released import Shape, shape_copies, shape_refits
from penstock.mechanisms.structured.settings import Structured
from penstock.mechanisms.tables.words import FILES, NOTES, tables_returned
from penstock.schema import Schema

if TYPE_CHECKING:
    from penstock.mechanisms.structured.plan import StructuredPlan
    from penstock.privacy.noise.sources import NoiseSource
    from penstock.schema.encoding import Encoding


class _Mechanism(Mechanism[Structured, "StructuredPlan"]):
    settings = Structured
    head = "releases synthetic tables whose outcomes are drawn from models of what is asked."
    notes = NOTES
    leaves = "a table of synthetic rows"
    product = "a synthetic table"
    priced_alone = True

    def plan(self, asked: Asked[Structured], persons: int) -> StructuredPlan:
        from penstock.mechanisms.structured.plan import plan

        return plan(asked.settings, asked.schema, persons, asked.privacy, asked.estimands)

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
        given = (asked.settings, asked.schema, persons)
        return Shape(shape_copies(*given, counted=True) + shape_refits(*given, counted=True))

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
        """Tables have as many rows as were counted with noise, at most n·k."""
        from penstock.mechanisms.structured import run

        for name, table in run.draw(plan, encoding, rows, present, noise, progress, threads):
            yield Part(name, table)

    def shortened(self, settings: Structured, steps: int, copies: int, refits: int) -> Structured:
        """A fit has no steps that could be left out; copies and refits can be."""
        fewer = {
            "copies": min(copies, settings.copies),
            "refits": min(refits, settings.refits),
        }
        return replace(settings, **fewer)

    def returned(self, asked: Asked[Structured]) -> list[str]:
        return [tables_returned(asked, counted=True), f"pull writes {FILES}"]


STRUCTURED = _Mechanism()
