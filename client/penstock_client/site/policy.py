"""What a site answers: the steward's policy, and what breaks its rules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.base.checks import Checks, unknown_keys, within
from penstock.mechanisms.joint.promise import ALONE_TIMES, ROUND_SECONDS
from penstock.mechanisms.registry import MECHANISMS, Registry
from penstock.privacy.request import DELTA_TIMES_PERSONS, GUARANTEES
from penstock.wire.messages import RefusalCode
from penstock_client.site.site_settings import read_toml

_TEMPLATE = """\
# What this site answers. The gate reads this file at every decision.

# Mechanisms that may run here. This file begins with one of {of}, so that nothing runs here that
# nobody thought of: a study that asks for another is refused, and its analyst is told which are
# allowed. To allow more, add their names: mechanisms = ["{one}", "{more}"]. What a release costs is
# decided by ε, whatever the mechanism; they differ in what leaves:
{all}
mechanisms = ["{one}"]

# Guarantee classes that may leave.
# "empirical" releases have NO formal guarantee and end the data set's formal budget for good.
guarantees = ["formal"]

# "automatic": a study within all limits runs at once; "by-hand": the steward approves each one.
approval = "by-hand"

# A steward's "no": "told", or "silent": it looks like no answer until the study's deadline.
reject = "told"

[limits]
study_epsilon = 3.0      # the most one study may cost
study_delta = 1e-5
total_epsilon = 10.0     # the most the data set may ever cost, over all studies and signers
total_delta = 1e-5       # well below 1/n: 1/(10 n) is a common choice
# yearly_epsilon = 5.0   # the most it may cost in one calendar year (UTC), within the total
least_epsilon = 0.05     # the least one release may cost: many cheap ones are many looks
# The most that δ times the number of persons may be, for any study: δ is at most 1/(10 n).
# delta_times_persons = 0.1
# One release of many sites (a study's `[aggregation] scope = "global"`) is made of sums, to which
# each site adds a share of the noise. Its ε rests on the other sites: enough of them tell nobody
# what noise they added. Beside it the ledger has the ε of this site's own noise, if all others told
# the coordinator all they know. This is the most which that may be; five times study_epsilon, if it
# is not said. The more sites, the larger it is: of ε = 3, four sites have 4.4, and twelve 11.5.
# Where a study says noise = "local" nothing rests on others, and it is ε itself.
# alone_epsilon = 15.0

[time]
# A run's end shows outside when the time that was planned for it is over, and not before; so does
# the start of the next. Planned times are whole numbers of slots: the longer, the less of a run's
# true length, which may depend on rows, can ever be seen.
slot_seconds = 60
# The same of one round of a release of many sites, which has some ten to fifty of them, one after
# the other: what a round takes shows in whole numbers of these.
# round_seconds = {round_seconds:g}
"""
DEFAULT_SLOT = 60.0


@dataclass(frozen=True, slots=True)
class Breach:
    """A rule of the policy that is not kept.

    Attributes:
        code: of the refusal.
        allowed: what the policy allows instead.
    """

    code: RefusalCode
    allowed: str


_NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def policy_template(mechanisms: Registry = MECHANISMS) -> str:
    """A policy to begin with: the default mechanism alone, and what leaves by each."""
    by_what: dict[str, list[str]] = {}
    for mechanism in mechanisms.values():
        by_what.setdefault(mechanism.leaves, []).append(f'"{mechanism.name}"')
    names = {what: ", ".join(found) for what, found in by_what.items()}
    width = max(map(len, names.values()))
    return _TEMPLATE.format(
        of=_NUMBERS[len(mechanisms)],
        round_seconds=ROUND_SECONDS,
        one=mechanisms.default.name,
        more=next(name for name in reversed(mechanisms.names) if name != mechanisms.default.name),
        all="\n".join(f"#   {found:<{width}}   {what}" for what, found in names.items()),
    )


TEMPLATE = policy_template()


@dataclass(frozen=True, slots=True)
class Policy:
    """``policy.toml``: (ε, δ) under zero-out with public n.

    Attributes:
        yearly_epsilon: the most a calendar year may cost (UTC); None for no such limit.
        least_epsilon: the least a release may cost.
        alone_epsilon: the most a release of many sites may cost if all others collude; None for
            :data:`~penstock.mechanisms.joint.promise.ALONE_TIMES` times ``study_epsilon``.
        slot_seconds: planned times are whole numbers of these.
        round_seconds: the same of one round of a release of many sites.
        delta_times_persons: the most that a study's δ times n may be: δ is the chance that
            anything at all is told of a person, and there are n of them.
    """

    mechanisms: tuple[str, ...]
    guarantees: tuple[str, ...]
    approval: str
    study_epsilon: float
    study_delta: float
    total_epsilon: float
    total_delta: float
    reject: str = "told"
    yearly_epsilon: float | None = None
    least_epsilon: float = 0.05
    slot_seconds: float = DEFAULT_SLOT
    delta_times_persons: float = DELTA_TIMES_PERSONS
    alone_epsilon: float | None = None
    round_seconds: float = ROUND_SECONDS

    @property
    def largest_alone(self) -> float:
        """The ε that a release of many sites may cost at most if all others collude.

        Where it is not said: of ε = 3, twelve sites of which one may drop out and one collude come
        to 11.5 if all others collude, and thirty to 22.1, which is refused. There a promise rests
        on the other sites almost alone.
        """
        if self.alone_epsilon is None:
            return ALONE_TIMES * self.study_epsilon
        return self.alone_epsilon

    def largest_delta(self, persons: int) -> float:
        """The δ that a study of ``persons`` persons may ask for at most."""
        return self.delta_times_persons / persons

    @property
    def smallest_epsilon(self) -> float:
        """The ε that a study must ask for at least."""
        return min(self.least_epsilon, self.study_epsilon)

    def find_kind_breaches(self, mechanism: str | None, guarantee: str) -> Iterator[Breach]:
        """What the policy has against a kind of release; None: a number that no study can ask."""
        if mechanism is not None and mechanism not in self.mechanisms:
            yield Breach("mechanism", ", ".join(self.mechanisms))
        if guarantee not in self.guarantees:
            yield Breach("guarantee", ", ".join(self.guarantees))

    def find_budget_breaches(
        self, epsilon: float, delta: float, guarantee: str, persons: int
    ) -> Iterator[Breach]:
        """What the policy has against the ε and δ that one study asks for.

        Args:
            persons: the public n.
        """
        largest = self.largest_delta(persons)
        if not delta <= largest * (1 + 1e-9):
            yield Breach("delta", f"at most {largest:.3g} of {persons} persons")
        if delta > self.study_delta:
            yield Breach("study-budget", f"δ at most {self.study_delta:g}")
        if guarantee != "empirical" and epsilon > self.study_epsilon:
            yield Breach("study-budget", f"ε at most {self.study_epsilon:g}")
        if epsilon < self.smallest_epsilon:
            yield Breach("least-epsilon", f"ε at least {self.smallest_epsilon:g}")

    def find_alone_breaches(self, alone: float) -> Iterator[Breach]:
        """What the policy has against the ε that a release of many sites costs if all others
        collude.

        Args:
            alone: 0 where the site's noise is all its own, and nothing rests on others.
        """
        if not alone <= self.largest_alone:
            yield Breach("alone", f"ε at most {self.largest_alone:.3g}, and it is {alone:.3g}")


_TOP = ("mechanisms", "guarantees", "approval", "reject", "limits", "time")
_LIMITS = ("study_epsilon", "study_delta", "total_epsilon", "total_delta")
_OPTIONAL = ("least_epsilon", "yearly_epsilon", "delta_times_persons", "alone_epsilon")

_RETIRED_TOP, _RETIRED_LIMITS = ("strata",), ("approximate_delta",)
"""Keys of earlier versions, which no mechanism made use of: a file that has them is read, and they
have no effect. A data set that began with them keeps what its ledger says."""


def find_retired(path: Path) -> list[tuple[str, int]]:
    """The keys of a policy that have no effect any more, each with its line; in its order.

    Raises:
        InvalidInput: missing file, or not TOML.
    """
    values, lines = read_toml(path)
    limits = values.get("limits")
    given = [key for key in values if key in _RETIRED_TOP]
    if isinstance(limits, dict):
        given += [f"limits.{key}" for key in limits if key in _RETIRED_LIMITS]
    return sorted(((key, lines[key] or 1) for key in given), key=lambda found: found[1])


def read_policy(path: Path, mechanisms: Registry = MECHANISMS) -> Policy:
    """Parse the policy, all problems at once.

    Args:
        mechanisms: those that it may name.

    Raises:
        InvalidInput: missing file, unknown or missing keys, or values out of their domain, each
            with its line.
    """
    values, lines = read_toml(path)
    check = Checks(str(path))
    check.problems += unknown_keys(values, (*_TOP, *_RETIRED_TOP))
    for name, known in (("mechanisms", mechanisms.names), ("guarantees", GUARANTEES)):
        _check_list(check, name, values.get(name), known)
    if "approval" in values:
        check.choice("approval", values["approval"], ("automatic", "by-hand"))
    else:
        check.add("approval", "is missing", bound="automatic or by-hand")
    check.choice("reject", values.get("reject", "told"), ("told", "silent"))
    limits = _check_limits(check, values.get("limits"))
    times = _check_times(check, values.get("time", {}))
    check.problems = lines.locate(check.problems)
    check.done()
    return Policy(
        mechanisms=tuple(values["mechanisms"]),
        guarantees=tuple(values["guarantees"]),
        approval=values["approval"],
        reject=values.get("reject", "told"),
        **times,
        **limits,
    )


def _check_list(check: Checks, name: str, value: object, known: tuple[str, ...]) -> None:
    if not isinstance(value, list) or not value:
        check.add(name, "is missing or not a list", bound=f"a list of {', '.join(known)}")
        return
    for index, item in enumerate(value, start=1):
        check.choice(f"{name}[{index}]", item, known)


def _check_limits(check: Checks, table: object) -> dict[str, float]:
    if not isinstance(table, dict):
        check.add("limits", "is missing or not a table", remedy="Add [limits]")
        return {}
    known = (*_LIMITS, *_OPTIONAL, *_RETIRED_LIMITS)
    check.problems += within("limits", unknown_keys(table, known))
    found: dict[str, float] = {}
    for name in (*_LIMITS, *_OPTIONAL):
        where = f"limits.{name}"
        if name not in table:
            if name in _LIMITS:
                check.add(where, "is missing")
            continue
        if name == "delta_times_persons":
            number = check.number(where, table[name], "0 < δ·n <= 1", above=0, most=1)
        elif name.endswith("delta"):
            number = check.number(where, table[name], "1e-12 <= δ < 1", least=1e-12, below=1)
        else:
            number = check.number(where, table[name], "a finite number above 0", above=0)
        if number is not None:
            found[name] = number
    _check_together(check, found)
    return found


def _check_together(check: Checks, found: Mapping[str, float]) -> None:
    """What each limit is beside the others; those that are wrong by themselves are not here."""
    total, yearly = found.get("total_epsilon", math.inf), found.get("yearly_epsilon", math.inf)
    if found.get("least_epsilon", 0.0) > found.get("study_epsilon", math.inf):
        check.add(
            "limits.least_epsilon",
            "leaves no room for a study",
            value=f"{found['least_epsilon']:g}",
            bound=f"at most study_epsilon, {found['study_epsilon']:g}",
        )
    for name in ("study_epsilon", "yearly_epsilon"):
        if found.get(name, 0.0) > total:
            check.add(
                f"limits.{name}",
                "is above what the data set may ever cost",
                value=f"{found[name]:g}",
                bound=f"at most total_epsilon, {total:g}",
            )
    if found.get("study_epsilon", 0.0) > yearly:
        check.add(
            "limits.yearly_epsilon",
            "leaves no room for a study",
            value=f"{yearly:g}",
            bound=f"at least study_epsilon, {found['study_epsilon']:g}",
        )


_TIMES = ("slot_seconds", "round_seconds")


def _check_times(check: Checks, table: object) -> dict[str, float]:
    if not isinstance(table, dict):
        check.add("time", "is not a table", remedy="Write [time]")
        return {}
    check.problems += within("time", unknown_keys(table, _TIMES))
    found: dict[str, float] = {}
    for name in _TIMES:
        if name in table:
            where = f"time.{name}"
            number = check.number(where, table[name], "0.1 to 86400", least=0.1, most=86_400)
            found |= {} if number is None else {name: number}
    return found
