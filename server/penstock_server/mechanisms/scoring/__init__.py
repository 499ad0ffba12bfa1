"""Releases of a study's answers: coefficients of its regressions with their covariance."""
