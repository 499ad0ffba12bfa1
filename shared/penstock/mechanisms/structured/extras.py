"""What estimands have in their regressions beside columns, as a list: no row is needed for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from penstock.questions.estimands import Estimand
from penstock.questions.grammar import Comparison, Factor, Product, Regressor, Spline


@dataclass(frozen=True, slots=True)
class Extra:
    """What an estimand has in its regression beside columns.

    Args:
        regressor: a product or a spline; a column or a product that the subgroup multiplies; None:
            the subgroup by itself.
        subgroup: what its members meet; nothing: all are.
        asked: it is what an estimand asks for.
    """

    regressor: Regressor | None
    subgroup: tuple[Comparison, ...] = ()
    asked: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """Those of one key are one."""
        if isinstance(self.regressor, Spline):
            return (str(self.regressor),)
        own = "" if self.regressor is None else self.regressor.key
        return (own, *map(str, self.subgroup))


def list_extras(estimands: Iterable[Estimand]) -> tuple[Extra, ...]:
    """What the regressions of one outcome have beside columns, each once, in an order in which what
    something is made of stands before it."""
    found: dict[tuple[str, ...], Extra] = {}
    for estimand in estimands:
        for extra in _extras_of(estimand):
            known = found.get(extra.key, extra)
            found[extra.key] = replace(known, asked=known.asked or extra.asked)
    return tuple(found.values())


def _extras_of(estimand: Estimand) -> list[Extra]:
    target, subgroup = estimand.target, estimand.subgroup
    plain = [r for r in estimand.regressors if not isinstance(r, Factor)]
    found = [Extra(r, asked=r == target) for r in plain]
    if subgroup:
        parts = [Factor(name) for name in target.columns]
        found += [Extra(None, subgroup), *(Extra(p, subgroup, asked=p == target) for p in parts)]
        if isinstance(target, Product):
            found.append(Extra(target, subgroup, asked=True))
    return found
