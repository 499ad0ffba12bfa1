"""Which column of a study stands where in an estimand, if it is of a kind that can."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from penstock.base.checks import Checks, closest, nearest, shown
from penstock.schema import Column


def find_role(
    check: Checks,
    role: str,
    name: str,
    known: Mapping[str, Column],
    broken: Collection[str],
    kinds: Sequence[str],
) -> Column | None:
    """The column of this name, or None after its problem was added.

    Args:
        role: the field that names it; known: the study's columns; broken: names of columns that
            have problems of their own, of which nothing is said; kinds: that suit.
    """
    column = known.get(name)
    if column is None:
        if name not in broken:
            remedy = nearest(name, known)
            check.add(role, "is not a column of the study", value=shown(name), remedy=remedy)
        return None
    if column.kind not in kinds:
        check.add(
            role,
            f"column {name!r} is of kind {column.kind!r}",
            bound=f"one of {', '.join(kinds)}",
        )
        return None
    return column


def refuse_level(
    check: Checks,
    field: str,
    message: str,
    given: str | None,
    levels: Sequence[str],
    remedy: str | None = None,
) -> None:
    """Add the problem of a level that is none of these, or is not said.

    Args:
        remedy: where no level is near.
    """
    value, near = (None, None) if given is None else (shown(given), closest(given, levels))
    bound = f"one of {', '.join(levels)[:200]}"
    check.add(field, message, value=value, bound=bound, remedy=near or remedy)
