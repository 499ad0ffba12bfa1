"""What a study costs each site, and what comes back: in words, before it is submitted."""

from __future__ import annotations

from penstock.mechanisms import Gibbs, Trajectory
from penstock.mechanisms.gibbs.settings import answer_terms
from penstock.mechanisms.released import counts_rows
from penstock.study.study import Study


def cost(study: Study) -> str:
    """What each site spends, per person."""
    asked = study.privacy
    if asked.guarantee == "empirical":
        return "costs each site ε = ∞: no formal guarantee"
    spent = f"costs each site ε = {asked.epsilon:g} at δ = {asked.delta:g} per person"
    again = (
        "the next question costs again"
        if isinstance(study.mechanism, Gibbs)
        else ("questions of what comes back cost nothing more")
    )
    return f"{spent} ({asked.guarantee}); {again}"


def returned(study: Study) -> list[str]:
    """What each site releases, and what ``penstock pull`` writes."""
    used, schema = study.mechanism, study.schema
    if isinstance(used, Gibbs):
        terms = answer_terms(schema, study.estimands[0], used)
        count = f"{len(terms)} coefficient{'' if len(terms) == 1 else 's'}"
        return [
            f"comes back: {count} with covariance, and no table: {', '.join(terms)}",
            "pull writes coefficients.csv and coefficients.json",
        ]
    per_person = schema.max_rows_per_person
    rows = "one row" if per_person == 1 else f"{per_person} rows"
    if counts_rows(study):
        rows = f"about as many rows as the site has, at most {rows} for each person of its frame"
    else:
        rows += " for each person of the site's frame"
    copies = f"{used.copies} synthetic table{'' if used.copies == 1 else 's'}"
    refits = (
        f", and {used.refits} refits for intervals"
        if used.refits
        else ("; without refits, intervals lack the mechanism's noise")
    )
    lines = [f"comes back: {copies} with {rows}{refits}"]
    files = "pooled.parquet and pooled.csv"
    if isinstance(used, Trajectory):
        points = used.time_points(schema)
        lines.append(
            f"  {used.particles} particles at each of {points} time points of {used.time}, and "
            f"{used.paths} paths at {used.path_times} times"
        )
        lines.append("  paths are a model's draws through snapshots, not persons' histories")
        files += ", paths, particles and couplings"
    return [*lines, f"pull writes {files}"]
