"""A codebook: what a data manager's own data dictionary says of each column, for a draft.

One record a column, as REDCap exports its data dictionary, or as any spreadsheet has one. What is
read is *written into the draft as it stands*, and checked there like what a person types.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.base.checks import shown
from penstock.base.errors import InvalidInput, Problem
from penstock.base.printable import make_printable
from penstock.schema import KINDS, NUMBER_KINDS

FIELDS = {
    "name": ("name", "variable", "variable_name", "column", "column_name", "field", "field_name",
             "variable_field_name"),
    "kind": ("kind", "type", "field_type", "data_type"),
    "validation": ("text_validation_type_or_show_slider_number",),
    "lower": ("lower", "range_min", "lower_bound", "text_validation_min"),
    "upper": ("upper", "range_max", "upper_bound", "text_validation_max", "follow_up"),
    "levels": ("levels", "categories", "range_values", "choices", "codes", "values",
               "choices_calculations_or_slider_labels"),
    "other": ("other",),
    "unit": ("unit", "units"),
    "decimals": ("decimals", "decimal_places"),
    "spike": ("spike",),
    "scale": ("scale",),
    "missing": ("missing", "missing_codes", "missing_values"),
    "nullable": ("nullable",),
    "event": ("event",),
    "label": ("label", "description", "field_label", "variable_label"),
}  # fmt: skip
"""What a codebook calls them, in small letters with ``_`` for all else. Not min and max alone:
where these are observed, they are values of rows."""

_KIND_NAMES = {
    "continuous": ("float", "double", "numeric", "number", "decimal", "real", "calc"),
    "integer": ("int", "count", "whole", "slider"),
    "binary": ("boolean", "bool", "yesno", "truefalse", "logical", "dichotomous"),
    "ordered": ("ordinal",),
    "categorical": ("factor", "nominal", "category", "enum", "radio", "dropdown"),
    "duration": ("survival", "time_to_event"),
}
_KNOWN_KINDS = {k: k for k in KINDS} | {n: k for k, names in _KIND_NAMES.items() for n in names}
_CHOICE = re.compile(r"(?P<code>[^,=|;]*?)\s*(?:[,=]|:\s)\s*(?P<label>.*)", re.DOTALL)
_YES = {"yes": True, "y": True, "true": True, "1": True}
_NO = {"no": False, "n": False, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Described:
    """What a codebook says of a column.

    Attributes:
        fields: as a dictionary has them, in its words; what the codebook leaves open is not there.
        choices: what its levels mean, by level.
    """

    fields: Mapping[str, object]
    choices: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Codebook:
    """A codebook's columns, and which of its own fields were not read."""

    columns: Mapping[str, Described]
    unread: tuple[str, ...] = ()


def read_codebook(header: Sequence[str], records: Iterable[tuple[int, Sequence[str]]]) -> Codebook:
    """A codebook from the cells of its table.

    Args:
        header: its fields' names; records: the line, and the cells, of each column described.

    Raises:
        InvalidInput: no field of names, a column without one or described twice, or two fields
            that say different things of the same; with every problem.
    """
    known = {alias: name for name, aliases in FIELDS.items() for alias in aliases}
    meant = [known.get(_plain(title)) for title in header]
    if "name" not in meant:
        bound = f"one of {', '.join(FIELDS['name'])}"
        problem = Problem("", "no field holds the columns' names", 1, bound=bound)
        raise InvalidInput("codebook", [problem])
    columns: dict[str, Described] = {}
    problems: list[Problem] = []
    for line, cells in records:
        cell: dict[str, str] = {}
        for name, text in zip(meant, map(_one_line, cells), strict=True):
            if name is not None and text and cell.setdefault(name, text) != text:
                problems.append(Problem(name, "is said twice, and differently", line))
        if "name" not in cell:
            problems.append(Problem("", "a column without a name", line))
        elif cell["name"] in columns:
            problems.append(Problem(shown(cell["name"]), "is described twice", line))
        else:
            columns[cell["name"]] = _describe(cell)
    if problems:
        raise InvalidInput("codebook", problems)
    unread = tuple(t for t, name in zip(header, meant, strict=True) if name is None)
    return Codebook(columns, unread)


def _plain(title: str) -> str:
    """Small letters, with ``_`` for all else."""
    return re.sub(r"[^a-z0-9]+", "_", title.casefold()).strip("_")


def _one_line(text: str) -> str:
    """Printable text on one line: a codebook may hold anything."""
    return " ".join(make_printable(text, " ").split())


def _describe(cell: Mapping[str, str]) -> Described:
    fields: dict[str, object] = {}
    choices = _choices(cell.get("levels", ""))
    kind = _kind(cell, len(choices))
    if kind is not None:
        fields["kind"] = kind
    yes_no = cell.get("kind", "").casefold() in ("yesno", "truefalse")
    # REDCap writes a calculation, and a slider's labels, into the same field.
    if kind not in NUMBER_KINDS and (choices or yes_no):
        fields["levels"] = list(choices) or ["0", "1"]
    for name in ("lower", "upper", "decimals", "spike"):
        # And bounds of dates.
        if name in cell and kind in (None, *NUMBER_KINDS):
            follow_up = name == "upper" and kind == "duration"
            fields["follow_up" if follow_up else name] = _number(cell[name])
    for name in ("unit", "scale", "other", "event"):
        if name in cell:
            fields[name] = cell[name]
    if "missing" in cell:
        fields["missing"] = list(_choices(cell["missing"]))
    if "nullable" in cell:
        fields["nullable"] = (_YES | _NO).get(cell["nullable"].casefold(), cell["nullable"])
    if "label" in cell:
        fields["label"] = cell["label"][:200].strip()
    return Described(fields, {code: label for code, label in choices.items() if label})


def _kind(cell: Mapping[str, str], levels: int) -> str | None:
    """The column's kind, where the codebook says one that is known."""
    said = _plain(cell.get("kind", ""))
    if said == "text" and "validation" in cell:
        said = cell["validation"].casefold()
        said = "number" if said.startswith("number") else said
    kind = _KNOWN_KINDS.get(said)
    if kind is None and levels:
        kind = "categorical"
    # A choice of two is one; a codebook that says "categorical" in our words is believed.
    return "binary" if kind == "categorical" != said and levels == 2 else kind


def _choices(text: str) -> dict[str, str]:
    """Levels or codes in a cell, each with what it means (nothing, where that is not said).

    ``1, Male | 2, Female``, ``1=Male; 2=Female``, ``male | female``, ``a, b, c`` and JSON lists.
    """
    if text.startswith("["):
        try:
            listed = json.loads(text, parse_int=str, parse_float=str)  # codes stay as written
        except ValueError:
            listed = None
        if isinstance(listed, list):
            return {str(item).strip(): "" for item in listed}
    mark = next((m for m in "|;" if m in text), None)
    items = [item.strip() for item in (text.split(mark) if mark else text.split(","))]
    items = [item for item in items if item]
    pairs = [_CHOICE.fullmatch(item) for item in items]
    if pairs and all(p is not None and p["code"] for p in pairs):
        return {p["code"].strip(): p["label"] for p in pairs if p is not None}
    return dict.fromkeys(items, "")


def _number(text: str) -> object:
    """A number; or the text, for the dictionary to refuse with its line."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
