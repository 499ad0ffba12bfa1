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

from penstock.checks import SITE, SITE_BOUND, Checks, nearest, record, shown, unknown_keys, within
from penstock.errors import InvalidInput, Problem
from penstock.schema import Column, Schema, read_columns

MODELS = {
    "ols": ("continuous", "integer"),
    "logistic": ("binary", "event"),
    "cox": ("duration",),
}
"""Models of an estimand, and the kinds of column that each takes as its outcome."""

COVARIATES = ("continuous", "integer", "binary", "ordered", "categorical")
GUARANTEES = ("formal", "public-flow", "empirical")
MECHANISMS = ("maf",)
SAMPLINGS = ("full", "poisson")
MAX_SITES = 1000
MAX_ESTIMANDS = 50

_PARTS = ("schema", "estimands", "privacy", "mechanism")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_WIRE = re.compile(r"(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Estimand:
    """A coefficient that the study estimates.

    Attributes:
        name: how the report calls it.
        model: ``ols``, ``logistic`` or ``cox``.
        outcome: a column; for cox the duration (its event column comes from the schema).
        term: the column whose coefficient is the estimand.
        per: the coefficient is reported per this many units of the term, > 0.
        adjust: adjustment columns.
        level: where the term is categorical, this level against the first one.

    Whether its columns exist and suit the model is checked by the :class:`Study`
    (:func:`estimand_problems`).

    Raises:
        InvalidInput: with every problem.
    """

    name: str
    model: str
    outcome: str
    term: str
    per: float = 1.0
    adjust: tuple[str, ...] = ()
    level: str | None = None

    def __post_init__(self) -> None:
        check = Checks(f"estimand {shown(self.name)}")
        check.pattern("name", self.name)
        check.choice("model", self.model, tuple(MODELS))
        check.pattern("outcome", self.outcome)
        check.pattern("term", self.term)
        check.keep(
            self, per=check.number("per", self.per, "above 0, at most 1e12", above=0, most=1e12)
        )
        if check.sequence("adjust", self.adjust, 0, 100) is not None:
            for name in self.adjust:
                check.pattern("adjust", name)
            check.distinct("adjust", self.adjust)
        if self.level is not None:
            check.text("level", self.level, 64)
        check.done()


@dataclass(frozen=True, slots=True)
class PrivacyRequest:
    """What the study may cost at each site, per person.

    Attributes:
        epsilon: > 0 and finite. With the guarantee ``empirical`` it is infinity, whatever was
            given: such a release is charged as ε = ∞ (null in the JSON form).
        delta: 1e-12 <= delta < 1.
        guarantee: ``formal``, ``public-flow`` or ``empirical``.

    Raises:
        InvalidInput: with every problem.
    """

    epsilon: float
    delta: float
    guarantee: str = "formal"

    def __post_init__(self) -> None:
        check = Checks("privacy")
        check.choice("guarantee", self.guarantee, GUARANTEES)
        if self.guarantee == "empirical" and self.epsilon in (None, math.inf):
            check.keep(self, epsilon=math.inf)
        elif check.number("epsilon", self.epsilon, "above 0 and finite", above=0) is not None:
            empirical = self.guarantee == "empirical"
            check.keep(self, epsilon=math.inf if empirical else float(self.epsilon))
        delta = check.number("delta", self.delta, "1e-12 <= delta < 1", least=1e-12, below=1)
        check.keep(self, delta=delta)
        check.done()


@dataclass(frozen=True, slots=True)
class Mechanism:
    """How a site makes its release; every number here is public and fixed in advance.

    Attributes:
        name: one of :data:`MECHANISMS`.
        copies: synthetic data sets per site, 1 to 100.
        refits: how often a site repeats its whole private procedure on rows of its released model,
            0 to 100, to show the mechanism's own noise; free of budget. 0: intervals lack it.
        w: share of the latent that is the person's own, 0 <= w < 1; 0 samples the flow.
        latent_clip: radius to which latents are clipped where w > 0.
        steps: training steps, 1 to 10000.
        sampling, rate: ``full`` batches (rate 1), or ``poisson`` with rate 0 < q <= 1.
        flows, hidden: layers of the flow, and the width of their hidden layers.

    Raises:
        InvalidInput: with every problem.
    """

    name: str = "maf"
    copies: int = 10
    w: float = 0.0
    latent_clip: float = 3.0
    steps: int = 300
    sampling: str = "full"
    rate: float = 1.0
    flows: int = 2
    hidden: tuple[int, ...] = (32,)
    refits: int = 10

    def __post_init__(self) -> None:
        check = Checks("mechanism")
        check.choice("name", self.name, MECHANISMS)
        check.whole("copies", self.copies, 1, 100)
        check.whole("refits", self.refits, 0, 100)
        clip = check.number(
            "latent_clip", self.latent_clip, "above 0, at most 100", above=0, most=100
        )
        rate = check.number("rate", self.rate, "above 0, at most 1", above=0, most=1)
        w = check.number("w", self.w, "0 <= w < 1", least=0, below=1)
        check.keep(self, w=w, latent_clip=clip, rate=rate)
        check.whole("steps", self.steps, 1, 10_000)
        check.choice("sampling", self.sampling, SAMPLINGS)
        if self.sampling == "full" and rate is not None and rate != 1:
            check.add(
                "rate",
                "is not 1 although every step uses all rows",
                value=shown(rate),
                remedy="Set sampling = 'poisson', or rate = 1",
            )
        check.whole("flows", self.flows, 1, 32)
        for width in check.sequence("hidden", self.hidden, 1, 4) or ():
            check.whole("hidden", width, 1, 1024)
        check.done()


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
        wire: the wire version that was signed.

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
    mechanism: Mechanism
    quorum: int
    deadline_hours: float
    not_before: str
    expires: str
    release: int = 1
    max_sites_per_person: int = 1
    wire: str = "1.0"

    def __post_init__(self) -> None:
        head = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _PARTS}
        check = Checks(f"study {shown(self.name)}")
        check.problems += _head_problems(head)
        parts = (
            isinstance(self.schema, Schema),
            isinstance(self.privacy, PrivacyRequest),
            isinstance(self.mechanism, Mechanism),
            isinstance(self.estimands, tuple)
            and all(isinstance(e, Estimand) for e in self.estimands),
        )
        if all(parts):
            numbered = list(enumerate(self.estimands, start=1))
            check.problems += _question_problems(numbered, self.schema.columns)
        else:
            check.add("", "schema, estimands, privacy or mechanism is of the wrong type")
        check.done()
        check.keep(self, deadline_hours=float(self.deadline_hours))

    def to_dict(self) -> dict[str, Any]:
        """The canonical JSON form; ε = ∞ (guarantee ``empirical``) is null."""
        data: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        data["sites"] = list(self.sites)
        data["schema"] = self.schema.to_dict()
        data["estimands"] = [_flat(e) for e in self.estimands]
        data["mechanism"] = _flat(self.mechanism)
        data["privacy"] = _flat(self.privacy)
        if self.privacy.epsilon == math.inf:
            data["privacy"]["epsilon"] = None
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Study:
        """Inverse of :meth:`to_dict`, for anything that was parsed from JSON.

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
        mechanism = _read("mechanism", Mechanism, data, problems)
        if problems or privacy is None or mechanism is None:  # None: its problems are listed
            raise InvalidInput(f"study {shown(data.get('name'))}", problems)
        return cls(
            **head,
            schema=Schema.from_dict(data["schema"]),
            estimands=tuple(e for _, e in estimands),
            privacy=privacy,
            mechanism=mechanism,
        )


def estimand_problems(
    estimand: Estimand, columns: Sequence[Column], broken: Collection[str] = ()
) -> list[Problem]:
    """Whether an estimand's columns exist and are of kinds that its model can use.

    Args:
        estimand: the estimand.
        columns: the study's columns.
        broken: names of columns that have problems of their own; nothing is said about them.
    """
    check = Checks(f"estimand {estimand.name!r}")
    known = {c.name: c for c in columns}
    _role(check, "outcome", estimand.outcome, known, broken, MODELS[estimand.model])
    term = _role(check, "term", estimand.term, known, broken, COVARIATES)
    for name in estimand.adjust:
        _role(check, "adjust", name, known, broken, COVARIATES)
    names = [estimand.outcome, estimand.term, *estimand.adjust]
    check.distinct("adjust" if estimand.outcome != estimand.term else "term", names)
    if term is not None:
        _check_term(check, estimand, term)
    return check.problems


def _check_term(check: Checks, estimand: Estimand, term: Column) -> None:
    if term.kind in ("categorical", "binary") and estimand.per != 1:
        check.add(
            "per", "has no meaning for a term with levels", value=shown(estimand.per), bound="1"
        )
    if term.kind != "categorical":
        if estimand.level is not None:
            check.add(
                "level", f"has no meaning for a term of kind {term.kind!r}", remedy="Remove it"
            )
        return
    if estimand.level not in term.levels[1:]:
        check.add(
            "level",
            "must be a level of the term other than its first",
            value=shown(estimand.level),
            bound=f"one of {', '.join(term.levels[1:])[:200]}",
        )


def _role(
    check: Checks,
    role: str,
    name: str,
    known: Mapping[str, Column],
    broken: Collection[str],
    kinds: Sequence[str],
) -> Column | None:
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


def parse_time(text: str) -> datetime:
    """An RFC 3339 time in UTC with whole seconds, as ``2026-11-21T00:00:00Z``.

    Raises:
        ValueError: it is anything else.
    """
    if not (isinstance(text, str) and _TIME.fullmatch(text)):
        raise ValueError("not a UTC time of the form 2026-11-21T00:00:00Z")
    return datetime.fromisoformat(text)


def _head_problems(head: Mapping[str, Any]) -> list[Problem]:
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


def _read(name: str, cls: type[T], data: Mapping[str, Any], problems: list[Problem]) -> T | None:
    """The part ``name`` of a study, or None after its problems were added."""
    if name not in data:
        return None  # absent: said already
    try:
        return record(cls, data[name], name)
    except InvalidInput as error:
        problems += within(name, error.problems)
        return None


def _flat(part: Estimand | PrivacyRequest | Mechanism) -> dict[str, Any]:
    values = {f.name: getattr(part, f.name) for f in fields(part)}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
