r"""From an attack's successes to a lower bound on ε, with a stated confidence.

Two worlds: a mechanism is run many times without one person, and many times with them. If it is
(ε, δ)-DP, then for every set S of outcomes and both orders of the worlds

.. math:: P(S) \le e^ε Q(S) + δ, \qquad\text{so}\qquad
          ε \ge \log\frac{P_{\mathrm{low}}(S) - δ}{Q_{\mathrm{up}}(S)}

with exact (Clopper & Pearson 1934) bounds on both, each at half the allowed error. S is chosen on
one half of the runs and counted on the other, so that choosing costs no confidence.

One run: m persons are included by fair coins, and the attacker guesses r of the coins
(Steinke, Nasr & Jagielski 2023, arXiv 2305.08846, Thm 5.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import beta, binom

from penstock.base.errors import InvalidInput, Problem

Array = NDArray[np.float64]

GATE = 1 - 1e-7
"""Confidence at which a claim is called broken; chance alone does so once in ten million audits."""

_CHOOSING_ERROR = 1e-3
_CANDIDATES = 400
"""Order statistics per tail among which a threshold is chosen."""


@dataclass(frozen=True, slots=True)
class Test:
    """The set S: scores at or above a threshold, or below it.

    Args:
        threshold: in the score's own units.
        above: S = {score ≥ threshold}, likelier with the person; else S = {score < threshold},
            likelier without.
    """

    __test__ = False
    threshold: float
    above: bool


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound on ε at ``delta`` that holds with probability at least ``confidence``.

    Args:
        epsilon: at least 0, finite.
        mu: for a bound that is valid only against a Gaussian-DP claim, the bound on its μ.
        factor: for a bound that is valid only against a claim's own kind, how much of the claimed
            noise there is, at most.
        likely, unlikely: the bounds P_low and Q_up (two worlds), or the share of right guesses
            and 1/2 (one run).
    """

    epsilon: float
    delta: float
    confidence: float
    likely: float
    unlikely: float
    mu: float | None = None
    factor: float | None = None


def clopper_pearson(
    successes: NDArray[np.int64] | int, trials: int, error: float
) -> tuple[Array, Array]:
    """One-sided exact bounds (low, up) on a share, each wrong with probability ≤ ``error``."""
    k = np.asarray(successes, dtype=np.float64)
    low = np.where(k > 0, beta.ppf(error, np.maximum(k, 1e-9), trials - k + 1), 0.0)
    up = np.where(k < trials, beta.isf(error, k + 1, np.maximum(trials - k, 1e-9)), 1.0)
    return low, up


# -- two worlds --------------------------------------------------------------------------------

Gain = Callable[[Array, Array], Array]


def two_world(
    without: Array, with_: Array, delta: float, confidence: float, *, test: Test | None = None
) -> Bound:
    """Lower bound on ε at ``delta``, whatever the mechanism claims.

    Args:
        without, with_: one score per run, (N,); independent. High scores speak for the person.
        delta: of the claim, in [0, 1).
        confidence: in (0, 1), of the bound.
        test: fixed before these runs were made; then all of them are counted. Else the test is
            chosen on the first half of the runs and counted on the second.

    Raises:
        InvalidInput: no such confidence or δ, too few scores, or a NaN among them.
    """
    _check(delta, confidence)

    def gain(likely: Array, unlikely: Array) -> Array:
        return np.log(np.maximum(likely - delta, 1e-300)) - np.log(unlikely)

    likely, unlikely = _counted(without, with_, confidence, test, gain)
    epsilon = max(float(gain(np.array(likely), np.array(unlikely))), 0.0)
    return Bound(epsilon, delta, confidence, likely, unlikely)


def two_world_gaussian(
    without: Array, with_: Array, delta: float, confidence: float, *, test: Test | None = None
) -> Bound:
    r"""Lower bound on μ of a mechanism that claims μ-GDP, and that claim's ε at ``delta``.

    **Valid only against a Gaussian-DP claim**: what is refuted is μ-GDP for every smaller μ, that
    is :math:`P(S) \le Φ(Φ^{-1}(Q(S)) + μ)` (Dong, Roth & Su 2022, arXiv 1905.02383, Def. 2.6). The
    ε is that of the smallest μ not refuted; of a mechanism that is not Gaussian-DP it says nothing.

    Args, Raises: as :func:`two_world`.
    """
    from penstock.privacy.accounting import gaussian

    _check(delta, confidence)

    def gain(likely: Array, unlikely: Array) -> Array:
        gap: Array = ndtri(likely) - ndtri(unlikely)
        return gap

    likely, unlikely = _counted(without, with_, confidence, test, gain)
    mu = max(float(gain(np.array(likely), np.array(unlikely))), 0.0)
    epsilon = gaussian.epsilon(mu, delta) if mu > 0 else 0.0
    return Bound(epsilon, delta, confidence, likely, unlikely, mu)


class Curve(Protocol):
    """A claim at every δ: what :class:`penstock.privacy.accounting.pld.Whole` is."""

    def epsilon(self, delta: float) -> float: ...

    def delta(self, epsilon: float) -> float: ...


MOST_NOISE = 32.0
_STRIDE, _HALVINGS = math.sqrt(2), 5


def two_world_kind(
    without: Array,
    with_: Array,
    delta: float,
    confidence: float,
    claim: Callable[[float], Curve],
    *,
    test: Test | None = None,
) -> Bound:
    r"""Lower bound on the ε of a mechanism that claims to be of a certain kind.

    **Valid only against such a claim.** ``claim(f)`` is the claimed curve if there were f times the
    noise. It is refuted if :math:`P(S) > e^ε Q(S) + δ_f(ε)` at *some* ε, not only at the one that
    belongs to ``delta``; so a few thousand runs show more than they could at a δ of 1e-5. The ε is
    that of the smallest noise refuted (and all larger noise with it); 0 if not even
    :data:`MOST_NOISE` times the noise is refuted.

    Args:
        claim: f > 0 ↦ a curve that falls as f grows.

    Args, Raises: as :func:`two_world`.
    """
    _check(delta, confidence)
    own = claim(1.0)
    grid = np.linspace(0.0, min(max(2 * own.epsilon(delta), 1.0), 500.0), 100)
    spent = np.array([own.delta(float(e)) for e in grid])

    def gain(likely: Array, unlikely: Array) -> Array:
        rest = np.maximum(np.asarray(likely)[..., None] - spent, 1e-300)
        best: Array = (np.log(rest) - np.log(np.asarray(unlikely))[..., None] - grid).max(axis=-1)
        return best

    likely, unlikely = _counted(without, with_, confidence, test, gain)
    if not likely > unlikely:
        return Bound(0.0, delta, confidence, likely, unlikely)
    # Beyond P/Q the right-hand side exceeds P.
    places = [float(e) for e in np.linspace(0.0, math.log(likely / unlikely), 50)]

    def refuted(factor: float) -> bool:
        curve = claim(factor)
        return any(likely > math.exp(e) * unlikely + curve.delta(e) for e in places)

    # By strides from 1, since curves of little noise are costly. `high` is refuted, `low` not.
    low = high = 1.0
    if refuted(1.0):
        while high > 1 / MOST_NOISE and refuted(low := high / _STRIDE):
            high = low
    else:
        while not refuted(high := low * _STRIDE):
            if high > MOST_NOISE:
                return Bound(0.0, delta, confidence, likely, unlikely)
            low = high
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return Bound(claim(high).epsilon(delta), delta, confidence, likely, unlikely, factor=high)


def _counted(
    without: Array, with_: Array, confidence: float, test: Test | None, gain: Gain
) -> tuple[float, float]:
    """P_low and Q_up of the test's set, on runs that did not choose it."""
    worlds = [np.asarray(scores, dtype=np.float64) for scores in (without, with_)]
    for scores in worlds:
        if scores.ndim != 1 or len(scores) < 2 or np.isnan(scores).any():
            problem = Problem("scores", "each world needs two runs or more, and no NaN")
            raise InvalidInput("audit", [problem])
    error = (1 - confidence) / 2
    if test is None:
        halves = [len(scores) // 2 for scores in worlds]
        # At a lax confidence the luckiest threshold would win, and lose on the other half.
        strict = min(error, _CHOOSING_ERROR)
        test = _best([s[:h] for s, h in zip(worlds, halves, strict=True)], strict, gain)
        worlds = [s[h:] for s, h in zip(worlds, halves, strict=True)]
    # S = {below} is {above} of the complement, with the worlds exchanged.
    hits = [int(np.count_nonzero((s >= test.threshold) == test.above)) for s in worlds]
    p, q = (1, 0) if test.above else (0, 1)
    likely, _ = clopper_pearson(hits[p], len(worlds[p]), error)
    _, unlikely = clopper_pearson(hits[q], len(worlds[q]), error)
    return float(likely), float(unlikely)


def _best(worlds: list[Array], error: float, gain: Gain) -> Test:
    """The test with the largest gain on the runs that choose it."""
    low, high = (np.sort(scores) for scores in worlds)
    cuts = np.unique(np.concatenate([_spread(low), _spread(high)]))
    over = [len(s) - np.searchsorted(s, cuts, side="left") for s in (low, high)]
    found: list[tuple[float, Test]] = []
    for above in (True, False):
        p, q = (1, 0) if above else (0, 1)
        sizes = [len(s) for s in worlds]
        hits = [o if above else n - o for o, n in zip(over, sizes, strict=True)]
        likely, _ = clopper_pearson(hits[p], sizes[p], error)
        _, unlikely = clopper_pearson(hits[q], sizes[q], error)
        gains = gain(likely, unlikely)
        at = int(np.argmax(gains))
        found.append((float(gains[at]), Test(float(cuts[at]), above)))
    return max(found, key=lambda item: item[0])[1]


def _spread(ordered: Array) -> Array:
    """Order statistics, dense in both tails, where large ε is seen."""
    n = len(ordered)
    steps = np.unique(np.geomspace(1, n, _CANDIDATES).astype(np.int64)) - 1
    picked: Array = ordered[np.concatenate([steps, n - 1 - steps])]
    return picked


# -- one run -----------------------------------------------------------------------------------


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    r"""The probability of ``right`` or more right guesses, at most, if (ε, δ)-DP held.

    .. math:: P(B \ge v) + 2mδ \max_{1 \le i \le v} \frac{P(v > B \ge v - i)}{i},
              \qquad B \sim \mathrm{Bin}\Bigl(r, \frac{e^ε}{1 + e^ε}\Bigr)

    (Steinke, Nasr & Jagielski 2023, arXiv 2305.08846, Thm 5.2; i > v adds nothing, since the
    probability cannot grow any more.) At most 1.

    Args:
        canaries: m ≥ 1, persons included by independent fair coins.
        guesses: r ≤ m, how many coins were guessed; which ones may depend on the output.
        right: v ≤ r.

    Raises:
        InvalidInput: not 0 ≤ v ≤ r ≤ m, m ≥ 1, ε ≥ 0, 0 ≤ δ < 1.
    """
    _check_guesses(canaries, guesses, right)
    if not (epsilon >= 0 and 0 <= delta < 1):
        problem = Problem("ε, δ", "out of range", value=f"{epsilon:g}, {delta:g}")
        raise InvalidInput("audit", [problem])
    share = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, guesses, share))
    if delta == 0 or right == 0:
        return min(tail, 1.0)
    i = np.arange(1, right + 1)
    # P(v > B ≥ v - i) as a sum of its own terms: a difference of tails would cancel.
    window = np.cumsum(binom.pmf(right - i, guesses, share))
    return min(tail + 2 * canaries * delta * float((window / i).max()), 1.0)


def one_run(canaries: int, guesses: int, right: int, delta: float, confidence: float) -> Bound:
    """The largest ε that this many right guesses refute at the given confidence.

    A refuted ε refutes every smaller one. Bisection keeps its lower end, which was itself refuted.
    Of the term 2mδ follows that nothing is ever shown unless mδ is below about r·(1 - confidence):
    at 1 - 1e-7, only of claims at a very small δ.

    Args, Raises: as :func:`one_run_p_value` and :func:`two_world`.
    """
    _check(delta, confidence)
    _check_guesses(canaries, guesses, right)

    def refuted(epsilon: float) -> bool:
        return one_run_p_value(canaries, guesses, right, epsilon, delta) <= 1 - confidence

    low, high = 0.0, 1.0
    if refuted(low):
        while refuted(high) and high < 64:
            low, high = high, 2 * high
        while high - low > 1e-6:
            middle = (low + high) / 2
            low, high = (middle, high) if refuted(middle) else (low, middle)
    return Bound(low, delta, confidence, right / guesses if guesses else 0.5, 0.5)


def _check(delta: float, confidence: float) -> None:
    problems = []
    if not 0 <= delta < 1:
        problems.append(Problem("δ", "out of range", value=f"{delta:g}", bound="0 <= δ < 1"))
    if not 0 < confidence < 1:
        bound = "above 0, below 1"
        problems.append(Problem("confidence", "out of range", value=f"{confidence:g}", bound=bound))
    if problems:
        raise InvalidInput("audit", problems)


def _check_guesses(canaries: int, guesses: int, right: int) -> None:
    if not (0 <= right <= guesses <= canaries and canaries >= 1):
        value = f"{right} right of {guesses} guesses for {canaries} canaries"
        raise InvalidInput("audit", [Problem("guesses", "do not add up", value=value)])
