"""A first draft of a dictionary: what the steward has to say, with blanks to fill in.

From a site's own file come the columns' names, and a guess of their kinds; no value of a row, and
nothing that is computed from values. From a codebook comes all that it says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.schema import LEVEL_KINDS
from penstock.toml.codebook import Codebook, Described
from penstock.toml.writer import key, table

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_POINT_ZERO = re.compile(r"(?<=[0-9])\.0+$")
_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", ".", "?", "-"})
_EVENT = re.compile(r"(^|_)(event|status|died|dead|death|censor(ed)?)($|_)", re.IGNORECASE)
_TIME = re.compile(r"(^|_)(time|tte|duration|follow_?up|survival)($|_)", re.IGNORECASE)

_HEAD = """\
# Data dictionary: what the columns are, from codebooks and guidelines.
#
# THIS IS A DRAFT until you have looked at every line. Then write false: `penstock site check`
# certifies no draft, and names every line that is still blank.
draft = true

# BOUNDS AND LEVELS ARE PUBLIC KNOWLEDGE, never what is found in rows: take them from a codebook, a
# guideline or the instrument's range. What lies outside bounds is clamped to them. What is none of
# the levels becomes missing, or the level that you name: other = "elsewhere". How many values lie
# outside, and in which lines, `penstock site check` shows you; which ones, with --values.
# Kinds were guessed from rows where it says so, and are public, too: say what the codebook says.
#
# persons: THE FRAME, how many persons the data set has places for. It is public, and stays as it is
# when rows come and go: a round number, decided beforehand from public knowledge (the size of the
# register or the catchment), at least as many as there are. Never the count itself: that is a fact
# of the rows, and would tell who joined.
persons = ""

# person: the column that identifies a person, where a person may have several rows.
# person = "patient_id"
max_rows_per_person = 1
"""
_KINDS = """\
# Kinds: continuous, integer, binary, ordered, categorical, duration (with its event), event.
# Also: decimals (kept in releases), nullable = true (missing values are modelled; otherwise a
# person with one contributes nothing), missing = ["-9", "?"] (codes that mean "missing"),
# spike = 0 (a number that many rows hold exactly, for reasons of its own: no cigarettes, no costs),
# scale = "log" (numbers that bunch far below their upper bound: CRP, triglycerides, costs).
"""
_GUESSED = "guessed from rows: confirm it"
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Guess:
    """What a column may be.

    Attributes:
        kind: a coarse fact of the rows, for the steward to confirm.
        levels: ``("0", "1")``, which are public, or none: labels are never taken from rows.
    """

    kind: str
    levels: tuple[str, ...] = ()


def infer_kind(name: str, values: Iterable[object]) -> Guess:
    """A guess of a column's kind from its name and a sample of its values as text."""
    # Software that once met a missing value writes whole numbers as "1.0".
    texts = {_POINT_ZERO.sub("", str(v).strip()) for v in values if v is not None}
    seen = {t for t in texts if t.casefold() not in _MISSING}
    if seen and seen <= {"0", "1"}:
        return Guess("event" if _EVENT.search(name) else "binary", ("0", "1"))
    if seen and all(_NUMBER.fullmatch(t) for t in seen):
        if _TIME.search(name):
            return Guess("duration")
        return Guess("integer" if all(_WHOLE.fullmatch(t) for t in seen) else "continuous")
    return Guess("binary" if len(seen) == 2 else "categorical")


def dictionary_draft(columns: Mapping[str, Guess], codebook: Codebook | None = None) -> str:
    """A dictionary to edit: a draft by its own first key, with a blank for all that nobody said.

    It parses as TOML, and is refused with a problem for the mark and for each blank.

    Args:
        columns: the file's columns, each with a guess; without a file, the codebook's own are
            drafted.
        codebook: what it says of a column stands before any guess.
    """
    described = codebook.columns if codebook is not None else {}
    names = list(columns) or list(described)
    known = {name: described.get(name, Described({})) for name in names}
    kinds = {name: _kind(known[name], columns.get(name)) for name in names}
    # One event and one duration belong to each other; of more, the steward says which.
    events = [name for name, kind in kinds.items() if kind == "event"]
    pair = len(events) == 1 == list(kinds.values()).count("duration")
    parts = [_HEAD, _KINDS]
    for name, kind in kinds.items():
        event = events[0] if pair else ""
        parts.append(_column(name, kind, known[name], columns.get(name), event, paired=pair))
    if absent := [name for name in described if name not in kinds]:
        listed = ", ".join(absent[:_SHOWN]) + (", …" if len(absent) > _SHOWN else "")
        parts.append(_comment(f"In the codebook, and not in the file: {listed}"))
    if not kinds:
        example = table("columns.age", {"kind": "continuous", "lower": 18, "upper": 100})
        parts.append("".join(f"# {line}\n" for line in example.splitlines()))
    return "\n".join(parts)


def _kind(said: Described, guess: Guess | None) -> str:
    """The codebook's kind, or a guess; blank where there is neither."""
    return str(said.fields.get("kind", guess.kind if guess is not None else ""))


def _column(
    name: str, kind: str, said: Described, guess: Guess | None, event: str, *, paired: bool
) -> str:
    guessed = "kind" not in said.fields and guess is not None
    if kind == "event" and guessed and not paired:
        kind = "binary"  # an event belongs to exactly one duration: for the steward to say
    blank: dict[str, object] = {"kind": kind}
    if kind in ("continuous", "integer"):
        blank |= {"lower": "", "upper": "", "unit": ""}
    elif kind == "duration":
        blank |= {"event": event, "follow_up": "", "unit": ""}
    elif kind in LEVEL_KINDS and kind != "event":
        blank["levels"] = guess.levels if guess is not None and kind == "binary" else ()
    fields = {**blank, **{k: v for k, v in said.fields.items() if k != "kind"}}
    notes = {"kind": _GUESSED} if guessed else {}
    meant = _comment("; ".join(f"{code} = {label}" for code, label in said.choices.items()))
    return (meant if said.choices else "") + table(f"columns.{key(name)}", fields, notes)


def _comment(text: str) -> str:
    return f"# {text}\n"
