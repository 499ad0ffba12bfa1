"""How a data set's budget looks in a terminal."""

from __future__ import annotations

import math
from typing import Any

from penstock.cli.console import number, out, say, table
from penstock.errors import SignatureError
from penstock.wire.signatures import fingerprint

WIDTH = 40
"""Of the bar, in characters."""


def show_lineage(row: dict[str, Any]) -> None:
    """One row of :func:`penstock_client.ledger.budget.summary`, for a data steward."""
    spent = row["spent_epsilon"]
    text = "∞ (ended)" if row["closed"] else number(spent)
    if row["over"]:
        text += f" (together with {', '.join(row['together_with'])}: ABOVE the total; closed)"
    if row["exhausted"]:
        text += " (records were lost: all that was left is charged)"
    say(
        f"{row['lineage']}: total ε {row['total_epsilon']:g} at δ {row['delta']:g}; "
        f"spent {text}; the next study may cost {row['left_epsilon']:.3g}"
    )
    _bar(row)
    table("", ("", ""), _facts(row))
    _parts("signers", row["signers"], _signer)
    _parts("studies", row["studies"], lambda s: s["study"][:24])
    if row["charges"]:
        table("charges", _CHARGES, [_charge(c) for c in row["charges"]])
    say("")


def _bar(row: dict[str, Any]) -> None:
    """How much of a life is used up, in what adds up, as characters that any terminal has."""
    share = row["share_spent"]
    full = math.ceil(share * WIDTH)
    style = "green" if share < 0.5 else "yellow" if share < 0.9 else "red"
    used, left = "█░" if "utf" in out.encoding.lower() else "#."
    out.print(used * full, end="", style=style, markup=False)
    out.print(left * (WIDTH - full), end="", markup=False)
    say(f" {100 * share:.0f} % of its life is used")


def _facts(row: dict[str, Any]) -> list[tuple[str, str]]:
    orders = row["order"] if isinstance(row["order"], list | tuple) else [row["order"]]
    guarantee = f"ε ≤ {row['total_epsilon']:g}, for life"
    if row["closed"]:
        guarantee = "ended, by a release without one"
    facts = [
        ("guarantee, whatever was asked when", guarantee),
        (
            "spent, by the filter that guards it",
            f"ε {number(row['spent_epsilon'])} (order {', '.join(f'{o:g}' for o in orders)})",
        ),
        (
            "odometer, valid whenever you look",
            f"ε {_odometer(row)}",
        ),
        (
            "at the best order, for comparison",
            f"ε {number(row['spent_epsilon_best_order'])}",
        ),
        (
            "spent, if a person is exchanged for another",
            _replaced(row),
        ),
        ("whom it protects", _protected(row["unit"])),
    ]
    if row["together_with"]:
        names = ", ".join(row["together_with"])
        facts.append(("the same persons may be in", f"{names}: never declared disjoint, added up"))
    facts += [(f"allowance of {y['year']} (UTC)", _of(y)) for y in row["years"][-1:]]
    if row["approximate_delta"]:
        facts.append(("δ set aside for proofs with one", f"{row['approximate_delta']:g}"))
    if row["strata"]:
        facts.append(("strata, each paying for itself", ", ".join(row["strata"])))
    if row["versions"]:
        latest = row["versions"][-1]
        facts.append(("persons, public n", f"{latest['persons']} (version {latest['version']})"))
    return facts


def _replaced(row: dict[str, Any]) -> str:
    """The other relation's ε, for life so far; what the filter guards is a person's absence."""
    found = row["spent_epsilon_replace_one"]
    if found is None:
        return "∞" if row["closed"] else "not known"
    return f"ε {number(found)} (replace-one, as papers quote it)"


def _protected(unit: dict[str, Any] | None) -> str:
    if unit is None:
        return "not recorded: run `penstock site check`"
    if unit["person"] is None:
        return "each row, as a person"
    return f"a person by {unit['person']}, with at most {unit['rows']} rows"


def _odometer(row: dict[str, Any]) -> str:
    reading = row["odometer_epsilon"]
    # None is said of ∞, and of an odometer whose ladder has come to its end.
    return "∞" if row["closed"] else "above the total" if reading is None else number(reading)


def _of(part: dict[str, Any]) -> str:
    """Spent, of how much, and what is left."""
    spent = f"ε {number(part['spent_epsilon'])} spent"
    if part["allowance"] is None:
        return f"{spent}; no limit but the total"
    return f"{spent} of {part['allowance']:g}, {number(part['left_epsilon'])} left"


def _parts(title: str, parts: list[dict[str, Any]], name: Any) -> None:
    spending = [p for p in parts if p["spent_epsilon"] != 0 or p["allowance"] is not None]
    if spending:
        table(title, ("", ""), [(name(p), _of(p)) for p in spending])


def _signer(part: dict[str, Any]) -> str:
    return part["label"] or _key(part["signer"])


def _key(signer: str) -> str:
    try:
        return fingerprint(signer)[:19] + "…"
    except SignatureError:  # a record may name anything
        return signer[:20]


_CHARGES = ("request", "day (UTC)", "study", "by", "ε", "ε so far", "status")


def _charge(charge: dict[str, Any]) -> tuple[str, ...]:
    why = f": {charge['reason']}" if charge["reason"] else ""
    return (
        charge["request"][:12],
        charge["time"][:10],
        (charge.get("name") or charge["study"])[:16],
        charge["mechanism"],
        number(charge["epsilon"]),
        number(charge["spent_after"]),
        charge["status"] + why,
    )
