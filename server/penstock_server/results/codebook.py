"""What the files mean that an analyst pulls, and how their numbers combine."""

from __future__ import annotations

from typing import Any

from penstock.mechanisms import MECHANISMS, Gibbs, Maf, Trajectory
from penstock.mechanisms.gibbs.settings import answer_terms
from penstock.mechanisms.released import COPY, PATH
from penstock.study.study import Study
from penstock.wire.messages import Copies
from penstock_server.results.export import PARTICLE, POINT, SITE, TIME, no_couplings

Json = dict[str, Any]

COPIES = (
    "Copies are independent draws from one fitted private model, each with {rows}. Analyse every "
    "copy on its own and combine: estimate = mean of the m estimates; variance = (1 + 1/m) times "
    "the mean of the m variances (Raab, Nowok & Dibben 2017). Never stack the copies: standard "
    "errors would be too small by √m. This variance does not contain the noise that the private "
    "mechanism put into the model"
)
COUNTED = (
    "about as many rows as the site has: a noisy count, released with the model, so that standard "
    "errors are of the right size. (The declared frame may hold persons without rows)"
)
FRAMED = (
    "a row for each that the declared frame may hold: standard errors are too small where the "
    "site has fewer"
)
REFITS = (
    ": the report adds it per estimand, from the sites' refits (mechanism_variance); for estimates "
    "of your own see intervals."
)
NO_REFITS = ", and without refits the report cannot add it."
INTERVALS: Json = {
    "data": "`penstock pull STUDY --refits` writes refits.parquet and refits.csv beside all "
    "copies: tables that each site made by repeating its whole private procedure, noise and all, "
    "on the rows of one of its copies. `_refit` numbers them from 1, `_copy` says of which copy a "
    "refit was made. They are not further copies: they only show how far the mechanism errs.",
    "rule": "At each site estimate every copy j (q_j, with variance u_j) and every refit b "
    "(r_b, with variance v_b) by the same analysis; c(b) is the copy that refit b was made of.",
    "estimate": "q = mean of q_j over the m copies; u = mean of u_j",
    "square": "S = mean of (r_b - q_c(b))^2 over the B refits",
    "known": "K = {fresh}mean of v_b: what sampling a table alone contributes",
    "mechanism_variance": "D = max(0, S - K)",
    "variance": "T = u (1 + 1/m) + D",
    "df": "nu = 2 T^2 / V, where s = max(S, K) sqrt(2/B), a = D/s, and V = s^2 ((a^2 + 1) Phi(a) + "
    "a phi(a) - (a Phi(a) + phi(a))^2), with Phi and phi the normal distribution and density",
    "interval": "q -+ t(nu) sqrt(T), with t(nu) the quantile of Student's t",
    "pooling": "With w = 1/T at each of k sites, h = w/sum(w), L = sum of (1 - h)^2/nu and A = "
    "sum of h (1 - h)/nu: Q = sum of w (q - mean)^2 has mean k - 1 + 2L where all sites share one "
    "effect, and Q/(k - 1)/(1 + 2 (k - 2) L/(k^2 - 1)) is about F(k - 1, (k^2 - 1)/(3L)) (Welch "
    "1951); the weighted mean has variance (1 + 4A)/sum(w) and 1/sum(h^2/nu) degrees of freedom "
    "(Meier 1953).",
    "report": "The report also draws each site's S to what the other sites show, D/u going as 1/n "
    "(Smyth 2004), which gives more degrees of freedom; without that the rule above is valid, and "
    "its intervals are slightly wider.",
    "holds": "where the mechanism's model contains the truth. What the model cannot hold (an "
    "interaction, say) is missing from copies and refits alike.",
    "older": "A `_copy` of 0 marks releases of before wire 1.1, whose refits had rows drawn anew: "
    "there S = mean of (r_b - q)^2 and K = mean of v_b (1 + n_b/n) + u/m, where n_b and n are the "
    "rows of the refit and of a copy: (2 + 1/m) u where they are as many.",
}
SNAPSHOTS = (
    " Of a trajectory every copy is a table of snapshots: its rows are at single times, and no two "
    "of them belong together."
)
PATHS = (
    "Paths are draws from a model that runs through the snapshots. No path is a person's history, "
    "and nothing was learnt from the same person seen twice. Do not fit models for repeated "
    "measurements to paths as if they were observed, and do not count them as persons."
)
COUPLINGS = (
    "Couplings say which particles of one time point the model joins to which of the next. They "
    "are not observed links between persons' visits."
)
ANSWER = (
    "No table was released: each site answered one question. Each site's covariance contains the "
    "sampling error and the noise of the private mechanism. Pool the last term of the sites, "
    "weighing by its variance; the report does so. Other terms adjust: pool them only with the "
    "same care. Another question needs another study, and costs privacy again."
)


def dictionary(study: Study, report: Json, *, copies: Copies) -> Json:
    """What the columns of every table mean, and how copies or answers combine."""
    head = {"study": study.name, "synthetic": True}
    if isinstance(study.mechanism, Gibbs):
        return {
            **head,
            "synthetic": False,
            "columns": _answer_columns(study, study.mechanism),
            "files": {
                "coefficients.csv": "one row for each site and term",
                "coefficients.json": "the same, each site's covariance as a matrix",
            },
            "combining": ANSWER,
            "sites": report["sites"],
        }
    own = [
        {k: v for k, v in c.items() if v not in (None, "", [])}
        for c in study.schema.to_dict()["columns"]
    ]
    columns = [
        _column(SITE, "categorical", "site that released the row"),
        _column(COPY, "integer", "synthetic copy, from 1"),
        *own,
    ]
    found: Json = {
        **head,
        "columns": columns,
        "copies_released": study.mechanism.copies,
        "copies_here": 1 if copies == "one" else study.mechanism.copies,
        "combining": combining(study),
        "sites": report["sites"],
    }
    if study.mechanism.refits:
        found["intervals"] = intervals(study)
    if isinstance(study.mechanism, Trajectory):
        found["trajectory"] = _trajectory(study, study.mechanism)
    return found


def combining(study: Study) -> str:
    """How what this study's mechanism releases is to be analysed."""
    mechanism = study.mechanism
    if isinstance(mechanism, Gibbs):
        return ANSWER
    text = COPIES.format(
        rows=COUNTED if MECHANISMS.of(study.mechanism).counts_rows(study.asked) else FRAMED
    )
    text += REFITS if mechanism.refits else NO_REFITS
    return text + SNAPSHOTS if isinstance(mechanism, Trajectory) else text


def intervals(study: Study) -> Json:
    """How the refits make intervals of any estimate: in words, and in formulas."""
    w = study.mechanism.w if isinstance(study.mechanism, Maf) else 0.0
    # Persons' own latents are the same in every table: less of its sampling is new.
    return INTERVALS | {"known": INTERVALS["known"].format(fresh=f"{1 - w:g} " if w else "")}


def _column(name: str, kind: str, label: str) -> Json:
    return {"name": name, "kind": kind, "label": label}


def _trajectory(study: Study, mechanism: Trajectory) -> Json:
    """The files beside the pooled table: their columns before those of the study."""
    points = mechanism.time_points(study.schema)
    site = _column(SITE, "categorical", "site that released the row")
    point = _column(POINT, "integer", f"time point, 1 to {points}")
    count = mechanism.particles
    particle = _column(PARTICLE, "integer", f"particle of that time point, 1 to {count}")
    unit = study.schema[mechanism.time].unit
    units = f"in {unit}" if unit else f"in units of {mechanism.time}"
    if study.schema[mechanism.time].kind == "ordered":
        units = "as the level's number, from 0"
    exact = f"exact time {units}; the column {mechanism.time} is rounded as the schema says"
    files: Json = {
        "paths": {
            "files": ["paths.parquet", "paths.csv"],
            "rows": f"{mechanism.paths} paths of each site, at {mechanism.path_times} evenly "
            "spaced times, in order",
            "columns": [
                site,
                _column(PATH, "integer", f"path within the site, 1 to {mechanism.paths}"),
                _column(TIME, "continuous", exact),
            ],
            "meaning": PATHS,
        },
        "particles": {
            "files": ["particles.parquet", "particles.csv"],
            "rows": f"{count} particles at each of {points} time points, of each site",
            "columns": [site, point, particle],
            "meaning": "Each particle stands for an equal share of the rows at its time point.",
        },
    }
    missing = no_couplings(study)
    if missing is None:
        files["couplings"] = {
            "files": ["couplings.parquet"],
            "rows": "one for each pair of particles at neighbouring time points, but for pairs "
            "that hardly hold any mass",
            "columns": [
                site,
                point,
                particle,
                _column("next_particle", "integer", "particle of the next time point"),
                _column("mass", "continuous", "share of the whole that goes from one to the other"),
            ],
            "meaning": COUPLINGS + " Computed by the coordinator from the released particles.",
        }
    else:
        files["couplings"] = {"files": [], "missing": f"left out: {missing}", "meaning": COUPLINGS}
    return files


def _answer_columns(study: Study, mechanism: Gibbs) -> list[Json]:
    estimand = study.estimands[0]
    terms = answer_terms(study.schema, estimand, mechanism)
    last = f"the last one, {terms[-1]}, is the question"
    if estimand.per != 1:
        last += f", per {estimand.per:g} units"
    return [
        _column(SITE, "categorical", "site that answered"),
        _column("term", "categorical", f"coefficient; {last}"),
        _column("estimate", "continuous", f"of the {estimand.model} model, coefficient scale"),
        _column("se", "continuous", "standard error: square root of the variance"),
        *(
            _column(f"cov_{i + 1}", "continuous", f"covariance with {term}")
            for i, term in enumerate(terms)
        ),
    ]
