"""The report's sentences. Plain text: whoever shows it escapes it."""

from __future__ import annotations

from penstock.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.study import Study

MEASURES: dict[str, tuple[str, str, str, str]] = {
    # model: measure, short form, what lies left and right of the null value
    "cox": ("hazard ratio", "HR", "lower hazard", "higher hazard"),
    "logistic": ("odds ratio", "OR", "lower odds", "higher odds"),
    "ols": ("mean difference", "Difference", "lower", "higher"),
}


def contrast(estimand: Estimand, schema: Schema) -> str:
    """What the coefficient compares: "per 10 mmHg of systolic pressure", "sex: 1 against 0"."""
    column = schema[estimand.term]
    name = column_name(column)
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
    measure = MEASURES[estimand.model][0]
    joint = " " if (what := contrast(estimand, schema)).startswith("per ") else ", "
    return f"{measure[0].upper()}{measure[1:]}{joint}{what}"


def outcome_text(estimand: Estimand, schema: Schema) -> str:
    """The outcome (of cox: the event), with its unit where the estimate carries one."""
    column = schema[estimand.outcome]
    if estimand.model == "cox" and column.event is not None:
        return column_name(schema[column.event])
    unit = f" ({column.unit})" if estimand.model == "ols" and column.unit else ""
    return f"{column_name(column)}{unit}"


def adjusted_text(estimand: Estimand, schema: Schema) -> str:
    if not estimand.adjust:
        return "not adjusted"
    return "adjusted for " + ", ".join(column_name(schema[name]) for name in estimand.adjust)


def limits(study: Study, *, mechanism_variance: bool) -> list[str]:
    """What the numbers do and do not include, one statement each."""
    persons = study.max_sites_per_person
    return [
        "Every row behind these numbers is synthetic, made at the sites by the mechanism that the "
        "table of sites names.",
        "Intervals include sampling error (how the real cohort would vary) and synthesis error "
        "(how the synthetic copies vary).",
        "Intervals of sites also include the noise and bias that the privacy mechanism adds, as "
        "refits show them: each site repeated its whole private procedure on rows of its released "
        "model, which costs no privacy. That holds if the model can describe the cohort, and is "
        "itself an estimate from a few refits."
        if mechanism_variance
        else "Intervals of sites do not include the noise that the privacy mechanism added to the "
        "fitted model, nor its bias from clipping and encoding. That noise differs from site to "
        "site and shows as heterogeneity. So the headline is a random-effects estimate with a "
        "Hartung-Knapp interval that is never narrower than the plain one.",
        "The fixed-effect line assumes one true effect in all sites, and that all noise is known. "
        "Its interval is too narrow where that fails. It is shown for comparison.",
        "The prediction interval says where the effect in a new, similar site would lie.",
        "Privacy is counted per person. Two data sets are neighbours if one person's data is "
        "replaced by a null record; the number of persons n is public (zero-out). Replace-one "
        "values stand beside it because papers quote them: compare like with like only.",
        "Each person is assumed to be in one site only."
        if persons == 1
        else f"Each person is assumed to be in at most {persons} sites.",
        "Cox, logistic and linear models are fitted to the synthetic copies as they are. The "
        "synthetic data can only show what the mechanism's model can hold.",
    ]


def count_text(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _count(per: float, noun: str) -> str:
    return noun if per == 1 else f"{per:g} {noun}s"
