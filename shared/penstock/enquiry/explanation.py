"""What explains how sites differ in an answer: numbers of sites, and groups of sites.

A *moderator* is one number of each site: the answer of its own copies to a question that compares
nothing, such as ``mean(age)``. Sites' answers are regressed on them
(:func:`penstock.inference.moderators.regress`: REML, Knapp and Hartung's errors floored at 1, each
site with the variance, and its degrees of freedom, that it is pooled with). Each moderator stands
about the mean of the sites that are used, so that the intercept is of a site with this mean.

That a moderator is known from synthetic tables alone is an error in a regressor, which pulls its
coefficient to 0: about by 1 − λ of it, λ the share that noise has of the moderator's variance
between sites (of one moderator; Fuller, Measurement Error Models, 1987, section 1.1). Noise is what
the mechanism and the drawing of copies add to the number of the site's own rows: T − ū of
:mod:`penstock.inference.combine` and :mod:`penstock.inference.refits`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.base.checks import Checks, nearest, shown
from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, Problem
from penstock.enquiry.figures import ENDS, LEVEL, tell_pooled
from penstock.enquiry.holdings import Holdings
from penstock.enquiry.shorthand import read_question
from penstock.inference.combine import SiteEstimate
from penstock.inference.headline import pool_sites
from penstock.inference.moderators import Regressed, compare_subgroups, regress
from penstock.telling.scales import LINKS, Link, ratio

NOISY = 0.1
"""A share of noise in a moderator's variance between sites, from which an answer warns."""

_CHANGES = {
    "plain": "difference",
    "log": "ratio of ratios",
    "logit": "odds ratio",
    "fisher": "difference of Fisher's z",
}
"""By scale, what answers that differ by one coefficient differ by."""

_ESTIMATED = (
    "Moderators are estimated from the same synthetic tables: noise in them pulls their "
    "coefficients to 0, and so does an effect that the tables hold in part."
)
_UNKNOWN = " Without refits it is not known how much noise is in them."


@dataclass(frozen=True, slots=True)
class Moderator:
    """One number of each site.

    Attributes:
        question: as it was asked.
        values: by site, of those that have one, as a reader is told it: a share, not its logit.
        noise: by site the variance that privacy and copies add to it, in squared units of values;
            None without refits.
    """

    question: str
    values: Mapping[str, float]
    noise: Mapping[str, float] | None


@dataclass(frozen=True, slots=True)
class Differences:
    """What is asked of how sites differ, checked: nothing by default."""

    moderators: tuple[Moderator, ...] = ()
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def read_differences(
    holdings: Holdings, moderators: Sequence[str], among: Mapping[str, Sequence[str]]
) -> Differences:
    """Moderators, measured at every site, and groups of sites.

    Args:
        moderators: questions that compare nothing; among: of each group its sites.

    Raises:
        InvalidInput: a question is none, or compares; a site is not there, or in two groups.
    """
    groups = {name: tuple(sites) for name, sites in among.items()}
    problems = _find_problems(groups, list(holdings.sites))
    if problems:
        raise InvalidInput("groups of sites", problems)
    asked = tuple(_measure_moderator(holdings, text) for text in dict.fromkeys(moderators))
    return Differences(asked, groups)


def explain(
    told: Json, asked: Differences, sites: Mapping[str, SiteEstimate], *, further: bool
) -> Json:
    """Of an answer (:func:`penstock.enquiry.reply.answer`) what moderators and groups say of how
    its sites differ: ``moderation`` and ``among``, each None where nothing was asked.

    Args:
        sites: those that it was pooled of; further: as it was pooled.

    Raises:
        InvalidInput: the answer is a total, of which sites are added up; there are not two sites
            more than coefficients; a moderator is the same everywhere, or follows from others.
    """
    if not asked.moderators and not asked.groups:
        return {"moderation": None, "among": None}
    where = f"question {shown(told['question'])}"
    if told["scale"] == "count":
        problem = Problem(
            "sites", "are added up", remedy="Ask for a share or a rate to compare sites"
        )
        raise InvalidInput(where, [problem])
    return {
        "moderation": _moderate(told, asked.moderators, where) if asked.moderators else None,
        "among": _compare(told, asked.groups, sites, where, further) if asked.groups else None,
    }


def _measure_moderator(holdings: Holdings, text: str) -> Moderator:
    estimand = read_question(text, holdings.study)[0]
    if estimand.regression.contrasts:
        remedy = "Ask for a number of rows: mean(x), share(x > 1), survival(time, 5)"
        problem = Problem("moderator", "compares rows", value=shown(text), remedy=remedy)
        raise InvalidInput("moderators", [problem])
    link = LINKS[estimand.regression.scale]
    good = {s: e for s, e in holdings.measure(estimand).items() if e.problem is None}
    values = {site: link.show(e.estimate) for site, e in good.items()}
    noise = None
    if holdings.study.mechanism.refits:
        noise = {site: _find_noise(e, link) for site, e in good.items()}
    return Moderator(text, values, noise)


def _find_noise(e: SiteEstimate, link: Link) -> float:
    """Of a total all of its variance is noise; else sampling of the site's rows is none."""
    error = math.sqrt(max(e.variance - (0.0 if e.total else e.within), 0.0))
    return ((link.show(e.estimate + error) - link.show(e.estimate - error)) / 2) ** 2


def _find_problems(groups: Mapping[str, Sequence[str]], known: Sequence[str]) -> list[Problem]:
    check = Checks("groups of sites")
    if len(groups) == 1:
        remedy = "Name a second group to compare it with"
        check.add("among", "one group only", value=shown(*groups), remedy=remedy)
    taken: dict[str, str] = {}
    for group, sites in groups.items():
        where = f"among {group}"
        if not sites:
            check.add(where, "has no sites")
        for site in sites:
            if site not in known:
                check.add(where, "is no site", value=shown(site), remedy=nearest(site, known))
            elif site in taken:
                bound = f"it is in {taken[site]}, too"
                check.add(where, "is named twice", value=shown(site), bound=bound)
            taken[site] = group
    return check.problems


def _moderate(told: Json, moderators: Sequence[Moderator], where: str) -> Json:
    used = [
        site
        for site in told["sites"]
        if site["problem"] is None and all(site["site"] in m.values for m in moderators)
    ]
    names = [site["site"] for site in used]
    _require_sites(len(used), 1 + len(moderators), where)
    values = np.array([[m.values[name] for name in names] for m in moderators])
    centres = values.mean(axis=1)
    same = [m.question for m, own in zip(moderators, values, strict=True) if np.ptp(own) == 0]
    if same:
        problems = [Problem(f"moderator {shown(text)}", "is the same everywhere") for text in same]
        raise InvalidInput(where, problems)
    columns = np.column_stack([np.ones(len(used)), (values - centres[:, None]).T])
    found = regress(*_take_sites(used), columns, level=LEVEL, degrees=_take_degrees(used))
    shares = [_share_noise(m, names) for m in moderators]
    link = LINKS[told["scale"]]
    change = ratio if link.name in ("log", "logit") else float
    rows = [_tell_coefficient(found, 0, "intercept", link.show) | {"centre": None, "noise": None}]
    for place, (m, centre, share) in enumerate(zip(moderators, centres, shares, strict=True), 1):
        own = {"centre": float(centre), "noise": share}
        rows.append(_tell_coefficient(found, place, m.question, change) | own)
    return {
        **_tell_left(found),
        "change": _CHANGES[told["scale"]],
        "coefficients": rows,
        "sites": [
            {"site": name, "moderators": [m.values[name] for m in moderators]} for name in names
        ],
        "left_out": [s["site"] for s in told["sites"] if s["site"] not in names],
        "text": _ESTIMATED + _warn(moderators, shares),
    }


def _compare(
    told: Json,
    groups: Mapping[str, Sequence[str]],
    estimates: Mapping[str, SiteEstimate],
    where: str,
    further: bool,
) -> Json:
    of = {site: group for group, sites in groups.items() for site in sites}
    used = [s for s in told["sites"] if s["problem"] is None and s["site"] in of]
    _require_sites(len(used), len({of[s["site"]] for s in used}), where)
    compared = compare_subgroups(
        *_take_sites(used),
        [of[s["site"]] for s in used],
        level=LEVEL,
        degrees=_take_degrees(used),
    )
    link = LINKS[told["scale"]]
    rows = []
    for group, sites in groups.items():
        names = [s["site"] for s in used if s["site"] in sites]
        own = [estimates[name] for name in names]
        found = pool_sites(
            own, total=False, joint=False, level=LEVEL, further=further, beside=False
        )
        head = found.get("random")
        problem = None if head is not None else "no site has an estimate"
        row: Json = {"group": group, "sites": names, "problem": problem}
        rows.append(row if head is None else row | tell_pooled(head, link))
    names = [s["site"] for s in used]
    return {
        "groups": rows,
        "test": None if compared is None else _tell_left(compared),
        "left_out": [s["site"] for s in told["sites"] if s["site"] not in names],
    }


def _require_sites(sites: int, coefficients: int, where: str) -> None:
    if sites > coefficients + 1:
        return
    problem = Problem(
        "sites",
        "are too few to say what explains how they differ",
        value=f"{sites} with an estimate, for {coefficients} coefficients",
        bound=f"at least {coefficients + 2}",
        remedy="Ask for fewer moderators or groups",
    )
    raise InvalidInput(where, [problem])


def _take_sites(used: Sequence[Json]) -> tuple[list[float], list[float]]:
    return [s["coefficient"]["estimate"] for s in used], [s["variance"] for s in used]


def _take_degrees(used: Sequence[Json]) -> list[float]:
    return [math.inf if s["df"] is None else s["df"] for s in used]


def _share_noise(moderator: Moderator, names: Sequence[str]) -> float | None:
    """What noise has of its variance between sites, at most 1; None where refits do not show it."""
    if moderator.noise is None:
        return None
    values: NDArray[np.float64] = np.array([moderator.values[name] for name in names])
    noise = float(np.mean([moderator.noise[name] for name in names]))
    return min(1.0, noise / float(values.var(ddof=1)))


def _warn(moderators: Sequence[Moderator], shares: Sequence[float | None]) -> str:
    if any(share is None for share in shares):
        return _UNKNOWN
    return "".join(
        f" Of how sites differ in {m.question} about {share:.0%} is noise, and its coefficient is "
        f"too near 0 by about as much."
        for m, share in zip(moderators, shares, strict=True)
        if share is not None and share > NOISY
    )


def _tell_coefficient(
    found: Regressed, place: int, name: str, show: Callable[[float], float]
) -> Json:
    ends = [getattr(found, part)[place] for part in ("coefficients", "low", "high")]
    return {
        "name": name,
        "se": found.errors[place],
        "p": found.p_values[place],
        "coefficient": dict(zip(ENDS, ends, strict=True)),
        "value": dict(zip(ENDS, map(show, ends), strict=True)),
    }


def _tell_left(found: Regressed) -> Json:
    """What columns leave between sites, and the test that they explain nothing."""
    return {
        "method": found.method,
        "test": found.test,
        "k": found.q_df + len(found.coefficients),
        "df": found.df,
        "tau2": found.tau2,
        "i2": found.i2,
        "r2": found.r2,
        "q": found.q,
        "q_df": found.q_df,
        "q_p": found.q_p,
        "f": found.moderator,
        "f_df": found.moderator_df,
        "p": found.moderator_p,
    }
