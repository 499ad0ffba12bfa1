"""Releases of a study's answers: coefficients of its regressions, and means, shares, quantiles and
survival, with their covariance."""
