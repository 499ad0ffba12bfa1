"""A study as an analyst writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import datetime

from penstock.base.checks import shown, unknown_keys, within
from penstock.base.documents import Json, JsonView
from penstock.base.errors import BudgetExceeded, InvalidInput, Problem
from penstock.base.times import stamp_seconds
from penstock.mechanisms.registry import MECHANISMS, Registry
from penstock.study.charges import plan_study
from penstock.study.halves import list_halves
from penstock.study.study import Study
from penstock.study.toml.dictionary import read_column_tables
from penstock.study.toml.formula import expand_formulas
from penstock.study.toml.reader import read_toml

_TABLE = ("person", "max_rows_per_person")
_PARTS = ("privacy", "mechanism", "estimands", "planning", "aggregation")
_HEAD = tuple(f.name for f in fields(Study) if f.name not in ("schema", "wire", *_PARTS))
_TOP = ("wire", "study", "table", "columns", *_PARTS)


def parse_study(text: str, mechanisms: Registry = MECHANISMS) -> Study:
    """Parse a study's TOML text.

    ``wire`` stands at the top; ``[study]`` holds the study's own fields; ``[table]`` (optional)
    ``person`` and ``max_rows_per_person``; ``[columns.NAME]`` the columns as in a dictionary,
    without codes for missing values; ``[[estimands]]``, ``[privacy]`` and ``[mechanism]`` (all
    optional keys have defaults) are as in :mod:`penstock.study.study`; ``[planning.columns.NAME]``
    and ``[planning.effects]`` (optional) as in :mod:`penstock.study.planning`; ``[aggregation]``
    (optional) as in :mod:`penstock.study.scope`. An estimand may say
    its outcome, ``adjust``, ``strata`` and ``exposure`` by a ``formula``
    (:mod:`penstock.study.toml.formula`). Times may be written as text or as TOML times.
    ``mechanisms``: those that it may name.

    Raises:
        InvalidInput: with every problem of the file and its line.

    Example:
        >>> study = parse_study('''
        ... [study]
        ... name = "pressure"
        ... title = "Blood pressure of smokers"
        ... federation = "heart"
        ... sites = ["north", "south"]
        ... not_before = 2026-11-21T00:00:00Z
        ... expires = 2026-12-21T00:00:00Z
        ... quorum = 2
        ... deadline_hours = 336
        ... [privacy]
        ... epsilon = 3.0
        ... delta = 1e-5
        ... [mechanism]
        ... name = "maf"
        ... [columns.sbp]
        ... kind = "continuous"
        ... lower = 70
        ... upper = 250
        ... [columns.smoker]
        ... kind = "binary"
        ... [[estimands]]
        ... name = "smoking"
        ... model = "ols"
        ... outcome = "sbp"
        ... term = "smoker"
        ... ''')
        >>> study.privacy.epsilon, study.mechanism.copies
        (3.0, 10)
    """
    values, lines = read_toml(text, "study")
    problems = unknown_keys(values, _TOP)
    data: Json = {k: values[k] for k in (*_PARTS, "wire") if k in values}
    data["mechanism"] = _name_mechanism(data, mechanisms, problems)
    data["estimands"], formulas = expand_formulas(data.get("estimands", []))
    problems += [problem for found in formulas.values() for problem in found]
    head = _section(values, "study", _HEAD, problems)
    table = _section(values, "table", _TABLE, problems)
    data |= {key: _time(value) for key, value in head.items()}
    columns, written, found = read_column_tables(values.get("columns"))
    problems += found
    data["schema"] = {**table, "columns": columns}
    try:
        study = Study.from_dict(data, mechanisms)
    except InvalidInput as error:
        absent = {s for s in ("study", "columns") if not isinstance(values.get(s), Mapping)}
        for problem in error.problems:
            where = _as_written(problem.where, written)
            section = where.partition(".")[0]
            # A missing section is one problem, not one for each of its keys; a formula that could
            # not be read is one, too.
            if section not in absent and section not in formulas:
                problems.append(replace(problem, where=where))
        raise InvalidInput("study", lines.locate(problems)) from None
    problems += _find_guarantee_problems(study, mechanisms)
    problems += _find_scope_problems(study, mechanisms)
    if problems:
        raise InvalidInput("study", lines.locate(problems))
    return study


def _name_mechanism(data: JsonView, mechanisms: Registry, problems: list[Problem]) -> object:
    """Its settings, with the default's name where none is written: what is signed has a name."""
    settings, privacy = data.get("mechanism", {}), data.get("privacy")
    if not isinstance(settings, Mapping):
        return settings
    if "name" in settings:
        return mechanisms.complete(settings)
    guarantee = privacy.get("guarantee", "formal") if isinstance(privacy, Mapping) else "formal"
    used = mechanisms.default_for(guarantee)
    others = [m for m in mechanisms.values() if settings.keys() <= m.notes.keys()]
    if others and used not in others:  # a file from when another one was the default
        foreign = ", ".join(sorted(settings.keys() - used.notes.keys()))
        message = f"name is missing, and the default, {used.name}, does not know {foreign}"
        bound = f"one of {', '.join(m.name for m in others)}"
        problems.append(Problem("mechanism", message, bound=bound, remedy="Say which"))
        used = others[0]
    return mechanisms.complete({"name": used.name, **settings})


def _find_guarantee_problems(study: Study, mechanisms: Registry) -> list[Problem]:
    """A guarantee that its mechanism does not offer: every site would refuse it."""
    asked, used = study.privacy.guarantee, mechanisms.of(study.mechanism)
    if asked in used.guarantees:
        return []
    message = f"is not offered by {used.name}"
    others = ", ".join(m.name for m in mechanisms.values() if asked in m.guarantees)
    bound = f"one of {', '.join(used.guarantees)}"
    remedy = f"Or name another mechanism: {others}" if others else None
    return [Problem("privacy.guarantee", message, value=asked, bound=bound, remedy=remedy)]


def _find_scope_problems(study: Study, mechanisms: Registry) -> list[Problem]:
    """Sites add up sums of whole numbers alone: every site would refuse another mechanism."""
    if not study.aggregation.adds:
        return []
    try:
        for half in list_halves(study):
            if half.aggregation.joint:
                plan_study(half, 1, mechanisms)
    except BudgetExceeded:
        return []  # ε is the sites' to judge
    except InvalidInput as error:
        part = "columns" if error.what == "schema" else "mechanism"
        return [replace(p, where=f"{part}.{p.where}") for p in error.problems]
    except ModuleNotFoundError:
        return []  # no accountant is installed here; sites have one
    return []


def _section(values: JsonView, name: str, known: tuple[str, ...], problems: list[Problem]) -> Json:
    """The known keys of a table; what else is in it becomes a problem."""
    section = values.get(name, {} if name == "table" else None)
    if not isinstance(section, Mapping):
        problems.append(Problem(name, "is missing or not a table", remedy=f"Add [{name}]"))
        return {}
    problems += within(name, unknown_keys(section, known))
    return {key: section[key] for key in known if key in section}


def _as_written(where: str, written: Mapping[str, str]) -> str:
    """Where in the TOML text a path of the study's JSON form stands."""
    top = where.partition(".")[0].partition("[")[0]
    if top == "schema":
        path = where.removeprefix("schema.")
        return f"table.{path}" if path in _TABLE else written.get(path, path)
    return f"study.{where}" if top in _HEAD else where


def _time(value: object) -> object:
    """TOML's own times as RFC 3339 in UTC; one without a zone is left to be refused."""
    if isinstance(value, datetime) and value.tzinfo is not None and not value.microsecond:
        return stamp_seconds(value)
    return shown(value) if isinstance(value, datetime) else value
