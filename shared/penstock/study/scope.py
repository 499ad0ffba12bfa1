"""Whose rows a release is of: each site's own, or those of all sites together.

Of a study of scope "global" there is one release. Sites add to its sums, and nobody sees a site's
own part (:mod:`penstock.mechanisms.joint`, :mod:`penstock.aggregation`). Who takes part, with how
many persons and by which key, is signed with the study: all of it follows from public facts.

A study of scope "both" asks for either. It is signed as two studies, its halves, of scopes "site"
and "global": each says what all of the study may cost and what the other half does
(:mod:`penstock.study.halves`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from penstock.base.checks import Checks, shown, unknown_keys
from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.joint.consortium import LOCAL, MAX_SITES, NOISES, SHARED, Consortium
from penstock.mechanisms.joint.consortium import SITE as SITE_COLUMN
from penstock.privacy.thresholds import count_sites

SITE, GLOBAL, BOTH = "site", "global", "both"
SCOPES = (SITE, GLOBAL, BOTH)
SHARE = 0.5
"""What the one release of all sites has of the budget of a study of both, unless it says."""
EACH_WIRE, LEAST_WIRE = "1.2", "1.3"
"""With which a study is signed whose sites each make a release, so that sites of before answer it;
and the first in which they take steps together."""

_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Scope:
    """The table ``[aggregation]`` of a study; the empty one is not in a study's text.

    Attributes:
        scope: "site", each site a release of its own rows; "global", one of all sites' rows; or
            "both", of which the study has two halves, one of either scope.
        dropouts: t, how many sites may drop out; colluders: c, how many may tell the coordinator
            all they know.
        persons: of each site, the frame that it declared, by name.
        keys: of each site, its gate's Ed25519 key in hex, by name.
        noise: "shared", each site adds a share of it, and ε rests on S - t - c of them; or "local",
            each adds all of it, and ε rests on nobody else.
        heterogeneity: whether `scoring` asks in one round more how far coefficients differ between
            sites; else all of its budget is for those of all sites.
        share: of "both" alone: what the one release has of the budget, in ρ, above 0, below 1.
        whole, other: of a half alone: ε of the whole study, and ε of its other half.

    Raises:
        InvalidInput: with every problem of the fields by themselves.
    """

    scope: str = SITE
    dropouts: int = 0
    colluders: int = 0
    persons: tuple[tuple[str, int], ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    noise: str = SHARED
    heterogeneity: bool = True
    share: float | None = None
    whole: float | None = None
    other: float | None = None

    def __post_init__(self) -> None:
        check = Checks("aggregation")
        check.choice("scope", self.scope, SCOPES)
        check.choice("noise", self.noise, NOISES)
        check.whole("dropouts", self.dropouts, 0, 1000)
        check.whole("colluders", self.colluders, 0, 1000)
        for name, persons in self.persons:
            check.whole(f"persons.{name}", persons, 1, 10**9)
        for name, key in self.keys:
            check.pattern(f"keys.{name}", key, _KEY, "a gate's key: 64 hexadecimal digits")
        if not isinstance(self.heterogeneity, bool):
            check.add("heterogeneity", "must be true or false", value=shown(self.heterogeneity))
        others = (
            *(self.dropouts, self.colluders, self.persons, self.keys),
            *(self.noise != SHARED, self.heterogeneity is not True),
        )
        check.problems += self._find_budget_problems()
        if self.scope == SITE and not self.halved and any(others):
            check.add("scope", "says site, and nothing else has a meaning then", bound=GLOBAL)
        check.keep(self, persons=tuple(sorted(self.persons)), keys=tuple(sorted(self.keys)))
        check.done()

    def _find_budget_problems(self) -> list[Problem]:
        """Whether it says how a budget is shared where, and only where, one is."""
        check = Checks("aggregation")
        if self.scope == BOTH:
            share = SHARE if self.share is None else self.share
            check.number("share", share, "above 0, below 1", above=0, below=1)
            check.keep(self, share=share)
        elif self.share is not None:
            check.add("share", "has a meaning where a study asks for both alone", bound=BOTH)
        for name in ("whole", "other"):
            if (value := getattr(self, name)) is not None:
                check.number(name, value, "above 0 and finite", above=0)
        if (self.whole is None) != (self.other is None) or (self.halved and self.scope == BOTH):
            text = "of a half of a study, whole and other are said together"
            check.add("whole", text, remedy="Say neither: submitting a study halves it")
        elif self.whole is not None and self.other is not None and not check.problems:
            if not self.other < self.whole:
                check.add("other", "is not below the whole study's", bound=f"{self.whole:g}")
        return check.problems

    @property
    def joint(self) -> bool:
        """Whether there is one release of all sites."""
        return self.scope == GLOBAL

    @property
    def halved(self) -> bool:
        """Whether it is of a half of a study of both."""
        return self.whole is not None

    @property
    def adds(self) -> bool:
        """Whether its study's sites add up, in this half of it or in the other."""
        return self.scope != SITE or self.halved

    def find_problems(self, sites: Sequence[str]) -> list[Problem]:
        """Whether it is of these sites, and has enough of them."""
        if not self.adds:
            return []
        named = {"persons": dict[str, object](self.persons), "keys": dict[str, object](self.keys)}
        found = _find_unknown(named, sites)
        return found + _find_excess(sites, self.dropouts, self.colluders, self.noise)

    def find_split(self, columns: Sequence[str]) -> str:
        """The column by which coefficients are told apart, too: that of sites, where a release of
        all of them has these columns, and their heterogeneity is asked for; else none."""
        asked = self.joint and self.heterogeneity and SITE_COLUMN in columns
        return SITE_COLUMN if asked else ""

    def gather(self, sites: Sequence[str]) -> Consortium:
        """The consortium of these sites, in the study's order."""
        persons = dict(self.persons)
        return Consortium(
            tuple(sites),
            tuple(persons[site] for site in sites),
            self.dropouts,
            self.colluders,
            self.noise,
            self.heterogeneity,
        )

    def to_dict(self) -> Json:
        """The canonical JSON form; nothing where each site makes its own release."""
        if not self.adds:
            return {}
        return {
            "scope": self.scope,
            "dropouts": self.dropouts,
            "colluders": self.colluders,
            # A study of shared noise has the bytes that it had before there was another.
            **({} if self.noise == SHARED else {"noise": self.noise}),
            **({} if self.heterogeneity else {"heterogeneity": False}),
            **({} if self.share is None else {"share": self.share}),
            **({} if self.whole is None else {"whole": self.whole, "other": self.other}),
            "persons": dict(self.persons),
            "keys": dict(self.keys),
        }

    @classmethod
    def from_dict(cls, data: object, sites: Sequence[object] = ()) -> Scope:
        """Inverse of :meth:`to_dict`.

        Args:
            sites: the study's, by whose number t and c are chosen where they are not said
                (:func:`choose_tolerance`).

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
        noise = data.get("noise", SHARED)
        adds = scope in (GLOBAL, BOTH)
        dropouts, colluders = choose_tolerance(len(sites), noise) if adds else (0, 0)
        try:
            made = cls(
                scope,
                data.get("dropouts", dropouts),
                data.get("colluders", colluders),
                tables["persons"],
                tables["keys"],
                noise=noise,
                heterogeneity=data.get("heterogeneity", True),
                share=data.get("share"),
                whole=data.get("whole"),
                other=data.get("other"),
            )
        except InvalidInput as error:
            problems += error.problems
            if adds:  # what is wrong of the fields together is said at once, too
                names = [str(site) for site in sites]
                problems += _find_unknown({name: dict(tables[name]) for name in tables}, names)
                counts = (data.get("dropouts", dropouts), data.get("colluders", colluders))
                if all(type(count) is int and 0 <= count <= 1000 for count in counts):
                    problems += _find_excess(names, *counts, str(noise))
            raise InvalidInput("aggregation", problems) from None
        if problems:
            raise InvalidInput("aggregation", problems)
        return made


def choose_tolerance(sites: int, noise: object = SHARED) -> tuple[int, int]:
    """(t, c) where a study does not say: one each, and no drop-out where sites are too few. Of
    local noise c = 0: nothing rests on who colludes."""
    colluders = 0 if noise == LOCAL else 1
    return (1 if sites >= count_sites(1, colluders) else 0), colluders


def _find_unknown(named: Mapping[str, Mapping[str, object]], sites: Sequence[str]) -> list[Problem]:
    """Sites of which a table says nothing, what it says of others, and keys that two share."""
    check = Checks("aggregation")
    for field, said in named.items():
        for name in sites:
            if name not in said:
                check.add(
                    f"{field}.{name}", "is missing", remedy="Take it from the site's join.json"
                )
        for name in said:
            if name not in sites:
                check.add(f"{field}.{name}", "is no site of the study")
    check.distinct("keys", named["keys"].values())
    return check.problems


def _find_excess(sites: Sequence[str], dropouts: int, colluders: int, noise: str) -> list[Problem]:
    """Too few sites for what is asked of them, or more than a release can tell apart."""
    check, least = Checks("aggregation"), max(count_sites(dropouts, colluders), 2)
    if len(sites) > MAX_SITES:
        check.add(
            "scope",
            "too many sites for one release, of which each row says of which site it is",
            value=f"{len(sites)} sites",
            bound=f"at most {MAX_SITES} sites",
            remedy="Ask fewer sites, or each for a release of its own: scope = 'site'",
        )
    if len(sites) < least:
        check.add(
            "dropouts",
            "too few sites for these drop-outs and colluders",
            value=f"{len(sites)} sites, {dropouts} drop-outs, {colluders} colluders",
            bound=f"at least {least} sites",
            remedy=_advise_fewer(len(sites), noise),
        )
    return check.problems


def _advise_fewer(sites: int, noise: str) -> str:
    """What so many sites do allow for."""
    dropouts, colluders = choose_tolerance(sites, noise)
    if sites < max(count_sites(dropouts, colluders), 2):
        return "Ask more sites"
    return f"Ask more sites; or say dropouts = {dropouts}, colluders = {colluders}"


EACH = Scope()
"""Each site makes a release of its own rows."""
