"""A density is smooth where counts do not speak, and as counted where they do."""

import numpy as np

from penstock.mechanisms.copula.densities import (
    STIFFNESS,
    STIFFNESSES,
    Blocks,
    Known,
    Reference,
    estimate_density,
)

SLOPE = np.exp(-np.arange(48) / 12) / np.exp(-np.arange(48) / 12).sum()
PILES = (
    np.where(np.arange(48) % 8 == 3, 1.0, 0.02) / np.where(np.arange(48) % 8 == 3, 1.0, 0.02).sum()
)


def test_exact_counts_stay() -> None:
    counts = np.random.default_rng(0).multinomial(5000, np.full(20, 0.05)).astype(float)
    share = estimate_density(counts, 0.0, 5000)
    assert np.abs(share - counts / 5000).sum() < 0.01


def test_a_tail_that_noise_hides_falls_off_and_the_error_is_far_below_that_of_the_counts() -> None:
    rng, cells = np.random.default_rng(1), np.arange(32)
    truth = np.exp(-cells / 3) / np.exp(-cells / 3).sum()
    far, raw = [], []
    for _ in range(20):
        counts = rng.multinomial(2000, truth) + rng.normal(size=32) * 12
        share = estimate_density(counts, 12.0, 2000)
        assert share.min() >= 0
        assert abs(share.sum() - 1) < 1e-9
        positive = np.maximum(counts, 0) / np.maximum(counts, 0).sum()
        far.append(share[20:].sum())
        raw.append(positive[20:].sum())
    assert np.mean(far) < 0.5 * np.mean(raw)


def test_a_known_mean_moves_it() -> None:
    points, counts = np.linspace(-1, 1, 15), np.full(15, 20.0)
    share = estimate_density(counts, 30.0, 300, [Known(points, 0.4, 0.01, 0.4, 0.05)])
    assert abs(share @ points - 0.4) < 0.03


def test_counts_of_wider_cells_halve_the_error_of_who_lies_below() -> None:
    rng, truth = np.random.default_rng(2), np.full(32, 1 / 32)
    errors = {True: [], False: []}
    for _ in range(30):
        counts = rng.multinomial(3000, truth).astype(float)
        wide = [counts.reshape(w, -1).sum(axis=1) + rng.normal(size=w) * 20 for w in (4, 16)]
        noisy = counts + rng.normal(size=32) * 20
        for known in errors:
            blocks = (
                [Blocks(w, np.arange(32) * len(w) // 32, 20.0, 3000) for w in wide] if known else []
            )
            share = estimate_density(noisy, 20.0, 3000, blocks)
            errors[known].append(np.cumsum(share - counts / 3000)[:-1])
    sizes = {known: np.sqrt(np.mean(np.square(each))) for known, each in errors.items()}
    assert sizes[True] < 0.75 * sizes[False]


def test_a_count_that_is_the_sum_of_others_has_the_noise_of_all() -> None:
    rng, truth = np.random.default_rng(3), np.full(32, 1 / 32)
    level, apart = Reference(truth, (10.0,)), np.where(np.arange(32) < 16, 1, 25)
    errors = {True: [], False: []}
    for _ in range(40):
        counts = rng.multinomial(4000, truth) + rng.normal(size=32) * 10 * np.sqrt(apart)
        for told in errors:
            joined = apart if told else None
            share = estimate_density(counts, 10.0, 4000, reference=level, joined=joined)
            errors[told].append(share - truth)
    sizes = {told: np.sqrt(np.mean(np.square(each))) for told, each in errors.items()}
    assert sizes[True] < 0.75 * sizes[False]
    alone = estimate_density(counts, 10.0, 4000, joined=np.ones(32))
    assert np.array_equal(alone, estimate_density(counts, 10.0, 4000))


def test_counts_choose_how_stiff_a_density_is() -> None:
    """A slope is stiffer than piles are, and either is nearly as near as by its own λ."""
    rng, sizes = np.random.default_rng(4), {}
    for name, truth in {"slope": SLOPE, "piles": PILES}.items():
        errors = {STIFFNESSES: [], **{(each,): [] for each in STIFFNESSES}}
        for _ in range(30):
            counts = rng.multinomial(5000, truth) + rng.normal(size=48) * 40
            for each, found in errors.items():
                found.append(estimate_density(counts, 40.0, 5000, stiffnesses=each) - truth)
        sizes[name] = {each: np.sqrt(np.mean(np.square(e))) for each, e in errors.items()}
    slope, piles = sizes["slope"], sizes["piles"]
    assert slope[STIFFNESSES] < 1.05 * slope[18.0,] < 0.8 * slope[STIFFNESS,]
    assert piles[STIFFNESSES] < 1.05 * piles[STIFFNESS,] < 0.8 * piles[18.0,]


def test_the_first_of_several_stays_unless_a_later_one_is_clearly_better() -> None:
    counts = 1000.0 * SLOPE + np.random.default_rng(5).normal(size=48) * 200
    alone = estimate_density(counts, 200.0, 1000, stiffnesses=(18.0,))
    assert np.array_equal(alone, estimate_density(counts, 200.0, 1000, stiffnesses=STIFFNESSES))
