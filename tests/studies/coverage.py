"""Do pooled intervals hold the truth, of questions that were declared and of others?

Sites draw persons from a population that nobody here made, or from generators whose laws are not
the package's own (`coverage_cells.py`): alike, or *unlike*, each with a preference for the old or
the young, so that effects, means and shares differ between sites. Every site releases `structured`
tables by its defaults (10 copies, 20 refits of 10 fits, 12 planted runs) with the dictionary that
`site check` suggests, at δ = min(1e-5, 1/40n). Of its questions a study declares the named
coefficients of one regression, a column of which nothing comes, an interaction, a survival and a
mean or two; others are asked afterwards of the tables alone. Sites are pooled as the report and
`analyse` do (REML, floored Hartung-Knapp with what weights may be off by, refits drawn together),
in federations of 4, 8 and 12 sites. Of one deal these share no site; the same sites are dealt again
and again, so that shares hang less on who was dealt to whom.

*Holds*: whether the 95 % interval holds the population's own answer; of unlike sites, the mean of
what equally likely kinds of sites have. Answers that are marked `unsupported` or `attenuated`
are none, and their share is told beside. *Width*: the interval's over that of the same sites' real
rows, under the same rule. *Nothing*: how often a column of which nothing comes is significant.
*Predicted*: the share of kinds of sites whose own truth the prediction interval holds. *Peer* is
the interval of the same sites' real rows. *By Rubin's rules* is what software for multiple
imputation makes of one refit of each fit, and of the copies as if they were imputed, pooled alike;
*by the plain mean of sites* what stands beside the headline; *if sites' effects were known* is what
Student's t would hold of k unlike sites whose own truths one could read, in 20,000 federations: how
such truths lie may be skewed, and no interval of few sites knows it.
*One site alone* is a site's own interval, of worlds whose sites are alike.

A cell is a question at one number of sites in one world. Its coverage is below .92 beyond chance
where Holm's test over all cells says so at .05; the test is of the first deal, of which federations
are independent. Where sites are alike the floored interval holds more than 95 %, so that .96 is the
most that is aimed at in cells with a median I² of real rows of at least 50 % alone; in the others
the width is. Standard errors are of chance in these worlds: of who was drawn and of
all noise; how worlds differ is told beside. With a standard error above .005, or fewer than
500 federations of one deal in a cell, no target is said to be met.

A standard error is found by parts: the variance of one deal is that of its blocks of 24 sites,
which share none; what deals of the same sites differ by is taken from it, but for the share of it
that so many deals leave.

Runs are resumable; PENSTOCK_SEEDS says how many draws of 24 sites of each world (8; twice as many
of the first two), PENSTOCK_DEALS how often they are dealt (24), PENSTOCK_ONLY which tables. A site
takes about 8 seconds of a core.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from scipy.stats import binom
from tests.studies.coverage_cells import (
    BANK,
    KS,
    SITE_SIZES,
    UNLIKENESS,
    WORLDS,
    Answer,
    Asked,
    Job,
    Site,
    World,
    impute,
    keep_answer,
    list_jobs,
    pose_questions,
    read_site,
    read_world,
    store,
)
from tests.studies.foreign_arms import seed_of
from tests.studies.lni import over_runs
from tests.support.results import Row, write

from penstock.enquiry.reply import find_recovered, judge_untried
from penstock.inference.combine import SiteEstimate
from penstock.inference.headline import pool_sites
from penstock.inference.misfit import allow_misfit
from penstock.inference.pooling import Pooled, poolable, quantile
from penstock.inference.refits import Measured, widen_sites
from penstock.inference.slopes import Mark
from penstock.inference.weighting import average_sites
from penstock.questions.estimands import Estimand
from penstock.questions.grammar import Product
from penstock.telling.marks import join_held, tell_doubts, tell_held, tell_overlaps

LOW, HIGH, LEAST, UNDECLARED, WIDTH, NOTHING = 0.94, 0.96, 0.92, 0.93, 1.25, 0.07
DEALS = int(os.environ.get("PENSTOCK_DEALS", "24"))
ALONE = 1
"""Sites whose interval is one site's own."""
SHARP, ENOUGH = 0.005, 500
"""The standard error, and federations of a cell, from which on a target can be said to be met."""

HALF, APART = 0.5, "in cells with an I² of at least 50 %"

NO_ANSWER = (Mark.UNSUPPORTED, Mark.ATTENUATED)


@dataclass(frozen=True, slots=True)
class Found:
    """One question of one federation.

    Attributes:
        width: over that without privacy.
        real: whether the interval without privacy holds the truth; real_i2: its federation's I².
        imputed, naive: whether that by Rubin's rules does: of refits, and of copies.
        alike: whether that of the plain mean does.
        imputed_width, alike_width: as ``width``.
        predicted: share of kinds of sites that the prediction interval holds; NaN of alike sites.
        known: how often Student's t of as many sites' own truths holds their mean; NaN as above.
        deal, block: how often the sites were dealt before, and which 24 of that deal.
    """

    world: World
    k: int
    question: str
    declared: bool
    compares: bool
    nothing: bool
    mark: Mark | None
    holds: bool
    real: bool
    imputed: bool
    naive: bool
    alike: bool
    imputed_width: float
    alike_width: float
    width: float
    real_i2: float
    predicted: float
    known: float
    deal: int = 0
    block: int = 0

    @property
    def answers(self) -> bool:
        return self.mark not in NO_ANSWER


def run() -> Path:
    """Measure what is missing, and write all that there is."""
    jobs = list(list_jobs())
    kept = store().read()
    missing = [job for job in jobs if job.key not in kept]
    over_runs(keep_answer, missing, "coverage")
    return write_down()


def write_down() -> Path:
    """Write what is in the store, complete or not."""
    found = [one for own in over_runs(judge_kept, WORLDS, "worlds judged") for one in own]
    return write("coverage", list(list_rows(found)), (__doc__ or "").strip())


def judge_kept(world: World) -> list[Found]:
    """By the answers that there are."""
    return list(judge_world(world, store().read()))


# -- one federation --------------------------------------------------------------------------------


def judge_world(world: World, kept: Mapping[str, Answer]) -> Iterator[Found]:
    """Every question of every federation of whose sites all are there."""
    table, truth = read_world(world.table), kept.get(Job(world, -1).key)
    if table is None or truth is None:
        return
    asked = pose_questions(world, table)
    sites: dict[int, Site] = {}
    while (own := kept.get(Job(world, len(sites)).key)) is not None:
        sites[len(sites)] = read_site(own, list(asked.every))
    for deal in range(DEALS):
        order = deal_sites(world, len(sites), deal)
        # Of unlike sites each has a truth of its own.
        for k in KS if deal or world.unlike else (ALONE, *KS):
            for first in range(0, len(sites) - k + 1, k):
                block = first // BANK
                # No federation lies across two blocks.
                if block == (first + k - 1) // BANK:
                    chosen = {str(i): sites[i] for i in order[first : first + k]}
                    for one in judge(world, asked, chosen, truth):
                        yield replace(one, deal=deal, block=block)


def deal_sites(world: World, count: int, deal: int) -> list[int]:
    """The numbers of all sites in another order, in which those of one size follow each other as
    they did; the first deal is as they were numbered."""
    numbers = np.arange(count)
    if deal:
        rng = np.random.default_rng(seed_of("deal", world.key, deal))
        for size in range(SITE_SIZES):
            numbers[size::SITE_SIZES] = rng.permutation(numbers[size::SITE_SIZES])
    return [int(number) for number in numbers]


def judge(world: World, asked: Asked, sites: Mapping[str, Site], truth: Answer) -> Iterator[Found]:
    """One federation's answers."""
    declared = _widen(sites, [*asked.declared])
    for name in asked.every:
        # A question's number does not depend on what else is asked afterwards.
        beside = [*asked.declared, name]
        widened = declared if name in asked.declared else _widen(sites, beside)
        private = {site: own[name] for site, own in widened.items() if name in own}
        one = _judge_question(world, asked, name, sites, private, truth)
        if one is not None:
            yield one


def _widen(sites: Mapping[str, Site], names: Sequence[str]) -> dict[str, dict[str, SiteEstimate]]:
    return widen_sites(
        {
            site: {name: own.measured[name] for name in names if name in own.measured}
            for site, own in sites.items()
        }
    )


def _judge_question(
    world: World,
    asked: Asked,
    name: str,
    sites: Mapping[str, Site],
    private: Mapping[str, SiteEstimate],
    truth: Answer,
) -> Found | None:
    estimand, declared = asked.every[name], name in asked.declared
    good = {
        site: e
        for site, e in private.items()
        if e.problem is None and poolable(e.estimate, e.variance)
    }
    further = estimand.regression.compares and not declared
    head, without = _pool(list(good.values()), further=further), _pool_real(sites, name)
    if head is None or without is None:
        return None
    alike = _average([*good.values()], further=further)
    weights = dict(zip(good, head.weights, strict=True))
    imputed = _pool_imputed(own.imputed.get(name) for own in sites.values())
    naive = _pool_imputed(_combine_copies(own.measured.get(name)) for own in sites.values())
    if imputed is None or naive is None:
        return None
    true, predicted, known = truth[name], math.nan, math.nan
    if world.unlike:
        kinds = tuple(truth[f"{name}/{kind}"] for kind in range(UNLIKENESS))
        known = hold_known(kinds, len(sites))
        if head.pi_low is not None and head.pi_high is not None:
            predicted = float(np.mean([head.pi_low <= one <= head.pi_high for one in kinds]))
    return Found(
        world,
        len(sites),
        name,
        declared,
        estimand.regression.compares,
        name in asked.nothing,
        _find_mark(estimand, name, sites, head, weights, declared=declared),
        head.ci_low <= true <= head.ci_high,
        without.ci_low <= true <= without.ci_high,
        imputed.ci_low <= true <= imputed.ci_high,
        naive.ci_low <= true <= naive.ci_high,
        alike.ci_low <= true <= alike.ci_high,
        (imputed.ci_high - imputed.ci_low) / (without.ci_high - without.ci_low),
        (alike.ci_high - alike.ci_low) / (without.ci_high - without.ci_low),
        (head.ci_high - head.ci_low) / (without.ci_high - without.ci_low),
        without.i2,
        predicted,
        known,
    )


@cache
def hold_known(kinds: tuple[float, ...], k: int) -> float:
    """How often Student's t of k sites' own truths holds the mean of all kinds of sites, of which
    each is as likely; NaN of one site."""
    if k == 1:
        return math.nan
    drawn = np.random.default_rng(k).choice(np.array(kinds), (20_000, k))
    off = np.abs(drawn.mean(axis=1) - np.mean(kinds))
    half = quantile(0.95, k - 1) * drawn.std(axis=1, ddof=1) / math.sqrt(k)
    # Where all kinds have one truth it is off by rounding.
    return float(np.mean(off <= half + 1e-12 * abs(kinds[0])))


def _pool(sites: Sequence[SiteEstimate], *, further: bool = False) -> Pooled | None:
    found = pool_sites(sites, total=False, joint=False, further=further, beside=False)
    return found.get("random")


def _average(sites: Sequence[SiteEstimate], *, further: bool) -> Pooled:
    y, v, df = zip(*((one.estimate, one.variance, one.df) for one in sites), strict=True)
    plain = average_sites(y, v, degrees=df)
    return allow_misfit(plain, sites) if further else plain


def _pool_real(sites: Mapping[str, Site], name: str) -> Pooled | None:
    real = [own.real[name] for own in sites.values()]
    return _pool([SiteEstimate(y, v, v, None, None, None, 1, 1) for y, v in real if poolable(y, v)])


def _pool_imputed(sites: Iterable[SiteEstimate | None]) -> Pooled | None:
    """Of several sites just estimates and variances are known then; of one its degrees of freedom,
    too."""
    good = [one for one in sites if one and poolable(one.estimate, one.variance)]
    return _pool(good if len(good) == ALONE else [replace(one, df=math.inf) for one in good])


def _combine_copies(one: Measured | None) -> SiteEstimate | None:
    if one is None or one.plain.between is None:
        return None
    plain = one.plain
    return impute(plain.estimate, plain.within, plain.between, plain.copies_used)


def _list_measured(sites: Mapping[str, Site], name: str) -> dict[str, Measured]:
    return {site: own.measured[name] for site, own in sites.items() if name in own.measured}


def _find_mark(
    estimand: Estimand,
    name: str,
    sites: Mapping[str, Site],
    head: Pooled,
    weights: Mapping[str, float],
    *,
    declared: bool,
) -> Mark | None:
    """As the report has it of what is declared, and `analyse` of the rest."""
    slopes = {site: own.slopes[name] for site, own in sites.items() if name in own.slopes}
    doubts = {site: own.doubts[name] for site, own in sites.items() if name in own.doubts}
    if not declared and estimand.regression.compares:
        if isinstance(estimand.target, Product) or estimand.where:
            return Mark.UNSUPPORTED
        shown = find_recovered(weights, _list_measured(sites, name))
        told = {site: one.overlaps[name] for site, one in sites.items() if name in one.overlaps}
        rests = join_held(tell_overlaps(told, weights), tell_doubts(doubts, weights))
        found = judge_untried(rests, shown)
        return Mark.UNRESOLVED if found is None else Mark(found["mark"])
    held = join_held(tell_held(slopes, weights), tell_doubts(doubts, weights))
    return None if held is None else Mark(held["mark"])


# -- rows ------------------------------------------------------------------------------------------


def list_rows(found: Sequence[Found], worlds: Sequence[World] = WORLDS) -> Iterator[Row]:
    """Over all cells, of each world and number of sites, and of each question."""
    declared = [one for one in found if one.declared and one.k != ALONE]
    others = [one for one in found if not one.declared and one.k != ALONE]
    yield from _list_overall(declared, others)
    yield from _list_alone([one for one in found if one.k == ALONE and one.answers])
    for world in worlds:
        for k in KS:
            here = [one for one in found if one.world == world and one.k == k]
            if here:
                yield from _list_cell(f"{world}, {k} sites", here)
    for world in worlds:
        own = [one for one in found if one.world == world and one.k != ALONE]
        for question in dict.fromkeys(one.question for one in own):
            asked = [one for one in own if one.question == question]
            kind = "declared" if asked[0].declared else "asked afterwards"
            marked = _share([not one.answers for one in asked])
            label = f"{question} ({kind}; marked {marked:.2f}), {world}, 4, 8 and 12 sites"
            yield replace(
                _row(f"holds, marked or not: {label}", asked),
                peer=_share([one.real for one in asked]),
            )


def _list_overall(declared: Sequence[Found], others: Sequence[Found]) -> Iterator[Row]:
    unlike = _list_unlike(declared)
    for what, chosen in {
        "all worlds": declared,
        "sites alike": [one for one in declared if not one.world.unlike],
        "sites unlike": [one for one in declared if one.world.unlike],
        APART: [one for one in declared if _cell_of(one) in unlike],
    }.items():
        answered = [one for one in chosen if one.answers]
        if not answered:
            continue
        mean, se = _over_cells(answered)
        # Where sites are alike the floored interval holds more, and its width is the bound.
        most = {"all worlds": 1.0, APART: HIGH}.get(what)
        holds = None if most is None else _say(LOW - 2 * se <= mean <= most + 2 * se, se)
        label = f"holds, declared, mean over cells, {what}"
        target, real = None if most is None else LOW, _find_peer(answered)
        yield Row(label, mean, se, len(answered), target, peer=real, holds=holds)
        if what == "all worlds":
            yield _tell_worlds(label, answered)
        yield from _list_others(label, answered)
        known = [one.known for one in {_cell_of(o): o for o in answered}.values()]
        finite = [share for share in known if math.isfinite(share)]
        if finite and what != "all worlds":
            yield Row(f"{label}, if sites' effects were known", _share(finite), None, len(finite))
        yield _row(f"marked, declared, {what}", chosen, _is_marked)
    cells = _group([one for one in declared if one.answers and not one.deal])
    below = _list_below({cell: [one.holds for one in own] for cell, own in cells.items()})
    label = f"cells declared, below {LEAST} beyond chance, of {len(cells)}"
    fewest = min(map(len, cells.values()), default=0)
    shown = False if below else True if fewest >= ENOUGH else None
    yield Row(label + _name(below), float(len(below)), None, len(cells), 0.0, holds=shown)
    real_below = _list_below({cell: [one.real for one in own] for cell, own in cells.items()})
    label += ", of the same sites' real rows"
    yield Row(label + _name(real_below), float(len(real_below)), None, len(cells))
    for what, chosen in {
        "regressions": [one for one in others if one.compares and one.answers],
        "means, shares and quantiles": [one for one in others if not one.compares],
    }.items():
        if chosen:
            mean, se = _over_cells(chosen)
            holds = _say(mean >= UNDECLARED - 2 * se, se)
            label = f"holds, asked afterwards and not marked, mean over cells: {what}"
            real = _find_peer(chosen)
            yield Row(label, mean, se, len(chosen), UNDECLARED, peer=real, holds=holds)
            yield from _list_others(label, chosen)
    yield _row("marked, asked afterwards", others, _is_marked)
    nothing = [one for one in (*declared, *others) if one.nothing and one.answers]
    if nothing:
        share, se = _over_cells(nothing)
        wrong = 1 - share
        holds = _say(wrong <= NOTHING + 2 * se, se)
        label = "significant, of nothing, mean over cells"
        yield Row(label, wrong, se, len(nothing), NOTHING, holds=holds)


def _list_alone(found: Sequence[Found]) -> Iterator[Row]:
    """Of single sites, of which others' answers tell nothing."""
    for what, chosen in {
        "declared": [one for one in found if one.declared],
        "asked afterwards, regressions": [o for o in found if not o.declared and o.compares],
        "asked afterwards, others": [o for o in found if not (o.declared or o.compares)],
    }.items():
        if chosen:
            mean, se = _over_cells(chosen)
            label = f"holds, one site alone, mean over cells, {what}"
            yield Row(label, mean, se, len(chosen), peer=_find_peer(chosen))
            yield from _list_others(label, chosen)


def _list_others(label: str, chosen: Sequence[Found]) -> Iterator[Row]:
    """What intervals hold that are made in other ways, and how wide they are beside ours."""
    ways: dict[str, tuple[Callable[[Found], bool], Callable[[Found], float] | None]] = {
        "by Rubin's rules of refits": (lambda one: one.imputed, lambda one: one.imputed_width),
        "by Rubin's rules of copies": (lambda one: one.naive, None),
    }
    if any(one.k != ALONE for one in chosen):
        ways["by the plain mean of sites"] = (lambda o: o.alike, lambda o: o.alike_width)
    for way, (find_held, find_width) in ways.items():
        mean, se = _over_cells([replace(one, holds=find_held(one)) for one in chosen])
        yield Row(f"{label}, {way}", mean, se, len(chosen))
        if find_width is not None:
            width = float(np.median([find_width(one) / one.width for one in chosen]))
            yield Row(f"width {way} over ours: {label}", width, None, len(chosen))


def _say(within: bool, se: float) -> bool | None:
    """Whether a target is met; None where too little is known to say so."""
    if not within:
        return False
    return True if se <= SHARP else None


def _list_cell(label: str, here: Sequence[Found]) -> Iterator[Row]:
    declared = [one for one in here if one.declared and one.answers]
    others = [one for one in here if not one.declared and one.answers]
    yield _row(f"holds, declared, {label}", declared)
    yield _row(f"marked, declared, {label}", [one for one in here if one.declared], _is_marked)
    yield _row(f"holds, asked afterwards and not marked, {label}", others)
    widths = np.sort([one.width for one in declared])
    if len(widths):
        low, middle, high = (float(q) for q in np.quantile(widths, [0.25, 0.5, 0.75]))
        yield Row(
            f"width over that without privacy, declared, {label}",
            middle,
            None,
            len(widths),
            WIDTH,
            holds=middle <= WIDTH,
            quartiles=(low, high),
        )
    predicted = [one for one in declared if math.isfinite(one.predicted)]
    if predicted:
        yield _row(f"predicted, declared, {label}", predicted, lambda one: one.predicted)


def _holds(one: Found) -> float:
    return float(one.holds)


def _is_marked(one: Found) -> float:
    return float(not one.answers)


def _row(what: str, found: Sequence[Found], value: Callable[[Found], float] = _holds) -> Row:
    chance = math.nan if not found else _find_chance(found, value)
    return Row(what, _share([value(one) for one in found]), chance, len(found))


def _share(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


Cell = tuple[World, int, str]
Cells = dict[Cell, list[Found]]


def _cell_of(one: Found) -> Cell:
    return one.world, one.k, one.question


def _group(found: Sequence[Found]) -> Cells:
    cells: Cells = {}
    for one in found:
        cells.setdefault(_cell_of(one), []).append(one)
    return cells


def _list_unlike(found: Sequence[Found]) -> set[Cell]:
    """Cells in which half of the federations of real rows have an I² of 50 % and more. Of the cell:
    whoever chose federations by what they happen to show would choose wide intervals."""
    cells = _group(found).items()
    return {cell for cell, own in cells if np.median([one.real_i2 for one in own]) >= HALF}


def _name(cells: Sequence[Cell]) -> str:
    named = "; ".join(f"{question}, {world}, {k} sites" for world, k, question in cells)
    return f" ({named})" if named else ""


def _over_cells(found: Sequence[Found]) -> tuple[float, float]:
    """The mean over cells of what holds, and its standard error by chance."""
    cells = _share_cells(found)
    worlds = [world for world, _, _ in cells]
    weights = {world: worlds.count(world) / len(worlds) for world in worlds}
    return _share(list(cells.values())), _find_chance(found, _holds, weights)


def _share_cells(found: Sequence[Found]) -> dict[Cell, float]:
    """What holds in each of them."""
    return {cell: _share([one.holds for one in own]) for cell, own in _group(found).items()}


def _find_peer(found: Sequence[Found]) -> float:
    """What real rows' intervals hold of the same answers, as a mean over the same cells."""
    return _share(list(_share_cells([replace(one, holds=one.real) for one in found]).values()))


def _tell_worlds(label: str, found: Sequence[Found]) -> Row:
    """How the worlds' own means over cells lie."""
    by_world: dict[World, list[float]] = {}
    for (world, _, _), share in _share_cells(found).items():
        by_world.setdefault(world, []).append(share)
    low, middle, high = np.quantile([_share(own) for own in by_world.values()], [0.25, 0.5, 0.75])
    quartiles = float(low), float(high)
    return Row(f"{label}, of each", float(middle), None, len(by_world), quartiles=quartiles)


def _find_chance(
    found: Sequence[Found],
    value: Callable[[Found], float],
    weights: Mapping[World, float] | None = None,
) -> float:
    r"""The standard error of the mean over all deals, of these worlds; NaN where one has a single
    block of sites.

    With T of one deal, whose blocks share no site, and T̄ the mean over R deals of the same sites,
    Var T̄ = Var T - (1 - 1/R) E[Var(T | sites)], and at least the last one over R. Blocks are
    weighed alike, and each world by its answers if no ``weights`` are given.
    """
    variance = 0.0
    for world in dict.fromkeys(one.world for one in found):
        own = [one for one in found if one.world == world]
        blocks: dict[int, dict[int, list[float]]] = {}
        for one in own:
            blocks.setdefault(one.deal, {}).setdefault(one.block, []).append(value(one))
        means = [[_share(values) for values in deal.values()] for deal in blocks.values()]
        parts = [float(np.var(deal, ddof=1)) / len(deal) for deal in means if len(deal) > 1]
        if not parts:
            return math.nan
        deals = [_share(deal) for deal in means]
        dealt = float(np.var(deals, ddof=1)) if len(deals) > 1 else 0.0
        left = 1 / len(deals)
        weight = len(own) / len(found) if weights is None else weights[world]
        variance += weight**2 * max(_share(parts) - dealt * (1 - left), dealt * left)
    return math.sqrt(variance)


def _list_below(cells: Mapping[Cell, Sequence[bool]]) -> list[Cell]:
    """Holm's step-down test of coverage of at least ``LEAST`` in every cell, at .05."""
    chances = {cell: float(binom.cdf(sum(own), len(own), LEAST)) for cell, own in cells.items()}
    below = []
    for place, cell in enumerate(sorted(chances, key=chances.__getitem__)):
        if chances[cell] > 0.05 / (len(chances) - place):
            break
        below.append(cell)
    return below


if __name__ == "__main__":
    sys.stdout.write(write_down().read_text())
