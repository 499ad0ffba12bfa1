"""A mechanism that no site has: the mean of one column, with Gaussian noise.

It also releases how much noise that was, as a part of its own kind: columns that no other has.

One package and one line in a registry (:mod:`.mechanism`), as any that is to come. It shows that
nothing else has to know of it; its noise is not exact in floating point, and it protects nobody.
"""
