"""Synthetic tables of mixed columns: noisy margins and moments, a flow, and the outcome's score."""
