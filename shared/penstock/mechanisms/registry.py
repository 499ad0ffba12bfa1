"""All mechanisms there are: a closed list, for nobody else's code may ever see rows.

A new one is a package here, and a line below. Nothing is looked up at run time: no entry point, no
variable of the environment, no folder. Who needs another list, as tests do, hands one to what
takes a registry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.base.checks import Checks, record, shown
from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.gibbs.mechanism import GIBBS
from penstock.mechanisms.maf.mechanism import MAF
from penstock.mechanisms.protocol import AnyMechanism, Mechanism, Settings
from penstock.mechanisms.sliced_wasserstein.mechanism import SLICED_WASSERSTEIN
from penstock.mechanisms.structured.mechanism import STRUCTURED
from penstock.mechanisms.trajectory.mechanism import TRAJECTORY


class Registry(Mapping[str, AnyMechanism]):
    """Mechanisms by name, in order. Nothing can be added to one that is made.

    Args:
        default: name of the one that a study has which names none.
    """

    __slots__ = ("_by_name", "_default")
    __eq__ = object.__eq__  # itself alone, so that it may be a part of what is hashed
    __hash__ = object.__hash__

    def __init__(self, *mechanisms: Mechanism[Any, Any], default: str) -> None:
        names = [mechanism.name for mechanism in mechanisms]
        if len(set(names)) < len(names):
            raise ValueError(f"mechanisms need names of their own: {names}")
        if default not in names:
            raise ValueError(f"the default is none of the mechanisms {names}: {default}")
        self._default = default
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
        """What a study has that names none."""
        return self[self._default]

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

        Raises:
            InvalidInput: with every problem; of another name, that one only.
        """
        if not isinstance(data, Mapping):
            raise InvalidInput("mechanism", [Problem("", "must be a table", value=shown(data))])
        check = Checks("mechanism")
        name = data.get("name", self._default)
        check.choice("name", name, self.names)
        check.done()
        rest = {key: value for key, value in data.items() if key != "name"}
        found: Settings = record(self[name].settings, rest, "mechanism")
        return found


MECHANISMS = Registry(MAF, SLICED_WASSERSTEIN, STRUCTURED, TRAJECTORY, GIBBS, default=MAF.name)
"""The closed list. A study, a gate and a worker know these, and no other."""
