"""What tables or answers hold of an effect, in words and numbers: of sites, and of what they say
together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from penstock.base.documents import Json
from penstock.inference.doubts import mark_doubt, pool_doubts
from penstock.inference.overlap import MOST
from penstock.inference.slopes import Mark, Slope, pool_slopes
from penstock.telling.axis import number_text

_WORDS = {
    Mark.HELD: "held",
    Mark.ATTENUATED: "attenuated",
    Mark.UNSUPPORTED: "not held",
    Mark.UNRESOLVED: "not known",
}
_COARSE = (
    "Not held: of {}, nearly all values lie in one of the even cells that sites count, and what "
    "lies within a cell is not in the tables. A `scale`, a `spike` or narrower bounds in the "
    "dictionary would show it. An estimate near none is not evidence of none."
)
_MEANS = {
    Mark.HELD: "",
    Mark.ATTENUATED: " The tables show such an effect smaller than it is, and the estimate is "
    "corrected by no more of it than refits show beyond chance.",
    Mark.UNSUPPORTED: " The tables do not hold such an effect. An estimate near none is not "
    "evidence of none.",
    Mark.UNRESOLVED: " That is too uncertain to say whether the tables hold such an effect: more "
    "planted runs would tell.",
}

PATHS = (
    "Not known: sites plant no effects in a model of paths. Of how a hazard goes with a column "
    "that changes until the end, tables may show less than there is: of a real table's as little "
    "as two thirds came back. An estimate near none is not evidence of none."
)

UNPLANTED = (
    "Not known whether the tables hold it: no such effect was planted. An estimate near none is "
    "not evidence of none."
)

_COLLINEAR = (
    "Attenuated: what it is adjusted for explains {:.0%} of the column in the tables, which know "
    "little of so small a rest, whatever they hold of each two columns. The estimate may be off by "
    "more than its interval says, to either side. Declare it in a study's estimands, or adjust for "
    "less."
)

COMPETING = (
    "Not known whether the tables hold it: it rests on how a competing event goes with time and "
    "with the event, of which no model behind them is made, and no such relation was planted."
)

_GRAVITY = (Mark.HELD, Mark.UNRESOLVED, Mark.ATTENUATED, Mark.UNSUPPORTED)

_DOUBTED = {
    Mark.HELD: "",
    Mark.ATTENUATED: " The estimate may be off by more than its interval says, to either side.",
    Mark.UNSUPPORTED: " Hardly more than half of such intervals hold the truth. Ask for a spline "
    "of a number, or give it narrower bounds where values beyond make no sense; merge a rare level "
    "with another one.",
}


def tell_held(found: Mapping[str, Slope], weights: Mapping[str, float]) -> Json | None:
    """What planted runs of the sites show of one effect; None where no site had any.

    Args:
        found: the slope at each site; weights: of its estimate in what is pooled; sites that are
            not in it count as nothing.
    """
    if not found:
        return None
    shares = [weights.get(site, 0.0) for site in found]
    if not any(shares):
        shares = [1.0] * len(found)
    whole = pool_slopes(list(found.values()), shares)
    return {
        **_numbers(whole),
        "text": _tell(whole, found),
        "sites": [{"site": site, **_numbers(slope)} for site, slope in found.items()],
    }


def tell_doubts(found: Mapping[str, float], weights: Mapping[str, float]) -> Json | None:
    """What sites' answers to one question hang on; None where no site tells.

    Args:
        found: the share at each site that hangs on few persons; weights: as :func:`tell_held`.
    """
    if not found:
        return None
    whole = pool_doubts(found, weights)
    mark = mark_doubt(whole)
    text = (
        f"{_begin(_WORDS[mark])}: of all that rows tell of it, or of a number beside it, "
        f"{whole:.0%} hangs on few persons who lie far out, and privacy hides just these."
        f"{_DOUBTED[mark]}"
    )
    marks = {site: mark_doubt(share) for site, share in found.items()}
    nothing = _numbers(Slope(math.nan, math.nan, math.nan, math.nan, math.nan, 0))
    return {
        **nothing,
        "mark": str(mark),
        "doubt": whole,
        "text": text + (_list_others(marks) if len(found) > 1 else ""),
        "sites": [
            {"site": site, **nothing, "mark": str(marks[site]), "doubt": share}
            for site, share in found.items()
        ],
    }


def tell_overlaps(found: Mapping[str, float], weights: Mapping[str, float]) -> Json | None:
    """How much of the column that an undeclared question asks about the others say already; None
    where that leaves enough.

    Args:
        found: R² at each site; weights: as :func:`tell_held`.
    """
    whole = pool_doubts(found, weights) if found else 0.0
    if whole < MOST:
        return None
    nothing = _numbers(Slope(math.nan, math.nan, math.nan, math.nan, math.nan, 0))
    marks = {s: Mark.UNRESOLVED if r2 < MOST else Mark.ATTENUATED for s, r2 in found.items()}
    return {
        **nothing,
        "mark": str(Mark.ATTENUATED),
        "text": _COLLINEAR.format(whole),
        "sites": [{"site": site, **nothing, "mark": str(mark)} for site, mark in marks.items()],
    }


def tell_recovered(found: Mapping[str, Slope], whole: Slope) -> Json:
    """What refits lack of an effect that no run has planted.

    No site is told to hold it: that all came back is no finding.

    Args:
        found: at each site; whole: of the pooled estimate, surely below 1.
    """
    text = (
        f"{_begin(_WORDS[whole.mark])}: these tables were released once more, and "
        f"{number_text(whole.slope, 2)} of what they show of it came back (1 is all; standard "
        f"error {number_text(whole.slope_error, 2)}). Of what rows show, about as much is in "
        f"the tables.{_MEANS[whole.mark]}"
    )
    each = [{"site": site, **_numbers(slope)} for site, slope in found.items()]
    for one in each:
        if one["mark"] == Mark.HELD:
            one["mark"] = str(Mark.UNRESOLVED)
    return {**_numbers(whole), "text": text, "sites": each}


def tell_untried(sites: Sequence[str], text: str) -> Json:
    """Of what sites plant no effects of: of a hazard by a column that changes until the end
    (:data:`PATHS`), of an event that competes with another one (:data:`COMPETING`), or of what is
    drawn from no model of its own (:data:`UNPLANTED`)."""
    nothing = _numbers(Slope(math.nan, math.nan, math.nan, math.nan, math.nan, 0))
    each = [{"site": site, **nothing} for site in sites]
    return {**nothing, "text": text, "sites": each}


def join_held(planted: Json | None, doubted: Json | None) -> Json | None:
    """What tables hold of an effect, by planted runs and by what it hangs on: the graver mark of
    both, for the whole and for each site. That little hangs on few says nothing by itself."""
    if doubted is None or (planted is None and doubted["mark"] == Mark.HELD):
        return planted
    if planted is None:
        return doubted
    sites = {site["site"]: site for site in doubted["sites"]}
    text = planted["text"] if doubted["mark"] == Mark.HELD else doubted["text"]
    if Mark.HELD not in (planted["mark"], doubted["mark"]):
        text = f"{planted['text']} {doubted['text']}"
    return {
        **_join(planted, doubted),
        "text": text,
        "sites": [_join(site, sites.get(site["site"])) for site in planted["sites"]],
    }


def _join(planted: Json, doubted: Json | None) -> Json:
    if doubted is None:
        return planted
    marks = (Mark(one["mark"]) for one in (planted, doubted))
    return {
        **planted,
        "mark": str(max(marks, key=_GRAVITY.index)),
        "doubt": doubted["doubt"],
    }


def is_answer(held: Json | None) -> bool:
    """Whether a number is an answer, by what tables hold of it; of what is not told it is one."""
    return held is None or held["mark"] != Mark.UNSUPPORTED


def name_mark(mark: str) -> str:
    """A mark in a word or two."""
    return _WORDS[Mark(mark)]


def tell_slope(slope: Json) -> str:
    """What came back, with its standard error."""
    if slope["slope"] is None:
        return "–"
    return f"{number_text(slope['slope'], 2)} ± {number_text(slope['slope_error'], 2)}"


def tell_sites(held: Json) -> dict[str, str]:
    """Of each site what came back, and its mark where it is not held."""
    return {
        site["site"]: tell_slope(site)
        + ("" if site["mark"] == Mark.HELD else f", {name_mark(site['mark'])}")
        for site in held["sites"]
    }


def _numbers(slope: Slope) -> Json:
    names = ("slope", "slope_error", "offset", "offset_error", "df")
    told = {name: getattr(slope, name) for name in names if slope.known}
    return {
        "mark": str(slope.mark),
        # An offset is known of planted runs alone.
        **{name: told[name] if math.isfinite(told.get(name, math.nan)) else None for name in names},
        "runs": slope.runs,
        "doubt": None,
    }


def _tell(whole: Slope, found: Mapping[str, Slope]) -> str:
    mark = whole.mark
    word = _WORDS[mark]
    if whole.coarse:
        text = _COARSE.format(" and ".join(whole.coarse))
    elif not whole.known:
        text = f"{_begin(word)}: too few of the planted runs have an estimate."
    else:
        text = (
            f"{_begin(word)}: of effects of known size that were planted in the sites' models "
            f"{number_text(whole.slope, 2)} came back (1 is all; standard error "
            f"{number_text(whole.slope_error, 2)}).{_MEANS[mark]}"
        )
    marks = {site: slope.mark for site, slope in found.items()}
    return text + (_list_others(marks) if len(found) > 1 else "")


def _list_others(marks: Mapping[str, Mark]) -> str:
    """Where it is not held, in a sentence; nothing if it is held everywhere."""
    listed = "; ".join(
        f"{_WORDS[one]} at {', '.join(s for s, m in marks.items() if m is one)}"
        for one in Mark
        if one is not Mark.HELD and one in marks.values()
    )
    return f" By site: {listed}." if listed else ""


def _begin(word: str) -> str:
    return word[0].upper() + word[1:]
