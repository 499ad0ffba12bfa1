"""``scoring`` as the rest of the package knows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from penstock.base.text import count_text
from penstock.mechanisms.memory import Memory
from penstock.mechanisms.parts import Part, Progress
from penstock.mechanisms.protocol import Array, Asked, Bools, Mechanism
from penstock.mechanisms.released import (
    ANSWER,
    ESTIMATE,
    SITES,
    Kind,
    PartShape,
    Shape,
    answer_schema,
    sites_schema,
)
from penstock.mechanisms.scoring.blocks import count_told, find_places, list_blocks
from penstock.mechanisms.scoring.divisible import list_apart
from penstock.mechanisms.scoring.settings import Scoring
from penstock.schema import Schema

if TYPE_CHECKING:
    from penstock.mechanisms.scoring.plan import ScoringPlan
    from penstock.privacy.noise.sources import NoiseSource
    from penstock.schema.encoding import Encoding


_NOTES: Mapping[str, str] = MappingProxyType({})
"""There is nothing to set."""


class _Mechanism(Mechanism[Scoring, "ScoringPlan"]):
    """Rounds are few, and all are needed: a rehearsal is of the whole."""

    settings = Scoring
    summed = True
    head = "releases the answers to all that the estimands ask, and no table."
    notes = _NOTES
    leaves = "no rows: the answers to the declared questions"
    product = "the declared questions' answers"
    answers = True
    tells_estimates = True

    def plan(self, asked: Asked[Scoring], persons: int) -> ScoringPlan:
        from penstock.mechanisms.scoring.plan import plan

        parts = (asked.settings, asked.schema, persons, asked.privacy, asked.estimands)
        return plan(*parts, asked.apart_by)

    def require_worth(self, asked: Asked[Scoring], plan: ScoringPlan) -> None:
        """Refuse answers that :mod:`penstock.mechanisms.scoring.foresight` plans to be noise."""
        from penstock.mechanisms.scoring.foresight import require_worth

        require_worth(plan, asked)

    def memory(
        self,
        plan: ScoringPlan,
        schema: Schema,
        dictionary: Schema | None = None,
        threads: int = 1,
    ) -> Memory:
        from penstock.mechanisms.scoring.memory import release_memory

        return release_memory(plan, schema, dictionary or schema, threads)

    def shape(self, asked: Asked[Scoring], persons: int) -> Shape:
        count = count_told(asked.schema, asked.estimands)
        parts = [PartShape(ANSWER, Kind.ONCE, answer_schema(count, apart=True), count)]
        if numbers := len(list_apart(asked.schema, asked.estimands, asked.apart_by)):
            parts.append(PartShape(SITES, Kind.ONCE, sites_schema(numbers), numbers))
        return Shape(tuple(parts))

    def counts_rows(self, asked: Asked[Scoring]) -> bool:
        """An answer has no tables."""
        return False

    def read_answer(
        self, asked: Asked[Scoring], columns: Mapping[str, ArrayLike]
    ) -> Mapping[str, float]:
        places = find_places(asked.schema, asked.estimands)
        estimates = np.asarray(columns[ESTIMATE], dtype=np.float64)
        return {e.name: float(estimates[places[e.name]]) * e.factor for e in asked.estimands}

    def run(
        self,
        plan: ScoringPlan,
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
        from penstock.mechanisms.scoring import run

        yield from run.run(plan, encoding, rows, present, noise, progress)

    def returned(self, asked: Asked[Scoring]) -> list[str]:
        found = list_blocks(asked.schema, asked.estimands)
        shown = [
            f"of {block.formula}: {count_text(len(block.names), 'number')} with covariance; asked "
            f"for: {', '.join(block.asked)}"
            for block in found
        ]
        return [
            "comes back: no table, but",
            *shown,
            *(
                ["of each site its own coefficients that are asked for, one step from these"]
                if list_apart(asked.schema, asked.estimands, asked.apart_by)
                else []
            ),
            "pull writes coefficients.csv and coefficients.json",
        ]


SCORING = _Mechanism()
