"""Processes that see rows: spawned for one task, without a network, and then gone."""
