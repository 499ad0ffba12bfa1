"""Are effects that tables do not hold marked as such, and those that they hold not?

`structured` at one site, δ = min(1e-5, 1/10n), on the tables of generators whose laws are not the
package's own (`foreign_generators.py`), with two more columns of which nothing comes; in some cells
by a newcomer's dictionary without scales, and with a declared log-normal column on top (sd of the
logarithm 1.2 to 2), of which even cells hold next to nothing. Each study declares the generator's
coefficients, its named interactions, a coin and the coin's product; and asks to try interactions
and thresholds that it does not declare, and a column that nobody names.

*True slopes.* In the private table the persons' own times to the event, which the generators know,
are made longer or shorter, so that an effect is larger or smaller and all else is as it was: in
sixteen tables of the same persons, every effect up in half of them and down in the other half,
uncorrelated. Each is released with the same noise, and the slope is what came back of the change of
the table's own coefficient. It needs no model of the package, and no planted run. At least three
blocks of persons and noise, more until the standard error over blocks is below .1.

*Marks* are those of releases of the tables themselves, three of each cell, as the report has them
of twelve planted runs. Lost: a true slope below .5; held: at least .9; where its standard error is
above .1 an effect counts for neither, and is told. Planted
runs are of the released model: what real tables have and the model lacks they cannot see, and such
effects are counted as missed here.

*No effect.* Intervals of ten copies, widened by forty refits, for the coin, its product (declared),
and two columns that nobody declares: how often 0 is outside of 95 %, at most .07.

Standard errors of shares are over effects, of "no effect" over releases; "holds" is within two of
them. Runs can be cut off and gone on with; PENSTOCK_ONLY names parts (slopes, marks, nulls) or
generators. Of each effect: its true slope, beside it ("peer") the mean planted slope, and marks.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests.studies.kept import Answer
from tests.studies.lni import over_runs
from tests.studies.marks_cells import (
    CELLS,
    KNOWN,
    MARKS,
    MOST_BLOCKS,
    NULL_RELEASES,
    NULLS,
    RELEASES,
    TUNED_ON,
    Cell,
    Job,
    keep_answer,
    list_jobs,
    list_requested,
    store,
    weigh,
)
from tests.support.results import Row, write

from penstock.inference.slopes import HALF, WHOLE, Mark

SENSITIVITY, FALSE, SIGNIFICANT, ENOUGH = 0.9, 0.1, 0.07, 30


@dataclass(frozen=True, slots=True)
class Found:
    """One effect of one cell.

    Attributes:
        slope, error: true, with its standard error over blocks.
        planted: slopes of releases' planted runs; marks: what they say.
    """

    cell: Cell
    text: str
    declared: bool
    blocks: int
    slope: float
    error: float
    planted: tuple[float, ...]
    marks: tuple[Mark, ...]

    @property
    def known(self) -> bool:
        return self.error <= KNOWN

    @property
    def lost(self) -> bool:
        return self.known and self.slope < HALF

    @property
    def held(self) -> bool:
        return self.known and self.slope >= WHOLE

    def share(self, *marks: Mark) -> float:
        """Of the releases that have one of these marks."""
        return sum(mark in marks for mark in self.marks) / len(self.marks)


def run() -> Path:
    """Measure what is missing, and write all that there is."""
    measure(CELLS, NULLS)
    kept = store().read()
    found, nulls = read_effects(CELLS, kept), read_nulls(NULLS, kept)
    return write("marks", list_rows(found, nulls), (__doc__ or "").strip())


def measure(cells: Sequence[Cell], nulls: Sequence[Cell]) -> None:
    """What is not in the store; then more blocks where slopes are not known."""
    jobs = list_jobs(cells, nulls)
    while missing := [job for job in jobs if job.key not in store().read()]:
        over_runs(keep_answer, missing, "marks", weight=weigh)
        unknown = {found.cell for found in read_effects(cells, store().read()) if not found.known}
        asked = {job.cell: job.seed for job in jobs if job.what == "slopes"}
        more = [Job("slopes", cell, seed + 1) for cell, seed in asked.items() if cell in unknown]
        jobs += [job for job in more if job.seed < MOST_BLOCKS]


def read_effects(cells: Sequence[Cell], kept: Mapping[str, Answer]) -> list[Found]:
    """Every effect of which there are blocks and marks."""
    found = []
    for cell in cells:
        blocks = _read("slopes", cell, MOST_BLOCKS, kept)
        marks = _read("marks", cell, RELEASES, kept)
        if len(blocks) < 2 or not marks:
            continue
        for key in (key for key in marks[0] if key.startswith("slope/")):
            text = key.removeprefix("slope/")
            slope, error = find_ratio(
                [one[f"own/{text}"] for one in blocks], [one[f"back/{text}"] for one in blocks]
            )
            seen = tuple(MARKS[int(one[f"mark/{text}"])] for one in marks)
            planted = tuple(one[key] for one in marks)
            declared = text not in list_requested(cell)
            found.append(Found(cell, text, declared, len(blocks), slope, error, planted, seen))
    return found


def _read(what: str, cell: Cell, most: int, kept: Mapping[str, Answer]) -> list[Answer]:
    keys = [Job(what, cell, seed).key for seed in range(most)]
    return [kept[key] for key in keys if key in kept]


def find_ratio(below: Sequence[float], above: Sequence[float]) -> tuple[float, float]:
    """Of two sums over blocks, with its standard error."""
    x, y, count = np.array(below), np.array(above), len(below)
    ratio = float(y.sum() / x.sum())
    rest = float(((y - ratio * x) ** 2).sum()) * count / (count - 1)
    return ratio, math.sqrt(rest) / abs(float(x.sum()))


def read_nulls(cells: Sequence[Cell], kept: Mapping[str, Answer]) -> list[Answer]:
    """Every release of which intervals of no effect are known."""
    return [one for cell in cells for one in _read("nulls", cell, NULL_RELEASES, kept)]


# -- rows ------------------------------------------------------------------------------------------


def list_rows(found: Sequence[Found], nulls: Sequence[Answer]) -> list[Row]:
    """All figures, the few that matter first."""
    declared = [one for one in found if one.declared]
    known = sum(one.known for one in declared)
    rows = [
        Row("declared effects whose slope is known to .1", float(known), None, len(declared),
            ENOUGH, holds=known >= ENOUGH),
    ]  # fmt: skip
    kinds = {
        "declared": declared,
        "tried": [one for one in found if not one.declared],
        "all": list(found),
    }
    for kind, effects in kinds.items():
        lost, held = [e for e in effects if e.lost], [e for e in effects if e.held]
        rows += _shares(f"{kind}: lost effects marked unsupported", lost, SENSITIVITY)
        rows += _shares(f"{kind}: lost effects marked held", lost, None, Mark.HELD)
        rows += _shares(f"{kind}: lost effects, unresolved", lost, None, Mark.UNRESOLVED)
        rows += _shares(f"{kind}: held effects marked unsupported", held, FALSE)
        rows += _shares(f"{kind}: held effects marked held", held, None, Mark.HELD)
        rows += _shares(f"{kind}: held effects, unresolved", held, None, Mark.UNRESOLVED)
    rows += _null_rows(nulls)
    return [*rows, *map(_effect_row, found)]


def _shares(
    what: str, effects: Sequence[Found], target: float | None, mark: Mark = Mark.UNSUPPORTED
) -> list[Row]:
    """Of releases with a mark, the mean over effects; nothing of no effect."""
    if not effects:
        return []
    shares = np.array([one.share(mark) for one in effects])
    share, count = float(shares.mean()), len(shares)
    se = float(shares.std(ddof=1)) / math.sqrt(count) if count > 1 else None
    room = 2 * (se or 0.0)
    holds = None
    if target is not None:
        holds = share >= target - room if target > 0.5 else share <= target + room
    return [Row(what, share, se, count, target, holds=holds)]


def _null_rows(nulls: Sequence[Answer]) -> list[Row]:
    if not nulls:
        return []

    def mean(what: str, kind: str, target: float | None) -> Row:
        each = [
            [value for key, value in one.items() if key.startswith(f"{kind}/")] for one in nulls
        ]
        means = np.array([np.mean(values) for values in each])
        share, count = float(means.mean()), len(means)
        se = float(means.std(ddof=1)) / math.sqrt(count) if count > 1 else None
        holds = None if target is None else share <= target + 2 * (se or 0.0)
        return Row(what, share, se, count, target, holds=holds)

    return [
        mean("no effect: 0 outside of the interval, declared", "declared", SIGNIFICANT),
        mean("no effect: 0 outside of the interval, not declared", "other", SIGNIFICANT),
        mean("no effect: 0 outside of the table's own interval", "own", None),
        mean("no effect: half-width over the table's own", "width", None),
    ]


def _effect_row(one: Found) -> Row:
    marks = ", ".join(f"{count} {mark}" for mark, count in Counter(one.marks).items())
    tried = "" if one.declared else " (tried)"
    planted = [slope for slope in one.planted if math.isfinite(slope)]
    peer = float(np.mean(planted)) if planted else None
    what = f"{one.cell}: {one.text.partition(' ~ ')[2]}{tried}: {marks}"
    return Row(what, one.slope, one.error, one.blocks, peer=peer)


def main(write_line: Callable[[str], object] = sys.stdout.write) -> None:
    """On generators that may be tuned on: the same, printed."""
    nulls = TUNED_ON[:1]
    measure(TUNED_ON, nulls)
    kept = store().read()
    for row in list_rows(read_effects(TUNED_ON, kept), read_nulls(nulls, kept)):
        se = "" if row.se is None else f" ± {row.se:.3f}"
        peer = "" if row.peer is None else f" [{row.peer:.2f}]"
        write_line(f"{row.what}: {row.ours:.3f}{se}{peer} ({row.n_runs})\n")


if __name__ == "__main__":
    main()
