r"""What it takes into account that sites' variances are estimates, with ν_i degrees of freedom.

With weights w_i, W = Σ w_i, h_i = w_i/W and ν_i the degrees of freedom of the *weights*, which of
w_i = 1/(v_i + τ²) are those of v_i times ((v_i + τ²)/v_i)²:

- Λ = Σ (1 − h_i)²/ν_i: Cochran's Q = Σ w_i (y_i − μ̂)² has mean k − 1 + 2Λ, not k − 1, and
  Q/(k − 1)/(1 + 2(k−2)/(k²−1) Λ) is about F(k − 1, (k²−1)/(3Λ)): Welch's test;
- A = Σ h_i (1 − h_i)/ν_i: μ̂ has a variance of about (1 + 4A)/W, with 1/Σ (h_i²/ν_i) degrees of
  freedom: Meier's.

Of a regression on p columns h_i is a site's leverage, w_i x_i'(X'WX)⁻¹x_i, and k − p stands for
k − 1: Q is what is left, and its reference Johansen's, which of a mean is Welch's.

Known variances, ν_i = ∞, have Λ = A = 0, and all is as usual.

Sources: Welch, Biometrika 38 (1951) 330–336; Johansen, Biometrika 67 (1980) 85–92; Meier,
Biometrics 9 (1953) 59–73; Cochran & Carroll, Biometrics 9 (1953) 447–459.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """Λ and A of the module's formulas, and Meier's degrees of freedom (infinite if all are), which
    a mean has and a regression has not."""

    homogeneity: float
    mean: float
    df: float

    @classmethod
    def of(
        cls, variances: Array, tau2: float, degrees: Array, leverages: Array | None = None
    ) -> Uncertainty:
        """Of weights 1/(v + τ²); (k,) each. Without ``leverages`` of a mean."""
        w = 1.0 / (variances + tau2)
        h = w / w.sum() if leverages is None else leverages
        # 1/ν of the weights.
        unknown = (variances * w) ** 2 / degrees
        spread = float((h * h) @ unknown)
        return cls(
            homogeneity=float(((1 - h) ** 2) @ unknown),
            mean=float((h * (1 - h)) @ unknown),
            df=1 / spread if spread > 0 else math.inf,
        )

    def expected_q(self, left: int) -> float:
        """The mean of Q where nothing is left between sites; left: k − 1, of a regression k − p."""
        return left + 2 * self.homogeneity

    def q_df2(self, left: int) -> float:
        """The second degrees of freedom of Q's reference; infinite where that is χ²(left)."""
        return left * (left + 2) / (3 * self.homogeneity) if self.homogeneity > 0 else math.inf

    def q_p(self, q: float, left: int) -> float:
        """P of as large a Q or a larger one where nothing is left between sites."""
        if self.homogeneity == 0:
            return float(special.chdtrc(left, q))
        f = q / left / (1 + 2 * (left - 1) / (left * (left + 2)) * self.homogeneity)
        return float(special.fdtrc(left, self.q_df2(left), f))
