"""Releases of particles, paths through them, and tables of snapshots."""
