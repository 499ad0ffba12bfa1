"""What the files of synthetic tables mean that an analyst pulls, and how their numbers combine."""

from __future__ import annotations

from typing import Any

from penstock.mechanisms.registry import MECHANISMS
from penstock.study.study import Study
from penstock.wire.messages import Copies
from penstock_server.mechanisms.writing import COPY, PERSON, SITE, describe_column

Json = dict[str, Any]

COPIES = (
    "Copies are independent draws from one fitted private model, each with {rows}. Analyse every "
    "copy on its own and combine: estimate = mean of the m estimates; variance = (1 + 1/m) times "
    "the mean of the m variances (Raab, Nowok & Dibben 2017). Never stack the copies: standard "
    "errors would be too small by √m. This variance does not contain the noise that the private "
    "mechanism put into the model"
)
COUNTED = (
    "about as many rows as the site has: a noisy count, released with the model, so that standard "
    "errors are of the right size. (The declared frame may hold persons without rows)"
)
COUNTED_JOINTLY = (
    "about as many rows as all sites have together: a noisy count, released with the model, so "
    "that standard errors are of the right size. (Declared frames may hold persons without rows.) "
    "Of which site an imagined person is, the column `site` says; fit regressions within its strata"
)
FRAMED = (
    "a row for each that the declared frame may hold: standard errors are too small where the "
    "site has fewer"
)
REFITS = (
    ": the report adds it per estimand, from the sites' refits (mechanism_variance); for estimates "
    "of your own see intervals."
)
NO_REFITS = ", and without refits the report cannot add it."
INTERVALS: Json = {
    "data": "`penstock pull STUDY --refits` writes refits.parquet and refits.csv beside all "
    "copies: tables that each site made by repeating its whole private procedure, noise and all, "
    "on the rows of one of its copies. `_refit` numbers them from 1, `_copy` says of which copy a "
    "refit was made. They are not further copies: they only show how far the mechanism errs.",
    "rule": "At each site estimate every copy j (q_j, with variance u_j) and every refit b "
    "(r_b, with variance v_b) by the same analysis; c(b) is the copy that refit b was made of.",
    "estimate": "q = mean of q_j over the m copies; u = mean of u_j",
    "square": "S = mean of (r_b - q_c(b))^2 over the B refits",
    "known": "K = {fresh}mean of v_b: what sampling a table alone contributes",
    "mechanism_variance": "D = max(0, S - K)",
    "variance": "T = u (1 + 1/m) + D",
    "df": "nu = 2 T^2 / V, where s = max(S, K) sqrt(2/B), a = D/s, and V = s^2 ((a^2 + 1) Phi(a) + "
    "a phi(a) - (a Phi(a) + phi(a))^2), with Phi and phi the normal distribution and density",
    "interval": "q -+ t(nu) sqrt(T), with t(nu) the quantile of Student's t",
    "pooling": "With w = 1/T at each of k sites, h = w/sum(w), L = sum of (1 - h)^2/nu and A = "
    "sum of h (1 - h)/nu: Q = sum of w (q - mean)^2 has mean k - 1 + 2L where all sites share one "
    "effect, and Q/(k - 1)/(1 + 2 (k - 2) L/(k^2 - 1)) is about F(k - 1, (k^2 - 1)/(3L)) (Welch "
    "1951); the weighted mean has variance (1 + 4A)/sum(w) and 1/sum(h^2/nu) degrees of freedom "
    "(Meier 1953).",
    "report": "The report also draws each site's S to what the other sites show, D/u going as 1/n "
    "(Smyth 2004), which gives more degrees of freedom; without that the rule above is valid, and "
    "its intervals are slightly wider.",
    "holds": "where the mechanism's model contains the truth. What the model cannot hold (an "
    "interaction, say) is missing from copies and refits alike.",
    "older": "A `_copy` of 0 marks releases of before wire 1.1, whose refits had rows drawn anew: "
    "there S = mean of (r_b - q)^2 and K = mean of v_b (1 + n_b/n) + u/m, where n_b and n are the "
    "rows of the refit and of a copy: (2 + 1/m) u where they are as many.",
}

WHOSE = "imagined person of the copy whose row it is, from 1; the same number elsewhere is another"

JOINTLY: Json = {
    "data": "`penstock pull STUDY --refits` writes refits.parquet and refits.csv beside all "
    "copies: tables that were made by repeating the whole private procedure, with the noise of all "
    "sites, on the rows of one of the copies. `_refit` numbers them from 1, `_copy` says of which "
    "copy a refit was made. They are not further copies: they only show how far the mechanism "
    "errs.",
    "rule": "Estimate every copy j (q_j, with variance u_j) and every refit b (r_b, with variance "
    "v_b) by the same analysis, regressions within strata of `site`; c(b) is the copy that refit b "
    "was made of.",
    "pooling": "There is one release of all sites, and nothing to pool.",
    "report": "The report's own intervals are by this rule, but for those of counts.",
}
"""What is other where all sites made one release."""

HELD = (
    "What the tables hold of an effect. Into each site's released model effects of known size were "
    "planted, and the whole private procedure was repeated: slope says how much came back (1 is "
    "all), offset what came back of none. held: at least half of it is shown to come back, and it "
    "is not shown to be less than .9. attenuated: at least half, and less than .9; nothing is "
    "corrected for it. unsupported: less than .9, and not shown to be half: the tables hold no "
    "answer, and an estimate near none is not evidence of none. unresolved: the runs cannot tell. "
    "What the released model lacks, such as the furthest tails of a column, no planted run shows. "
    "doubt: how much of what the copies tell of an effect hangs on few rows far out, or of what a "
    "number beside it varies by; from .35 on an effect is attenuated (off to either side), from .5 "
    "on unsupported, whatever came back: the graver mark stands. "
    "classes: what the mechanism's model can hold at all, also of questions that nobody declared; "
    "of what it says `no` of, the tables show nothing, however large it is among the persons"
)
"""What :func:`describe_held` lists."""


def describe_tables(
    study: Study, report: Json, *, copies: Copies, fresh: float = 1.0, numbered: bool = False
) -> Json:
    """What the columns of the pooled table mean, and how copies combine.

    Args:
        fresh: share of a table's sampling that is new in each table.
        numbered: whether persons have several rows, and a number.
    """
    own = [
        {k: v for k, v in c.items() if v not in (None, "", [])}
        for c in study.schema.to_dict()["columns"]
    ]
    joint = study.aggregation.joint
    columns = [
        *([] if joint else [describe_column(SITE, "categorical", "site that released the row")]),
        describe_column(COPY, "integer", "synthetic copy, from 1"),
        *([describe_column(PERSON, "integer", WHOSE)] if numbered else []),
        *own,
    ]
    found: Json = {
        "study": study.name,
        "synthetic": True,
        "columns": columns,
        "copies_released": study.mechanism.copies,
        "copies_here": 1 if copies == "one" else study.mechanism.copies,
        "combining": combining(study),
        "sites": report["sites"],
    }
    if study.mechanism.refits:
        found["intervals"] = intervals(fresh, joint=joint)
    return found


def describe_held(report: Json) -> Json:
    """What the tables hold, as planted runs and the mechanism's model say; empty if neither."""
    estimands = [{"estimand": e["name"], **e["held"]} for e in report["estimands"] if e["held"]]
    found = {"estimands": estimands, "effects": report["effects"], "classes": report["holds"]}
    return {"held": {"about": HELD, **found}} if any(found.values()) else {}


def combining(study: Study) -> str:
    """How copies are to be analysed."""
    counted = COUNTED_JOINTLY if study.aggregation.joint else COUNTED
    text = COPIES.format(
        rows=counted if MECHANISMS.of(study.mechanism).counts_rows(study.asked) else FRAMED
    )
    return text + (REFITS if study.mechanism.refits else NO_REFITS)


def intervals(fresh: float, *, joint: bool = False) -> Json:
    """How the refits make intervals of any estimate: in words, and in formulas.

    Args:
        fresh: share of a table's sampling that is new in each table.
        joint: whether all sites made one release.
    """
    # Persons' own latents are the same in every table: less of its sampling is new.
    share = f"{fresh:g} " if fresh < 1 else ""
    known = {"known": INTERVALS["known"].format(fresh=share)}
    return INTERVALS | known | (JOINTLY if joint else {})
