"""A coordinator's directory, and its certificates."""
