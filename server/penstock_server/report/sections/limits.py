"""What the numbers do and do not include."""

from __future__ import annotations

import math

from penstock.base.documents import Json
from penstock.mechanisms.registry import MECHANISMS
from penstock.mechanisms.released import SITES
from penstock.study.study import Study
from penstock_server.mechanisms.registry import kind_of
from penstock_server.report.inputs import ReportInputs
from penstock_server.report.section import Section


def _write(inputs: ReportInputs, report: Json) -> Json:
    known = any(math.isfinite(s.df) for site in inputs.measured for s in site.estimates.values())
    return {"limits": list_limits(inputs.study, mechanism_variance=known)}


_POOLED = (
    "The headline is of sites like these: a random-effects mean (REML, Hartung and Knapp's "
    "interval), in which precise sites weigh more. Where these have another effect than others, "
    "by more than chance has on average, its interval is wider. The mean with each site alike "
    "stands beside it.",
    "The fixed-effect line assumes one true effect in all sites, and that all noise is known. "
    "Its interval is too narrow where that fails. It is shown for comparison.",
    "The prediction interval says where the effect in a new, similar site would lie.",
)
_COMMON = (
    "There is one release of all sites, and one estimate of each question. Regressions have a "
    "baseline for each site (sites are strata) and one effect for all of them. "
)
_MEAN = (
    "where they do, the estimate is a mean over the sites that weighs each about as its rows tell"
)
_UNTOLD = (
    f"{_COMMON}How far effects differ between sites (heterogeneity) is not estimated: {_MEAN}, "
    "and nothing here says what a further site would show."
)
_TOLD = (
    f"{_COMMON}How far effects differ between sites (heterogeneity) is estimated of one step at "
    "each site, where noise lets it: of an effect that is far from the common one a step says "
    "too little, most of all of a hazard, and with few sites τ² is hardly known. Of the common "
    f"effect: {_MEAN}; the random-effects line is of sites. A regression of a subgroup, or beside "
    "another one of its outcome, is not told apart."
)
_JOINT = (
    "What is no regression, such as a mean, a share, a curve or a table, is of the rows of all "
    "sites together: a site with more rows counts for more.",
)


def tells_sites(study: Study) -> bool:
    """Whether the one release of all sites says how far they differ."""
    return SITES in MECHANISMS.of(study.mechanism).shape(study.asked, 1).names


def list_limits(study: Study, *, mechanism_variance: bool) -> list[str]:
    """What the numbers do and do not include, one statement each."""
    persons, joint = study.max_sites_per_person, study.aggregation.joint
    first, last = kind_of(study).list_limits(mechanism_variance=mechanism_variance)
    return [
        *first,
        *((_TOLD if tells_sites(study) else _UNTOLD, *_JOINT) if joint else _POOLED),
        "Privacy is counted per person. Two data sets are neighbours if one person's data is "
        "replaced by a null record; the number n of persons in the declared frame is public "
        "(zero-out). Replace-one values stand beside it because papers quote them: compare like "
        "with like only.",
        "Each person is assumed to be in one site only."
        if persons == 1
        else f"Each person is assumed to be in at most {persons} sites.",
        *last,
    ]


SECTION = Section("limits", _write)
