"""Combining estimates of copies, what refits add, and pooling them over sites."""
