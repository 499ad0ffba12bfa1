"""`penstock simulate`: cohorts with a known truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from penstock.base.errors import InvalidInput, Problem
from penstock.cli.console import done, friendly

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def simulate() -> None:
    """Write simulated cohorts with a known truth."""


@app.command()
@friendly
def cvd(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write into.")],
    site: Annotated[
        list[str] | None, typer.Option("--site", help="A cohort, such as chs-f; repeat it.")
    ] = None,
    hazard_ratio: Annotated[
        float, typer.Option(help="The true hazard ratio per 10 mmHg of blood pressure.")
    ] = 1.171,
    seed: Annotated[int, typer.Option(help="Of the simulation; the data are not private.")] = 1,
) -> None:
    """Twelve cardiovascular cohorts after the published moments of six studies by sex.

    Writes FOLDER/<cohort>/data.csv and dictionary.toml, and FOLDER/truth.json.
    """
    from penstock_server.simulate import cvd as engine

    known = {c.name: c for c in engine.COHORTS}
    unknown = [s for s in site or [] if s not in known]
    problems = [
        Problem("--site", "unknown cohort", value=s, bound=", ".join(known)) for s in unknown
    ]
    if not (hazard_ratio > 0 and np.isfinite(hazard_ratio)):
        problems.append(Problem("--hazard-ratio", "must be above 0", value=str(hazard_ratio)))
    if problems:
        raise InvalidInput("simulate cvd", problems)
    log_hr = float(np.log(hazard_ratio))
    for index, cohort in enumerate(engine.COHORTS):
        if not site or cohort.name in site:
            rng = np.random.default_rng([seed, index])
            engine.write_site(cohort, out / cohort.name, rng, log_hr_per_10=log_hr)
            done(f"{out / cohort.name}: {cohort.title}, {cohort.n} persons")
    engine.write_truth(out, log_hr_per_10=log_hr)
    done(f"{out / 'truth.json'}: hazard ratio {hazard_ratio:g} per 10 mmHg")


@app.command()
@friendly
def visits(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write into.")],
    site: Annotated[
        list[str] | None, typer.Option("--site", help="A clinic, such as clinic-east; repeat it.")
    ] = None,
    most: Annotated[
        int, typer.Option(help="Visits of one patient at most, 1 to 9; 1: a snapshot each.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Of the simulation; the data are not private.")] = 1,
) -> None:
    """Four clinics with repeated visits: blood pressure and LDL under a treatment.

    Some patients respond to it and others do not, so that one cloud becomes two. Writes
    FOLDER/<clinic>/data.csv and dictionary.toml, and FOLDER/truth.json.
    """
    from penstock_server.simulate import visits as engine

    known = {c.name: c for c in engine.CLINICS}
    unknown = [s for s in site or [] if s not in known]
    problems = [
        Problem("--site", "unknown clinic", value=s, bound=", ".join(known)) for s in unknown
    ]
    if not 1 <= most <= engine.VISITS:
        bound = f"1 to {engine.VISITS}"
        problems.append(Problem("--most", "out of range", value=str(most), bound=bound))
    if problems:
        raise InvalidInput("simulate visits", problems)
    for index, clinic in enumerate(engine.CLINICS):
        if not site or clinic.name in site:
            rng = np.random.default_rng([seed, index])
            engine.write_site(clinic, out / clinic.name, rng, most=most)
            done(f"{out / clinic.name}: {clinic.n} patients")
    engine.write_truth(out)
    done(f"{out / 'truth.json'}: {engine.slope():.3f} mmHg per visit")


@app.command()
@friendly
def patients(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write into.")],
    site: Annotated[
        list[str] | None, typer.Option("--site", help="A clinic, such as clinic-east; repeat it.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the simulation; the data are not private.")] = 1,
) -> None:
    """Four clinics whose patients are seen once a year until they die or are lost.

    Writes FOLDER/<clinic>/data.csv and dictionary.toml, and FOLDER/truth.json.
    """
    from penstock_server.simulate import patients as engine

    known = [practice.name for practice in engine.PRACTICES]
    problems = [
        Problem("--site", "unknown clinic", value=name, bound=", ".join(known))
        for name in site or []
        if name not in known
    ]
    if problems:
        raise InvalidInput("simulate patients", problems)
    for index, practice in enumerate(engine.PRACTICES):
        if not site or practice.name in site:
            engine.write_site(practice, out / practice.name, np.random.default_rng([seed, index]))
            done(f"{out / practice.name}: {practice.n} patients")
    count = len(engine.write_truth(out))
    done(f"{out / 'truth.json'}: the answers to {count} questions")
