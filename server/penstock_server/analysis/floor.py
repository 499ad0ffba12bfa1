"""How little variance any table of n rows can have: hostile uploads must not buy weight."""

from __future__ import annotations

from penstock.questions.estimands import Estimand
from penstock.schema import LEVEL_KINDS, Column, Schema


def variance_floor(schema: Schema, estimand: Estimand, rows: int) -> float:
    r"""A public lower bound for the model-based variance of an estimate from ``rows`` rows.

    Let the term lie in [lower, upper], and r = (upper − lower) / per be its range in the units of
    the estimate: at most one unit between two levels of a binary or categorical term, levels − 1
    for an ordered one. Around its middle, and so around any (weighted) mean that fits better, the
    term's squared deviation is at most r²/4 (Popoviciu). Adjustment only takes information away:

    - **cox**: the information is a sum over events of the term's weighted variance in the risk
      set (with Efron's weights for ties), at most one event a row: I ≤ n·r²/4.
    - **logistic**: I = Σ p(1−p)·(x − x̄)² ≤ n·r²/16, because p(1−p) ≤ 1/4.
    - **ols**: variance = s² / Σ(x − x̄)² ≥ s² / (n·r²/4), and s² is taken to be at least step²/12:
      an outcome that is kept to a grid of that step carries rounding of that variance (Sheppard
      1898), however well the columns explain it. That is what honest data have, not a
      theorem: a table may be made to lie on a plane through the grid, and is floored. An
      outcome without a grid has no floor here (``meta.estimands.MIN_RESIDUAL`` bounds it).
    - **poisson**: I = Σ μ·(x − x̄)² with weights μ that add up to the events, Σ y ≤ n·upper (the
      likelihood equation of the intercept), so I ≤ n·upper·r²/4.
    - **mean**: variance = s²/n. Of whole numbers that are not all equal s² is at least 1/n (one row
      beside n − 1 equal ones), so the variance at least 1/n². Of other numbers on a grid s² is
      taken to be at least step²/12, as above; without a grid there is no floor.

    Args:
        schema: the study's; its bounds are public.
        estimand: of the study.
        rows: n, of the table; at most what the public n allows.

    Returns:
        The bound, in squared units of the estimate; 0 where there is none.

    Source: Cox 1975, Biometrika 62, 269–276 (partial likelihood's information); Popoviciu 1935.
    """
    if estimand.model == "mean":
        return _mean(schema[estimand.outcome], rows)
    reach = _range(schema[estimand.term]) / estimand.per
    spread = rows * reach * reach / 4  # at most, of the sum of squares around the mean
    match estimand.model:
        case "cox":
            return 1 / spread
        case "logistic":
            return 4 / spread
        case "ols":
            return _step(schema[estimand.outcome]) ** 2 / 12 / spread
        case "poisson":
            return 1 / (spread * schema[estimand.outcome].bounds[1])
    return 0.0


def _mean(outcome: Column, rows: int) -> float:
    if outcome.kind != "continuous":
        return 1.0 / rows**2
    return _step(outcome) ** 2 / 12 / rows


def _range(term: Column) -> float:
    if term.kind == "ordered":
        return float(len(term.levels) - 1)
    if term.kind in LEVEL_KINDS:
        return 1.0
    lower, upper = term.bounds
    return upper - lower


def _step(outcome: Column) -> float:
    """The smallest difference that the outcome's releases resolve; 0 without a grid."""
    if outcome.kind == "integer":
        return 1.0
    return 0.0 if outcome.decimals is None else 10.0**-outcome.decimals
