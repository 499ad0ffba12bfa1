"""The coordinator's end of Flower: the SuperLink, and the runner that pumps messages through it."""
