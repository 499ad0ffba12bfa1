"""A closed table of objects, one for each model: what is missing is an error where it is made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from penstock.base.errors import PenstockError


class Named(Protocol):
    """What a registry holds: something that knows the name of its model."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


class ModelRegistry(Generic[T]):
    """Objects by the name of their model. Nothing can be added later.

    Args:
        entries: one object for each model, in the order in which people are told of them.
        names: the models that must be there, no more and no fewer; None: whatever is given.

    Raises:
        PenstockError: a model comes twice, is missing, or is not one of ``names``.
    """

    def __init__(self, entries: Iterable[T], names: Iterable[str] | None = None) -> None:
        given = list(entries)
        self._entries = {entry.name: entry for entry in given}
        expected = sorted(self._entries if names is None else names)
        found = sorted(entry.name for entry in given)
        if found != expected:
            raise PenstockError(
                "a registry does not hold each model once",
                value=", ".join(found),
                bound=", ".join(expected),
                remedy="give one object for each model",
            )

    def of(self, name: str) -> T:
        """The object of a model.

        Raises:
            PenstockError: there is none of this name.
        """
        if name not in self._entries:
            raise PenstockError("unknown model", value=name, bound=", ".join(self.names))
        return self._entries[name]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def __iter__(self) -> Iterator[T]:
        return iter(self._entries.values())
