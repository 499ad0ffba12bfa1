"""From copies and refits to one answer of all sites: combining, widening, pooling."""
