"""Settings of ``sliced-wasserstein``: particles that flow towards noisy projections of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from penstock.base.checks import Checks
from penstock.base.errors import Problem
from penstock.questions.estimands import Estimand
from penstock.schema import Schema

VARIANTS = ("sketch", "resampled", "presampled")
"""How noisy projections are released: once as counts, anew at every step, once as numbers."""
MOST_DIRECTIONS = 4096
"""More directions than this have their price in time, and none in accuracy."""


@dataclass(frozen=True, slots=True)
class SlicedWasserstein:
    """A synthetic table of particles that follow a sliced-Wasserstein flow.

    Attributes:
        variant: ``sketch``: noisy distribution functions of projections, measured once;
            ``resampled``: noisy projections of a fresh batch at every step (DPSWflow-r);
            ``presampled``: noisy projections of all rows, drawn once (DPSWflow).
        copies, refits: as in ``maf``.
        steps: of the flow, 1 to 10000; ``resampled`` pays for each of them.
        bases: orthonormal bases of directions, 1 to 512; N = bases · d directions. None: chosen
            from the public n and ε.
        bins: of each distribution function, 8 to 1024; ``sketch`` only. None: chosen likewise.
        batch: rows per step, ``resampled`` only.
        step: the first step's size, in units of the one that would match a single direction.
        diffusion: λ of the entropic term, >= 0; it earns no privacy.

    Raises:
        InvalidInput: with every problem.
    """

    name: ClassVar[str] = "sliced-wasserstein"
    variant: str = "sketch"
    copies: int = 10
    refits: int = 40
    steps: int = 120
    bases: int | None = None
    bins: int | None = None
    batch: int = 250
    step: float = 0.75
    diffusion: float = 0.0

    def __post_init__(self) -> None:
        check = Checks("mechanism")
        check.choice("variant", self.variant, VARIANTS)
        check.whole("copies", self.copies, 1, 100)
        check.whole("refits", self.refits, 0, 100)
        check.whole("steps", self.steps, 1, 10_000)
        if self.bases is not None:
            check.whole("bases", self.bases, 1, 512)
        if self.bins is not None:
            check.whole("bins", self.bins, 8, 1024)
        check.whole("batch", self.batch, 1, 1_000_000)
        step = check.number("step", self.step, "above 0, at most 1", above=0, most=1)
        diffusion = check.number("diffusion", self.diffusion, "0 to 10", least=0, most=10)
        check.keep(self, step=step, diffusion=diffusion)
        check.done()

    def problems(self, schema: Schema, estimands: Sequence[Estimand]) -> list[Problem]:
        """What this study and schema ask that the mechanism cannot do."""
        check, columns = Checks("mechanism"), len(schema.columns)
        if columns < 2:
            check.add(
                "name",
                "looks at a table from many directions, and one column has none",
                value="1 column",
                bound="at least 2",
                remedy="Add a column, or use another mechanism",
            )
        # A column has at least one coordinate, so these are at least as many.
        if self.bases is not None and self.bases * columns > MOST_DIRECTIONS:
            check.add(
                "bases",
                f"are too many for {columns} columns",
                value=str(self.bases),
                bound=f"at most {MOST_DIRECTIONS // columns}",
            )
        if self.variant == "resampled" and schema.max_rows_per_person > 1:
            check.add(
                "variant",
                "takes batches of persons with one row each",
                value=f"{self.variant}, max_rows_per_person = {schema.max_rows_per_person}",
                remedy="Use the variant sketch",
            )
        return check.problems
