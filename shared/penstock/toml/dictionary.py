"""A site's data dictionary, as a data manager writes it by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from penstock.checks import Checks, shown, unknown_keys, within
from penstock.errors import InvalidInput, Problem
from penstock.schema import Column, Schema, read_columns
from penstock.toml.reader import read_toml

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

_TEXTS = ("levels", "missing")  # lists of text where a person may write plain numbers
_KEYS = tuple(f.name for f in fields(Column) if f.name != "name")


@dataclass(frozen=True, slots=True)
class DictionaryFile:
    """A parsed dictionary.

    Attributes:
        schema: its columns (with their local codes for "missing"), and the person column.
        title: free text.
    """

    schema: Schema
    title: str = ""


def parse_dictionary(text: str) -> DictionaryFile:
    """Parse a dictionary's TOML text.

    ::

        person = "patient_id"            # optional: several rows may belong to one person
        max_rows_per_person = 1
        [columns.age]
        kind = "continuous"
        lower = 18
        upper = 100

    Raises:
        InvalidInput: with every problem of the file and its line.
    """
    values, lines = read_toml(text, "dictionary")
    problems = unknown_keys(values, ("title", "person", "max_rows_per_person", "columns"))
    check = Checks("dictionary")
    title = check.text("title", values.get("title", ""), empty=True)
    problems += check.problems
    columns, written, found = read_column_tables(values.get("columns"))
    problems += found
    data: dict[str, Any] = {k: values[k] for k in ("person", "max_rows_per_person") if k in values}
    data["columns"] = columns
    absent = not isinstance(values.get("columns"), Mapping)
    more = [p for p in read_columns(data)[2] if not (absent and p.where == "columns")]
    problems += rename(more, written)
    if problems or title is None:
        raise InvalidInput("dictionary", lines.locate(problems))
    return DictionaryFile(Schema.from_dict(data), title)


def read_column_tables(
    tables: object,
) -> tuple[list[dict[str, Any]], dict[str, str], list[Problem]]:
    """``[columns.NAME]`` tables in the canonical JSON form.

    Returns:
        The columns; what was written for each canonical path (``columns.age.lower`` was
        ``columns.age.range_min``); and the problems of unknown or doubled keys.
    """
    if not isinstance(tables, Mapping):
        remedy = "Describe each column in a table of its own, [columns.NAME]"
        return [], {}, [Problem("columns", "is missing or not a table", remedy=remedy)]
    columns: list[dict[str, Any]] = []
    written: dict[str, str] = {}
    problems: list[Problem] = []
    for name, table in tables.items():
        path = f"columns.{name}"
        if not isinstance(table, Mapping):
            problems.append(Problem(path, "must be a table", value=shown(table)))
            continue
        column: dict[str, Any] = {"name": name}
        for key, value in table.items():
            canonical = ALIASES.get(key, str(key))
            if canonical in column and canonical in _KEYS:
                twice = f"says the same as {written[f'{path}.{canonical}'].rpartition('.')[2]!r}"
                problems.append(Problem(f"{path}.{key}", twice, remedy="Keep one of the two"))
            elif canonical in _KEYS:
                column[canonical] = _as_texts(value) if canonical in _TEXTS else value
                written[f"{path}.{canonical}"] = f"{path}.{key}"
        problems += within(path, unknown_keys(table, (*_KEYS, *ALIASES)))
        columns.append(column)
    return columns, written, problems


def rename(problems: list[Problem], written: Mapping[str, str]) -> list[Problem]:
    """Problems under the names that the person wrote."""
    return [replace(p, where=written.get(p.where, p.where)) for p in problems]


def _as_texts(value: object) -> object:
    """A list in which whole numbers and decimals are text: ``[-9, "?"]`` is ``["-9", "?"]``."""
    if not isinstance(value, list):
        return value
    plain = (int, float)
    return [str(v) if isinstance(v, plain) and not isinstance(v, bool) else v for v in value]
