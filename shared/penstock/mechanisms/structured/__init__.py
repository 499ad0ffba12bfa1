"""Synthetic tables whose declared outcomes are drawn from private models of their own."""
