"""From tables to estimates, and from estimates to one: models, combining, pooling."""
