"""Dictionaries and studies written as TOML that parses back to the same objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from penstock.mechanisms.protocol import Settings, settings_to_dict
from penstock.mechanisms.registry import MECHANISMS, Registry
from penstock.privacy.request import DELTA, PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.models import DESCRIPTIVE, EVERY, LONGITUDINAL, MODELS
from penstock.schema import HOW_SUGGESTED, Column, Schema, suggest_for, suggest_modelling
from penstock.study.planning import NOTHING, Planning
from penstock.study.scope import EACH, EACH_WIRE, LEAST_WIRE, Scope
from penstock.study.study import Study
from penstock.study.toml.writer import key, table, value

DEADLINE_HOURS = 14 * 24.0
"""Two weeks: a steward who approves by hand, and was away for one, still has time to look."""

_STUDY_NOTES = {
    "quorum": "finishes with at least so many sites",
    "deadline_hours": "hours until the study closes; stewards may decide by hand: give them days",
    "not_before": "UTC; sites answer between these times",
    "release": "a higher number asks for a new draw, at a new cost, where sites allow it",
    "max_sites_per_person": "in how many of the sites a person may be",
    "readers": "accounts that may read it besides yours",
}
_PRIVACY_NOTES = {
    "epsilon": "per person, at each site",
    "delta": "at most 1/(10 n), n the largest site's number of persons",
    "guarantee": "formal | public-flow | empirical",
}
_SCOPE_NOTES = {
    "scope": "site | global | both: a release of each site, one of all, or either",
    "share": "of both: how much of the budget the one release has; each site's own has the rest",
    "dropouts": "t: how many sites may drop out of a sum",
    "colluders": "c: how many may tell the coordinator all they know; 0: no claim against a site",
    "noise": "shared | local: a share of it at each site, or all of it at each",
}
_SCOPE_HEAD = """\
# One release of all sites: each adds to sums, and nobody sees a site's own part. Of S sites the
# noise of S - t - c counts, so that a sum has sqrt(S/(S - t - c)) times the noise of one place with
# all rows. noise = "local" asks no trust: ε holds whatever other sites do, and a sum has sqrt(S)
# times the noise; say colluders = 0 then. Persons and keys are each site's own, of its join.json;
# stewards compare the keys, and pin them (`penstock site peers add`).
"""
_TIMED = ", ".join(model.name for model in MODELS if model.needs_event)
_ALONE = ", ".join(model.name for model in MODELS if not model.contrasts)
_EXPOSED = ", ".join(model.name for model in MODELS if model.takes_exposure)
_ROBUST = ", ".join(model.name for model in MODELS if model.robust)
_OF_LEVEL = ", ".join(model.name for model in MODELS if model.names_level)
_MOMENT = ", ".join(model.name for model in DESCRIPTIVE if model.least)
_OVER_TIME = ", ".join(model.name for model in LONGITUDINAL)
_ESTIMAND_NOTES = {
    "model": " | ".join(EVERY.names),
    "outcome": f"{_TIMED}: the duration; its event comes from the columns",
    "term": f"a column, or a product such as age:sex; of a {_ALONE} the outcome itself",
    "per": "the coefficient is reported per this many units",
    "adjust": "columns, products such as age:sex, splines such as spline(age, 3)",
    "strata": "each combination of their levels has a baseline of its own",
    "where": "of a subgroup only",
    "exposure": f"{_EXPOSED}: the rate per unit of this column; its logarithm is an offset",
    "outcome_level": f"{_OF_LEVEL}: this level of the outcome, against the first; of a share, it",
    "at": f"of persons at a time: when; of two times the first; {_MOMENT}: a time of the duration",
    "until": "the second of two times; of a count of events, a rate and an rmst: up to when",
    "probability": "of a quantile, such as 0.5",
    "threshold": "of a share or a count of a number: above or below what",
    "direction": "of a share or a count of a number: above | below, its threshold",
    "competing": "of a cumulative-incidence: the 0/1 column of the event that competes",
    "errors": f"{_ROBUST}: model | robust, a sandwich, where hazards are not in proportion",
}
_EXAMPLE = f"""\
# What the report estimates; repeat for each. For example:
# [[estimands]]
# name = "effect"
# model = "{MODELS.names[0]}"        # {" | ".join(MODELS.names)}
# outcome = "COLUMN"   # {_TIMED}: the duration; its event comes from the columns
# term = "COLUMN"      # not for a {_ALONE}
# per = 1
# adjust = ["COLUMN"]  # also "A:B", a product (its columns are added); "spline(A, 3)"
# strata = ["COLUMN"]  # a baseline for each combination of levels; leave out for none
# where = "COLUMN >= 65 and COLUMN == 'LEVEL'"   # a subgroup; leave out for all
# exposure = "COLUMN"  # {_EXPOSED}: a rate, per unit of this column; leave out for a count
# outcome_level = "LEVEL"  # {_OF_LEVEL}: of the outcome, against its first one
# errors = "robust"    # {_ROBUST}: valid also where hazards are not in proportion; of tables
# Of rows, and no regression: quantile (probability), share and count (threshold and direction, or
# outcome_level; of a duration a count is of its events), survival (at), rmst (until),
# cumulative-incidence (at, competing), rate (per), correlation (term), table (outcome_level, and
# term with its level).
# risk-difference, risk-ratio, weibull and log-normal (of a duration) take term, level, adjust and
# strata as a regression does.
# Of persons over time, in a study of a mechanism that follows them ({_OVER_TIME}):
# at, until, probability, threshold, direction: see the documentation.
# Or outcome, adjust and strata at once: formula = "COLUMN ~ A + B + A:B + strata(C)", with
# term = "A:B"; and exposure: + offset(log(D)).
"""


_PLANNED = (
    "# What you expect, from the literature and never from rows: for `penstock study plan`.\n"
)
_PLANNING_EXAMPLE = """\
# What you expect, from the literature and never from rows: `penstock study plan` forecasts by it
# what each answer will be worth. Leave out what you do not know. For example:
# [planning.effects]
# effect = 0.18                     # an estimand: log ratio or difference, per its `per`
# [planning.columns.COLUMN]
# mean = 130                        # numbers: mean, sd, correlations = { OTHER = 0.3 }
# sd = 18                           # levels: shares = [0.7, 0.3]
# [planning.columns.DURATION]
# events = 0.2                      # with the event by the end of follow-up
# censored = 0.1                    # censored before it
"""


def write_dictionary(
    schema: Schema, persons: int | None = None, others: Mapping[str, str] | None = None
) -> str:
    """A site's dictionary: :func:`~penstock.study.toml.dictionary.parse_dictionary` reads it back.

    Args:
        persons: the declared frame; a site needs one.
        others: the level that takes what is none of a column's levels.
    """
    frame = {} if persons is None else {"persons": persons}
    columns = [
        _column(c) + (_pairs({"other": others[c.name]}) if others and c.name in others else "")
        for c in schema.columns
    ]
    return "\n".join([_pairs(frame | _person(schema)), *columns])


def write_study(study: Study, mechanisms: Registry = MECHANISMS) -> str:
    """A complete, commented study file, which
    :func:`~penstock.study.toml.study_file.parse_study` reads back."""
    head = {
        f.name: getattr(study, f.name)
        for f in fields(study)
        if f.name
        not in ("schema", "estimands", "privacy", "mechanism", "planning", "aggregation", "wire")
    }
    estimands = [
        table("[[estimands]]", _set(e, keep=("per", "adjust")), _ESTIMAND_NOTES if i == 0 else {})
        for i, e in enumerate(study.estimands)
    ]
    return "\n".join(
        [
            "# A Penstock study. `penstock study check` reports every problem with its line.\n"
            + _pairs({"wire": study.wire}),
            table("study", head, _STUDY_NOTES),
            table("privacy", _all(study.privacy), _PRIVACY_NOTES),
            _mechanism(study.mechanism, mechanisms),
            *(estimands or [_EXAMPLE]),
            _planning(study.planning),
            *_scope(study.aggregation),
            "# Whose rows: person names the column that identifies a person, if there is one.\n"
            + table("table", _person(study.schema)),
            "# The columns, as in the sites' dictionaries; bounds may be narrower.\n"
            + (f"# {HOW_SUGGESTED}\n" if suggest_for(study.schema) else "")
            + "\n".join(_column(c) + _advice(c) for c in study.schema.columns),
        ]
    )


def draft_study(
    schema: Schema,
    *,
    name: str,
    sites: Sequence[str],
    federation: str,
    not_before: str,
    expires: str,
    title: str = "",
    epsilon: float = 1.0,
    delta: float = DELTA,
    quorum: int | None = None,
    deadline_hours: float = DEADLINE_HOURS,
    estimands: Sequence[Estimand] = (),
    mechanism: Settings | None = None,
    planning: Planning = NOTHING,
    aggregation: Scope = EACH,
) -> str:
    """A study to edit, over a dictionary's columns (without its codes for missing values).

    The quorum is a majority of the sites, and the deadline two weeks, unless given. The text
    parses, and round trips.

    Raises:
        InvalidInput: with every problem of what was given.
    """
    columns = tuple(replace(c, missing=()) for c in schema.columns)
    study = Study(
        name=name,
        title=title or name,
        federation=federation,
        sites=tuple(sites),
        schema=replace(schema, columns=columns),
        estimands=tuple(estimands),
        privacy=PrivacyRequest(epsilon, delta),
        mechanism=mechanism or MECHANISMS.default.draft(schema),
        quorum=len(sites) // 2 + 1 if quorum is None else quorum,
        deadline_hours=deadline_hours,
        not_before=not_before,
        expires=expires,
        planning=planning,
        aggregation=aggregation,
        wire=LEAST_WIRE if aggregation.adds else EACH_WIRE,
    )
    return write_study(study)


def _planning(planning: Planning) -> str:
    """What is expected; an example where that is nothing."""
    said = planning.to_dict()
    if not said:
        return _PLANNING_EXAMPLE
    written = [table("planning", {"filled": said["filled"]})] if "filled" in said else []
    if "effects" in said:
        written.append(table("planning.effects", said["effects"]))
    for name, values in said.get("columns", {}).items():
        place = f"planning.columns.{key(name)}"
        correlations = values.pop("correlations", None)
        written.append(table(place, values))
        if correlations:
            written.append(table(f"{place}.correlations", correlations))
    return _PLANNED + "\n".join(written)


def _scope(scope: Scope) -> list[str]:
    """The tables of a release of all sites; nothing where each makes its own."""
    said = scope.to_dict()
    if not said:
        return []
    facts = {name: said.pop(name) for name in ("persons", "keys")}
    written = [table("aggregation", said, _SCOPE_NOTES)]
    written += [table(f"aggregation.{name}", facts[name]) for name in facts]
    return [_SCOPE_HEAD + "\n".join(written)]


def _pairs(pairs: Mapping[str, object]) -> str:
    return "".join(f"{key(k)} = {value(v)}\n" for k, v in pairs.items())


def _person(schema: Schema) -> dict[str, object]:
    person: dict[str, object] = {} if schema.person is None else {"person": schema.person}
    return person | {"max_rows_per_person": schema.max_rows_per_person}


def _column(column: Column) -> str:
    shown = _set(column)
    del shown["name"]
    if column.kind == "duration":
        del shown["lower"]
        shown["follow_up"] = shown.pop("upper")
    if column.kind == "event":
        del shown["levels"]
    return table(f"columns.{key(column.name)}", shown)


def _advice(column: Column) -> str:
    """What the column could do with, as a comment below it."""
    found = suggest_modelling(column)
    return "" if found is None else f"# {found}\n"


def _all(part: PrivacyRequest) -> dict[str, object]:
    return {f.name: getattr(part, f.name) for f in fields(part)}


def _mechanism(settings: Settings, mechanisms: Registry) -> str:
    """All settings; those that are left to the mechanism as comments: TOML has no nothing."""
    used, names = mechanisms.of(settings), [f.name for f in fields(settings)]
    notes, signed = used.notes, settings_to_dict(settings)
    # A setting that came later is written, too, where it is as it was before it.
    values = signed | {name: getattr(settings, name) for name in names if name not in signed}
    given = {k: v for k, v in values.items() if v is not None}
    unset = [name for name in names if values[name] is None]
    left = [f"# {name} =   # {notes[name]}; chosen for you\n" for name in unset]
    head = f"# {used.name} {used.head}\n"
    return head + table("mechanism", given, notes) + "".join(left)


def _set(part: Column | Estimand, keep: Sequence[str] = ()) -> dict[str, object]:
    """The fields that differ from their defaults, and those of ``keep``."""
    pairs = {f.name: (getattr(part, f.name), f.default) for f in fields(part)}
    return {k: v for k, (v, default) in pairs.items() if v != default or k in keep}
