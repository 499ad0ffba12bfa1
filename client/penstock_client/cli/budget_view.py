"""How a data set's budget looks in a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock.base.documents import Json
from penstock.base.errors import SignatureError
from penstock.cli.console import number, out, say, table
from penstock.wire.signatures import fingerprint

WIDTH = 40
"""Of the bar, in characters."""


def show_lineage(row: Json, *, detail: bool = False) -> None:
    """One row of :func:`penstock_client.ledger.budget.summarize_budget`, for a data steward.

    The share of the data set's life is what adds up over studies; each ε that is shown beside it is
    what one release cost by itself. Every other account of ε is a ``detail``: they answer other
    questions, and do not add up.
    """
    total = f"ε ≤ {row['total_epsilon']:g} for life, at δ {row['delta']:g}"
    if row["closed"]:
        total = "its guarantee ended, by a release without one (ε = ∞)"
    say(f"{row['lineage']}: {_percent(row['share_spent'])} of its life is used; {total}")
    _show_bar(row["share_spent"])
    for note in _list_notes(row):
        say(f"  ! {note}")
    if row["charges"]:
        table("", _CHARGES, [_charge(c) for c in row["charges"]])
    if detail:
        _show_detail(row)
    elif row["charges"]:
        say("shares add up; --detail: every other account of ε, and what allowances leave")
    say("")


def _list_notes(row: Json) -> list[str]:
    """What is not as it should be."""
    notes = []
    if row["over"]:
        names = ", ".join(row["together_with"])
        notes.append(f"together with {names} it is ABOVE the total; closed")
    if row["exhausted"]:
        notes.append("records were lost: all that was left is charged")
    return notes


def _show_detail(row: Json) -> None:
    """Every account of ε, the allowances, and each charge's place in them."""
    say("")
    table("", ("", ""), _list_facts(row))
    _show_parts("signers", row["signers"], _name_signer)
    _show_parts("studies", row["studies"], lambda s: s["study"][:24])
    if row["charges"]:
        table("charges", _DETAILED, [_detail_charge(c) for c in row["charges"]])


def _show_bar(share: float) -> None:
    """How much of a life is used up, in what adds up, as characters that any terminal has."""
    full = math.ceil(share * WIDTH)
    style = "green" if share < 0.5 else "yellow" if share < 0.9 else "red"
    used, left = "█░" if "utf" in out.encoding.lower() else "#."
    out.print(used * full, end="", style=style, markup=False)
    out.print(left * (WIDTH - full), markup=False)


def _percent(share: float) -> str:
    """A share for people; what is little is not nothing, and what is nearly all is not all."""
    if 0 < share < 0.001:
        return "under 0.1 %"
    if 0.999 < share < 1:
        return "over 99.9 %"
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.3g} %"


def _list_facts(row: Json) -> list[tuple[str, str]]:
    orders = row["order"] if isinstance(row["order"], list | tuple) else [row["order"]]
    guarantee = f"ε ≤ {row['total_epsilon']:g}, for life"
    if row["closed"]:
        guarantee = "ended, by a release without one"
    facts = [
        ("guarantee, whatever was asked when", guarantee),
        ("one more study may cost, now", f"ε {row['left_epsilon']:.3g}"),
        (
            "spent, by the filter that guards it",
            f"ε {number(row['spent_epsilon'])} (order {', '.join(f'{o:g}' for o in orders)})",
        ),
        (
            "odometer, valid whenever you look",
            f"ε {_tell_odometer(row)}",
        ),
        (
            "at the best order, for comparison",
            f"ε {number(row['spent_epsilon_best_order'])}",
        ),
        (
            "spent, if a person is exchanged for another",
            _tell_replaced(row),
        ),
        ("whom it protects", _tell_protected(row["unit"])),
    ]
    if row["together_with"]:
        names = ", ".join(row["together_with"])
        facts.append(("the same persons may be in", f"{names}: never declared disjoint, added up"))
    facts += [(f"allowance of {y['year']} (UTC)", _tell_share(y)) for y in row["years"][-1:]]
    if row["approximate_delta"]:
        facts.append(("δ set aside for proofs with one", f"{row['approximate_delta']:g}"))
    if row["strata"]:
        facts.append(("strata, each paying for itself", ", ".join(row["strata"])))
    if row["versions"]:
        latest = row["versions"][-1]
        facts.append(("persons, public n", f"{latest['persons']} (version {latest['version']})"))
    return facts


def _tell_replaced(row: Json) -> str:
    """The other relation's ε, for life so far; what the filter guards is a person's absence."""
    found = row["spent_epsilon_replace_one"]
    if found is None:
        return "∞" if row["closed"] else "not known"
    return f"ε {number(found)} (replace-one, as papers quote it)"


def _tell_protected(unit: Json | None) -> str:
    if unit is None:
        return "not recorded: run `penstock site check`"
    if unit["person"] is None:
        return "each row, as a person"
    return f"a person by {unit['person']}, with at most {unit['rows']} rows"


def _tell_odometer(row: Json) -> str:
    reading = row["odometer_epsilon"]
    # None is said of ∞, and of an odometer whose ladder has come to its end.
    return "∞" if row["closed"] else "above the total" if reading is None else number(reading)


def _tell_share(part: Json) -> str:
    """Spent, of how much, and what is left."""
    spent = f"ε {number(part['spent_epsilon'])} spent"
    if part["allowance"] is None:
        return f"{spent}; no limit but the total"
    return f"{spent} of {part['allowance']:g}, {number(part['left_epsilon'])} left"


def _show_parts(title: str, parts: list[Json], name: Callable[[Json], str]) -> None:
    spending = [p for p in parts if p["spent_epsilon"] != 0 or p["allowance"] is not None]
    if spending:
        table(title, ("", ""), [(name(p), _tell_share(p)) for p in spending])


def _name_signer(part: Json) -> str:
    return part["label"] or _shorten_key(part["signer"])


def _shorten_key(signer: str) -> str:
    try:
        return fingerprint(signer)[:19] + "…"
    except SignatureError:  # a record may name anything
        return signer[:20]


_CHARGES = ("study", "day (UTC)", "ε", "of its life", "status")
_DETAILED = ("request", "by", "ε so far", "odometer")


def _charge(charge: Json) -> tuple[str, ...]:
    why = f": {charge['reason']}" if charge["reason"] else ""
    if alone := charge.get("alone_epsilon"):
        why += f" (distributed; ε {float(alone):.3g} if all other sites collude)"
    return (
        (charge.get("name") or charge["study"])[:24],
        charge["time"][:10],
        number(charge["epsilon"]),
        _percent(charge["share_of_life"]),
        charge["status"] + why,
    )


def _detail_charge(charge: Json) -> tuple[str, ...]:
    return (
        charge["request"][:12],
        charge["mechanism"],
        number(charge["spent_after"]),
        "above the total" if charge["odometer_after"] is None else number(charge["odometer_after"]),
    )
