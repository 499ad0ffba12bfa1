"""The trade-off of w: known answers, the choice, and a leak that must not be chosen."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import norm
from tests.support.measured import inject

from penstock.audit import tradeoff
from penstock.audit.membership import Interval, Pairing, Report
from penstock.audit.tradeoff import (
    ATTACKS,
    CORRELATIONS,
    DIRECT,
    DISTANCE,
    GRID,
    LATENT,
    MEANS,
    RATIO,
    SDS,
    Point,
    Tradeoff,
    Trial,
    average,
    choose_w,
    errors,
    held_out,
    qualifies,
    sweep,
)
from penstock.audit.tradeoff_plot import plot_tradeoff
from penstock.base.errors import InvalidInput
from penstock.privacy.noise.sources import GRID_BITS, SeededNoise

FALSE_ALARM = 1e-7
"""Of each statistical test, under a right implementation."""

SIGMAS = norm.isf(FALSE_ALARM / 2)

ROOT = np.eye(5)
ROOT[4] = 1, 1, 1, 1, math.sqrt(0.5)
"""Of the covariance of four predictors and their sum with noise, as in the meta-analysis of the
paper."""


class Exact:
    """The model that the rows were drawn from."""

    def __init__(self, root=ROOT):
        self.root, self.inverse = root, np.linalg.inv(root)

    def to_latent(self, rows):
        return rows @ self.inverse.T

    def to_values(self, latents):
        return latents @ self.root.T

    def log_density(self, rows):
        return -0.5 * (self.to_latent(rows) ** 2).sum(axis=1)


class Overfitted(Exact):
    """A density with a peak at every member: it knows who they are."""

    def __init__(self, members):
        super().__init__()
        self.known = {row.tobytes() for row in members}

    def log_density(self, rows):
        return np.array([float(row.tobytes() in self.known) for row in rows])


def people(n, m, seed, root=ROOT):
    """Members and others."""
    # Not a seed of the noise sources here, whose Gaussians would be the rows themselves.
    rows = np.random.default_rng(10**6 + seed).standard_normal((n + m, len(root))) @ root.T
    return rows[:n], rows[n:]


def trial(n, m, seed, **rest):
    return Trial.plain(Exact(), *people(n, m, seed), **rest)


# -- known answers -----------------------------------------------------------------------------

EXPECTED = {
    0.0: (0.5, 0.5),
    0.6: (0.512, 0.553),
    0.8: (0.542, 0.630),
    0.9: (0.618, 0.745),
}
"""AUC by distance and by likelihood ratio at n = 875 + 875, d = 5: means of 120 runs of the two
formulas written out with scipy, standard errors .0012. (A flow fitted to the members has
.516 / .545 / .618 and .534 / .620 / .745.)"""


def test_attacks_on_the_exact_model_have_the_known_aucs():
    runs, n, spread = 4, 875, 0.016  # of one run's AUC, at most
    tables = [
        sweep(trial(n, n, seed), SeededNoise(seed), (*EXPECTED, 0.9999), ways=(LATENT,))
        for seed in range(runs)
    ]
    for w, known in EXPECTED.items():
        for attack, auc in zip(ATTACKS, known, strict=True):
            found = [t.at(w).reports[attack].auc.value for t in tables]
            assert abs(np.mean(found) - auc) < SIGMAS * spread / math.sqrt(runs), (w, attack)
    for attack in ATTACKS:
        assert all(t.at(0.9999).reports[attack].auc.value > 0.999 for t in tables)


def test_the_own_row_comes_nearer_as_w_grows_and_errors_shrink():
    points = sweep(trial(700, 175, 3), SeededNoise(3), ways=(LATENT,)).points
    assert [p.w for p in points] == list(GRID)
    nearer = [p.pairing.nearer for p in points]
    assert (np.diff(nearer) < 0).all()
    # At w = 0 the own row is anybody's: a mean of 700 shares, uniform or less spread.
    assert abs(nearer[0] - 0.5) < SIGMAS * 0.5 / math.sqrt(700)
    assert abs(points[0].pairing.others / 700 - 0.5) < SIGMAS * 0.5 / math.sqrt(700)
    assert points[-1].pairing.others < 2
    for name in (CORRELATIONS, MEANS, SDS):
        assert points[-1].errors[name] < 0.5 * points[0].errors[name]


def test_direct_noise_shrinks_correlations_by_w_and_keeps_margins():
    n, w = 4000, 0.5
    members, others = people(n, 1000, 4)
    # Far from the origin: noise goes around the mean, and does not draw rows to 0.
    found = sweep(Trial.plain(Exact(), members + 100, others + 100), SeededNoise(4), [w])
    point = found.at(w, DIRECT)
    off = np.corrcoef(ROOT)[np.triu_indices(5, 1)]
    expected = (1 - w) * np.abs(np.corrcoef(members, rowvar=False))[np.triu_indices(5, 1)].mean()
    assert off.size == 10
    # One correlation's standard error is below 1/√n; the mean of ten has no larger one.
    assert abs(point.errors[CORRELATIONS] - expected) < SIGMAS / math.sqrt(n)
    assert point.errors[MEANS] < SIGMAS / math.sqrt(n)
    assert point.errors[SDS] < SIGMAS / math.sqrt(n)
    assert point.errors[CORRELATIONS] > 5 * found.at(w).errors[CORRELATIONS]


def test_direct_noise_is_attacked_by_its_own_likelihood_ratio():
    """Whose AUC rises from exact chance at w = 0, and beyond that of distances."""
    grid = (0.0, 0.8, 0.95, 0.999)
    table = sweep(trial(800, 200, 5), SeededNoise(5), grid, ways=(DIRECT,))
    near, ratio = ([p.reports[a].auc for p in table.points] for a in ATTACKS)
    assert ratio[0].value == 0.5
    assert abs(near[0].value - 0.5) < SIGMAS * (near[0].high - near[0].low) / (2 * norm.ppf(0.975))
    assert ratio[2].value > near[2].value > 0.55
    assert ratio[3].value >= near[3].value > 0.99


def test_what_is_attacked_is_what_the_mechanism_releases():
    """The noisy latents are `inject`'s, clipped and with null records, to the grid of a release."""
    members, others = people(60, 15, 6)
    present = np.arange(60) % 3 > 0
    released = []

    class Watched(Exact):
        def to_values(self, latents):
            released.append(latents)
            return super().to_values(latents)

    plain = Trial.plain(Watched(), members, others)
    one = Trial(
        plain.model, members, present, plain.candidates, plain.person, plain.member, clip=1.5
    )
    sweep(one, SeededNoise(9), [0.7], ways=(LATENT,))
    latents = Exact().to_latent(members)
    noisy = inject(latents, present, 0.7, 1.5, SeededNoise(9))
    np.testing.assert_allclose(released, [noisy], rtol=0, atol=2.0**-GRID_BITS)


# -- errors, estimates, copies -----------------------------------------------------------------


def test_errors_by_hand():
    real = np.array([[0.0, 0.0, 5.0], [2.0, 2.0, 5.0]])
    made = np.array([[1.0, 4.0, 5.0], [5.0, 0.0, 5.0]])
    found = errors(real, made)
    # Of two columns that vary, with sd 1: means 3 - 1 and 2 - 1, sds 2 and 2, correlations -1, 1.
    assert found == pytest.approx({MEANS: 1.5, SDS: 1.0, CORRELATIONS: 2.0})
    assert set(errors(real[:, :1], made[:, :1])) == {MEANS, SDS}
    assert errors(real[:, 2:], made[:, 2:]) == {}
    assert errors(real, np.ones((4, 3)))[CORRELATIONS] == pytest.approx(1)


def test_an_estimate_is_compared_with_the_members_own_and_rows_are_seen_as_they_leave():
    members, others = people(300, 75, 7)
    calls = []

    def mean(rows):
        calls.append(len(rows))
        return float(rows[:, 0].mean())

    def rounded(rows):
        return np.round(rows)

    one = Trial.plain(
        Exact(), members, others, copies=2, seen=rounded, estimates={"intercept": mean}
    )
    point = sweep(one, SeededNoise(7), [0.0], ways=(DIRECT,)).points[0]
    assert calls == [300] * 3
    own, noise, seen = np.round(members)[:, 0].mean(), SeededNoise(7), []
    for _ in range(2):
        z = noise.normal(members.shape)
        seen.append(np.round(members.mean(axis=0) + members.std(axis=0) * z)[:, 0].mean())
    assert point.errors["intercept"] == pytest.approx(np.mean(np.abs(np.array(seen) - own)))


def test_more_copies_tell_more_but_not_at_w_0():
    one = sweep(trial(400, 400, 8), SeededNoise(8), (0.0, 0.8), ways=(LATENT,))
    many = sweep(trial(400, 400, 8, copies=6), SeededNoise(8), (0.0, 0.8), ways=(LATENT,))
    alone, all_six = (t.at(0.8).reports[RATIO].auc for t in (one, many))
    assert all_six.value > alone.high
    assert many.at(0.0).reports[RATIO] == one.at(0.0).reports[RATIO]


def test_one_run_serves_all_w_and_each_is_what_it_would_be_alone():
    together = sweep(trial(200, 50, 9), SeededNoise(9), (0.5, 0.0, 0.9))
    for w in (0.5, 0.9):
        alone = sweep(trial(200, 50, 9), SeededNoise(9), [w])
        for way in (LATENT, DIRECT):
            assert together.at(w, way).to_dict() == alone.at(w, way).to_dict()


# -- the choice --------------------------------------------------------------------------------


def point(w, distance, ratio, nearer=0.5, way=LATENT):
    reports = {
        name: Report(Interval(auc, auc - 0.1, auc + 0.1), None, 80, 20)
        for name, auc in ((DISTANCE, distance), (RATIO, ratio))
        if auc is not None
    }
    pairing = None if nearer is None else Pairing(nearer, 1.0, 1.0)
    return Point(way, w, reports, {}, pairing, {MEANS: 0.1 / (1 + w)})


BUILT = Tradeoff(
    (
        point(0.9, 0.56, 0.7, 0.01),
        point(0.0, 0.5, 0.49, 0.5),
        point(0.5, 0.51, 0.53, 0.2),
        point(0.7, 0.52, 0.55, 0.08),
        point(0.8, 0.54, 0.551, 0.05),
        point(0.95, 0.5, 0.5, 0.4),  # luck
        point(0.99, 0.5, 0.5, way=DIRECT),
    )
)


@pytest.mark.parametrize(
    ("rule", "w"),
    [
        ({}, 0.7),
        ({"attacks": (DISTANCE,)}, 0.8),
        ({"attacks": (RATIO,)}, 0.7),
        ({"auc": 0.53}, 0.5),
        ({"auc": 0.9}, 0.95),
        ({"auc": 0.4}, 0.0),
        ({"nearer": 0.08}, 0.7),
        ({"nearer": 0.1}, 0.5),
        ({"nearer": 0.6}, 0.0),
        ({"attacks": (DISTANCE,), "nearer": 0.05}, 0.8),
    ],
)
def test_the_largest_w_that_both_criteria_allow_is_chosen(rule, w):
    assert choose_w(BUILT, **rule) == w


def test_what_was_not_attacked_is_not_chosen():
    known = point(0.0, 0.5, 0.5)
    assert choose_w(Tradeoff((known, point(0.5, 0.5, None)))) == 0
    assert choose_w(Tradeoff((known, point(0.5, 0.5, None))), attacks=(DISTANCE,)) == 0.5
    assert choose_w(Tradeoff((known, point(0.5, 0.5, 0.5, None))), nearer=0.1) == 0
    assert choose_w(Tradeoff((known, point(0.5, math.nan, 0.5)))) == 0
    assert choose_w(Tradeoff(())) == 0


def test_a_model_that_remembers_its_members_is_refused_at_every_w():
    """The planted leak: rows are as harmless as ever, but the density gives its members away."""
    members, others = people(400, 100, 10)
    grid = (0.0, 0.25, 0.5)
    harmless = sweep(Trial.plain(Exact(), members, others), SeededNoise(10), grid)
    leaking = sweep(Trial.plain(Overfitted(members), members, others), SeededNoise(10), grid)
    assert leaking.at(0.0).reports[RATIO].auc.value == 1
    assert choose_w(leaking) == 0
    assert not qualifies(leaking.at(0.0))
    assert choose_w(harmless, auc=0.65) == choose_w(leaking, auc=0.65, attacks=(DISTANCE,)) == 0.5


def test_a_release_without_its_noise_is_refused():
    """The planted leak of rows: noise that is lost on the way."""

    class Quiet(SeededNoise):
        def normal(self, shape):
            return 0.05 * super().normal(shape)

    grid = (0.5, 0.7)
    table = sweep(trial(400, 100, 11), Quiet(11), grid, ways=(LATENT,))
    assert all(not qualifies(p, attacks=(DISTANCE,)) for p in table.points)
    honest = sweep(trial(400, 100, 11), SeededNoise(11), grid, ways=(LATENT,))
    assert choose_w(honest, auc=0.65, attacks=(DISTANCE,)) == 0.7


@pytest.mark.parametrize(
    "call",
    [
        lambda: choose_w(BUILT, auc=math.nan),
        lambda: choose_w(BUILT, auc=1.0),
        lambda: choose_w(BUILT, nearer=0.0),
        lambda: choose_w(BUILT, attacks=()),
        lambda: choose_w(BUILT, attacks=("guess",)),
        lambda: BUILT.at(0.123),
        lambda: sweep(trial(9, 3, 0), SeededNoise(0), ()),
        lambda: sweep(trial(9, 3, 0), SeededNoise(0), (0.5, 1.0)),
        lambda: sweep(trial(9, 3, 0), SeededNoise(0), (math.nan,)),
        lambda: sweep(trial(9, 3, 0), SeededNoise(0), ways=("guess",)),
        lambda: sweep(trial(9, 3, 0, clip=math.nan), SeededNoise(0)),
    ],
)
def test_nonsense_is_refused(call):
    with pytest.raises(InvalidInput):
        call()


# -- tables ------------------------------------------------------------------------------------


def test_a_fifth_is_held_out_each_time_another():
    noise = SeededNoise(1)
    first, second = held_out(1003, noise), held_out(1003, noise)
    assert len(first) == len(set(first.tolist())) == 201
    assert set(first.tolist()) != set(second.tolist())
    assert 0 <= min(first) <= max(first) < 1003


def test_a_table_comes_back_from_json():
    table = sweep(trial(300, 120, 12), SeededNoise(12), (0.0, 0.5))
    record = json.loads(json.dumps(table.to_dict(curves=True), allow_nan=False))
    again = Tradeoff.from_dict(record)
    assert again.to_dict() == table.to_dict()
    for a, b in zip(again.points, table.points, strict=True):
        assert a.curves.keys() == b.curves.keys() != set()
        for name, curve in a.curves.items():
            np.testing.assert_array_equal(curve, b.curves[name])
    assert Tradeoff.from_dict(json.loads(json.dumps(table.to_dict()))).points[0].curves == {}


def test_the_average_is_that_of_all_figures():
    tables = [sweep(trial(100, 50, s), SeededNoise(s), (0.0, 0.5)) for s in (20, 21)]
    mean = average(tables)
    for way, w in ((LATENT, 0.0), (LATENT, 0.5), (DIRECT, 0.5)):
        a, b, m = (t.at(w, way) for t in (*tables, mean))
        assert m.reports[DISTANCE].auc.value == pytest.approx(
            (a.reports[DISTANCE].auc.value + b.reports[DISTANCE].auc.value) / 2
        )
        assert m.pairing.others == (a.pairing.others + b.pairing.others) / 2
        assert m.errors[MEANS] == pytest.approx((a.errors[MEANS] + b.errors[MEANS]) / 2)
    with pytest.raises(ValueError, match="shorter"):
        average([tables[0], Tradeoff(tables[1].points[:1])])


def test_few_people_are_scored_without_their_extremes():
    table = sweep(trial(8, 2, 13), SeededNoise(13), [0.5])
    assert set(table.at(0.5).reports) == set(ATTACKS)
    table = sweep(trial(4, 1, 13), SeededNoise(13), [0.5])
    assert not table.at(0.5).reports
    assert choose_w(table) == 0


def test_the_picture_names_what_it_shows(tmp_path):
    table = sweep(trial(300, 100, 14), SeededNoise(14), (0.0, 0.5, 0.9))
    path = tmp_path / "w.svg"
    plot_tradeoff(table, path, title="a $hostile title", chosen=0.5, asked=0.9)
    drawn = path.read_text()
    for text in ("a $hostile title", "flow sampling", "direct noise", "w as asked", "AUC ≤ 0.55"):
        assert text in drawn, text


def test_a_picture_of_nothing_is_refused(tmp_path):
    table = sweep(trial(300, 100, 14), SeededNoise(14), [0.0], ways=(LATENT,))
    for bad, utility in ((Tradeoff(()), None), (table, "guess")):
        with pytest.raises(InvalidInput, match="nothing to draw"):
            plot_tradeoff(bad, tmp_path / "w.png", title="", utility=utility)
    with pytest.raises(InvalidInput, match=r"\.png"):
        plot_tradeoff(table, tmp_path / "w.gif", title="")
    assert list(tmp_path.iterdir()) == []
    assert tradeoff.MOST_AUC == 0.55
