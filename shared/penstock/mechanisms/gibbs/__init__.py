"""One question's coefficients by differentially private Langevin chains.

============  ==================================================================================
file          holds
============  ==================================================================================
`posing`      what a model must say so that a chain can answer a question of it
`models`      one object for each model, in one closed registry
`design`      from coded columns to a bounded design, and coefficients back to the reporting scale
`sums`        noisy sums of bounded contributions, exact in floating point
`summaries`   the first release: counts, means, spreads
`families`    the losses: convex, with a slope and a bend in bounds
`posterior`   their sums: convex and smooth, one person's gradient bounded at every θ
`posed`       from rows and summaries to a posterior, and to its released curvature
`chain`       overdamped and underdamped chains, their accounting, and where their noise ends up
`bounds`      what the theorems of Ganesh & Talwar 2020 would ask, for comparison
`plan`        noise multipliers and charges, from public numbers alone
`run`         rows in, one answer out
`worth`       whether the answer will say anything, from public numbers alone
`memory`      how much a run takes at most
`mechanism`   what the rest of the package knows of all this
============  ==================================================================================
"""
