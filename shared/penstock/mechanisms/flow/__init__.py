"""The engine that fits normalising flows: one protocol, a compiled kernel and torch."""
