"""A site's data dictionary, as a data manager writes it by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from penstock.base.checks import Checks, shown, unknown_keys, within
from penstock.base.documents import Json, JsonView
from penstock.base.errors import InvalidInput, Problem
from penstock.schema import LEVELS_PUBLIC, Column, Schema, read_columns
from penstock.study.toml.reader import as_text, read_toml

ALIASES = {
    "type": "kind",
    "range_min": "lower",
    "range_max": "upper",
    "follow_up": "upper",
    "decimal_places": "decimals",
    "categories": "levels",
    "range_values": "levels",
    "description": "label",
}
"""Names that people know from other tools' metadata, and ours."""

MAX_PERSONS = 1_000_000_000  # as the coordinator enrols

FRAME = (
    "Declare the frame: how many persons the data set has places for, a round number that was "
    "decided beforehand from public knowledge (the size of the register or the catchment), at "
    "least as many as there are, and never the count itself"
)

OTHER_KINDS = ("binary", "ordered", "categorical")
_HEAD = ("draft", "title", "persons", "person", "max_rows_per_person", "columns")
_TEXTS = ("levels", "missing")  # lists of text where a person may write plain numbers
_KEYS = tuple(f.name for f in fields(Column) if f.name != "name")


@dataclass(frozen=True, slots=True)
class DictionaryFile:
    """A parsed dictionary.

    Attributes:
        schema: its columns (with their local codes for "missing"), and the person column.
        title: free text.
        persons: the declared frame, which is the site's public n; None in a dictionary that was
            certified before frames were declared, or that an analyst wrote. It is no part of the
            schema: a study has none, and none is compared.
        others: the level that takes what is none of a column's levels, for columns that have one
            (``other`` in the text); elsewhere such a value becomes missing. Like the codes for
            "missing" this is the site's own mapping of what lies in its file: all that leaves it
            is a level, so that neither studies nor their comparison know of it.
    """

    schema: Schema
    title: str = ""
    persons: int | None = None
    others: Mapping[str, str] = field(default_factory=dict)


def parse_dictionary(text: str, *, framed: bool = False) -> DictionaryFile:
    """Parse a dictionary's TOML text.

    ::

        draft = false                    # true: nobody has looked at every line yet
        persons = 5000                   # the declared frame
        person = "patient_id"            # optional: several rows may belong to one person
        max_rows_per_person = 1
        [columns.age]
        kind = "continuous"
        lower = 18
        upper = 100
        [columns.ward]
        kind = "categorical"
        levels = ["medical", "surgical", "elsewhere"]
        other = "elsewhere"              # optional: takes what is none of the levels

    Args:
        framed: a dictionary without ``persons`` is a problem, too.

    Raises:
        InvalidInput: with every problem of the file and its line; also where it is a draft that
            nobody finished.

    Example:
        >>> file = parse_dictionary('''
        ... persons = 500
        ... [columns.age]
        ... kind = "continuous"
        ... lower = 18
        ... upper = 100
        ... ''')
        >>> file.persons, file.schema.names
        (500, ('age',))
        >>> parse_dictionary('''[columns.age]
        ... kind = "integer"
        ... lowr = 18
        ... lower = 0
        ... upper = 9
        ... ''')
        Traceback (most recent call last):
            ...
        penstock.base.errors.InvalidInput: dictionary: 1 problem
          line 3: columns.age.lowr: is not a known key. Did you mean 'lower'?
    """
    values, lines = read_toml(text, "dictionary")
    problems = unknown_keys(values, _HEAD)
    check = Checks("dictionary")
    title = check.text("title", values.get("title", ""), empty=True)
    if check.flag("draft", values.get("draft", False)):
        remedy = "Look at every line, then write draft = false"
        check.add("draft", "this is a draft that nobody finished", remedy=remedy)
    persons = _frame(check, values, framed)
    plain, said = _take_others(values.get("columns"))
    columns, written, found = read_column_tables(plain)
    problems += found
    data: Json = {k: values[k] for k in ("person", "max_rows_per_person") if k in values}
    data["columns"] = columns
    absent = not isinstance(values.get("columns"), Mapping)
    sound, _, more = read_columns(data)
    others = _check_others(check, said, sound)
    for column in columns:
        # Left out, a binary column's levels are 0 and 1; blank, they are still to be said.
        if column.get("kind") == "binary" and column.get("levels") == []:
            check.add(f"columns.{column['name']}.levels", "is blank", remedy=LEVELS_PUBLIC)
    more += check.problems
    problems += rename([p for p in more if not (absent and p.where == "columns")], written)
    if problems or title is None:
        raise InvalidInput("dictionary", lines.locate(problems))
    return DictionaryFile(Schema.from_dict(data), title, persons, others)


def _frame(check: Checks, values: JsonView, framed: bool) -> int | None:
    """The declared frame; None where there is none, or a problem was added."""
    given = values.get("persons")
    if given is None and not framed:
        return None
    if given is None or given == "":
        check.add("persons", "is missing" if given is None else "is blank", remedy=FRAME)
        return None
    return check.whole("persons", given, 1, MAX_PERSONS, remedy=FRAME)


def _take_others(tables: object) -> tuple[object, dict[str, object]]:
    """Column tables without ``other``, and what each of them said there."""
    if not isinstance(tables, Mapping):
        return tables, {}
    said = {n: t["other"] for n, t in tables.items() if isinstance(t, Mapping) and "other" in t}
    plain = {n: {k: v for k, v in tables[n].items() if k != "other"} for n in said}
    return {**tables, **plain}, said


def _check_others(
    check: Checks, said: Mapping[str, object], columns: Sequence[Column]
) -> dict[str, str]:
    """Each column's level for what is none of its levels; of broken columns only the text."""
    sound = {column.name: column for column in columns}
    others: dict[str, str] = {}
    for name, other in said.items():
        where, column = f"columns.{name}.other", sound.get(name)
        if column is not None and column.kind not in OTHER_KINDS:
            check.add(where, f"has no meaning for kind {column.kind!r}", remedy="Remove it")
        elif (level := check.text(where, as_text(other), 64)) is None or column is None:
            continue
        elif level not in column.levels:
            remedy = "Name one of the levels: it is public like the others"
            check.add(where, "is not one of the levels", value=shown(level), remedy=remedy)
        else:
            others[name] = level
    return others


def read_column_tables(
    tables: object,
) -> tuple[list[Json], dict[str, str], list[Problem]]:
    """``[columns.NAME]`` tables in the canonical JSON form.

    Returns:
        The columns; what was written for each canonical path (``columns.age.lower`` was
        ``columns.age.range_min``); and the problems of unknown or doubled keys.
    """
    if not isinstance(tables, Mapping):
        remedy = "Describe each column in a table of its own, [columns.NAME]"
        return [], {}, [Problem("columns", "is missing or not a table", remedy=remedy)]
    columns: list[Json] = []
    written: dict[str, str] = {}
    problems: list[Problem] = []
    for name, table in tables.items():
        path = f"columns.{name}"
        if not isinstance(table, Mapping):
            problems.append(Problem(path, "must be a table", value=shown(table)))
            continue
        column: Json = {"name": name}
        for key, value in table.items():
            canonical = ALIASES.get(key, str(key))
            if canonical in column and canonical in _KEYS:
                twice = f"says the same as {written[f'{path}.{canonical}'].rpartition('.')[2]!r}"
                problems.append(Problem(f"{path}.{key}", twice, remedy="Keep one of the two"))
            elif canonical in _KEYS:
                texts = canonical in _TEXTS and isinstance(value, list)
                column[canonical] = [as_text(v) for v in value] if texts else value
                written[f"{path}.{canonical}"] = f"{path}.{key}"
        problems += within(path, unknown_keys(table, (*_KEYS, *ALIASES)))
        columns.append(column)
    return columns, written, problems


def rename(problems: list[Problem], written: Mapping[str, str]) -> list[Problem]:
    """Problems under the names that the person wrote."""
    return [replace(p, where=written.get(p.where, p.where)) for p in problems]
