"""Attacks on the package's own claims: empirical lower bounds on ε beside what is charged.

:mod:`penstock.audit.bounds` turns counts into bounds; :mod:`penstock.audit.worlds` runs attacks;
:mod:`penstock.audit.targets` lists what can be attacked, each with its worst-case data set.
"""
