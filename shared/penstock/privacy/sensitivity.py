r"""What one person can move: L2 sensitivities of everything that is measured on rows.

The unit is a person, all their rows together. The relation is zero-out with public n (the person's
rows become null and contribute nothing) except for a *diameter*, which is replace-one of one row
and covers zero-out; events say which of the two their noise multiplier is relative to.

========================= ================================================= ============
function                  what is measured                                  sensitivity
========================= ================================================= ============
clipped_sum               Σ of rows clipped to C                            k·C
(after) clip_jointly      Σ of what persons add to m particles at once      C
histogram                 counts in c histograms                            k·√c
second_moments            Σ y yᵀ, ‖y‖ ≤ R                                   k·R²
orthonormal_projections   each row on N stacked orthonormal directions      √k·r·√(N/d)
projections               each row on any given directions Θ                √k·r·‖Θ‖₂
projected_cdfs            A·(counts of bins), for each of N directions      k·√N·max‖A e_b‖
latent, latent_diameter   √w·(latent clipped to R), one row                 R√w, 2R√w
row_diameter              one row of norm ≤ r exchanged for another         2r
float_room                what a float64 sum of clipped persons needs       (a share)
========================= ================================================= ============

k is the most rows a person may have. Each result is rounded up by a relative 1e-12, more than
float64 loses here, and each bound is attained (tests/laws). What *moves* must be a row's public,
clipped, encoded form: nothing here looks at a row, but for :func:`clip_jointly`, which clips.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.base.errors import InvalidEvent
from penstock.privacy.numbers import positive, share, whole

Array = NDArray[np.float64]

_EPS = float(np.finfo(np.float64).eps)
_UNIT = _EPS / 2


def row_diameter(radius: float) -> float:
    """2r: one row of norm ≤ r exchanged for another (replace-one)."""
    return _up(2 * positive("radius", radius))


def clipped_sum(bound: float, rows_per_person: int = 1) -> float:
    """k·C: a sum of rows of norm ≤ C each, zero-out."""
    return _up(whole("rows per person", rows_per_person) * positive("bound", bound))


def clip_jointly(contributions: ArrayLike, bound: float) -> Array:
    r"""Each person's contribution to *all* particles, clipped to one norm: v·min(1, C/‖v‖).

    Clipping particle by particle instead leaves each of the m at C, and their sum at C√m.

    Args:
        contributions: (n, m, d), float; person, particle, coordinate.
        bound: C > 0; afterwards the L2 norm over (m, d) is at most C for every person, so that
            the sum over persons has sensitivity C (zero-out), and 2C when one is exchanged.

    Returns:
        (n, m, d). What is within the bound stays as it is. A person of whom anything is NaN or
        infinite contributes 0; a public rule, so that whoever it was moves no more than others.

    Raises:
        InvalidEvent: the bound is not a finite positive number, or the shape is another.
    """
    positive("bound", bound)
    given = np.asarray(contributions, dtype=np.float64)
    if given.ndim != 3 or not given.size:
        raise InvalidEvent("contributions must have shape (n, m, d)", value=given.shape)
    usable = np.isfinite(given).all(axis=(1, 2), keepdims=True)
    v = np.where(usable, given, 0.0)
    # By way of the largest entry: squares of huge numbers would overflow, of tiny ones vanish.
    largest = np.abs(v).max(axis=(1, 2), keepdims=True)
    shape = v / np.where(largest > 0, largest, 1.0)
    norm = np.sqrt(np.maximum((shape**2).sum(axis=(1, 2), keepdims=True), 1.0))
    # A little inside: a sum of squares errs by at most their number times ε.
    within = bound * (1 - 1e-12 - given[0].size * _EPS)
    with np.errstate(over="ignore"):  # infinite, and so beyond the bound
        fits = largest * norm <= within
    clipped: Array = np.where(fits, v, shape * (within / norm))
    return clipped


def float_room(persons: int, depth: int, own: int = 0) -> float:
    r"""The share s of a bound C that a float64 sum of persons' clipped vectors is to keep free.

    On paper Σ v_i has sensitivity C where ‖v_i‖ ≤ C. In floating point one person also moves the
    rounding of *everybody else's* numbers, and the more persons there are, the further.

    **Proposition.** Let the vectors v_i of n persons be floats, each a function of that person's
    rows alone, and ‖v_i‖ ≤ C(1 - s)(1 + γ_w). Let ŝ add them coordinate by coordinate in float64,
    in any order and grouping in which no summand takes part in more than h roundings, fused
    products among them. With u = 2⁻⁵³, γ_h = hu/(1 - hu) and

    .. math:: s = 2 (n γ_h + γ_w) \le \tfrac12

    zeroing out one person moves ŝ by at most C in L2.

    *Proof.* Coordinate by coordinate ``|ŝ_j - Σ_i v_ij| ≤ γ_h Σ_i |v_ij|`` (Higham 2002, "Accuracy
    and Stability of Numerical Algorithms", section 4.2). The norm of that vector is at most
    γ_h Σ_i ‖v_i‖ by the triangle inequality, whatever the number of coordinates. Both neighbours'
    sums err by no more, so that with B = C(1 - s)(1 + γ_w) they differ by at most
    ‖v_0‖ + 2nγ_h B ≤ (1 + 2nγ_h) B, and (1 + 2nγ_h)(1 + γ_w) ≤ 1 + 2nγ_h + 2γ_w = 1 + s, since
    2nγ_h ≤ 1. Last, (1 + s)(1 - s) ≤ 1. ∎

    Underflow is left out: it adds at most 2⁻¹⁰²² per operation, and a C is far from that. The other
    persons' v_i must be *the same floats* in both worlds: a row's place in a block of single
    precision must not depend on who else is there.

    Args:
        persons: n; depth: h; own: w, roundings of one person's own norm and clipping.

    Raises:
        InvalidEvent: so many persons that nothing would be left of the bound.
    """
    n, h = whole("persons", max(persons, 1)), whole("depth", depth)

    def gamma(roundings: int) -> float:
        return roundings * _UNIT / (1 - roundings * _UNIT)

    room = 2 * (n * gamma(h) + gamma(own)) * (1 + 1e-9)
    if not room <= 0.5:
        raise InvalidEvent("too many persons for a sum in float64", value=persons)
    return room


def histogram(histograms: int, rows_per_person: int = 1) -> float:
    """k·√c: counts in c histograms; every row is in one cell of each. Zero-out.

    A total, of rows or of persons, is a histogram with one cell.
    """
    count = whole("histograms", histograms)
    return _up(whole("rows per person", rows_per_person) * math.sqrt(count))


def weighted_histograms(squares: float, rows_per_person: int = 1) -> float:
    """k·√Σw²: as :func:`histogram`, of histograms whose counts are each multiplied by a weight w of
    their own; given Σw². Zero-out."""
    return _up(whole("rows per person", rows_per_person) * math.sqrt(positive("squares", squares)))


def second_moments(radius: float, rows_per_person: int = 1) -> float:
    """k·R²: Σ y yᵀ over rows of norm ≤ R, in the Frobenius norm; zero-out.

    For the upper triangle alone, the entries beside the diagonal stand for two: they count √2-fold,
    or carry 1/√2 of the diagonal's noise.
    """
    squared = positive("radius", radius) * radius  # ** raises where it overflows
    return _up(whole("rows per person", rows_per_person) * squared)


def orthonormal_stack(directions: int, dimension: int, rng: np.random.Generator) -> Array:
    """Random directions Θ (d, N), N/d uniformly random orthonormal bases side by side.

    ΘΘᵀ = (N/d)·I up to rounding, whatever was drawn: see :func:`orthonormal_projections`. Public,
    so that no noise source is needed; each base is uniform (Haar: QR of a Gaussian matrix, signs of
    R's diagonal made positive; Mezzadri 2007, arXiv math-ph/0609050).

    Raises:
        InvalidEvent: N is not a multiple of d.
    """
    bases = _bases(directions, dimension)
    q, r = np.linalg.qr(rng.standard_normal((bases, dimension, dimension)))
    q = q * np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :]
    stack: Array = np.moveaxis(q, 0, 1).reshape(dimension, directions)
    return stack


def orthonormal_projections(
    radius: float, directions: int, dimension: int, rows_per_person: int = 1
) -> float:
    r"""√k·r·√(N/d): rows y of norm ≤ r, each released as yΘ with noise; zero-out.

    ‖yΘ‖² = y ΘΘᵀ yᵀ = (N/d)‖y‖² for Θ from :func:`orthonormal_stack`, with certainty and for every
    row at once. (For independent random directions the published high-probability bound, a normal
    quantile in place of the tail of a sum of Beta variables, is exceeded more often than it says;
    and it would cost δ. Take :func:`projections` there.)
    """
    bases = _bases(directions, dimension)
    rows = whole("rows per person", rows_per_person)
    return _up(math.sqrt(rows) * positive("radius", radius) * math.sqrt(bases))


def projections(radius: float, matrix: ArrayLike, rows_per_person: int = 1) -> float:
    """√k·r·‖Θ‖₂: rows y of norm ≤ r, each released as yΘ with noise, Θ (d, N) realised; zero-out.

    Raises:
        InvalidEvent: Θ is not a finite matrix that is not zero.
    """
    theta = _matrix("directions", matrix)
    # LAPACK's singular values err by a modest multiple of ε·‖Θ‖₂.
    largest = float(np.linalg.norm(theta, ord=2)) * (1 + 8 * max(theta.shape) * _EPS)
    rows = whole("rows per person", rows_per_person)
    return _up(math.sqrt(rows) * positive("radius", radius) * largest)


def projected_cdfs(directions: int, strategy: ArrayLike, rows_per_person: int = 1) -> float:
    """k·√N·max_b ‖A e_b‖₂: for each of N directions A·h is released, h the counts of B bins.

    A row is in one bin of each direction, and each direction's h moves by one unit vector per row.
    For noisy counts A is the identity (:func:`histogram`), for noisy CDFs the lower triangle of
    ones, and a square root of that does better than both. Zero-out; ranges and bins must not
    depend on rows, or be charged too.

    Args:
        strategy: A, (m, B), finite.
    """
    a = _matrix("strategy", strategy)
    unit = float(np.abs(a).max())  # squares of tiny numbers would vanish
    longest = unit * float(np.linalg.norm(a / unit, axis=0).max())
    root = math.sqrt(whole("directions", directions))
    return _up(whole("rows per person", rows_per_person) * root * longest)


def latent(w: float, clip: float) -> float:
    """R√w: one row's √w·z, ‖z‖ ≤ R, exchanged for the null record's 0; zero-out."""
    share("the mixing weight w", w)
    return _up(positive("latent clip", clip) * math.sqrt(w))


def latent_diameter(w: float, clip: float) -> float:
    """2R√w: one row's √w·z, ‖z‖ ≤ R, exchanged for any other; what shuffling is charged by."""
    return 2 * latent(w, clip)


def _up(value: float) -> float:
    """Rounded up; refused where float64 has no relative precision left, or no number at all."""
    if not 1e-300 < value < 1e300:
        raise InvalidEvent("a sensitivity out of all measure", value=value, remedy="other units")
    return value * (1 + 1e-12)


def _bases(directions: int, dimension: int) -> int:
    bases, rest = divmod(whole("directions", directions), whole("dimension", dimension))
    if rest:
        raise InvalidEvent(
            "directions must be a multiple of the dimension",
            value=directions,
            bound=f"a multiple of {dimension}",
            remedy="stack whole orthonormal bases",
        )
    return bases


def _matrix(name: str, value: ArrayLike) -> Array:
    matrix = np.asarray(value, dtype=np.float64)
    if matrix.ndim != 2 or not matrix.size or not np.isfinite(matrix).all() or not matrix.any():
        raise InvalidEvent(f"{name} must be a finite matrix that is not zero", value=matrix.shape)
    return matrix
