"""A mechanism that no site has: the mean of one column, with Gaussian noise.

One package and one line in a registry (:mod:`.mechanism`), as any that is to come. It shows that
nothing else has to know of it; its noise is not exact in floating point, and it protects nobody.
"""
