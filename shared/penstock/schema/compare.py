"""Does a site's dictionary carry a study's schema? Decided from public information only."""

from __future__ import annotations

from penstock.base.checks import nearest, shown
from penstock.base.errors import Problem
from penstock.schema.columns import NUMBER_KINDS, Column, Schema


def compare(study: Schema, dictionary: Schema) -> list[Problem]:
    """What keeps a site with this dictionary from answering a study with this schema.

    Each of the study's columns must be in the dictionary with the same kind and unit, the same
    levels (in the same order where the order means something), the same event column, and bounds
    (or a follow-up) within the dictionary's. The person column must be the same, so that both
    sides mean the same unit of privacy, and the study may use at most as many rows of a person
    as the dictionary allows. How a column is modelled (decimals, spike, scale, nullable) is the
    study's to say, since rows mean the same under each; the dictionary's is what a template of a
    study starts from.

    Returns:
        All problems; an empty list where the dictionary carries the study. No row is looked at,
        so that a refusal based on this costs no privacy (it depends on public facts alone).

    Example:
        >>> held = Schema((Column("age", "continuous", lower=18, upper=100),))
        >>> wider = Schema((Column("age", "continuous", lower=0, upper=100),))
        >>> print(*compare(study=wider, dictionary=held))
        columns.age.lower: lies outside the bounds of the site's dictionary, got 0; 18 to 100
        >>> compare(study=held, dictionary=wider)
        []
    """
    problems: list[Problem] = []
    for column in study.columns:
        where = f"columns.{column.name}"
        if column.name in dictionary.names:
            problems += _column(where, column, dictionary[column.name])
        else:
            problems.append(
                Problem(
                    where,
                    "is not in the site's dictionary",
                    remedy=nearest(column.name, dictionary.names),
                )
            )
    if study.person != dictionary.person:
        problems.append(_differs("person", study.person, dictionary.person))
    if study.max_rows_per_person > dictionary.max_rows_per_person:
        problems.append(
            Problem(
                "max_rows_per_person",
                "is more than the site's dictionary allows",
                value=str(study.max_rows_per_person),
                bound=f"at most {dictionary.max_rows_per_person}",
            )
        )
    return problems


def _column(where: str, wanted: Column, held: Column) -> list[Problem]:
    if wanted.kind != held.kind:
        return [_differs(f"{where}.kind", wanted.kind, held.kind)]
    problems = [
        _differs(f"{where}.{field}", getattr(wanted, field), getattr(held, field))
        for field in ("unit", "event")
        if getattr(wanted, field) != getattr(held, field)
    ]
    ordered = wanted.kind == "ordered"
    if wanted.levels != held.levels and (ordered or set(wanted.levels) != set(held.levels)):
        problems.append(
            Problem(
                f"{where}.levels",
                "differs from the site's dictionary",
                value=", ".join(wanted.levels)[:200],
                bound=f"the dictionary has {', '.join(held.levels)[:200]}",
                remedy="Write the levels in the dictionary's order" if ordered else None,
            )
        )
    if wanted.kind in NUMBER_KINDS:
        problems += _bounds(where, wanted, held)
    return problems


def _bounds(where: str, wanted: Column, held: Column) -> list[Problem]:
    (low, high), (least, most) = wanted.bounds, held.bounds
    return [
        Problem(
            f"{where}.{side}",
            "lies outside the bounds of the site's dictionary",
            value=f"{bound:.15g}",
            bound=f"{least:.15g} to {most:.15g}",
        )
        for side, bound, outside in (("lower", low, low < least), ("upper", high, high > most))
        if outside
    ]


def _differs(where: str, wanted: object, held: object) -> Problem:
    return Problem(
        where,
        "differs from the site's dictionary",
        value=shown(wanted),
        bound=f"the dictionary has {shown(held)}",
    )
