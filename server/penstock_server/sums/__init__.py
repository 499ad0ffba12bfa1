"""Sums of many sites, collected: the coordinator's part."""
