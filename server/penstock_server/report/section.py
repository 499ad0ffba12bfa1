"""What a section of the report is: what it adds to report.json, and how the page shows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.base.documents import Json
from penstock_server.report.inputs import ReportInputs


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing of a report as a file of its own.

    Attributes:
        name: of the file; what: it shows.
        save: draws it, to a path whose suffix says in which format.
    """

    name: str
    what: str
    save: Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table of a report as a file of its own, for spreadsheets and scripts.

    Attributes:
        name: of the file; what: its rows are.
        columns: of each name its kind (``categorical``, ``integer`` or ``continuous``) and meaning.
        rows: of each column a value, or None.
    """

    name: str
    what: str
    columns: Mapping[str, tuple[str, str]]
    rows: Sequence[Sequence[str | int | float | None]]


def _nothing(*_: object) -> Json:
    return {}


def _no_pictures(report: Json) -> Sequence[Picture]:
    return ()


def _no_sheets(report: Json) -> Sequence[Sheet]:
    return ()


@dataclass(frozen=True, slots=True)
class Section:
    """One section: a module in :mod:`penstock_server.report.sections`, and a template beside it.

    The template is given ``report``, ``study`` (a part of the report), ``words`` (how its mechanism
    speaks of releases: :class:`penstock_server.mechanisms.protocol.ReleaseWords`), and what
    ``show`` returns.

    Attributes:
        name: of its module, and of its template.
        write: what it adds to report.json, from the inputs and what the sections before it added.
            The report's schema describes each key.
        show: what its template is given, from the report.
        absent: what stands for its keys in a report that was kept from before there were any.
        draw: pictures of the report, and tabulate: tables of it, for files of their own.
    """

    name: str
    write: Callable[[ReportInputs, Json], Json] = _nothing
    show: Callable[[Json], Json] = _nothing
    absent: Json = field(default_factory=dict)
    draw: Callable[[Json], Sequence[Picture]] = _no_pictures
    tabulate: Callable[[Json], Sequence[Sheet]] = _no_sheets


def write_epsilon(value: float | None) -> float | str | None:
    """JSON has no infinity: a privacy loss that is infinite is the string "inf"."""
    return "inf" if value is not None and math.isinf(value) else value
