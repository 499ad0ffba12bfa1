r"""The negative binomial model of a table of counts (NB2), by maximum likelihood.

With μ = e^(xᵀβ + offset), m = α μ and the variance μ + α μ²,

.. math:: \ell = \sum_i \log Γ(y + 1/α) - \log Γ(1/α) - \log y! + y \log m
          - (y + 1/α) \log (1 + m).

For a given α it is concave in β, so that Newton's steps find β(α); the profile's maximum in log α
is sought in a bracket that shrinks. Where rows vary no more than a Poisson model has it, the
profile falls from α = 0 on: then the maximum is at that bound, a Poisson fit, and is given as such.
Variances are of the inverse information as observed, of β and α together, as statsmodels has them
(``NegativeBinomial``); R's ``glm.nb`` takes α as known, and the expected one.

Sources: Lawless 1987, Canadian Journal of Statistics 15, 209–225; Cameron & Trivedi 2013,
"Regression Analysis of Count Data", 2nd ed., section 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import digamma, polygamma

from penstock.questions.fits.counts import CountTable
from penstock.questions.fits.newton import Maximum, maximise
from penstock.questions.fits.poisson import fit_poisson
from penstock.questions.fits.table_model import Array, Degenerate, Fit
from penstock.questions.models.negative_binomial import NEGATIVE_BINOMIAL

_LEAST, _MOST = 1e-6, 1e4
"""Of α. Below, Γ(y + 1/α) is the difference of numbers too large; the model is a Poisson one to a
millionth. Above, nearly all counts are 0."""

_ROUNDS, _CLOSE, _NEAR = 100, 1e-11, 1e-3
"""Of a logarithm of α: what is close to the maximum, and what is near a bound."""


class NegativeBinomialTable(CountTable):
    model = NEGATIVE_BINOMIAL
    family = "NegativeBinomial"
    disperses = True

    def fit_offset(self, outcome: Array, event: Array | None, design: Array, offset: Array) -> Fit:
        counted = self.require_counts(outcome, design)
        found = fit_negative_binomial(outcome, design, offset)
        return Fit(
            float(found.maximum.coefficients[-1]),
            float(found.maximum.covariance[-1, -1]),
            found.maximum.reached,
            # Of an unrelated term the mean is the same for all.
            1.0 / counted + found.dispersion / len(outcome),
        )

    def dispersion(self, outcome: Array, design: Array, offset: Array) -> float:
        self.require_counts(outcome, design)
        return fit_negative_binomial(outcome, design, offset).dispersion


@dataclass(frozen=True, slots=True)
class Overdispersed:
    """β with its covariance, and α; 0: rows vary no more than a Poisson model has it."""

    maximum: Maximum
    dispersion: float


def fit_negative_binomial(outcome: Array, design: Array, offset: Array) -> Overdispersed:
    """The maximum of the likelihood, as near as steps get to it.

    Args:
        outcome: (n,) counts, not all 0; design: (n, p), an intercept first; offset: (n,).

    Raises:
        LinAlgError: the information is singular.
        Degenerate: α grows without limit.
    """
    plain = fit_poisson(outcome, design, offset)
    mean = np.exp(design @ plain.coefficients + offset)
    # Twice the profile's slope by α at 0; and α by moments.
    extra = float(((outcome - mean) ** 2 - outcome).sum())
    if not (plain.reached and extra > 0):
        return Overdispersed(plain, 0.0)
    profile = _Profile(outcome, design, offset, plain.coefficients)
    least, most = float(np.log(_LEAST)), float(np.log(_MOST))
    (low, high), guess = (least, most), np.log(extra / (mean**2).sum())
    at = float(np.clip(guess, low + 1, high - 1))
    for _ in range(_ROUNDS):
        slope, bend = profile.slope(at)
        low, high = (at, high) if slope > 0 else (low, at)
        # Newton's step where the profile is concave and the step stays within the bracket.
        then = at - slope / bend if bend < 0 else at
        if not (bend < 0 and low <= then <= high):
            then = (low + high) / 2
        moved, at = abs(then - at), then
        if moved < _CLOSE:
            break
    if at < least + _NEAR:
        return Overdispersed(plain, 0.0)
    if at > most - _NEAR:
        raise Degenerate("counts vary without limit: nearly all are 0")
    return profile.end(at)


class _Profile:
    """ℓ at β(α), by log α. Each β is sought from the last one.

    Args:
        start: β of α = 0.
    """

    def __init__(self, outcome: Array, design: Array, offset: Array, start: Array) -> None:
        self._outcome, self._design, self._offset = outcome, design, offset
        self._beta = start

    def slope(self, log_dispersion: float) -> tuple[float, float]:
        """The profile's derivative by log α, and the second one."""
        found, alpha = self._find(log_dispersion), float(np.exp(log_dispersion))
        slope, bend, mixed = self._turn(found, alpha)
        return slope, float(bend + mixed @ found.covariance @ mixed)

    def end(self, log_dispersion: float) -> Overdispersed:
        """β with its covariance, α being estimated beside it."""
        found, alpha = self._find(log_dispersion), float(np.exp(log_dispersion))
        _, bend, mixed = self._turn(found, alpha)
        along = found.covariance @ mixed
        left = -bend - float(mixed @ along)
        if not left > 0:
            raise Degenerate("the counts do not tell how much they vary")
        covariance = found.covariance + np.outer(along, along) / left
        return Overdispersed(Maximum(found.coefficients, covariance, found.to_gain), alpha)

    def _find(self, log_dispersion: float) -> Maximum:
        y, x, alpha = self._outcome, self._design, float(np.exp(log_dispersion))

        def derivatives(beta: Array) -> tuple[float, Array, Array]:
            eta = x @ beta + self._offset
            m = alpha * np.exp(eta)
            value = float(y @ eta - (y + 1 / alpha) @ np.log1p(m))
            rest = (y - m / alpha) / (1 + m)
            weight = (m / alpha + m * y) / (1 + m) ** 2
            return value, x.T @ rest, (x * weight[:, None]).T @ x

        found = maximise(derivatives, self._beta)
        self._beta = found.coefficients
        return found

    def _turn(self, found: Maximum, alpha: float) -> tuple[float, float, Array]:
        """Derivatives of ℓ by log α: the first, the second, and the mixed one (p,) with β."""
        y, r = self._outcome, 1 / alpha
        mean = np.exp(self._design @ found.coefficients + self._offset)
        m = alpha * mean
        # By r = 1/α, whose logarithm falls as that of α rises.
        first = digamma(y + r) - digamma(r) - np.log1p(m) + (mean - y) / (r + mean)
        second = polygamma(1, y + r) - polygamma(1, r)
        second += alpha * m / (1 + m) - (mean - y) / (r + mean) ** 2
        by_r, by_rr = float(first.sum()), float(second.sum())
        mixed = self._design.T @ ((y - mean) * m / (1 + m) ** 2)
        return -r * by_r, r * r * by_rr + r * by_r, np.asarray(-mixed)
