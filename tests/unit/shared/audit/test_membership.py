"""Attacks against known truths, and intervals that cover."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import binom, multivariate_normal, norm

from penstock.audit.membership import (
    RATES,
    Report,
    attack_report,
    average,
    closest,
    direct_ratio,
    extremity,
    likelihood_ratio,
    pairing,
    plot_roc,
    roc,
)
from penstock.base import pictures
from penstock.base.errors import InvalidInput, PenstockError

FALSE_ALARM = 1e-7
"""Of each statistical test, under a right implementation."""


class Identity:
    """The model whose latents are the rows."""

    def to_latent(self, rows):
        return rows

    def log_density(self, rows):
        return -0.5 * (rows**2).sum(axis=1)


def release(w, n, d, rng, held_out=None):
    """Members, others and the members' noisy rows, all marginally standard Gaussian."""
    x, others = rng.standard_normal((n, d)), rng.standard_normal((held_out or n, d))
    return x, others, math.sqrt(w) * x + math.sqrt(1 - w) * rng.standard_normal((n, d))


def auc_of(attack, members, others):
    scores = attack(np.concatenate([members, others]))
    return attack_report(scores[: len(members)], scores[len(members) :])


# -- scores ------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 3, 12, 13, 50])
def test_the_closest_row_is_the_closest(d):
    rng = np.random.default_rng(d)
    synthetic, candidates = rng.standard_normal((300, d)), rng.standard_normal((70, d))
    scale = rng.uniform(0.1, 10, d)
    got = closest(synthetic, candidates, scale)
    np.testing.assert_allclose(got, cdist(candidates / scale, synthetic / scale).min(axis=1))
    assert (closest(synthetic, synthetic, scale) == 0).all()


def test_a_constant_column_has_no_scale_and_does_no_harm():
    rows = np.column_stack([np.arange(5.0), np.full(5, 3.0)])
    scale = np.array([1.0, 0.0])
    np.testing.assert_array_equal(closest(rows, rows + np.array([0.25, 0]), scale), 0.25)


@pytest.mark.parametrize("absent", [0.0, 0.3])
@pytest.mark.parametrize("clip", [0.8, 1e6])
def test_the_ratio_is_the_ratio(absent, clip):
    rng = np.random.default_rng(1)
    w, released, candidates = 0.7, rng.standard_normal((9, 3)), rng.standard_normal((5, 3))
    spread = 1 - w
    terms = np.empty((5, 9))
    for i, z in enumerate(candidates):
        z = z * min(1.0, clip / np.linalg.norm(z))
        for j, seen in enumerate(released):
            own = multivariate_normal(math.sqrt(w) * z, spread * np.eye(3)).pdf(seen)
            other = multivariate_normal(np.zeros(3)).pdf(seen)
            null = multivariate_normal(np.zeros(3), spread * np.eye(3)).pdf(seen)
            terms[i, j] = own / ((1 - absent) * other + absent * null)
    got = likelihood_ratio(Identity(), released, candidates, w, clip, absent=absent)
    np.testing.assert_allclose(got, np.log(terms.mean(axis=1)))
    best = likelihood_ratio(Identity(), released, candidates, w, clip, absent=absent, best=True)
    np.testing.assert_allclose(best, np.log(terms.max(axis=1)))


def test_the_ratio_of_noise_on_the_rows_is_the_ratio():
    rng = np.random.default_rng(3)
    w, centre, scale = 0.7, np.array([5.0, -1.0, 2.0]), np.array([0.1, 3.0, 0.0])
    released, candidates = (
        centre + np.append(scale[:2], 1e-3) * rng.standard_normal((n, 3)) for n in (40, 6)
    )
    # The third column does not vary, and tells nothing.
    seen, own = ((x[:, :2] - centre[:2]) / scale[:2] for x in (released, candidates))
    mean, covariance = seen.mean(axis=0), np.cov(seen, rowvar=False, bias=True)
    others = multivariate_normal(mean, covariance + 1e-6 * np.eye(2)).pdf(seen)
    expected = [
        np.log(
            (multivariate_normal(math.sqrt(w) * u, (1 - w) * np.eye(2)).pdf(seen) / others).mean()
        )
        for u in own
    ]
    np.testing.assert_allclose(direct_ratio(released, candidates, w, centre, scale), expected)
    assert (direct_ratio(released, candidates, w, centre, np.zeros(3)) == 0).all()
    assert len(set(direct_ratio(released, candidates, 0.0, centre, scale).tolist())) == 1


def test_the_ratio_is_finite_for_wild_latents():
    released = np.array([[1e6, -1e6], [0.0, 0.0], [1e-300, 3.0]])
    candidates = np.array([[1e8, 1e8], [0.0, 0.0], [-1e-300, 2.0]])
    for w in (1e-12, 0.5, 1 - 1e-9):
        for best in (False, True):
            scores = likelihood_ratio(Identity(), released, candidates, w, 3.0, best=best)
            assert np.isfinite(scores).all()


def test_without_own_latents_the_ratio_is_the_models_density():
    rows = np.random.default_rng(0).standard_normal((6, 2))
    scores = likelihood_ratio(Identity(), rows + 1, rows, 0.0, 3.0)
    np.testing.assert_array_equal(scores, Identity().log_density(rows))


def exact_auc(w):
    """One released row, two columns: with ρ = √w, a member's score is ρ(A - B), another's
    ρ(A/(1+ρ) - B/(1-ρ)), A and B exponential of mean 1 (in the sum and the difference of latent and
    released row), so that the AUC is P(A + B'/(1-ρ) > B + A'/(1+ρ)), an integral of exponentials.
    """
    rho = math.sqrt(w)
    c, e = 1 / (1 - rho), 1 / (1 + rho)
    total = c / (2 - rho) - 0.5 - c / 2 + 1 / (2 + rho)
    return total / ((c - 1) * (1 - e))


@pytest.mark.parametrize("w", [0.3, 0.6, 0.9])
def test_the_ratios_auc_is_the_known_one(w):
    rng = np.random.default_rng(int(100 * w))
    trials = 3000
    members, others = np.empty(trials), np.empty(trials)
    for t in range(trials):
        x, other, seen = release(w, 1, 2, rng)
        scores = likelihood_ratio(Identity(), seen, np.concatenate([x, other]), w, 1e6)
        members[t], others[t] = scores
    auc = attack_report(members, others).auc
    se = (auc.high - auc.low) / (2 * norm.ppf(0.975))
    assert abs(auc.value - exact_auc(w)) < norm.isf(FALSE_ALARM / 2) * se
    assert exact_auc(w) > 0.6


@pytest.mark.parametrize("attack", ["distance", "ratio"])
def test_attacks_see_more_as_w_grows_and_the_ratio_sees_most(attack):
    n, d, values = 800, 5, []
    for w in (0.2, 0.6, 0.8, 0.9, 0.99):
        found = []
        for seed in range(3):
            x, others, seen = release(w, n, d, np.random.default_rng(seed))
            near = auc_of(lambda c: -closest(seen, c, np.ones(d)), x, others)  # noqa: B023
            ratio = auc_of(
                lambda c: likelihood_ratio(Identity(), seen, c, w, 1e6),  # noqa: B023
                x,
                others,
            )
            # Chance alone makes the better attack look worse by this much at most.
            assert ratio.auc.value > near.auc.value - 0.04
            found.append((near if attack == "distance" else ratio).auc.value)
        values.append(np.mean(found))
    assert values == sorted(values)
    assert values[0] < 0.55
    assert values[-1] > 0.95


def test_the_ratio_finds_what_a_known_flow_was_measured_to_give_away():
    """AUC .534, .620, .745 at w = .6, .8, .9 with 875 people of five columns, by a fitted flow."""
    for w, figure in ((0.6, 0.534), (0.8, 0.620), (0.9, 0.745)):
        found = []
        for seed in range(4):
            x, others, seen = release(w, 875, 5, np.random.default_rng(seed))
            found.append(
                auc_of(
                    lambda c: likelihood_ratio(Identity(), seen, c, w, 1e6),  # noqa: B023
                    x,
                    others,
                ).auc.value
            )
        assert abs(np.mean(found) - figure) < 0.03


def test_knowing_the_share_of_null_records_helps():
    w, d, n, null, gains = 0.9, 5, 700, 300, []
    for seed in range(6):
        x, others, seen = release(w, n, d, np.random.default_rng(seed))
        noise = math.sqrt(1 - w) * np.random.default_rng(100 + seed).standard_normal((null, d))
        seen = np.concatenate([seen, noise])
        plain, told = (
            auc_of(
                lambda c: likelihood_ratio(Identity(), seen, c, w, 1e6, absent=share),  # noqa: B023
                x,
                others,
            ).auc.value
            for share in (0.0, null / (n + null))
        )
        gains.append(told - plain)
    assert np.mean(gains) > 0.005


def test_extremity_is_mahalanobis_distance():
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((500, 3)) @ rng.standard_normal((3, 3)) + 7
    inverse = np.linalg.inv(np.cov(rows, rowvar=False))
    expected = [math.sqrt((r - rows.mean(0)) @ inverse @ (r - rows.mean(0))) for r in rows]
    np.testing.assert_allclose(extremity(rows), expected)
    with_constant = np.column_stack([rows, np.full(500, 2.0)])
    np.testing.assert_allclose(extremity(with_constant), expected)
    assert extremity(np.arange(4.0)[:, None]).argmax() in (0, 3)


# -- reports -----------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [2, 5, 10**9])
def test_the_auc_is_the_share_of_pairs(levels):
    rng = np.random.default_rng(levels)
    members, others = (rng.integers(0, levels, k).astype(float) for k in (40, 23))
    pairs = np.sign(members[:, None] - others[None, :])
    assert attack_report(members, others).auc.value == pytest.approx((1 + pairs.mean()) / 2)


def test_a_perfect_leak_is_seen():
    x, others, _ = release(0.5, 500, 4, np.random.default_rng(0))
    report = auc_of(lambda c: -closest(x, c, np.ones(4)), x, others)
    assert report.auc.value == 1
    assert 0.98 < report.auc.low < 1
    assert report.tpr is not None
    assert report.tpr.value == report.tpr.high == 1
    assert report.tpr.low > 0.98
    nearly = x + 1e-3
    ratio = auc_of(lambda c: likelihood_ratio(Identity(), nearly, c, 0.999, 1e6), x, others)
    assert ratio.auc.value > 0.999


def test_independent_rows_tell_nothing():
    rng = np.random.default_rng(5)
    x, others, _ = release(0.5, 600, 4, rng)
    synthetic = rng.standard_normal((600, 4))
    for attack in (
        lambda c: -closest(synthetic, c, np.ones(4)),
        lambda c: likelihood_ratio(Identity(), synthetic, c, 0.8, 1e6),
        lambda c: likelihood_ratio(Identity(), synthetic, c, 0.0, 1e6),
    ):
        auc = auc_of(attack, x, others).auc
        se = (auc.high - auc.low) / (2 * norm.ppf(0.975))
        assert abs(auc.value - 0.5) < norm.isf(FALSE_ALARM / 2) * se


def most_misses(trials, rate=0.05):
    """Exceeded with probability FALSE_ALARM by intervals that miss at this rate."""
    return binom.isf(FALSE_ALARM, trials, rate)


@pytest.mark.parametrize(
    ("shift", "spread", "m", "n"),
    [
        (0.0, 1.0, 80, 20),
        (0.0, 1.0, 20, 5),
        (1.0, 1.0, 160, 40),
        (1.0, 4.0, 100, 100),
        (1.0, 0.25, 100, 30),
        (3.0, 0.3, 80, 20),
    ],
)
def test_auc_intervals_cover(shift, spread, m, n):
    """Gaussian scores, of which the AUC is known; also skewed, unequal and nearly parted ones."""
    rng = np.random.default_rng(m + n)
    truth = norm.cdf(shift / math.sqrt(1 + spread**2))
    trials, missed, widths = 400, 0, []
    for _ in range(trials):
        auc = attack_report(shift + spread * rng.standard_normal(m), rng.standard_normal(n)).auc
        assert auc.low <= auc.value <= auc.high
        missed += not auc.low <= truth <= auc.high
        widths.append(auc.high - auc.low)
    assert missed <= most_misses(trials)
    # And not by being empty words: twice the widest that any AUC of a few pairs can need.
    assert np.mean(widths) < 2 * 2 * 1.96 * math.sqrt(truth * (1 - truth) / min(m, n))


@pytest.mark.parametrize(("shift", "n"), [(0.0, 500), (2.0, 500), (2.0, 150), (6.0, 4000)])
def test_tpr_intervals_cover_the_tpr_at_the_true_rate(shift, n):
    rng = np.random.default_rng(n)
    truth = norm.sf(norm.isf(0.01) - shift)
    trials, missed, widths = 400, 0, []
    for _ in range(trials):
        tpr = attack_report(shift + rng.standard_normal(200), rng.standard_normal(n)).tpr
        assert tpr is not None
        assert tpr.low <= tpr.value <= tpr.high
        missed += not tpr.low <= truth <= tpr.high
        widths.append(tpr.high - tpr.low)
    assert missed <= most_misses(trials)
    assert np.mean(widths) < (0.55 if n >= 390 else 1.0)


def test_a_plain_interval_for_the_tpr_would_not_cover():
    """Why the threshold's own error counts: the twin that takes it as known misses too often."""
    rng = np.random.default_rng(3)
    truth, missed, trials = norm.sf(norm.isf(0.01) - 2), 0, 400
    for _ in range(trials):
        members, others = 2 + rng.standard_normal(2000), rng.standard_normal(400)
        value = roc(members, others, np.array([0.01]))[0]
        missed += abs(value - truth) > 1.96 * math.sqrt(value * (1 - value) / 2000)
    assert missed > most_misses(trials)


def test_few_others_give_no_tpr():
    report = attack_report(np.arange(50.0), np.arange(99.0))
    assert report.tpr is None
    assert attack_report(np.arange(50.0), np.arange(100.0)).tpr is not None


def test_ties_at_the_threshold_are_not_accused():
    others = np.concatenate([np.zeros(95), np.ones(5)])
    # Above 0 lie 5 % of the others, above 1 nobody: at 1 % the members at 1 are not found.
    assert roc(np.ones(10), others, np.array([0.01, 0.05]))[0] == 0
    assert roc(np.ones(10), others, np.array([0.01, 0.05]))[1] == 1


def test_a_roc_curve_rises_to_one_and_starts_where_it_can_be_told():
    rng = np.random.default_rng(8)
    curve = roc(1 + rng.standard_normal(300), rng.standard_normal(50))
    told = ~np.isnan(curve)
    np.testing.assert_array_equal(told, np.floor(RATES * 50 + 1e-9) >= 1)
    assert (np.diff(curve[told]) >= 0).all()
    assert curve[-1] == 1


def test_the_average_of_equal_runs_is_no_surer_than_one():
    rng = np.random.default_rng(9)
    report = attack_report(rng.standard_normal(150), rng.standard_normal(120))
    again = average([report, report, report])
    assert again.auc.low == pytest.approx(report.auc.low)
    assert again.tpr is not None
    assert report.tpr is not None
    assert again.tpr.high == pytest.approx(report.tpr.high)
    few = attack_report(rng.standard_normal(150), rng.standard_normal(50))
    assert average([report, few]).tpr is None
    assert average([report, few]).nonmembers == 85
    assert Report.from_dict(report.to_dict()) == report
    assert Report.from_dict(few.to_dict()) == few


@pytest.mark.parametrize(
    "call",
    [
        lambda: attack_report(np.array([1.0]), np.arange(5.0)),
        lambda: attack_report(np.arange(5.0), np.array([0.0, math.nan])),
        lambda: attack_report(np.array([0.0, math.inf]), np.arange(5.0)),
        lambda: closest(np.empty((0, 2)), np.zeros((1, 2)), np.ones(2)),
        lambda: closest(np.zeros((1, 3)), np.zeros((1, 2)), np.ones(2)),
        lambda: closest(np.full((1, 2), math.nan), np.zeros((1, 2)), np.ones(2)),
        lambda: likelihood_ratio(Identity(), np.zeros((1, 2)), np.zeros((1, 2)), 1.0, 3.0),
        lambda: likelihood_ratio(Identity(), np.zeros((1, 2)), np.zeros((1, 2)), math.nan, 3.0),
        lambda: likelihood_ratio(Identity(), np.zeros((1, 2)), np.zeros((1, 2)), 0.5, math.nan),
        lambda: likelihood_ratio(
            Identity(), np.zeros((1, 2)), np.zeros((1, 2)), 0.5, 3.0, absent=1.0
        ),
        lambda: direct_ratio(np.ones((2, 2)), np.ones((2, 2)), 1.0, np.zeros(2), np.ones(2)),
        lambda: direct_ratio(np.ones((2, 2)), np.ones((2, 2)), math.nan, np.zeros(2), np.ones(2)),
        lambda: pairing(np.zeros((3, 2)), np.zeros((2, 2)), np.ones(2)),
    ],
)
def test_nonsense_is_refused(call):
    with pytest.raises(InvalidInput):
        call()


# -- pairing, picture --------------------------------------------------------------------------


def test_pairing_tells_a_copy_from_a_stranger():
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((1500, 3))
    same = pairing(rows, rows, np.ones(3))
    assert (same.nearer, same.rank, same.others) == (0, 1, 0)
    other = pairing(rows, rng.standard_normal((1500, 3)), np.ones(3))
    # Own and other rows are alike: a median of 1000 ranks, and a mean of 1000 shares.
    assert abs(other.rank / 1500 - 0.5) < 5.6 * 0.5 / math.sqrt(1000)
    assert abs(other.nearer - 0.5) < 5.6 * 0.5 / math.sqrt(1000)
    assert abs(other.others / 1499 - 0.5) < 5.6 * 0.5 / math.sqrt(1000)


def test_pairing_counts_by_hand():
    rows = np.array([[0.0], [1.0], [10.0]])
    made = np.array([[2.0], [1.5], [10.0]])
    # Person 0: others nearer than 2: person 1; synthetic nearer: that of 1. The rest: none.
    found = pairing(rows, made, np.ones(1))
    assert found.nearer == pytest.approx((1 / 2 + 0 + 0) / 3)
    assert found.rank == 1
    assert found.others == 0


@pytest.mark.parametrize("suffix", [".png", ".svg"])
@pytest.mark.parametrize("log", [True, False])
def test_the_picture_is_drawn(tmp_path, suffix, log):
    rng = np.random.default_rng(1)
    curves = {
        "distance": roc(0.5 + rng.standard_normal(400), rng.standard_normal(150)),
        "distance, extreme": roc(1 + rng.standard_normal(40), rng.standard_normal(15)),
    }
    path = tmp_path / f"roc{suffix}"
    plot_roc(curves, path, title="a $hostile title", log=log)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")
    assert len(data) > 5000


def test_a_picture_of_another_kind_or_without_matplotlib_is_refused(tmp_path, monkeypatch):
    with pytest.raises(InvalidInput, match=r"\.png"):
        plot_roc({}, tmp_path / "roc.gif", title="")
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)
    with pytest.raises(PenstockError, match="matplotlib"):
        plot_roc({}, tmp_path / "roc.png", title="")
    assert list(tmp_path.iterdir()) == []
