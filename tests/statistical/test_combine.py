"""The combining rule against simulated plug-in synthesis, and against the rule of before.

No release is made: estimates are drawn from the law that the rule assumes. Every band is six
standard deviations of what is looked at or more (a false-alarm rate below 1e-8 each, 1e-6 for all),
seeds are fixed, and the rules of before are planted as twins that must be caught.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.studies.combining import (
    D_OVER_U,
    Site,
    coverage,
    pooled,
    refits_drawn_anew,
    refits_in_pairs,
    refits_of_copies,
)

from penstock.inference import pooling
from penstock.inference.combine import combine
from penstock.inference.pooling import quantile
from penstock.inference.refits import (
    Measured,
    Spread,
    correct,
    shrunk,
    spread,
    widen_sites,
    widened,
)
from penstock.mechanisms.released import Refitting
from penstock.questions.estimation import Estimate

REPEATS, ROWS, COPIES = 8000, 50, 4
BAND = 6 * math.sqrt(2 / REPEATS)
"""Σ(q̄ − truth)²/(R·E[T]) is χ²(R)/R where T is right."""


def ratio(mechanism_sd: float, told: float) -> tuple[float, float]:
    """Mean squared error of q̄ over the mean of T, and over the mean of ū: the mean of a normal."""
    rng = np.random.default_rng(7)
    errors, totals, withins = [], [], []
    for _ in range(REPEATS):
        real = rng.normal(size=ROWS)
        centre = real.mean() + mechanism_sd * rng.normal()
        copies = rng.normal(centre, real.std(ddof=1), size=(COPIES, ROWS))
        made = [Estimate(c.mean(), c.var(ddof=1) / ROWS, ROWS, None, True) for c in copies]
        # As many refits would tell it exactly.
        shown = Spread(made[0].variance + told**2, made[0].variance, 1e12, ROWS)
        site = widened(combine(made), shown)
        errors.append(site.estimate**2)
        totals.append(site.variance)
        withins.append(site.within)
    mse = float(np.mean(errors))
    return mse / float(np.mean(totals)), mse / float(np.mean(withins))


def test_variance_covers_sampling_and_synthesis() -> None:
    total, within = ratio(0.0, 0.0)
    assert total == pytest.approx(1.0, abs=BAND)
    assert within > 1 + BAND  # the twin that forgets the synthesis is caught


@pytest.mark.parametrize(("told", "covers"), [(0.1, True), (0.0, False)])
def test_mechanism_noise_is_covered_only_where_it_is_told(told: float, covers: bool) -> None:
    total, _ = ratio(0.1, told)
    assert (abs(total - 1.0) < BAND) == covers


# What refits show -----------------------------------------------------------------------------


@pytest.mark.parametrize("make", [refits_drawn_anew, refits_of_copies, refits_in_pairs])
@pytest.mark.parametrize("d", [0.0, 3.0])
def test_what_refits_show_has_no_bias_though_copies_are_five(
    make: Callable[..., Site], d: float
) -> None:
    """E(S − known) = d; forgetting ū/m, as before, was off by .2u at m = 5.

    S is known to a relative √(2/B) a site, B = 40, on (2 + d)u; 2000 sites, so the band is
    6 · .2236 · (2 + d) · 1.1/√2000.
    """
    rng, sites = np.random.default_rng(3), 2000
    found, before = [], []
    for _ in range(sites):
        site = make(rng, d, copies=5, refits=40)
        shown = spread(site.plain, site.refits, site.copies, site.made)
        assert shown is not None
        found.append(shown.square - shown.known)
        mean = np.mean([(r.estimate - site.plain.estimate) ** 2 for r in site.refits])
        before.append(mean - np.mean([r.variance * (1 + r.n / ROWS) for r in site.refits]))
    band = 6 * math.sqrt(2 / 40) * (2 + d) * 1.1 / math.sqrt(sites)
    assert abs(np.mean(found) - d) < band
    if make is refits_drawn_anew and d == 0.0:
        assert np.mean(before) - d > band  # the twin


@pytest.mark.parametrize(("count", "right"), [(ROWS, True), (2 * ROWS, True), (2 * ROWS, False)])
def test_refits_show_the_mechanisms_variance_whatever_their_own_count(
    count: int, right: bool
) -> None:
    """A copy has as many rows as the release counted, a refit's table as many as it counted.

    B = 8000 refits of a mean, by a mechanism of sd .1, S about .03 or .02; six of its standard
    deviations, √(2/B), are the band. The twin takes the table for one of the copies' size.
    """
    rng, sd = np.random.default_rng(11), 0.1
    copy = rng.normal(size=ROWS)
    made_of = Estimate(copy.mean(), copy.var(ddof=1) / ROWS, ROWS, None, True)
    refits = []
    for _ in range(REPEATS):
        table = rng.normal(copy.mean() + sd * rng.normal(), 1.0, count)
        told = table.var(ddof=1) / (count if right else ROWS)
        refits.append(Estimate(table.mean(), told, count, None, True))
    shown = spread(combine([made_of]), refits, [made_of])
    assert shown is not None
    within = abs(shown.square - shown.known - sd**2) < 6 * 0.03 * math.sqrt(2 / REPEATS)
    assert within == right


def test_refits_are_compared_with_the_copy_they_were_made_of() -> None:
    copies = [Estimate(float(j), 1.0, 9, None, True) for j in range(3)]
    refits = [Estimate(float(b % 3), 1.0, 9, None, True) for b in range(7)]
    shown = spread(combine(copies), refits, copies)
    assert shown is not None
    assert (shown.square, shown.known, shown.df) == (0.0, 1.0, 7.0)
    # A copy without an estimate takes its refits with it; most of them, and nothing is known.
    bad = replace(copies[0], estimate=math.nan)
    assert spread(combine([bad, *copies[1:]]), refits, [bad, *copies[1:]]).df == 4.0  # type: ignore[union-attr]
    assert spread(combine(copies), refits, [bad, bad, copies[2]]) is None


@pytest.mark.parametrize("share", [0.05, 1.0])
@pytest.mark.parametrize("d", [0.0, 3.0])
def test_two_tables_of_a_fit_show_what_is_new_in_a_table(share: float, d: float) -> None:
    """E(S − known) = d, whatever that share is, with the variance that df and known_df say: 2000
    sites of 10 fits. The twin, which assumes that all of a table is new, is off where little is.
    """
    rng, sites = np.random.default_rng(4), 2000
    found, told, assumed = [], [], []
    for _ in range(sites):
        site = refits_in_pairs(rng, d, copies=5, refits=20, share=share)
        shown = spread(site.plain, site.refits, site.copies, site.made)
        each = spread(site.plain, site.refits[::2], site.copies)
        assert shown is not None
        assert each is not None
        found.append(shown.square - shown.known)
        told.append(2 * shown.square**2 / shown.df + 2 * shown.known**2 / shown.known_df)
        assumed.append(each.square - each.known)
    error = math.sqrt(((d + share / 2) ** 2 / 10 + (share / 2) ** 2 / 10) * 2)
    band = 6 * error / math.sqrt(sites)
    assert abs(np.mean(found) - d) < band
    # The square of a mean square is larger than the true one's, by 2/df.
    assert np.mean(told) == pytest.approx(error**2 * 1.2, rel=0.15)
    assert np.std(found) == pytest.approx(error, rel=0.15)
    if share < 1:
        assert abs(np.mean(assumed) - d) > band  # the twin


def test_a_fit_is_whole_or_left_out() -> None:
    copies = [Estimate(float(j), 1.0, 9, None, True) for j in range(3)]
    made = Refitting(per_fit=2)
    refits = [Estimate(float(b // 2 % 3) + b % 2, 1.0, 9, None, True) for b in range(10)]
    shown = spread(combine(copies), refits, copies, made)
    assert shown is not None
    assert (shown.square, shown.known, shown.df, shown.known_df) == (0.25, 0.25, 5.0, 5.0)
    refits[0] = replace(refits[0], estimate=math.nan)
    assert spread(combine(copies), refits, copies, made).df == 4.0  # type: ignore[union-attr]
    for place in (2, 5):
        refits[place] = replace(refits[place], estimate=math.nan)
    assert spread(combine(copies), refits, copies, made) is None
    assert spread(combine(copies), refits[6:7], copies, made) is None


def measure_pairs(errors: list[float], estimate: float = 2.0) -> Measured:
    """Copies that are all alike, and fits whose two refits are off by .1 to either side of that."""
    copies = [Estimate(estimate, 0.04, 50, None, True)] * len(errors)
    refits = [Estimate(estimate + e + o, 0.04, 50, None, True) for e in errors for o in (-0.1, 0.1)]
    return Measured.of(copies, refits, made=Refitting(per_fit=2))


def test_an_estimate_is_moved_by_what_refits_lack_beyond_chance() -> None:
    """By hand: b = −.5 and V = .04 of four fits, λ = 1 − .01/.25 = .96."""
    errors = [-0.5 + e for e in (0.3, -0.1, -0.1, -0.1)]
    one = measure_pairs(errors)
    found = correct(one)
    assert found.plain.estimate == pytest.approx(2.0 + 0.96 * 0.5)
    assert found.plain.correction == pytest.approx(0.96 * 0.5)
    shown = found.shown
    assert shown is not None
    assert shown.square == pytest.approx(0.04 * (1 + 0.96**2 / 4) + (0.04 * 0.5) ** 2)
    assert (shown.df, shown.known, shown.known_df) == (3.0, pytest.approx(0.01), 4.0)
    assert widen_sites({"s": {"e": one}})["s"]["e"].estimate == found.plain.estimate


@pytest.mark.parametrize(
    "one",
    [
        measure_pairs([0.1, -0.1, 0.1, -0.12]),  # no more than chance
        measure_pairs([0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_a_bias_that_is_chance_moves_nothing(one: Measured) -> None:
    found = correct(one)
    assert (found.plain.estimate, found.plain.correction) == (2.0, 0.0)
    assert found.shown is not None
    assert one.shown is not None
    assert found.shown.square >= one.shown.square


def test_what_shows_no_bias_is_left_as_it_is() -> None:
    """Of too few fits, of single refits, of a total, and where there is no estimate."""
    few = measure_pairs([-0.5, -0.5])
    single = Measured.of(
        [Estimate(2.0, 0.04, 50, None, True)] * 4, [Estimate(1.5, 0.04, 50, None, True)] * 4
    )
    whole = measure_pairs([-0.5] * 4)
    total = replace(whole, plain=replace(whole.plain, total=True))
    for one in (few, single, total, replace(whole, shown=None)):
        assert correct(one) == one
    assert correct(whole).plain.estimate == pytest.approx(2.5)


def test_copies_own_drawing_is_what_two_tables_of_a_fit_show() -> None:
    """Four copies, .02 of a table's drawing by hand; of single refits all of .04 is new."""
    alike = measure_pairs([0.0] * 4)
    found = widen_sites({"s": {"e": alike}})["s"]["e"]
    assert (found.variance, found.mechanism_variance) == (pytest.approx(0.04 + 0.02 / 4), 0.0)
    same = [Estimate(2.0, 0.04, 50, None, True)] * 4
    single = widen_sites({"s": {"e": Measured.of(same, same)}})["s"]["e"]
    assert single.variance == pytest.approx(0.04 * (1 + 1 / 4))
    few = measure_pairs([0.0] * 2)
    assert widen_sites({"s": {"e": few}})["s"]["e"].variance == pytest.approx(0.04 * (1 + 1 / 2))
    total = replace(alike, plain=replace(alike.plain, total=True))
    counted = widen_sites({"s": {"e": total}})["s"]["e"]
    assert counted.variance - counted.mechanism_variance == pytest.approx(0.02 / 4)


@pytest.mark.parametrize(("bias", "better"), [(0.0, False), (-3.0, True)])
def test_a_corrected_site_holds_the_truth(bias: float, better: bool) -> None:
    """A mechanism that errs by its own bias at every release: 4,000 sites of ten fits. Their
    intervals hold what they say; where there is a bias, estimates err far less."""
    rng, sites = np.random.default_rng(8), 4000
    errors, before, held = [], [], []
    for _ in range(sites):
        site = refits_in_pairs(rng, 1.0, copies=10, refits=20)
        copies = [replace(one, estimate=one.estimate + bias) for one in site.copies]
        refits = [replace(one, estimate=one.estimate + 2 * bias) for one in site.refits]
        one = Measured.of(copies, refits, made=site.made)
        found = widen_sites({"s": {"e": one}})["s"]["e"]
        errors.append(found.estimate)
        before.append(one.plain.estimate)
        half = quantile(0.95, found.df) * math.sqrt(found.variance)
        held.append(abs(found.estimate) <= half)
    assert 0.94 < np.mean(held) < 0.975
    ratio = np.mean(np.square(errors)) / np.mean(np.square(before))
    assert ratio < 0.35 if better else ratio < 1.05


def test_what_is_new_in_a_table_is_drawn_half_way_to_what_all_say() -> None:
    own = {str(i): Spread(1.0, 0.1 * i, 10.0, 100, 0.0, 1.0, 10.0) for i in (1, 2, 3)}
    middle = (1 - 2 / 90) ** 3
    found = shrunk({"e": own})["e"]
    for i in (1, 2, 3):
        assert found[str(i)].known == pytest.approx((0.1 * i + 0.2 / middle) / 2)
        assert found[str(i)].known_df == 20.0
    assert shrunk({"e": {"1": own["1"]}})["e"]["1"] == own["1"]


def test_persons_own_latents_are_no_new_sampling() -> None:
    copies = [Estimate(0.0, 1.0, 9, None, True)]
    assert spread(combine(copies), copies * 4, copies, Refitting(fresh=0.25)).known == 0.25  # type: ignore[union-attr]


def test_an_answer_without_a_count_has_no_refits_to_compare() -> None:
    released = replace(combine([Estimate(0.0, 1.0, 9, None, True)]), n=None)
    assert spread(released, [Estimate(0.0, 1.0, 9, None, True)], ()) is None


# What sites show each other --------------------------------------------------------------------


def test_spreads_are_drawn_to_a_line_in_one_over_n_where_sites_agree() -> None:
    rng, rows = np.random.default_rng(5), [450, 900, 1800, 3600, 6000, 6300]
    true = [1 + 4500 / n for n in rows]
    apart, drawn = [], []
    for _ in range(400):
        own = {
            str(n): Spread(e * rng.chisquare(40) / 40, 1.0, 40.0, n)
            for n, e in zip(rows, true, strict=True)
        }
        both = shrunk({"e": own})["e"]
        apart.append([(own[str(n)].square / e - 1) ** 2 for n, e in zip(rows, true, strict=True)])
        drawn.append([(both[str(n)].square / e - 1) ** 2 for n, e in zip(rows, true, strict=True)])
        assert all(40 <= s.df <= 80 for s in both.values())
    assert np.mean(drawn) < 0.6 * np.mean(apart)


def test_spreads_that_disagree_hardly_draw_each_other() -> None:
    own = {str(i): Spread(10.0 ** (i % 3), 1.0, 40.0, 1000) for i in range(6)}
    for site, one in shrunk({"e": own})["e"].items():
        assert 40 <= one.df < 42
        assert one.square == pytest.approx(own[site].square, rel=0.3)


def test_one_site_is_not_drawn_and_a_hostile_one_moves_others_little() -> None:
    one = {"a": Spread(3.0, 1.0, 40.0, 1000)}
    assert shrunk({"e": one})["e"] == one
    honest = {str(i): Spread(2.0 + 0.1 * i, 1.0, 40.0, 1000) for i in range(5)}
    for square in (0.0, 1e12):
        found = shrunk({"e": honest | {"x": Spread(square, 1.0, 40.0, 1000)}})["e"]
        assert all(abs(found[s].square / honest[s].square - 1) < 0.15 for s in honest)


# Coverage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", D_OVER_U)
def test_a_sites_interval_covers_whatever_the_mechanism_adds(d: float) -> None:
    """40 000 sites, s.e. .0011: .94 to .96 for what is .949 to .959; B = 10 with a normal quantile,
    the rule of before, covered .911 to .967."""
    assert 0.94 <= coverage(d, refits=40, repeats=40_000) <= 0.96


def test_ten_refits_and_a_normal_quantile_are_caught() -> None:
    found = [coverage(d, refits=10, repeats=40_000, before=True) for d in (0.0, 3.0, 100.0)]
    assert found[0] > 0.96
    assert max(found[1:]) < 0.93


@pytest.mark.parametrize("k", [4, 12])
def test_pooling_knows_that_variances_are_estimated(k: int) -> None:
    """600 pools of ten refits a site at d/u = 3: within .05 + .036 (four s.e.)."""
    found = pooled(k, 3.0, refits=10, repeats=600)
    assert found.q_level < 0.086
    assert found.fixed > 0.914


def test_variances_taken_as_known_see_heterogeneity_that_is_not_there() -> None:
    """Twelve sites, variances of eight degrees of freedom, 4 000 pools: .05 ± .02 (six s.e.).

    The twin, χ² as before, has some 16 %.
    """
    rng = np.random.default_rng(17)
    welch, known = [], []
    for _ in range(4000):
        y, v = rng.normal(size=12), rng.chisquare(8, 12) / 8
        welch.append(pooling.pool(y, v, method="fixed", degrees=np.full(12, 8.0)).q_p < 0.05)
        known.append(pooling.pool(y, v, method="fixed").q_p < 0.05)
    assert abs(np.mean(welch) - 0.05) < 0.02
    assert np.mean(known) > 0.09


def test_known_variances_pool_as_before() -> None:
    y, v = [0.1, 0.4, -0.2, 0.9, 0.3], [0.04, 0.09, 0.02, 0.1, 0.05]
    for method in pooling.METHODS:
        for test in pooling.TESTS:
            known = pooling.pool(y, v, method=method, test=test)
            assert known == pooling.pool(y, v, method=method, test=test, degrees=[math.inf] * 5)
            nearly = pooling.pool(y, v, method=method, test=test, degrees=[1e12] * 5)
            assert nearly.ci_low == pytest.approx(known.ci_low, abs=1e-8)
            assert nearly.q_p == pytest.approx(known.q_p, abs=1e-8)


def test_two_estimated_variances_are_compared_as_welch_does() -> None:
    """Against scipy's t test of two means with unequal variances: F(1, f) is t(f) squared."""
    from scipy import stats

    y, v, n = np.array([0.0, 1.1]), np.array([0.2, 0.1]), np.array([9, 14])
    found = pooling.pool(y, v, method="fixed", degrees=n - 1)
    sd = np.sqrt(v * n)
    t = stats.ttest_ind_from_stats(y[0], sd[0], n[0], y[1], sd[1], n[1], equal_var=False)
    assert found.q == pytest.approx(t.statistic**2, rel=1e-12)
    assert found.q_p == pytest.approx(t.pvalue, rel=1e-9)


@pytest.mark.parametrize("degrees", [[1.0], [0.0, 1.0], [math.nan, 1.0], [-1.0, 2.0]])
def test_degrees_must_be_above_zero(degrees: list[float]) -> None:
    with pytest.raises(Exception, match="degrees"):
        pooling.pool([0.0, 1.0], [1.0, 1.0], degrees=degrees)


def test_nothing_shown_is_a_problem_not_a_zero() -> None:
    plain = combine([Estimate(0.0, 1.0, 9, None, True)])
    assert widened(plain, None).problem is not None


SHARE, NEW = 0.25, 0.3
"""Of as many rows as sites have, that tables have; and of a table's sampling, that is new in it."""


def imagine_shared(rng: np.random.Generator, d: float, made: Refitting) -> Measured:
    """A site whose rows have sampling 1 about 0, by ten tables of a share of them."""
    u = 1 / SHARE
    new, off = math.sqrt(NEW * u), math.sqrt(d)
    model = rng.normal() + off * rng.normal()
    copies = model + new * rng.normal(size=10)
    fits = np.repeat(copies + off * rng.normal(size=10), 2)
    refits = fits + new * rng.normal(size=20)
    each = [[Estimate(float(x), u, ROWS, 10, True) for x in of] for of in (copies, refits)]
    return Measured.of(*each, made=made)


@pytest.mark.parametrize("d", [0.2, 3.0])
def test_tables_of_a_share_of_the_rows_tell_as_much_as_they_can(d: float) -> None:
    """Their sampling is a share of what they have, and their drawing is theirs: 4,000 sites, whose
    intervals hold what they say. The twin, which takes tables for whole, is too wide."""
    rng, sites = np.random.default_rng(20261127), 4000
    shared, shown, held, twin = Refitting(per_fit=2, share=SHARE), [], [], []
    for _ in range(sites):
        one = imagine_shared(rng, d, shared)
        assert one.shown is not None
        shown.append(one.shown.square - one.shown.known)
        assert (one.plain.n, one.plain.events, one.plain.within) == (ROWS / SHARE, 40, 1.0)
        for made, into in ((shared, held), (Refitting(per_fit=2), twin)):
            plain = one.plain if made is shared else replace(one.plain, within=1 / SHARE)
            [found] = widen_sites({"s": {"e": replace(one, plain=plain)}})["s"].values()
            half = quantile(0.95, found.df) * math.sqrt(found.variance)
            into.append(abs(found.estimate) <= half)
    # Four standard deviations of S - K, which are below (d + .6) times this.
    assert abs(np.mean(shown) - d) < 4 * (d + 0.6) * math.sqrt(2 / 10 + 0.3) / math.sqrt(sites)
    assert 0.94 < np.mean(held) < 0.97
    assert np.mean(twin) > (0.99 if d < 1 else 0.97)


def test_a_share_of_the_rows_scales_counts_and_leaves_sites_alike() -> None:
    """A count is as many times a table's as rows are, whatever the share; and what is told from
    site to site is as if all tables were whole."""
    copies = [Estimate(40.0 + j, 30.0, 100, 40, True) for j in range(4)]
    refits = [replace(copies[b // 2], estimate=41.0 + b % 3) for b in range(8)]
    half, whole = Refitting(per_fit=2, share=0.5), Refitting(per_fit=2)
    doubled = [
        [replace(one, estimate=2 * one.estimate, variance=4 * one.variance, n=200) for one in of]
        for of in (copies, refits)
    ]
    ours = Measured.of(copies, refits, made=half, total=True)
    theirs = Measured.of(*doubled, made=whole, total=True)
    assert ours.plain.estimate == theirs.plain.estimate == 83.0
    assert ours.plain.variance == theirs.plain.variance == 30.0
    assert ours.plain.events == 80
    one, other = ours.shown, theirs.shown
    assert one is not None
    assert other is not None
    assert (one.square, one.known, one.rows) == (other.square, other.known, other.rows)
    assert (one.scale / one.share, one.share) == (other.scale, 0.5)
    # Drawn to each other, a whole site and one of half as large tables say the same of noise.
    sites = {"whole": Spread(2.0, 1.0, 9.0, 400, 0.0, 4.0, 9.0)}
    sites |= {"half": Spread(3.0, 2.0, 9.0, 400, 0.0, 4.0, 9.0, share=0.5)}
    drawn = shrunk({"e": sites})["e"]
    assert drawn["half"].known == pytest.approx(2 * drawn["whole"].known)
