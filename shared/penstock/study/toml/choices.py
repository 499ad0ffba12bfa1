"""What a draft of a study says until its analyst does: a mechanism's settings, and a question."""

from __future__ import annotations

from penstock.base.checks import Checks, shown
from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.protocol import Settings
from penstock.mechanisms.registry import MECHANISMS, Registry
from penstock.questions.estimands import Estimand
from penstock.questions.models import MODELS
from penstock.questions.suitability import COVARIATES
from penstock.schema import Column, Schema


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

    Of the models that drafts begin with, the first that these columns can answer: with the first
    column that can be its outcome and, if it compares, the first other one that can be its term.

    Raises:
        InvalidInput: no column can be asked about.
    """
    drafted = sorted((m.draft, m.name) for m in MODELS if m.draft is not None)
    for _, name in drafted:
        model = MODELS.of(name)
        for outcome in schema.columns:
            if outcome.kind not in model.outcomes:
                continue
            if not model.compares:
                return Estimand(model.name, model.name, outcome.name)
            term = _term_for(schema, outcome)
            if term is not None:
                level = term.levels[1] if term.kind == "categorical" else None
                return Estimand("effect", model.name, outcome.name, term.name, level=level)
    raise InvalidInput("study", [Problem("estimands", "no column can be asked about")])


def _term_for(schema: Schema, outcome: Column) -> Column | None:
    """The first column that can be a covariate beside an outcome."""
    events = {c.event for c in schema.columns}
    for term in schema.columns:
        apart = term.name not in (outcome.name, outcome.event) and term.name not in events
        if apart and term.kind in COVARIATES:
            return term
    return None
