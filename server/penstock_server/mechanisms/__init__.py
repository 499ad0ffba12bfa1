"""The coordinator's half of every mechanism: what it checks, computes and says of a release.

A mechanism is one module or package here, and one line in
:mod:`penstock_server.mechanisms.registry`. Whoever takes releases in, makes results of them or
reports them asks the registry, and does not know which mechanisms there are.
"""
