"""Simulated data with a known truth, for the demo, for studies of power, and for tests."""
