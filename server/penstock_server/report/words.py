"""The report's sentences. Plain text: whoever shows it escapes it."""

from __future__ import annotations

from penstock.mechanisms import MECHANISMS, Gibbs, Maf, Settings, SlicedWasserstein, Trajectory
from penstock.mechanisms.gibbs.models import POSINGS
from penstock.questions.estimands import Estimand
from penstock.questions.models.model import Measure
from penstock.schema import Column, Schema
from penstock.study.study import Study


def contrast(estimand: Estimand, schema: Schema) -> str:
    """What the coefficient compares: "per 10 mmHg of systolic pressure", "sex: 1 against 0".

    A mean compares nothing, and is of its outcome.
    """
    column = schema[estimand.term]
    name = column_name(column)
    if not estimand.regression.compares:
        return f"of {outcome_text(estimand, schema)}"
    if estimand.level is not None:
        return f"{name}: {estimand.level} against {column.levels[0]}"
    if column.kind in ("binary", "event"):
        return f"{name}: {column.levels[1]} against {column.levels[0]}"
    if column.kind == "ordered":
        return f"per {_count(estimand.per, 'level')} of {name}"
    unit = f"{estimand.per:g} {column.unit}" if column.unit else _count(estimand.per, "unit")
    return f"per {unit} of {name}"


def column_name(column: Column) -> str:
    return column.label or column.name


def axis_label(estimand: Estimand, schema: Schema) -> str:
    what, name = contrast(estimand, schema), measure(estimand, schema).name
    joint = " " if what.startswith("per ") or not estimand.regression.compares else ", "
    return f"{name[0].upper()}{name[1:]}{joint}{what}"


def measure(estimand: Estimand, schema: Schema) -> Measure:
    """The estimate's name, its short form, and what lies left and right of a null value."""
    return estimand.regression.measure_of(schema[estimand.outcome])


def model_text(estimand: Estimand, mechanism: Settings) -> str:
    """The model that was fitted, and by whom where it was not fitted to tables."""
    if not isinstance(mechanism, Gibbs):
        return estimand.regression.title
    posing = POSINGS.of(estimand.model).with_baseline(mechanism.baseline)
    return f"{posing.title} at the sites"


def outcome_text(estimand: Estimand, schema: Schema) -> str:
    """The outcome (of a duration its event), with its unit where the estimate carries one."""
    column, model = schema[estimand.outcome], estimand.regression
    if model.needs_event and column.event is not None:
        return column_name(schema[column.event])
    if model.is_share(column):
        return f"{column_name(column)}: {column.levels[1]}"
    unit = f" ({column.unit})" if model.in_outcome_units and column.unit else ""
    return f"{column_name(column)}{unit}"


def adjusted_text(estimand: Estimand, schema: Schema) -> str:
    if not estimand.adjust:
        return "not adjusted"
    return "adjusted for " + ", ".join(column_name(schema[name]) for name in estimand.adjust)


def mechanism(study: Study) -> list[str]:
    """How a site makes its release, in plain words: what it does, what left it, what it lacks."""
    used = study.mechanism
    match used:
        case Maf():
            made = (
                "Each site fitted a normalising flow (maf): a smooth, invertible change of shape "
                "that turns a distribution into a plain bell curve. "
                f"{_FITTED[study.privacy.guarantee]}"
            )
            if used.w > 0:
                made += (
                    f" A share of {used.w:g} of each synthetic row's place in that bell curve is a "
                    "person's own, with noise (latent noise injection)."
                )
        case SlicedWasserstein():
            made = _SLICED[used.variant]
        case Trajectory():
            made = (
                "Each site moved particles, imagined persons, until those at each time point look "
                "like the cohort at that time, and those at neighbouring times are joined by short "
                "ways (trajectory: mean-field Langevin dynamics). Each step saw a noisy sum over "
                "its persons only, each person's part in it cut to a bound."
            )
        case Gibbs():
            kind = "with" if used.dynamics == "underdamped" else "without"
            made = (
                "Each site answered the one question itself (gibbs): it walked downhill on the "
                "model's fit to its rows, in few steps with noise (a Langevin chain, "
                f"{kind} momentum), each person's pull cut to a bound."
            )
    return [made, *_released(study)]


_FITTED = {
    "formal": "The fit saw noisy sums of its persons only, each person's part in them cut to a "
    "bound.",
    "public-flow": "The fit saw public data only, and none of the cohort's persons.",
    "empirical": "No bound holds for how much one person could change the fit.",
}
_SLICED = {
    "sketch": "Each site looked at its cohort along many random lines, and released once, with "
    "noise, how its persons lie on each of them (sliced-wasserstein, sketch). Particles then moved "
    "until they lie the same way on every line; that looked at no person again.",
    "resampled": "At each site particles moved towards the cohort as seen along random lines "
    "(sliced-wasserstein, resampled). Every step saw a fresh batch of persons, with noise.",
    "presampled": "Each site released noisy positions of its persons along random lines once "
    "(sliced-wasserstein, presampled). Particles then moved until they lie the same way; that "
    "looked at no person again.",
}


def _released(study: Study) -> list[str]:
    used = study.mechanism
    if isinstance(used, Gibbs):
        return [
            "What left a site: the model's coefficients and their covariance. There is no "
            "synthetic table, and another question costs privacy again."
        ]
    tables = f"{count_text(used.copies, 'synthetic table')} with "
    if MECHANISMS.of(study.mechanism).counts_rows(study.asked):
        tables += "about as many rows as the site has, by a noisy count"
    else:
        tables += "a row for each that the declared frame may hold"
    if used.refits:
        tables += f", and {count_text(used.refits, 'refit')} that show the mechanism's own noise"
    if isinstance(used, Trajectory):
        return [
            f"What left a site: the particles, {count_text(used.paths, 'path')} through them, "
            f"{tables}. The tables' rows are snapshots: each at one time."
        ]
    return [f"What left a site: {tables}. Any question may be asked of them, at no further cost."]


def paths(study: Study, used: Trajectory) -> list[str]:
    """What the picture, and the table of paths, show."""
    count, time = used.time_points(study.schema), column_name(study.schema[used.time])
    return [
        f"The bands hold the middle 50% and 90% of the {used.particles} particles at each of "
        f"{count} time points of {time}, the thick line their median; thin lines are some of the "
        "paths. Of columns with levels, marks are shares of particles, and lines shares of paths.",
        "The files paths.parquet and paths.csv hold one row for each time of each path: _site and "
        "_path say which path, _time exactly when, and then come the study's columns. Each of a "
        f"site's {used.paths:,} paths has {used.path_times} rows, evenly spaced in time, in order.",
        "Between two time points a path is a random walk with fixed ends: how rough it looks is "
        "the study's setting (temperature), not something that was seen in persons.",
        f"The tables of snapshots are what estimates are made of. Each row is at one value of "
        f"{time}; rows of a table do not belong together, and no path is among them.",
    ]


PATHS_WARNING = (
    "Paths are draws from a model that runs through snapshots of different persons or visits. "
    "They are not persons' histories, and couplings are not observed links between persons' "
    "visits: another way through the same snapshots may be as true."
)


def limits(study: Study, *, mechanism_variance: bool) -> list[str]:
    """What the numbers do and do not include, one statement each."""
    persons = study.max_sites_per_person
    gibbs = isinstance(study.mechanism, Gibbs)
    found = _answer_limits() if gibbs else _table_limits(mechanism_variance)
    found += [
        "The fixed-effect line assumes one true effect in all sites, and that all noise is known. "
        "Its interval is too narrow where that fails. It is shown for comparison.",
        "The prediction interval says where the effect in a new, similar site would lie.",
        "Privacy is counted per person. Two data sets are neighbours if one person's data is "
        "replaced by a null record; the number n of persons in the declared frame is public "
        "(zero-out). Replace-one values stand beside it because papers quote them: compare like "
        "with like only.",
        "Each person is assumed to be in one site only."
        if persons == 1
        else f"Each person is assumed to be in at most {persons} sites.",
    ]
    if not gibbs and not MECHANISMS.of(study.mechanism).counts_rows(study.asked):
        found.append(
            "Tables have a row for each that the declared frames may hold, since these releases "
            "counted nobody. Where a frame is larger than the cohort, standard errors are too "
            "small, by the square root of how many times too large it is."
        )
    if not gibbs:
        found.append(
            "Models are fitted to the synthetic copies as they are. The synthetic data can only "
            "show what the mechanism's model can hold."
        )
    if isinstance(study.mechanism, Trajectory):
        found.append(
            "Estimates are made from tables of snapshots: they compare rows at the same or at "
            "different times, never a person with itself at another time."
        )
    return found


def _table_limits(mechanism_variance: bool) -> list[str]:
    return [
        "Every row behind these numbers is synthetic, made at the sites by the mechanism that the "
        "table of sites names.",
        "Intervals include sampling error (how the real cohort would vary) and synthesis error "
        "(how the synthetic copies vary).",
        "Intervals of sites also include the noise and bias that the privacy mechanism adds, as "
        "refits show them: each site repeated its whole private procedure on its synthetic "
        "tables, which costs no privacy. That holds if the model can describe the cohort. A "
        "site has only so many refits, so what they show is an estimate, and is drawn towards what "
        "the other sites' refits show. Intervals (Student's t) and heterogeneity allow for that."
        if mechanism_variance
        else "Intervals of sites do not include the noise that the privacy mechanism added to the "
        "fitted model, nor its bias from clipping and encoding. That noise differs from site to "
        "site and shows as heterogeneity. So the headline is a random-effects estimate with a "
        "Hartung-Knapp interval that is never narrower than the plain one.",
    ]


def _answer_limits() -> list[str]:
    return [
        "No table was released. Each site answered this one question with its coefficients and "
        "their covariance; nothing else can be computed from them.",
        "Intervals of sites include sampling error and the noise that the privacy mechanism added, "
        "both in the covariance that the site released; they cannot be told apart here.",
        "The covariance is itself computed from noisy numbers. It does not include bias: persons "
        "far from the rest, or with residuals far from 0, count for less than their full weight, "
        "and of a survival model follow-up may end early.",
    ]


def count_text(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _count(per: float, noun: str) -> str:
    return noun if per == 1 else f"{per:g} {noun}s"
