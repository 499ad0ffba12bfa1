"""The shape of JSON that somebody else wrote, before anything is read from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeGuard

from penstock.base.documents import Json, JsonView

Kind = type | tuple[type, ...]


def is_object(found: object) -> TypeGuard[Json]:
    """Whether it is a JSON object."""
    return isinstance(found, dict)


def is_list_of_objects(found: object) -> TypeGuard[list[Json]]:
    """Whether it is a JSON array of objects alone."""
    return isinstance(found, list) and all(map(is_object, found))


def find_misfit(found: JsonView, kinds: Mapping[str, type | tuple[type, ...]]) -> str | None:
    """The first field that is missing or of another kind; None where all fit.

    True and false are no numbers here, whatever Python says.
    """
    for name, kind in kinds.items():
        value = found.get(name)
        no_truth = bool not in (kind if isinstance(kind, tuple) else (kind,))
        if not isinstance(value, kind) or (isinstance(value, bool) and no_truth):
            return name
    return None


def has_fields(found: object, kind: type, *names: str) -> bool:
    """Whether it is an object whose fields of these names are all of one kind."""
    return is_object(found) and find_misfit(found, dict.fromkeys(names, kind)) is None


def has_keys(found: object, names: Iterable[str]) -> bool:
    """Whether it is an object with all of these fields, of whatever kind."""
    return is_object(found) and all(name in found for name in names)
