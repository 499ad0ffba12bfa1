"""For how many questions is one release of tables worth its ε, beside answers one by one?

A site spends ε at δ = 1e-5 in one of two ways. *Tables*: one release of `structured` by its
defaults (10 copies, 20 refits), with the first seven or eight questions declared, which is then
asked these and six more. *One by one*: a study for each question, as somebody asks who does not
know the next one; Q of them have equal parts of the budget, so that by the accountant's composition
all Q cost ε. Either by `scoring`, or by `gibbs` where that can (no products, subgroups, shares,
quantiles or survival). *All at once*: one study of `scoring` with Q of the 13 or 14 questions,
drawn at random; where Q is larger, all of them, with the part of the budget that would be theirs.

Tables are real (`break_even_cells.py`), dictionaries as `site check` suggests, questions those of
the study of coverage, which were fixed before; colon and gbsg2 were looked at while this was
written, and are not shown. An *error* is the root mean square, over seeds, of what an answer is off
that of the site's own rows, in standard errors of the latter: 1 is as large as what sampling does.
An answer that a site would refuse as hopeless is carried out all the same; where "what is refused
is no answer" it counts as lost.

*Break-even* is the least Q at which a one-shot answer errs as much as the tables do: Q = 1, 4, 16,
64, 256 and 1024 are measured, made monotone (errors only grow with Q), and interpolated in
logarithms. 1: tables err no more from the first question on. 2048: one-shot answers err less at
1024 questions still. Of a kind of question it is the median over questions and sites, with
quartiles; of one question the quartiles are those of resampled seeds. *Width* is an interval's, as
a multiple of that of real rows. Undeclared products and subgroups are not held by these tables and
are marked so, whatever they err; they are not in "all that tables hold".

Runs are resumable; PENSTOCK_SEEDS says how many seeds (8; 4 in the record), three times as many of
tables, of which the first eight have refits and with them widths, PENSTOCK_ONLY which tables.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from tests.studies.break_even_cells import (
    DECLARED_KINDS,
    EPSILONS,
    FARTHEST,
    NOT_HELD,
    SHARED_BY,
    UNDECLARED_KINDS,
    Answer,
    Cell,
    keep_answer,
    list_cells,
    list_jobs,
    read_asked,
    store,
)
from tests.studies.foreign_arms import seed_of
from tests.studies.lni import over_runs
from tests.support.results import Row, write

Array = NDArray[np.float64]

BEYOND = 2.0 * SHARED_BY[-1]
"""Stands for a break-even that no Q here reaches."""

SHOWN = (1, 16, 64)
RESAMPLED = 200
LEAST = 1e-4
"""Errors that are 0, of medians of whole numbers, have a logarithm."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "all that tables hold": (*DECLARED_KINDS, *UNDECLARED_KINDS),
    "declared": DECLARED_KINDS,
    "undeclared, held": UNDECLARED_KINDS,
    **{kind: (kind,) for kind in (*DECLARED_KINDS, *UNDECLARED_KINDS, NOT_HELD)},
}
WAYS = {
    "scoring": "one by one, `scoring`",
    "gibbs": "one by one, `gibbs`",
    "together": "all at once, `scoring`",
}


@dataclass(frozen=True, slots=True)
class Question:
    """One question of one cell, over seeds.

    Attributes:
        tables, asked: errors, (seeds,); asked by way and by Q.
        width, widths: the same of intervals, where there are some.
        refused: whether a site would, by way and by Q.
    """

    cell: Cell
    name: str
    kind: str
    tables: Array
    width: Array
    asked: Mapping[str, Mapping[int, Array]]
    widths: Mapping[str, Mapping[int, Array]]
    refused: Mapping[str, Mapping[int, bool]]

    def break_even(self, way: str, *, refused: bool = False) -> float:
        """By errors; ``refused``: an answer that a site would refuse is as far off as can be."""
        asked = {
            q: FARTHEST**2 if refused and self.refused[way].get(q) else _square(values)
            for q, values in self.asked[way].items()
        }
        return find_break_even(asked, _square(self.tables))

    def resample(self, way: str, rng: np.random.Generator) -> float:
        """The break-even of seeds that are drawn with replacement."""

        def draw(values: Array) -> float:
            return _square(rng.choice(values, len(values)))

        asked = {q: draw(values) for q, values in self.asked[way].items()}
        return find_break_even(asked, draw(self.tables))


def run() -> Path:
    """Measure what is missing, and write all that there is."""
    kept = store().read()
    missing = [job for job in list_jobs() if job.key not in kept]
    over_runs(keep_answer, missing, "break-even")
    return write_down()


def write_down() -> Path:
    """Write what is in the store, complete or not."""
    kept = store().read()
    found = [one for cell in list_cells() for one in gather(cell, kept)]
    return write("break-even", list(list_rows(found)), (__doc__ or "").strip())


def find_break_even(asked: Mapping[int, float], tables: float) -> float:
    """The least Q at which mean squared errors of one-shot answers are those of tables.

    Args:
        asked: by Q; made monotone by isotonic regression; tables: of the tables' answer.

    Returns:
        1 to the largest Q, between two of them by straight lines in logarithms; 2 times the largest
        if none reaches it.
    """
    at = sorted(asked)
    grown = isotonic_regression([asked[q] for q in at]).x
    logs, goal = np.log(np.maximum(grown, LEAST**2)), math.log(max(tables, LEAST**2))
    if goal <= logs[0]:
        return float(at[0])
    if goal > logs[-1]:
        return 2.0 * at[-1]
    after = int(np.searchsorted(logs, goal))
    low, high = math.log(at[after - 1]), math.log(at[after])
    part = (goal - logs[after - 1]) / (logs[after] - logs[after - 1])
    return math.exp(low + float(part) * (high - low))


def _square(values: Array) -> float:
    return float(np.mean(np.square(values)))


def _root(values: Array) -> float:
    return math.sqrt(_square(values))


# -- what is kept ----------------------------------------------------------------------------------


def gather(cell: Cell, kept: Mapping[str, Answer]) -> Iterator[Question]:
    """Each question of one cell, as far as it was measured."""
    by_way: dict[str, list[Answer]] = {way: [] for way in ("tables", *WAYS)}
    for key, answer in kept.items():
        own, way, _ = key.rsplit("/", 2)
        if own == cell.key:
            by_way[way].append(answer)
    if not all(by_way.values()):
        return
    asked = read_asked(cell.table)
    for name in asked.every:
        told = {way: _collect(by_way[way], name, "error") for way in WAYS}
        # One question by itself is the same, however many are known beforehand.
        told["together"] = {1: told["scoring"][1], **told["together"]}
        widths = {way: _collect(by_way[way], name, "width") for way in WAYS}
        refused = {
            way: {q: bool(of.any()) for q, of in _collect(by_way[way], name, "refused").items()}
            for way in WAYS
        }
        yield Question(
            cell,
            name,
            asked.kind(name),
            _collect(by_way["tables"], name, "error")[1],
            _collect(by_way["tables"], name, "width")[1],
            {way: of for way, of in told.items() if of},
            widths,
            refused,
        )


def _collect(answers: Sequence[Answer], name: str, what: str) -> dict[int, Array]:
    found = {
        q: np.array([one[key] for one in answers if (key := f"{name}/{q}/{what}") in one])
        for q in SHARED_BY
    }
    return {q: values for q, values in found.items() if len(values)}


# -- rows ------------------------------------------------------------------------------------------


def list_rows(found: Sequence[Question]) -> Iterator[Row]:
    """Of kinds of questions over all sites, of kinds at each site, and of each question."""
    for epsilon in EPSILONS:
        here = [one for one in found if one.cell.epsilon == epsilon]
        for group, kinds in GROUPS.items():
            own, label = [one for one in here if one.kind in kinds], f"{group}, ε = {epsilon:g}"
            yield from _list_break_evens(label, own)
            yield from _list_shares(label, own)
            yield from _list_errors(label, own)
        yield from _list_refused(f"ε = {epsilon:g}", here)
    for cell in dict.fromkeys(one.cell for one in found):
        here = [one for one in found if one.cell == cell]
        for group in ("declared", "undeclared, held"):
            own = [one for one in here if one.kind in GROUPS[group]]
            yield from _list_break_evens(f"{group}, {cell}", own)
    for one in found:
        yield from _list_question(one)


def _list_break_evens(label: str, own: Sequence[Question]) -> Iterator[Row]:
    for way, words in WAYS.items():
        both = [one for one in own if way in one.asked]
        if not both:
            continue
        count = "" if len(both) == len(own) else f" {len(both)} of"
        for refused, told in {False: "", True: ", what is refused is no answer"}.items():
            each = [one.break_even(way, refused=refused) for one in both]
            low, middle, high = map(float, np.quantile(each, [0.25, 0.5, 0.75]))
            what = f"break-even, {words}, {label}:{count} {len(own)} questions{told}"
            yield Row(what, middle, None, _seeds(own, way), quartiles=(low, high))


def _list_shares(label: str, own: Sequence[Question]) -> Iterator[Row]:
    """Of questions of which one of the two is better whatever Q is."""
    for way in ("scoring", "together"):
        each = [one.break_even(way) for one in own if way in one.asked]
        if not each:
            continue
        for what, of in {
            "tables err no more from the first question on": 1.0,
            f"one-shot answers err less at {SHARED_BY[-1]} questions still": BEYOND,
        }.items():
            share = float(np.mean([one == of for one in each]))
            yield Row(f"share: {what}, {WAYS[way]}, {label}", share, None, _seeds(own, way))


def _seeds(own: Sequence[Question], way: str) -> int:
    counts = [len(one.asked[way][SHARED_BY[-1]]) for one in own if way in one.asked]
    return min(counts, default=0)


def _list_errors(label: str, own: Sequence[Question]) -> Iterator[Row]:
    """Medians over questions; tables' beside, of those that are asked in this way, too."""
    for way, words in WAYS.items():
        both, runs = [one for one in own if way in one.asked], _seeds(own, way)
        for q in SHOWN:
            if not both or (way == "together" and q == 1):
                continue
            at = f"peer: of tables; {words}, Q = {q}, {label}"
            each = [_root(one.asked[way][q]) for one in both]
            yield _median(f"error, {at}", each, [_root(one.tables) for one in both], runs)
            some = [one for one in both if q in one.widths[way]]
            wide = [float(np.median(one.widths[way][q])) for one in some]
            yield _median(f"width, {at}", wide, [float(np.median(one.width)) for one in some], runs)


def _median(what: str, each: Sequence[float], tables: Sequence[float], runs: int) -> Row:
    low, middle, high = map(float, np.quantile(each, [0.25, 0.5, 0.75]))
    peer = float(np.median(tables))
    return Row(what, middle, None, runs, peer=peer, quartiles=(low, high))


def _list_refused(label: str, here: Sequence[Question]) -> Iterator[Row]:
    for way, words in WAYS.items():
        for q in SHARED_BY:
            each = [one.refused[way][q] for one in here if q in one.refused[way]]
            if any(each):
                what = f"share that a site would refuse as hopeless, {words}, Q = {q}, {label}"
                yield Row(what, float(np.mean(each)), None, len(each))


def _list_question(one: Question) -> Iterator[Row]:
    """Its break-even one by one by `scoring`, and errors at either end."""
    rng = np.random.default_rng(seed_of(one.cell.key, one.name))
    each = [one.resample("scoring", rng) for _ in range(RESAMPLED)]
    low, high = map(float, np.quantile(each, [0.25, 0.75]))
    errors = f"{_root(one.tables):.2f} of tables, {_root(one.asked['scoring'][1]):.2f} alone"
    what = f"break-even, one by one, {one.name} ({one.kind}; error {errors}), {one.cell}"
    runs = len(one.asked["scoring"][1])
    yield Row(what, one.break_even("scoring"), None, runs, quartiles=(low, high))


if __name__ == "__main__":
    sys.stdout.write(write_down().read_text())
