"""A study's coefficients by noisy Fisher scoring, and what needs no model: answers, and no table.

============== ====================================================================================
file           holds
============== ====================================================================================
`settings`     what a study may ask of it
`regressions`  the regressions that a study's estimands are of, each once
`descriptions` what is asked beside them: means, shares, quantiles, survival
`blocks`       both, in the order in which an answer has them
`tallies`      sums of rows that answer without a model: of means and of levels
`cumulatives`  the same of quantiles, and shares beyond thresholds
`lifetimes`    the same of survival
`ways`         which of these a description has
`division`     by what the budget is divided
`divisible`    of which regressions sites' own coefficients are told, and the charge of it
`levels`       these coefficients: one step from those of all rows, by each site's scores
`plan`         noise multipliers and charges, from public numbers alone
`run`          rows in, the answers out
`answers`      from what rows told of an outcome to a regression's coefficients and covariance
`foresight`    whether an answer will say anything, from public numbers alone
`memory`       how much a run takes at most
`mechanism`    what the rest of the package knows of all this
============== ====================================================================================

The sums of rows that regressions need are those of :mod:`penstock.mechanisms.structured`.
"""
