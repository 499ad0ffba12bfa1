"""What mechanisms have in common that release synthetic tables alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from penstock.mechanisms.memory import Memory
from penstock.mechanisms.parts import Part, Progress
from penstock.mechanisms.protocol import Array, Asked, Bools, Mechanism, Settings
from penstock.mechanisms.released import Shape, shape_copies, shape_refits
from penstock.mechanisms.tables.words import FILES, tables_returned
from penstock.schema import Schema

if TYPE_CHECKING:
    from penstock.mechanisms.tables.plan import Plan
    from penstock.privacy.noise.sources import NoiseSource
    from penstock.schema.encoding import Encoding

S = TypeVar("S", bound=Settings)


class TableMechanism(Mechanism[S, "Plan"]):
    """A mechanism whose plan has the stages of :mod:`penstock.mechanisms.tables.stages`.

    What is left to each is which body it fits: its :meth:`plan`.
    """

    head = "releases synthetic tables, of which any question may be asked."
    leaves = "a table of synthetic rows"
    product = "a synthetic table"
    priced_alone = True

    def memory(
        self, plan: Plan, schema: Schema, dictionary: Schema | None = None, threads: int = 1
    ) -> Memory:
        from penstock.mechanisms.tables.memory import release_memory

        return release_memory(plan, schema, dictionary or schema, threads)

    def shape(self, asked: Asked[S], persons: int) -> Shape:
        given, counted = (asked.settings, asked.schema, persons), self.counts_rows(asked)
        return Shape(shape_copies(*given, counted=counted) + shape_refits(*given, counted=counted))

    def counts_rows(self, asked: Asked[S]) -> bool:
        """A flow from public rows has counted nobody: a row for each that the frame may hold."""
        return asked.privacy.guarantee != "public-flow"

    def run(
        self,
        plan: Plan,
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
        from penstock.mechanisms.tables import run

        given = (encoding, rows, present, noise, progress, device, public, threads)
        for name, table in run.draw(plan, *given):
            yield Part(name, encoding.decode(table))

    def returned(self, asked: Asked[S]) -> list[str]:
        return [tables_returned(asked, self.counts_rows(asked)), f"pull writes {FILES}"]
