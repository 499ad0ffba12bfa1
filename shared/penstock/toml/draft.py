"""A first draft of a dictionary from a site's own file, for its steward's eyes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.toml.writer import key, table

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_POINT_ZERO = re.compile(r"(?<=[0-9])\.0+$")
_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", ".", "?", "-"})
_EVENT = re.compile(r"(^|_)(event|status|died|dead|death|censor(ed)?)($|_)", re.IGNORECASE)
_TIME = re.compile(r"(^|_)(time|tte|duration|follow_?up|survival)($|_)", re.IGNORECASE)
_FEW = 12

_HEAD = """\
# Data dictionary: what the columns are, from codebooks and guidelines.
#
# BOUNDS ARE PUBLIC KNOWLEDGE, never observed minima or maxima: take them from a codebook, a
# guideline or the instrument's range. Values outside are clamped to them.
#
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
_LEVELS = """\
# DRAFT: these levels were read from this site's rows. Replace them by the codebook's complete
# list, so that nothing that is only in the rows becomes public.
"""


@dataclass(frozen=True, slots=True)
class Guess:
    """What a column may be. The levels are derived from rows: private to the site's steward."""

    kind: str
    levels: tuple[str, ...] = ()


def infer_kind(name: str, values: Iterable[object]) -> Guess:
    """A guess of a column's kind from its name and a sample of its values as text.

    Never holds observed minima or maxima. The levels of text with few distinct values are those
    seen, for the steward to replace: the draft stays at the site.
    """
    # Software that once met a missing value writes whole numbers as "1.0".
    texts = {_POINT_ZERO.sub("", str(v).strip()) for v in values if v is not None}
    seen = {t for t in texts if t.casefold() not in _MISSING}
    if seen and seen <= {"0", "1"}:
        return Guess("event" if _EVENT.search(name) else "binary", ("0", "1"))
    if seen and all(_NUMBER.fullmatch(t) for t in seen):
        if _TIME.search(name):
            return Guess("duration")
        return Guess("integer" if all(_WHOLE.fullmatch(t) for t in seen) else "continuous")
    if len(seen) == 2:
        return Guess("binary", tuple(sorted(seen)))
    return Guess("categorical", tuple(sorted(seen)) if 2 < len(seen) <= _FEW else ())


def dictionary_draft(columns: Mapping[str, str | Guess]) -> str:
    """A dictionary to edit: names and kinds, with bounds left blank.

    It parses as TOML, and is refused with a problem for each blank, until they are filled in.

    Args:
        columns: a kind, or a guess, for each column's name.
    """
    guesses = {n: Guess(c) if isinstance(c, str) else c for n, c in columns.items()}
    events = [n for n, g in guesses.items() if g.kind == "event"]
    durations = [n for n, g in guesses.items() if g.kind == "duration"]
    pair = len(events) == 1 == len(durations)
    parts = [_HEAD, _KINDS]
    for name, guess in guesses.items():
        kind = guess.kind
        if kind == "event" and not pair:
            kind = "binary"  # an event belongs to exactly one duration: for the steward to say
        note = _LEVELS if guess.levels not in ((), ("0", "1")) else ""
        fields: dict[str, object] = {"kind": kind}
        if kind in ("continuous", "integer"):
            fields |= {"lower": "", "upper": "", "unit": ""}
        elif kind == "duration":
            fields |= {"event": events[0] if pair else "", "follow_up": "", "unit": ""}
        elif kind in ("ordered", "categorical") or (kind == "binary" and note):
            fields["levels"] = guess.levels
        parts.append(note + table(f"columns.{key(name)}", fields))
    if not guesses:
        example = table("columns.age", {"kind": "continuous", "lower": 18, "upper": 100})
        parts.append("".join(f"# {line}\n" for line in example.splitlines()))
    return "\n".join(parts)
