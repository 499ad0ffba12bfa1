"""Whose rows a release is of: each site's own, or those of all sites together.

Of a study of scope "global" there is one release. Sites add to its sums, and nobody sees a site's
own part (:mod:`penstock.mechanisms.joint`, :mod:`penstock.aggregation`). Who takes part, with how
many persons and by which key, is signed with the study: all of it follows from public facts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from penstock.base.checks import Checks, shown, unknown_keys
from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.joint.consortium import Consortium
from penstock.privacy.thresholds import count_sites

SITE, GLOBAL = "site", "global"
SCOPES = (SITE, GLOBAL)
EACH_WIRE, LEAST_WIRE = "1.2", "1.3"
"""With which a study is signed whose sites each make a release, so that sites of before answer it;
and the first in which they take steps together."""

_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Scope:
    """The table ``[aggregation]`` of a study; the empty one is not in a study's text.

    Attributes:
        scope: "site", each site a release of its own rows; or "global", one of all sites' rows.
        dropouts: t, how many sites may drop out; colluders: c, how many may tell the coordinator
            all they know.
        persons: of each site, the frame that it declared, by name.
        keys: of each site, its gate's Ed25519 key in hex, by name.

    Raises:
        InvalidInput: with every problem of the fields by themselves.
    """

    scope: str = SITE
    dropouts: int = 0
    colluders: int = 0
    persons: tuple[tuple[str, int], ...] = ()
    keys: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        check = Checks("aggregation")
        check.choice("scope", self.scope, SCOPES)
        check.whole("dropouts", self.dropouts, 0, 1000)
        check.whole("colluders", self.colluders, 0, 1000)
        for name, persons in self.persons:
            check.whole(f"persons.{name}", persons, 1, 10**9)
        for name, key in self.keys:
            check.pattern(f"keys.{name}", key, _KEY, "a gate's key: 64 hexadecimal digits")
        others = (self.dropouts, self.colluders, self.persons, self.keys)
        if self.scope == SITE and any(others):
            check.add("scope", "says site, and nothing else has a meaning then", bound=GLOBAL)
        check.keep(self, persons=tuple(sorted(self.persons)), keys=tuple(sorted(self.keys)))
        check.done()

    @property
    def joint(self) -> bool:
        """Whether there is one release of all sites."""
        return self.scope == GLOBAL

    def find_problems(self, sites: Sequence[str]) -> list[Problem]:
        """Whether it is of these sites, and has enough of them."""
        check = Checks("aggregation")
        if not self.joint:
            return []
        for field in ("persons", "keys"):
            named = dict[str, object](getattr(self, field))
            for name in sites:
                if name not in named:
                    remedy = "Take it from the site's join.json"
                    check.add(f"{field}.{name}", "is missing", remedy=remedy)
            for name in named:
                if name not in sites:
                    check.add(f"{field}.{name}", "is no site of the study")
        check.distinct("keys", [key for _, key in self.keys])
        least = count_sites(self.dropouts, self.colluders)
        if len(sites) < max(least, 2):
            check.add(
                "dropouts",
                "too few sites for these drop-outs and colluders",
                value=f"{len(sites)} sites, {self.dropouts} drop-outs, {self.colluders} colluders",
                bound=f"at least {max(least, 2)} sites",
                remedy="Allow for fewer drop-outs or colluders, or ask more sites",
            )
        return check.problems

    def gather(self, sites: Sequence[str]) -> Consortium:
        """The consortium of these sites, in the study's order."""
        persons = dict(self.persons)
        return Consortium(
            tuple(sites), tuple(persons[site] for site in sites), self.dropouts, self.colluders
        )

    def to_dict(self) -> Json:
        """The canonical JSON form; nothing where each site makes its own release."""
        if not self.joint:
            return {}
        return {
            "scope": self.scope,
            "dropouts": self.dropouts,
            "colluders": self.colluders,
            "persons": dict(self.persons),
            "keys": dict(self.keys),
        }

    @classmethod
    def from_dict(cls, data: object, sites: Sequence[object] = ()) -> Scope:
        """Inverse of :meth:`to_dict`.

        Args:
            sites: the study's, by whose number t and c are chosen where they are not said: 1 and
                1 where there are enough of them, else none that drops out.

        Raises:
            InvalidInput: with every problem, whose ``where`` is such as ``persons.north``.
        """
        if not isinstance(data, Mapping):
            problem = Problem("", "must be a table", value=shown(data))
            raise InvalidInput("aggregation", [problem])
        problems = unknown_keys(data, [f.name for f in fields(cls)])
        tables = {}
        for name in ("persons", "keys"):
            found = data.get(name, {})
            if not isinstance(found, Mapping):
                problems.append(Problem(name, "must be a table", value=shown(found)))
                found = {}
            tables[name] = tuple((str(key), value) for key, value in found.items())
        scope = data.get("scope", SITE)
        said = scope == GLOBAL
        dropouts, colluders = choose_tolerance(len(sites)) if said else (0, 0)
        try:
            made = cls(
                scope, data.get("dropouts", dropouts), data.get("colluders", colluders), **tables
            )
        except InvalidInput as error:
            raise InvalidInput("aggregation", [*problems, *error.problems]) from None
        if problems:
            raise InvalidInput("aggregation", problems)
        return made


def choose_tolerance(sites: int) -> tuple[int, int]:
    """(t, c) where a study does not say: one each, and no drop-out where sites are too few."""
    return (1 if sites >= count_sites(1, 1) else 0), 1


EACH = Scope()
"""Each site makes a release of its own rows."""
