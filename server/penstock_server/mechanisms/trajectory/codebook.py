"""What a trajectory's files mean that an analyst pulls."""

from __future__ import annotations

from typing import Any

from penstock.mechanisms import Trajectory
from penstock.study.study import Study
from penstock_server.mechanisms.trajectory.exports import (
    PARTICLE,
    PATH,
    POINT,
    TIME,
    why_no_couplings,
)
from penstock_server.mechanisms.writing import SITE, describe_column

Json = dict[str, Any]

SNAPSHOTS = (
    " Of a trajectory every copy is a table of snapshots: its rows are at single times, and no two "
    "of them belong together."
)
PATHS = (
    "Paths are draws from a model that runs through the snapshots. No path is a person's history, "
    "and nothing was learnt from the same person seen twice. Do not fit models for repeated "
    "measurements to paths as if they were observed, and do not count them as persons."
)
MEASURED_SNAPSHOTS = (
    " Of a trajectory whose dependence was measured every copy is a table of visits: those of an "
    "imagined person stand one after the other, and rows are counts of visits, not of persons. "
    "`_person` says whose a row is; fit models of repeated measurements to every copy, and to "
    "every refit, on its own."
)
MEASURED_PATHS = (
    "Paths are persons that a model imagines, whose visits go together as those of the same person "
    "did at the sites, as far as noise lets it be seen. No path is a person's history. Paths are "
    "complete: nobody drops out of them. Count them as persons of a model, not of the cohort."
)
ENDING_PATHS = (
    "Paths are persons that a model imagines, whose visits go together as those of the same person "
    "did at the sites, as far as noise lets it be seen. No path is a person's history. A path ends "
    "at {}, which the model drew with it; nobody drops out of it before. Count paths as persons of "
    "a model, not of the cohort."
)
MEASURED_COUPLINGS = "A particle goes on to that of the same number: they are the same person."
COUPLINGS = (
    "Couplings say which particles of one time point the model joins to which of the next. They "
    "are not observed links between persons' visits."
)


def describe_paths(study: Study, mechanism: Trajectory) -> Json:
    """The files beside the pooled table: their columns before those of the study."""
    points, measured = mechanism.time_points(study.schema), mechanism.measures(study.schema)
    site = describe_column(SITE, "categorical", "site that released the row")
    point = describe_column(POINT, "integer", f"time point, 1 to {points}")
    count = mechanism.particles
    particle = describe_column(PARTICLE, "integer", f"particle of that time point, 1 to {count}")
    unit = study.schema[mechanism.time].unit
    units = f"in {unit}" if unit else f"in units of {mechanism.time}"
    if study.schema[mechanism.time].kind == "ordered":
        units = "as the level's number, from 0"
    exact = f"exact time {units}; the column {mechanism.time} is rounded as the schema says"
    files: Json = {
        "paths": {
            "files": ["paths.parquet", "paths.csv"],
            "rows": f"{mechanism.paths} paths of each site, at {mechanism.path_times} evenly "
            f"spaced times, in order{_none_after(mechanism)}",
            "columns": [
                site,
                describe_column(PATH, "integer", f"path within the site, 1 to {mechanism.paths}"),
                describe_column(TIME, "continuous", exact),
            ],
            "meaning": PATHS
            if not measured
            else MEASURED_PATHS
            if mechanism.end is None
            else ENDING_PATHS.format(mechanism.end),
        },
        "particles": {
            "files": ["particles.parquet", "particles.csv"],
            "rows": f"{count} particles at each of {points} time points, of each site"
            f"{_none_after(mechanism)}",
            "columns": [site, point, particle],
            "meaning": "Each particle stands for an equal share of the rows at its time point.",
        },
    }
    following = "particle of the next time point"
    mass = "share of the whole that goes from one to the other"
    missing = why_no_couplings(study, mechanism)
    if missing is None:
        files["couplings"] = {
            "files": ["couplings.parquet"],
            "rows": "one for each pair of particles at neighbouring time points, but for pairs "
            "that hardly hold any mass",
            "columns": [
                site,
                point,
                particle,
                describe_column("next_particle", "integer", following),
                describe_column("mass", "continuous", mass),
            ],
            "meaning": MEASURED_COUPLINGS
            if measured
            else COUPLINGS + " Computed by the coordinator from the released particles.",
        }
    else:
        files["couplings"] = {"files": [], "missing": f"left out: {missing}", "meaning": COUPLINGS}
    return files


def _none_after(mechanism: Trajectory) -> str:
    return "" if mechanism.end is None else f"; none after its own {mechanism.end}"
