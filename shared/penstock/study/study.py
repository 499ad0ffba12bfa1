"""What an analyst asks of a federation: one frozen object with one canonical byte string.

A study that comes over the wire is hostile: :meth:`Study.from_dict` validates all of it and
refuses unknown keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from typing import Any, TypeVar

from penstock.base.checks import SITE, SITE_BOUND, Checks, record, shown, unknown_keys, within
from penstock.base.documents import Json, JsonView
from penstock.base.errors import InvalidInput, Problem
from penstock.base.times import parse_time
from penstock.mechanisms.joint.consortium import Consortium
from penstock.mechanisms.protocol import Asked, Following, Prospect, Settings, settings_to_dict
from penstock.mechanisms.registry import MECHANISMS, Registry
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.suitability import estimand_problems
from penstock.schema import Column, Schema, read_columns
from penstock.study.planning import NOTHING, Planning, planning_problems
from penstock.study.scope import BOTH, EACH, EACH_WIRE, LEAST_WIRE, Scope

MAX_SITES = 1000
MAX_ESTIMANDS = 50
MAX_READERS = 100
_PARTS = ("schema", "estimands", "privacy", "mechanism", "planning", "aggregation")
_WIRE = re.compile(r"(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Study:
    """A study: what is asked, of whom, at what cost, and until when.

    Attributes:
        name, federation: names; title: one line of text.
        sites: names of the sites that are asked, distinct.
        schema: the columns, without codes for "missing" (those are local to a site).
        estimands: what the report estimates; may be empty.
        privacy, mechanism: see there.
        quorum: the study finishes with at least so many sites, 1 to len(sites).
        deadline_hours: > 0, hours from the start to when the study closes.
        not_before, expires: RFC 3339 in UTC, whole seconds: ``2026-11-21T00:00:00Z``.
        release: index of the release, from 1.
        max_sites_per_person: in how many sites a person may be, at most; the report composes
            over it (a number above len(sites) is on the safe side).
        wire: the wire version that was signed; sites answer in none that came later.
        readers: accounts at the coordinator that may read the study and its results, besides the
            account that hands it in; distinct names.
        planning: what is expected of the sites' rows, for forecasts alone.
        aggregation: whether each site makes a release, or all of them one together.

    Raises:
        InvalidInput: with every problem.
    """

    name: str
    title: str
    federation: str
    sites: tuple[str, ...]
    schema: Schema
    estimands: tuple[Estimand, ...]
    privacy: PrivacyRequest
    mechanism: Settings
    quorum: int
    deadline_hours: float
    not_before: str
    expires: str
    release: int = 1
    max_sites_per_person: int = 1
    wire: str = EACH_WIRE
    readers: tuple[str, ...] = ()
    planning: Planning = NOTHING
    aggregation: Scope = EACH

    def __post_init__(self) -> None:
        head = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _PARTS}
        check = Checks(f"study {shown(self.name)}")
        check.problems += _head_problems(head)
        parts = (
            isinstance(self.schema, Schema),
            isinstance(self.privacy, PrivacyRequest),
            isinstance(self.mechanism, Settings),
            isinstance(self.planning, Planning),
            isinstance(self.aggregation, Scope),
            isinstance(self.estimands, tuple)
            and all(isinstance(e, Estimand) for e in self.estimands),
        )
        if all(parts):
            numbered = list(enumerate(self.estimands, start=1))
            check.problems += _question_problems(numbered, self.schema.columns)
            check.problems += _mechanism_problems(self)
            found = planning_problems(self.planning, self.schema.columns, self.estimands)
            check.problems += within("planning", found)
            check.problems += _scope_problems(self.aggregation, head)
            check.problems += _half_problems(self.aggregation, self.privacy)
        else:
            text = "schema, estimands, privacy, mechanism, planning or aggregation is of the "
            text += "wrong type"
            check.add("", text)
        check.done()
        check.keep(self, deadline_hours=float(self.deadline_hours))

    @property
    def consortium(self) -> Consortium | None:
        """Of one release of all sites: who they are. None where each site makes its own."""
        return self.aggregation.gather(self.sites) if self.aggregation.joint else None

    @property
    def asked(self) -> Asked[Settings]:
        """The parts of it that its mechanism has to know."""
        prospect = Prospect(self.planning.list_rarest(), self.planning.filled)
        apart_by = self.aggregation.find_split(self.schema.names)
        return Asked(self.mechanism, self.schema, self.privacy, self.estimands, prospect, apart_by)

    def to_dict(self) -> Json:
        """The canonical JSON form; ε = ∞ (guarantee ``empirical``) is null.

        A study without readers, planning values or aggregation has no such field: its bytes, and
        so its id and its signature, are those of a study from before there were any.
        """
        data: Json = {f.name: getattr(self, f.name) for f in fields(self)}
        data["sites"] = list(self.sites)
        data["readers"] = list(self.readers)
        if not self.readers:
            del data["readers"]
        data["planning"] = self.planning.to_dict()
        if not data["planning"]:
            del data["planning"]
        data["aggregation"] = self.aggregation.to_dict()
        if not data["aggregation"]:
            del data["aggregation"]
        data["schema"] = self.schema.to_dict()
        data["estimands"] = [e.to_dict() for e in self.estimands]
        data["mechanism"] = settings_to_dict(self.mechanism)
        data["privacy"] = _flat(self.privacy)
        if self.privacy.epsilon == math.inf:
            data["privacy"]["epsilon"] = None
        return data

    @classmethod
    def from_dict(cls, data: JsonView, mechanisms: Registry = MECHANISMS) -> Study:
        """Inverse of :meth:`to_dict`, for anything that was parsed from JSON.

        Args:
            mechanisms: those that it may name.

        Raises:
            InvalidInput: with every problem, whose ``where`` is a path such as
                ``schema.columns.age.lower`` or ``estimands[1].term``.
        """
        if not isinstance(data, Mapping):
            raise InvalidInput("study", [Problem("", "must be a table", value=shown(data))])
        problems = unknown_keys(data, [f.name for f in fields(cls)])
        head = {f.name: data.get(f.name, f.default) for f in fields(cls) if f.name not in _PARTS}
        absent = [f.name for f in fields(cls) if f.default is MISSING and f.name not in data]
        problems += [Problem(name, "is missing") for name in absent]
        head = {k: tuple(v) if isinstance(v, list) else v for k, v in head.items()}
        problems += [p for p in _head_problems(head) if p.where not in absent]
        columns, broken, found = read_columns(data.get("schema", {}))
        if "schema" in data:
            problems += within("schema", found)
        estimands = _read_estimands(data.get("estimands", []), problems)
        if columns or broken:
            problems += _question_problems(estimands, columns, broken)
        privacy = _read("privacy", PrivacyRequest, data, problems)
        mechanism = _read_mechanism(data, mechanisms, problems)
        planning = _read_planning(data, columns, broken, [e for _, e in estimands], problems)
        aggregation = _read_scope(data, head, problems)
        if problems or privacy is None or mechanism is None:  # None: its problems are listed
            raise InvalidInput(f"study {shown(data.get('name'))}", problems)
        return cls(
            **head,
            schema=Schema.from_dict(data["schema"]),
            estimands=tuple(e for _, e in estimands),
            privacy=privacy,
            mechanism=mechanism,
            planning=planning,
            aggregation=aggregation,
        )


def require_estimands(study: Study, what: str, remedy: str) -> None:
    """Refuse a study that asks nothing: sites would be charged for a report without an answer.

    A study without estimands is valid: its analyst may want what sites release, and no more. Only
    that has to be meant.

    Args:
        what: the study's file, or what else it is called where its problems are listed.
        remedy: how whoever means it says so.

    Raises:
        InvalidInput: there are none.
    """
    if not study.estimands:
        message = "there is none: sites would be charged, and the report would answer nothing"
        remedy = f"Add [[estimands]]; or {remedy}, if what sites release is all you want"
        raise InvalidInput(what, [Problem("estimands", message, remedy=remedy)])


def _head_problems(head: JsonView) -> list[Problem]:
    """Problems of a study's own fields, all but its parts."""
    check = Checks("study")
    for field in ("name", "federation"):
        check.pattern(field, head[field])
    check.text("title", head["title"])
    sites = check.sequence("sites", head["sites"], 1, MAX_SITES)
    for site in sites or ():
        check.pattern("sites", site, SITE, SITE_BOUND)
    check.distinct("sites", sites or ())
    count = len(sites) if sites is not None else MAX_SITES
    check.whole("quorum", head["quorum"], 1, count, "At most as many as there are sites")
    check.whole("max_sites_per_person", head["max_sites_per_person"], 1, MAX_SITES)
    check.number(
        "deadline_hours", head["deadline_hours"], "above 0, at most 8760", above=0, most=8760
    )
    check.whole("release", head["release"], 1, 1_000_000)
    check.pattern("wire", head["wire"], _WIRE, "major.minor, such as 1.0")
    readers = check.sequence("readers", head["readers"], 0, MAX_READERS)
    for reader in readers or ():
        check.pattern("readers", reader)
    check.distinct("readers", readers or ())
    start, end = (_time(check, field, head[field]) for field in ("not_before", "expires"))
    if start is not None and end is not None and not start < end:
        check.add(
            "expires",
            "is not after not_before",
            value=shown(head["expires"]),
            bound=f"after {head['not_before']}",
        )
    return check.problems


def _time(check: Checks, field: str, value: Any) -> datetime | None:
    try:
        return parse_time(value)
    except ValueError:
        bound = "a UTC time of the form 2026-11-21T00:00:00Z"
        check.add(field, "is not a time", value=shown(value), bound=bound)
        return None


def _question_problems(
    estimands: Sequence[tuple[int, Estimand]],
    columns: Sequence[Column],
    broken: Collection[str] = (),
) -> list[Problem]:
    """Problems of numbered estimands and of codes for "missing", given the sound columns."""
    check = Checks("study")
    if len(estimands) > MAX_ESTIMANDS:
        bound = f"at most {MAX_ESTIMANDS}"
        check.add("estimands", "are too many", value=str(len(estimands)), bound=bound)
    check.distinct("estimands", [e.name for _, e in estimands])
    for i, estimand in estimands[:MAX_ESTIMANDS]:
        found = estimand_problems(estimand, columns, broken)
        check.problems += within(f"estimands[{i}]", found)
    for column in columns:
        if column.missing:
            check.add(
                f"schema.columns.{column.name}.missing",
                "codes for missing values are local to a site's dictionary",
                remedy="Remove them from the study",
            )
    return check.problems


def _mechanism_problems(study: Study) -> list[Problem]:
    """What the mechanism cannot do of what is asked."""
    over = [(i, e) for i, e in enumerate(study.estimands, start=1) if e.over_time]
    if over and not isinstance(study.mechanism, Following):
        what = f"is of persons over time, whom {study.mechanism.name} does not follow"
        others = [m.name for m in MECHANISMS.values() if issubclass(m.settings, Following)]
        remedy = f"Set mechanism.name to {' or '.join(others)}"
        return [
            Problem(f"estimands[{i}].model", what, value=e.model, remedy=remedy) for i, e in over
        ]
    plain = tuple(e for e in study.estimands if not e.over_time)
    found = within("mechanism", study.mechanism.problems(study.schema, plain))
    if over and not found and isinstance(study.mechanism, Following):
        for i, estimand in over:
            asked = study.mechanism.problems_over_time(study.schema, estimand)
            found += within(f"estimands[{i}]", asked)
    return found


def _read_estimands(data: object, problems: list[Problem]) -> list[tuple[int, Estimand]]:
    if not isinstance(data, list):
        problems.append(Problem("estimands", "must be a list", value=shown(data)))
        return []
    found: list[tuple[int, Estimand]] = []
    for i, item in enumerate(data[: MAX_ESTIMANDS + 1], start=1):
        estimand = _read(f"estimands[{i}]", Estimand, {f"estimands[{i}]": item}, problems)
        if estimand is not None:
            found.append((i, estimand))
    return found


def _read(name: str, cls: type[T], data: JsonView, problems: list[Problem]) -> T | None:
    """The part ``name`` of a study, or None after its problems were added."""
    if name not in data:
        return None  # absent: said already
    try:
        return record(cls, data[name], name)
    except InvalidInput as error:
        problems += within(name, error.problems)
        return None


def _read_mechanism(
    data: JsonView, mechanisms: Registry, problems: list[Problem]
) -> Settings | None:
    if "mechanism" not in data:
        return None  # absent: said already
    try:
        return mechanisms.read(data["mechanism"])
    except InvalidInput as error:
        problems += within("mechanism", error.problems)
        return None


def _read_planning(
    data: JsonView,
    columns: Sequence[Column],
    broken: Collection[str],
    estimands: Sequence[Estimand],
    problems: list[Problem],
) -> Planning:
    try:
        found = Planning.from_dict(data.get("planning", {}))
    except InvalidInput as error:
        problems += within("planning", error.problems)
        return NOTHING
    if not broken:  # else what is said of a broken column would be called unknown
        # So would the effect of an estimand that could not be read, whose own problem is listed.
        unread = {f"effects.{name}" for name in _list_names(data)} - {
            f"effects.{e.name}" for e in estimands
        }
        said = planning_problems(found, columns, estimands)
        problems += within("planning", (p for p in said if p.where not in unread))
    return found


def _list_names(data: JsonView) -> list[object]:
    """What all estimands are called, sound or not."""
    items = data.get("estimands")
    named = items if isinstance(items, list) else []
    return [item.get("name") for item in named if isinstance(item, Mapping)]


def _read_scope(data: JsonView, head: JsonView, problems: list[Problem]) -> Scope:
    sites = head["sites"] if isinstance(head["sites"], tuple) else ()
    try:
        found = Scope.from_dict(data.get("aggregation", {}), sites)
    except InvalidInput as error:
        problems += within("aggregation", error.problems)
        return EACH
    problems += _scope_problems(found, head)
    return found


def _scope_problems(scope: Scope, head: JsonView) -> list[Problem]:
    """Whether a scope suits the study's sites and its wire version."""
    sites, wire = head["sites"], head["wire"]
    named = isinstance(sites, tuple) and all(isinstance(site, str) for site in sites)
    found = within("aggregation", scope.find_problems(sites) if named else [])
    if scope.adds and isinstance(wire, str) and _WIRE.fullmatch(wire):
        number = tuple(map(int, wire.split(".")))
        if number < tuple(map(int, LEAST_WIRE.split("."))):
            bound = f"{LEAST_WIRE} or newer, for sites that add up"
            found.append(Problem("wire", "is too old", value=wire, bound=bound))
    return found


def _half_problems(scope: Scope, privacy: PrivacyRequest) -> list[Problem]:
    """Whether what a half of a study costs is a part of what the whole does."""
    check = Checks("study")
    if (scope.halved or scope.scope == BOTH) and privacy.guarantee != "formal":
        text = "is none of sums, and a study of both asks for them"
        check.add("privacy.guarantee", text, value=privacy.guarantee, bound="formal")
    elif scope.whole is not None and not privacy.epsilon < scope.whole:
        bound = f"below {scope.whole:g}, which is the whole study's"
        check.add("privacy.epsilon", "is not a half's", value=f"{privacy.epsilon:g}", bound=bound)
    return check.problems


def _flat(part: PrivacyRequest) -> Json:
    values = {f.name: getattr(part, f.name) for f in fields(part)}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
