"""Columns, schemas and coded tables: what a site and a coordinator must agree on.

A *schema* is public: names, kinds, units, bounds and levels come from codebooks and guidelines,
never from rows. A *coded table* is a ``dict[str, ndarray]`` with one float64 array of length n
for each column of the schema: numbers as they are, a level as its index (0, 1, ...), NaN where
the value is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from penstock.base.checks import Checks, nearest, record, shown, unknown_keys, within
from penstock.base.documents import Json, JsonView
from penstock.base.errors import InvalidInput, Problem

KINDS = ("continuous", "integer", "binary", "ordered", "categorical", "duration", "event")
NUMBER_KINDS = ("continuous", "integer", "duration")
LEVEL_KINDS = ("binary", "ordered", "categorical", "event")
SCALES = ("linear", "log")

MAX_COLUMNS = 200
MAX_LEVELS = 100
MAX_ROWS_PER_PERSON = 1000
LARGEST = 1e12
"""The largest bound in magnitude, and the largest number of grid steps from 0 (times ten), at
which float64 still tells neighbouring grid values apart after encoding."""

PUBLIC = (
    "Bounds are public knowledge, never observed minima or maxima: "
    "take them from a codebook, a guideline or the instrument's range"
)

LEVELS_PUBLIC = (
    "Levels are public knowledge, never what was found in rows: "
    "take the complete list from a codebook"
)

Floats = npt.NDArray[np.float64]
Coded = dict[str, Floats]


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Numbers are stored as floats, level columns as the index of their level.

    Attributes:
        name: a letter, then up to 63 letters, digits, ``_``, ``.`` or ``-``.
        kind: one of :data:`KINDS`.
        lower, upper: public bounds (continuous, integer); 0 and the follow-up (duration).
        decimals: decimals kept in releases (continuous, duration), None for all.
        spike: a public number that many rows hold exactly, modelled apart from all others: 0
            where data are zero-inflated (cigarettes a day, costs). It is on the grid.
        scale: the scale on which the model sees numbers, one of :data:`SCALES`; None is linear.
            Log is of the value plus one step on a grid (log(x + 1) for counts), so that 0 has a
            place, and of the value without one.
        levels: labels in order; ``("0", "1")`` by default for binary, always for event.
        unit, label: free text; sites with different units do not match.
        nullable: missing values are modelled; otherwise a person with one contributes nothing.
        missing: codes (as text) that mean "missing"; local to a site's dictionary.
        event: the name of a duration's event column.
        varies: whether a person's rows may differ in it. What does not vary (sex, year of birth)
            is read once a person: the first known value of their rows counts.

    Raises:
        InvalidInput: with every problem of the column.

    Example:
        >>> age = Column("age", "continuous", lower=18, upper=100, decimals=0)
        >>> age.snap([17.2, 63.4]).tolist()
        [18.0, 63.0]
        >>> Column("ward", "categorical", levels=("a", "a"))
        Traceback (most recent call last):
            ...
        penstock.base.errors.InvalidInput: column 'ward': 1 problem
          levels: appears twice, got 'a'; each only once
    """

    name: str
    kind: str
    lower: float | None = None
    upper: float | None = None
    decimals: int | None = None
    spike: float | None = None
    scale: str | None = None
    levels: tuple[str, ...] = ()
    unit: str = ""
    label: str = ""
    nullable: bool = False
    missing: tuple[str, ...] = ()
    event: str | None = None
    varies: bool = True

    def __post_init__(self) -> None:
        check = Checks(f"column {shown(self.name)}")
        check.pattern("name", self.name)
        check.text("unit", self.unit, 40, empty=True)
        check.text("label", self.label, 200, empty=True)
        check.flag("nullable", self.nullable)
        check.flag("varies", self.varies)
        if check.choice("kind", self.kind, KINDS):
            if _check_bounds(check, self):
                _check_spike(check, self)
                _check_scale(check, self)
            _check_levels(check, self)
            _check_event(check, self)
        _check_missing(check, self)
        check.done()

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound of a column of numbers.

        Raises:
            TypeError: the column holds levels.
        """
        if self.lower is None or self.upper is None:
            raise TypeError(f"a column of kind {self.kind!r} has no bounds")
        return self.lower, self.upper

    @property
    def grid(self) -> tuple[int, int] | None:
        """First and last multiple of ``10**-decimals`` within the bounds; None without a grid.

        Computed in decimal arithmetic from the bounds as they are written, so that 0.7 with one
        decimal is 7 steps and not 8.
        """
        decimals = 0 if self.kind == "integer" else self.decimals
        if decimals is None:
            return None
        lower, upper = self.bounds
        return _steps(lower, decimals, ROUND_CEILING), _steps(upper, decimals, ROUND_FLOOR)

    def snap(self, values: npt.ArrayLike) -> Floats:
        """Values clamped to the bounds and the decimal grid; NaN stays NaN.

        Levels: an index that is not one of 0, ..., L-1 becomes NaN.
        """
        x = np.asarray(values, dtype=np.float64)
        if self.kind in LEVEL_KINDS:
            known = (x >= 0) & (x < len(self.levels)) & (x == np.floor(x))
            return np.where(known, x, np.nan) + 0.0
        clamped = np.clip(x, *self.bounds) + 0.0
        if self.grid is None:
            return clamped
        scale = 10.0 ** (self.decimals or 0)
        first, last = self.grid
        return np.asarray(np.clip(np.rint(clamped * scale), first, last) / scale + 0.0)

    def to_dict(self) -> Json:
        """The canonical JSON form: every field, tuples as lists.

        ``varies`` is there where it is false alone: other columns have the bytes of before it.
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.varies:
            del values["varies"]
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    @classmethod
    def from_dict(cls, data: JsonView) -> Column:
        """Inverse of :meth:`to_dict`; unknown keys are refused.

        Raises:
            InvalidInput: with every problem.
        """
        name = data.get("name") if isinstance(data, Mapping) else None
        return record(cls, data, f"column {shown(name)}")


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a table, and who a row belongs to.

    Attributes:
        columns: 1 to 200 columns with distinct names.
        person: the name of the column that identifies a person (not one of ``columns``), or
            None where a row is a person.
        max_rows_per_person: the most rows of one person that are used.

    Raises:
        InvalidInput: with every problem.

    Example:
        >>> schema = Schema((Column("sex", "binary"), Column("visits", "integer", 0, 20)))
        >>> schema.names
        ('sex', 'visits')
        >>> schema["sex"].levels
        ('0', '1')
    """

    columns: tuple[Column, ...]
    person: str | None = None
    max_rows_per_person: int = 1

    def __post_init__(self) -> None:
        columns = self.columns
        if not (isinstance(columns, tuple) and all(isinstance(c, Column) for c in columns)):
            raise InvalidInput("schema", [Problem("columns", "must be a tuple of Column")])
        problems = _link_problems(columns)
        problems += _person_problems(self.person, self.max_rows_per_person, self.names)
        if problems:
            raise InvalidInput("schema", problems)

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(c.name for c in self.columns)

    def __getitem__(self, name: str) -> Column:
        """The column of that name.

        Raises:
            KeyError: there is none.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def to_dict(self) -> Json:
        """The canonical JSON form."""
        return {
            "columns": [c.to_dict() for c in self.columns],
            "person": self.person,
            "max_rows_per_person": self.max_rows_per_person,
        }

    @classmethod
    def from_dict(cls, data: JsonView) -> Schema:
        """Inverse of :meth:`to_dict`; unknown keys are refused at every level.

        Raises:
            InvalidInput: with every problem of every column.
        """
        columns, _, problems = read_columns(data)
        if problems:
            raise InvalidInput("schema", problems)
        return cls(columns, data.get("person"), data.get("max_rows_per_person", 1))


def read_columns(data: object) -> tuple[tuple[Column, ...], frozenset[str], list[Problem]]:
    """The sound columns of a schema's JSON form, the names of the others, and all problems.

    Lets whoever reads a study check its estimands in the same pass, so that all problems of a
    file are reported together.
    """
    items = data.get("columns") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(items, list):
        return (), frozenset(), [Problem("columns", "is missing or not a list of columns")]
    problems = unknown_keys(data, [f.name for f in fields(Schema)])
    sound: list[Column] = []
    broken: set[str] = set()
    for i, item in enumerate(items[: MAX_COLUMNS + 1]):
        try:
            sound.append(Column.from_dict(item))
        except InvalidInput as error:
            name = item.get("name") if isinstance(item, Mapping) else None
            sane = isinstance(name, str) and 0 < len(name) <= 64 and name.isprintable()
            named = str(name) if sane else f"[{i + 1}]"
            problems += within(f"columns.{named}", error.problems)
            broken.add(named)
    problems += _link_problems(sound, frozenset(broken))
    problems += _person_problems(
        data.get("person"), data.get("max_rows_per_person", 1), {c.name for c in sound} | broken
    )
    return tuple(sound), frozenset(broken), problems


def _check_bounds(check: Checks, column: Column) -> bool:
    """Whether the column is one of numbers with sound bounds and decimals."""
    kind = column.kind
    if kind not in NUMBER_KINDS:
        for field in ("lower", "upper", "decimals", "spike", "scale"):
            if getattr(column, field) is not None:
                check.add(field, f"has no meaning for kind {kind!r}", remedy="Remove it")
        return False
    lower: float | None
    if kind == "duration":
        start = 0.0 if column.lower is None else column.lower
        lower = check.number("lower", start, "0: a duration starts at 0", least=0, most=0)
    else:
        lower = _bound(check, "lower", column.lower)
    upper = _bound(check, "upper", column.upper)
    decimals = column.decimals
    if decimals is not None and kind == "integer":
        check.add("decimals", "has no meaning for kind 'integer'", remedy="Remove it")
        return False
    if decimals is not None and check.whole("decimals", decimals, 0, 12) is None:
        return False
    if lower is None or upper is None:
        return False
    check.keep(column, lower=lower, upper=upper)
    if not lower < upper:
        check.add(
            "upper",
            "must lie above the lower bound",
            value=shown(upper),
            bound=f"above {lower:g}",
            remedy=PUBLIC,
        )
    elif kind == "integer" and not (lower.is_integer() and upper.is_integer()):
        check.add("lower", "bounds of an integer column are whole numbers", remedy=PUBLIC)
    elif upper - lower < 1e-9 * max(-lower, upper):
        check.add("upper", "is too close to the lower bound to tell values apart")
    else:
        return column.grid is None or _check_grid(check, column.grid, column.decimals or 0)
    return False


def _check_spike(check: Checks, column: Column) -> None:
    if column.spike is None:
        return
    lower, upper = column.bounds
    bound = f"within the bounds, {lower:.15g} to {upper:.15g}"
    spike = check.number("spike", column.spike, bound, least=lower, most=upper)
    check.keep(column, spike=spike)
    if column.grid is None:
        check.add(
            "spike",
            "needs decimals: without a step between them, values beside it run into it",
            remedy="Say how many decimals are kept",
        )
    elif spike is not None and column.snap(spike) != spike:
        check.add(
            "spike", "has more decimals than the column", value=shown(spike), remedy="Round it"
        )


def _check_scale(check: Checks, column: Column) -> None:
    if column.scale is None or check.choice("scale", column.scale, SCALES) != "log":
        return
    (lower, upper), grid = column.bounds, column.grid
    if lower < 0 or (lower == 0 and grid is None):
        check.add(
            "scale",
            "is log, although not all values are above 0",
            value=f"lower = {lower:g}",
            bound="lower above 0, or 0 in a column with decimals or of whole numbers",
        )
    elif (upper / lower if grid is None else grid[1]) > LARGEST / 10:
        check.add(
            "scale",
            "is log, on which float64 cannot tell so many values apart",
            remedy="Use fewer decimals, or bounds that are less far apart",
        )


def _check_grid(check: Checks, grid: tuple[int, int], decimals: int) -> bool:
    first, last = grid
    if first >= last:
        check.add(
            "decimals",
            "fewer than two such values lie within the bounds",
            value=str(decimals),
            remedy="Use more decimals or wider bounds",
        )
        return False
    if max(-first, last) > 10 * LARGEST:
        check.add(
            "decimals",
            "float64 cannot keep that many decimals within these bounds",
            value=str(decimals),
            remedy="Use fewer decimals",
        )
        return False
    return True


def _bound(check: Checks, field: str, value: object) -> float | None:
    """A bound that was given; a blank one (as ``site init`` drafts it) says where to find it."""
    if value is None or (isinstance(value, str) and not value.strip()):
        check.add(field, "is missing" if value is None else "is blank", remedy=PUBLIC)
        return None
    return check.number(
        field, value, "a number of at most 1e12 in magnitude", least=-LARGEST, most=LARGEST
    )


def _check_levels(check: Checks, column: Column) -> None:
    if column.kind not in LEVEL_KINDS:
        if column.levels != ():
            check.add("levels", f"has no meaning for kind {column.kind!r}", remedy="Remove it")
        return
    if column.kind in ("binary", "event") and column.levels == ():
        check.keep(column, levels=("0", "1"))
    if column.levels == ():  # as ``site init`` drafts it
        check.add("levels", "is missing or blank", remedy=LEVELS_PUBLIC)
        return
    most = 2 if column.kind in ("binary", "event") else MAX_LEVELS
    if check.sequence("levels", column.levels, 2, most) is None:
        return
    for level in column.levels:
        check.text("levels", level, 64)
    check.distinct("levels", column.levels)
    if column.kind == "event" and column.levels != ("0", "1"):
        check.add(
            "levels",
            "an event column is 1 for an event and 0 for censored",
            bound='["0", "1"]',
            remedy="Remove levels, and recode the data at the site, in recoding.toml",
        )


def _check_event(check: Checks, column: Column) -> None:
    if column.kind == "duration":
        if column.event is None:
            check.add("event", "is missing", remedy="Name the column that says event or censored")
        else:
            check.pattern("event", column.event)
    elif column.event is not None:
        check.add("event", f"has no meaning for kind {column.kind!r}", remedy="Remove it")


def _check_missing(check: Checks, column: Column) -> None:
    if check.sequence("missing", column.missing, 0, MAX_LEVELS) is None:
        return
    for code in column.missing:
        check.text("missing", code, 64)
        if isinstance(column.levels, tuple) and code in column.levels:
            check.add("missing", "is a level too", value=shown(code), bound="one or the other")
    check.distinct("missing", column.missing)


def _link_problems(
    columns: Sequence[Column], broken: frozenset[str] = frozenset()
) -> list[Problem]:
    """Problems between columns; nothing is said about columns that are broken themselves."""
    check = Checks("schema")
    if not 1 <= len(columns) + len(broken) <= MAX_COLUMNS:
        count = len(columns) + len(broken)
        check.add("columns", "has the wrong length", value=str(count), bound=f"1 to {MAX_COLUMNS}")
    check.distinct("columns", [c.name for c in columns])
    events = {c.name for c in columns if c.kind == "event"}
    users: dict[str, list[str]] = {}
    for column in columns:
        if column.kind != "duration" or column.event is None or column.event in broken:
            continue
        users.setdefault(column.event, []).append(column.name)
        if column.event not in events:
            check.add(
                f"columns.{column.name}.event",
                "is not an event column",
                value=shown(column.event),
                remedy=nearest(column.event, events) or "Add a column of kind 'event'",
            )
    for event in events:
        used = users.get(event, [])
        if len(used) > 1 or not (used or broken):
            check.add(
                f"columns.{event}",
                "must be the event of exactly one duration",
                value=" and ".join(used) or "none",
                remedy="Give each duration an event column of its own"
                if used
                else f"Add event = {event!r} to its duration, or make it binary",
            )
    return check.problems


def _person_problems(person: object, rows: object, names: Collection[str]) -> list[Problem]:
    check = Checks("schema")
    most = MAX_ROWS_PER_PERSON
    if person is None:
        if check.whole("max_rows_per_person", rows, 1, most) not in (None, 1):
            check.add("person", "is missing", remedy="Name the column that identifies a person")
        return check.problems
    check.whole("max_rows_per_person", rows, 1, most)
    if check.pattern("person", person) in names:
        check.add(
            "person",
            "is a column of the data too",
            value=shown(person),
            remedy="Remove it from the columns: an identifier is never modelled",
        )
    return check.problems


@lru_cache(1024)
def _steps(bound: float, decimals: int, rounding: str) -> int:
    return int(Decimal(repr(bound)).scaleb(decimals).to_integral_value(rounding))
