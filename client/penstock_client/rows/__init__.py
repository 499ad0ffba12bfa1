"""The rows of a site: read, checked, and kept as certified snapshots."""
