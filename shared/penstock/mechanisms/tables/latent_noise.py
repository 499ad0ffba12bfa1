r"""Latent noise injection: a person's own row, moved through a density model's latent space.

With a model T that maps latents to rows, the released row is

.. math:: \tilde x = T\bigl(\sqrt w\; \mathrm{clip}_R(T^{-1}(x)) + \sqrt{1-w}\, Z\bigr),
          \qquad Z \sim N(0, I),

after Shen & Tian 2025, eq. (4); clipping is ours, since without it nothing bounds what one row
moves. With T exact and R infinite the released rows are distributed as the rows, for any w.

Privacy, under zero-out with public n: an absent row has latent 0; L2 sensitivity of one row R√w,
noise sd √(1-w); every copy of every row is one release:
:class:`penstock.privacy.measurements.LatentNoise`. T itself must be public, private, or charged.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, expit

from penstock.base.errors import InvalidInput, Problem
from penstock.privacy.measurements import LatentNoise
from penstock.privacy.noise.sources import NoiseSource, permutation

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.intp]


def clip_latents(latents: Array, present: Bools, radius: float) -> Array:
    """Latents (…, d) within ``radius`` of 0; exactly 0 where absent or not finite.

    Args:
        present: (…,); which rows exist.

    Raises:
        InvalidInput: ``radius`` is not a finite positive number.
    """
    if not (radius > 0 and math.isfinite(radius)):
        raise InvalidInput("latent noise", [Problem("clip", "must be above 0", value=str(radius))])
    usable = present & np.isfinite(latents).all(axis=-1)
    z = np.where(usable[..., None], latents, 0.0)
    # By way of the largest entry: squares of huge latents would overflow.
    largest = np.abs(z).max(axis=-1, keepdims=True)
    shape = z / np.where(largest > 0, largest, 1.0)
    norm = np.maximum(np.linalg.norm(shape, axis=-1, keepdims=True), 1.0)
    # A little inside, so that rounding never carries a row beyond the radius.
    clipped: Array = shape * np.minimum(largest, radius * (1 - 1e-12) / norm)
    return clipped


def inject(
    latents: Array, present: Bools, measurement: LatentNoise | None, noise: NoiseSource
) -> Array:
    """One copy's noisy latents √w·clip(z) + √(1-w)·Z, of the shape of ``latents``.

    Args:
        measurement: None at w = 0, which is noise alone and free.
    """
    if measurement is None:
        return noise.normal(latents.shape)
    w, radius = measurement.w, measurement.radius
    return measurement(math.sqrt(w) * clip_latents(latents, present, radius), noise)


def likely_present(z: Array, share: float, w: float, radius: float) -> Array:
    r"""By how much each noisy latent (n, d) is that of a row that was there, (n,) in (0, 1].

    Null records are released as noise alone, N(0, (1-w)I). A row that is there has, if the model is
    exact, about N(0, vI) with :math:`v = w\,E[\min(χ^2_d, R^2)]/d + 1 - w`; so by Bayes

    .. math:: p(z) = \frac{s\,φ(z; vI)}{s\,φ(z; vI) + (1-s)\,φ(z; (1-w)I)}.

    Rows that are kept with chance p(z) are distributed as those that were there; post-processing.

    Args:
        share: s in (0, 1], of rows that are there, public or released.
    """
    if share >= 1:
        return np.ones(len(z))
    d = z.shape[1]
    inside = d * chdtr(d + 2, radius**2) + radius**2 * (1 - chdtr(d, radius**2))
    there, null = w * inside / d + 1 - w, 1 - w
    squares = (z * z).sum(axis=1)
    log_ratio = squares / 2 * (1 / null - 1 / there) - d / 2 * math.log(there / null)
    found: Array = expit(log_ratio + math.log(share) - math.log1p(-share))
    return found


def thinned(likely: Array, count: int, noise: NoiseSource) -> Indices:
    """``count`` of n places in a random order, each with a chance in proportion to ``likely``.

    Sequential Poisson sampling (Ohlsson 1998): the smallest of uniform numbers over their chances.
    """
    ranks = noise.uniform(len(likely)) / np.maximum(likely, 1e-300)
    chosen = np.argsort(ranks, kind="stable")[:count]
    # By their ranks the likeliest would come first.
    return np.asarray(chosen[permutation(len(chosen), noise)])
