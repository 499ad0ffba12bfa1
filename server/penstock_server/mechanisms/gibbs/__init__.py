"""Releases of one answer: coefficients with their covariance, and no table."""
