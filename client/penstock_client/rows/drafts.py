"""What a draft takes from a site's file: names, guessed kinds, and how it seems to be laid out.

No value of a row, and nothing that is computed from values, but a kind for each column and the
marks between numbers. Of these the dictionary's draft has the kinds; the layout stays at the site.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.base.checks import NAME
from penstock.study.toml import Guess, infer_kind
from penstock.study.toml.writer import key, table
from penstock_client.rows.sources.layout import Layout
from penstock_client.rows.sources.registry import SOURCES, Registry
from penstock_client.rows.sources.source import SAMPLE_ROWS, read_batches

_RECODING = """\
# How THIS SITE'S FILE says what dictionary.toml describes: the file itself stays as it is. Nothing
# of this is published, and sites may differ here, so that their dictionaries are the same.
# `penstock site check` shows what is still unknown; with --values also which values, and how often,
# in your terminal only. What each column's lines do is tried in this order: from, missing, values,
# decimal and thousands, times.
#
# For the whole file:
#
# [source]
# delimiter = ";"               # or "," "\\t" "|"; by default as the file's ending says
# encoding = "windows-1252"     # by default UTF-8
# decimal = ","                 # 61,5
# thousands = "."               # 1.234,5
# missing = [-9, 999, "NA", "."]  # what means "missing", in every column
# date = "dd.mm.yyyy"           # by default yyyy-mm-dd; also "mm/dd/yyyy", "days since 1960-01-01"
# ignore_case = true            # Male, male and MALE are the same
# trim = true                   # spaces within a cell become one (at its ends they always go)
#
# For a column of the dictionary, what differs:
#
# [columns.sex]
# from = "Geschlecht"           # its name in the file
# values = { 1 = "male", 2 = "female" }   # what is not named is unknown
#
# [columns.died]                # an event: 1, or 0
# from = "status"
# values = { yes = 1, no = 0 }
#
# [columns.cvd]                 # an event, from a date: 1 where one stands, 0 where none does
# from = "cvd_on"
# present = true
#
# [columns.time]                # a duration: days from one date to another
# from = ["died_on", "last_seen_on"]   # the first of them that is not blank
# since = "included_on"
# in = "days"                   # or "weeks", "months", "years", "full years" (birthdays: an age)
#
# [columns.cholesterol]         # mmol/l in the dictionary, mg/dl in the file
# times = 0.02586
"""


_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+")
_POINT = re.compile(r"[+-]?[0-9]*\.[0-9]+")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]([A-Za-z]{3}|\d{1,2})[-/.](\d{4}|\d{2})"
)


@dataclass(frozen=True, slots=True)
class Outline:
    """What a source shows of its columns, for drafts.

    Attributes:
        guesses: a kind for each column, by the name that it would have in a dictionary.
        dates: columns that seem to hold dates, by the same names, with those in the file.
        layout, decimal_commas: how the file seems to be laid out.
        names: in the file, of columns whose names no dictionary can have.
    """

    guesses: Mapping[str, Guess] = field(default_factory=dict)
    dates: Mapping[str, str] = field(default_factory=dict)
    layout: Layout = field(default_factory=Layout)
    decimal_commas: bool = False
    names: Mapping[str, str] = field(default_factory=dict)

    def recoding(self) -> str:
        """A recoding to edit: comments, and what was seen to be said."""
        said: dict[str, object] = {}
        if self.layout.delimiter is not None:
            said["delimiter"] = self.layout.delimiter
        if self.layout.encoding != Layout().encoding:
            said["encoding"] = self.layout.encoding
        if self.decimal_commas:
            said["decimal"] = ","
        note = "guessed from the file: confirm it"
        parts = [table("source", said, dict.fromkeys(said, note))] if said else []
        parts += [table(f"columns.{key(n)}", {"from": raw}) for n, raw in self.names.items()]
        if self.dates:
            listed = ", ".join(" ".join(name.split()) for name in self.dates.values())
            parts.append(f"# Columns that seem to hold dates (use `since`): {listed}\n")
        return "\n".join([_RECODING, *parts])


def outline_source(place: Path | str, sources: Registry = SOURCES) -> Outline:
    """What the beginning of a site's rows shows of their columns.

    Args:
        place: where they lie.

    Raises:
        InvalidInput: of no known kind, or not to be read.
    """
    layout = sources.open(place).guess_layout()
    batch = next(read_batches(sources.open(place, layout)))
    cells = {name: batch.read_text(name).head(SAMPLE_ROWS).tolist() for name in batch.names}
    commas = layout.delimiter != "," and has_decimal_commas(cells)
    names = _make_names(list(cells))
    guesses = {}
    for raw, texts in cells.items():
        plain = [t.replace(",", ".") for t in texts] if commas else texts
        guessed = infer_kind(raw, plain)
        guesses[names[raw]] = guessed
    dates = {names[raw]: raw for raw, texts in cells.items() if holds_dates(texts)}
    renamed = {name: raw for raw, name in names.items() if raw != name and name not in dates}
    return Outline(guesses, dates, layout, commas, renamed)


def _make_names(names: Sequence[str]) -> dict[str, str]:
    """Each name as a dictionary can have it: ``Größe (cm)`` is ``Grosse_cm``."""
    found: dict[str, str] = {}
    for name in names:
        made = name
        if NAME.fullmatch(name) is None:
            plain = unicodedata.normalize("NFKD", name.replace("ß", "ss"))
            plain = plain.encode("ascii", "ignore").decode()
            made = re.sub(r"[^A-Za-z0-9_.-]+", "_", plain).strip("_")[:56]
            made = made if made[:1].isalpha() else f"x_{made}".rstrip("_")
        base, number = made, 2
        while made in found.values() or (made != name and made in names):
            made, number = f"{base}_{number}", number + 1
        found[name] = made
    return found


def has_decimal_commas(columns: Mapping[str, Sequence[str]]) -> bool:
    """Whether numbers seem to be written 1,5.

    Some column holds them, mostly them and whole numbers, and none with a point.
    """
    for cells in columns.values():
        filled = [cell for cell in cells if cell]
        commas = sum(_COMMA.fullmatch(cell) is not None for cell in filled)
        whole = sum(_WHOLE.fullmatch(cell) is not None for cell in filled)
        pointed = any(_POINT.fullmatch(cell) for cell in filled)
        if commas and not pointed and 2 * (commas + whole) > len(filled):
            return True
    return False


def holds_dates(cells: Sequence[str]) -> bool:
    """Whether a column seems to hold dates, which no column of a dictionary can."""
    filled = [cell for cell in cells if cell]
    return bool(filled) and all(_DATE.fullmatch(cell) for cell in filled)
