"""What a draft of a study says until its analyst does: a mechanism's settings, and a question."""

from __future__ import annotations

from penstock.base.checks import Checks, shown
from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.protocol import Settings
from penstock.mechanisms.registry import MECHANISMS, Registry
from penstock.questions.estimands import COVARIATES, MODELS, Estimand
from penstock.schema import Schema


def mechanism_for(
    name: str, schema: Schema, time: str | None = None, mechanisms: Registry = MECHANISMS
) -> Settings:
    """A mechanism's settings to begin with, over these columns.

    Args:
        time: the column that says when a row was taken, where the mechanism needs one; if not
            given, it looks for one.

    Raises:
        InvalidInput: another name; a time for a mechanism that has none; no column for a time, or
            none that can be told to be one: an age is no time of a visit.
    """
    check = Checks("mechanism")
    check.choice("name", name, mechanisms.names)
    takes_time = name in mechanisms and mechanisms[name].takes_time
    if time is not None and not takes_time:
        check.add("time", f"has no meaning for {shown(name)}", remedy="Leave --time out")
    check.done()
    settings: Settings = mechanisms[name].draft(schema, time)
    return settings


def question_for(schema: Schema) -> Estimand:
    """A question to begin with, for a mechanism that needs one: to be edited.

    The first column that can be an outcome, and the first other one that can be a covariate;
    without one, a mean.

    Raises:
        InvalidInput: no column can be asked about.
    """
    order = ("cox", "logistic", "ols")
    events = {c.event for c in schema.columns}
    for model in order:
        for outcome in schema.columns:
            if outcome.kind not in MODELS[model]:
                continue
            for term in schema.columns:
                apart = term.name not in (outcome.name, outcome.event) and term.name not in events
                if apart and term.kind in COVARIATES:
                    level = term.levels[1] if term.kind == "categorical" else None
                    return Estimand("effect", model, outcome.name, term.name, level=level)
    for outcome in schema.columns:
        if outcome.kind in MODELS["mean"]:
            return Estimand("mean", "mean", outcome.name)
    raise InvalidInput("study", [Problem("estimands", "no column can be asked about")])
