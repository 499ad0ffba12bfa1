"""Columns as noisy counts of cells, and what joins them: a Gaussian copula of their scores."""
