"""All mechanisms there are: a closed list, for nobody else's code may ever see rows.

A new one is a package here, and a line below. Nothing is looked up at run time: no entry point, no
variable of the environment, no folder. Who needs another list, as tests do, hands one to what
takes a registry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from penstock.base.checks import Checks, record, shown
from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.gibbs.mechanism import GIBBS
from penstock.mechanisms.maf.mechanism import MAF
from penstock.mechanisms.protocol import ABSENT, AnyMechanism, Mechanism, Settings
from penstock.mechanisms.scoring.mechanism import SCORING
from penstock.mechanisms.sliced_wasserstein.mechanism import SLICED_WASSERSTEIN
from penstock.mechanisms.structured.mechanism import STRUCTURED
from penstock.mechanisms.trajectory.mechanism import TRAJECTORY


class Registry(Mapping[str, AnyMechanism]):
    """Mechanisms by name, in order. Nothing can be added to one that is made.

    Args:
        default: name of the one that a newly written study has which names none.
        earlier: name of the default of before, the same if not given: what was signed without a
            name means it for good, and guarantees that the default does not offer stay with it.
    """

    __slots__ = ("_by_name", "_default", "_earlier")
    __eq__ = object.__eq__  # itself alone, so that it may be a part of what is hashed
    __hash__ = object.__hash__

    def __init__(
        self, *mechanisms: Mechanism[Any, Any], default: str, earlier: str | None = None
    ) -> None:
        names = [mechanism.name for mechanism in mechanisms]
        if len(set(names)) < len(names):
            raise ValueError(f"mechanisms need names of their own: {names}")
        for name in (default, earlier):
            if name is not None and name not in names:
                raise ValueError(f"the default is none of the mechanisms {names}: {name}")
        self._default = default
        self._earlier = default if earlier is None else earlier
        self._by_name = dict(zip(names, mechanisms, strict=True))

    def __getitem__(self, name: str) -> AnyMechanism:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(self)

    @property
    def default(self) -> AnyMechanism:
        """What drafts begin with, and newly written ``formal`` studies have that name none."""
        return self[self._default]

    def default_for(self, guarantee: object) -> AnyMechanism:
        """What a newly written study has that asks for this guarantee and names none."""
        known = guarantee in self[self._earlier].guarantees
        offered = guarantee in self.default.guarantees
        return self[self._earlier] if known and not offered else self.default

    def of(self, settings: Settings) -> AnyMechanism:
        """The mechanism whose settings these are.

        Raises:
            TypeError: of none that is listed here; a study that was read has no such settings.
        """
        found = self._by_name.get(settings.name)
        if found is None or not isinstance(settings, found.settings):
            raise TypeError(f"no mechanism here has settings of type {type(settings).__name__}")
        return found

    def read(self, data: object) -> Settings:
        """Settings from their JSON form, ``{"name": …, setting: value, …}``.

        Without a name they are those of the default of before, whatever the default is now: these
        may be bytes that somebody signed when there was no other.

        Raises:
            InvalidInput: with every problem; of another name, that one only.
        """
        if not isinstance(data, Mapping):
            raise InvalidInput("mechanism", [Problem("", "must be a table", value=shown(data))])
        check = Checks("mechanism")
        name = data.get("name", self._earlier)
        check.choice("name", name, self.names)
        check.done()
        rest = self._list_later(name) | {k: v for k, v in data.items() if k != "name"}
        found: Settings = record(self[name].settings, rest, "mechanism")
        return found

    def complete(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON form of settings that somebody writes now: a setting that came later has its
        default where it is not said, and not what it was before."""
        name = data.get("name", self._default)
        known = name if isinstance(name, str) and name in self else self._default
        later = {f.name: f.default for f in fields(self[known].settings) if ABSENT in f.metadata}
        return {k: v for k, v in later.items() if v is not None} | dict(data)

    def _list_later(self, name: str) -> dict[str, Any]:
        """Settings that came later, as they were before."""
        own = fields(self[name].settings)
        return {f.name: f.metadata[ABSENT] for f in own if ABSENT in f.metadata}


MECHANISMS = Registry(
    STRUCTURED,
    MAF,
    SLICED_WASSERSTEIN,
    TRAJECTORY,
    GIBBS,
    SCORING,
    default=STRUCTURED.name,
    earlier=MAF.name,
)
"""The closed list. A study, a gate and a worker know these, and no other."""
