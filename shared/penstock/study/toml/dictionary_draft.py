"""A first draft of a dictionary: what the steward has to say, with blanks to fill in.

From a site's own file come the columns' names, and a guess of their kinds; no value of a row, and
nothing that is computed from values. From a codebook comes all that it says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.base.checks import Checks, nearest, shown
from penstock.schema import LEVEL_KINDS
from penstock.study.toml.codebook import Codebook, Described
from penstock.study.toml.writer import key, table, value

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
# Your file says it otherwise (other names, 1 for male, decimal commas, dates)? Leave the file as it
# is, and say so in recoding.toml, which stays at your site; this file is the same at every site.
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

# person: the column that identifies a person: it is never modelled, and needed where a person may
# have several rows. The first certification fixes it, and how many rows of a person are used.
{person}
max_rows_per_person = 1
"""
_KINDS = """\
# Kinds: continuous, integer, binary, ordered, categorical, duration (with its event), event.
# Also: decimals (kept in releases), nullable = true (missing values are modelled; otherwise a
# person with one contributes nothing), missing = ["-9", "?"] (codes that mean "missing"),
# spike = 0 (a number that many rows hold exactly, for reasons of its own: no cigarettes, no costs),
# scale = "log" (numbers that bunch far below their upper bound: CRP, triglycerides, costs),
# varies = false (the same in all rows of a person: sex, year of birth, the arm of a trial).
"""
_GUESSED = "guessed from rows: confirm it"
_BY_NAME = "guessed from its name: confirm it"
_SHOWN = 12
_PERSONS = (
    "person", "person_id", "patient", "patient_id", "pat_id", "pid", "subject", "subject_id",
    "subj_id", "usubj_id", "participant", "participant_id", "record_id", "case_id", "mrn",
    "pseudonym", "pseudo_id", "proband", "proband_id", "study_id", "ids", "id",
)  # fmt: skip
_NOT_WORD = re.compile(r"[^a-z0-9]")


@dataclass(frozen=True, slots=True)
class Roles:
    """What the steward said of the columns before there was a draft.

    Attributes:
        person: the column that identifies a person; None where each row is a person.
        time: a duration; event: what says whether it ended with an event.
        left_out: columns that are no business of any study.
    """

    person: str | None = None
    time: str | None = None
    event: str | None = None
    left_out: tuple[str, ...] = ()

    def check(self, columns: Sequence[str]) -> None:
        """Raises:
        InvalidInput: a role of what is no column, or two roles of one.
        """
        check = Checks("site init")
        said = {"--person": self.person, "--time": self.time, "--event": self.event}
        given = {flag: name for flag, name in said.items() if name is not None}
        for flag, name in [*given.items(), *(("--leave-out", n) for n in self.left_out)]:
            if name not in columns:
                remedy = nearest(name, columns)
                check.add(flag, "is no column of the file", value=shown(name), remedy=remedy)
        names = [*given.values(), *self.left_out]
        for name in sorted({n for n in names if names.count(n) > 1}):
            check.add("", "has two roles", value=shown(name), bound="one role a column")
        check.done()


def guess_person(names: Iterable[str]) -> str | None:
    """The column that is called like one of persons' ids; no row is looked at."""
    plain = {_NOT_WORD.sub("", name.casefold()): name for name in names}
    known = (_NOT_WORD.sub("", word) for word in _PERSONS)
    return next((plain[word] for word in known if word in plain), None)


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
    texts = {str(v).strip() for v in values if v is not None}
    seen = {t for t in texts if t.casefold() not in _MISSING}
    numbers = bool(seen) and all(_NUMBER.fullmatch(t) for t in seen)
    if numbers:
        # Software that once met a missing value writes whole numbers as "1.0". Text is kept as it
        # is: the codes I21.0 and I21 are two.
        seen = {_POINT_ZERO.sub("", t) for t in seen}
    if seen and seen <= {"0", "1"}:
        return Guess("event" if _EVENT.search(name) else "binary", ("0", "1"))
    if numbers:
        if _TIME.search(name):
            return Guess("duration")
        return Guess("integer" if all(_WHOLE.fullmatch(t) for t in seen) else "continuous")
    return Guess("binary" if len(seen) == 2 else "categorical")


def draft_dictionary(
    columns: Mapping[str, Guess],
    codebook: Codebook | None = None,
    roles: Roles | None = None,
    dates: Sequence[str] = (),
) -> str:
    """A dictionary to edit: a draft by its own first key, with a blank for all that nobody said.

    It parses as TOML, and is refused with a problem for the mark and for each blank.

    Args:
        columns: the file's columns, each with a guess; without a file, the codebook's own are
            drafted.
        codebook: what it says of a column stands before any guess.
        roles: what the steward said; without it a column that is called like a person's id is
            drafted as the person column.
        dates: columns that seem to hold dates, which no column of a dictionary can.
    """
    described = codebook.columns if codebook is not None else {}
    listed = list(columns) or list(described)
    roles, note = (Roles(guess_person(listed)), _BY_NAME) if roles is None else (roles, "")
    named = (roles.time, roles.event)
    undrafted = {roles.person, *roles.left_out}
    undrafted |= {n for n in dates if n not in named and n not in described}
    names = [name for name in listed if name not in undrafted]
    known = {name: described.get(name, Described({})) for name in names}
    kinds = {name: _kind(known[name], columns.get(name)) for name in names}
    kinds |= {n: k for n, k in ((roles.time, "duration"), (roles.event, "event")) if n is not None}
    # One event and one duration belong to each other; of more, the steward says which.
    events = [name for name, kind in kinds.items() if kind == "event"]
    pair = len(events) == 1 == list(kinds.values()).count("duration")
    parts = [_HEAD.format(person=_person(roles.person, note)), _KINDS]
    for name, kind in kinds.items():
        event = events[0] if pair else ""
        if name == roles.time and roles.event is not None:
            event = roles.event
        guess = None if name in named else columns.get(name)
        parts.append(_column(name, kind, known[name], guess, event, paired=pair))
    if left := [name for name in dates if name not in kinds]:
        parts.append(_comment(f"Dates, of which recoding.toml makes times: {', '.join(left)}"))
    drafted = {*kinds, roles.person, *roles.left_out}
    if absent := [name for name in described if name not in drafted]:
        first = ", ".join(absent[:_SHOWN]) + (", …" if len(absent) > _SHOWN else "")
        parts.append(_comment(f"In the codebook, and not in the file: {first}"))
    if not kinds:
        example = table("columns.age", {"kind": "continuous", "lower": 18, "upper": 100})
        parts.append("".join(f"# {line}\n" for line in example.splitlines()))
    return "\n".join(parts)


def _person(name: str | None, note: str) -> str:
    if name is None:
        return '# person = "patient_id"'
    return f"person = {value(name)}" + (f"  # {note}" if note else "")


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
