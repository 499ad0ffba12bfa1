"""What a steward allows besides the guarantee: per signer, per study, per calendar year, in all.

A data set's guarantee is the filter that was fixed when it began
(:attr:`penstock_client.ledger.state.Lineage.filter`). What is here are *limits* on top of it: each
is a filter of its own over a part of the same charges, whose order follows from the allowance, at
the data set's δ. A steward may change an allowance at any time, and its order changes with it; no
theorem holds across such a change, and none is needed.

All are pure functions of the folded ledger, the policy and the ledger's time (UTC, which never runs
backwards: a clock that is set back renews nothing). A charge belongs to the year of the record that
reserved it. Nothing private goes in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from penstock.base.errors import BudgetExceeded, InvalidEvent
from penstock.privacy.events import Event
from penstock.privacy.filters import Filter, best_order
from penstock.wire.messages import RefusalCode
from penstock_client.ledger.state import Charge, Lineage
from penstock_client.site.policy import Policy


class AllowanceExceeded(BudgetExceeded):
    """A charge that the data set's guarantee has room for, and an allowance has not.

    Args:
        reason: the code of the public refusal, of :data:`penstock.wire.messages.REFUSALS`.
        error: what the allowance's filter said.
        renews: what else the analyst may do.
    """

    def __init__(self, reason: RefusalCode, error: BudgetExceeded, renews: str = "") -> None:
        self.reason = reason
        remedy = f"{error.remedy}{renews}"
        super().__init__(error.message, value=error.value, bound=error.bound, remedy=remedy)


@dataclass(frozen=True, slots=True)
class Allowance:
    """A limit on some of a data set's charges.

    Attributes:
        reason: the code of a refusal.
        what: what a refusal calls it.
        filter: what it holds.
        spent: every event that counts towards it.
        renews: when there is room again, for the refusal; empty where there never is.
    """

    reason: RefusalCode
    what: str
    filter: Filter
    spent: tuple[Event, ...]
    renews: str = ""

    def check(self, charge: Sequence[Event]) -> None:
        """Refuse what does not fit.

        Raises:
            AllowanceExceeded: naming the allowance, what is spent of it, and what is left.
        """
        try:
            self.filter.check(self.spent, charge, what=self.what)
        except BudgetExceeded as error:
            raise AllowanceExceeded(self.reason, error, self.renews) from None

    @property
    def spent_epsilon(self) -> float:
        return self.filter.spent(self.spent)

    @property
    def left_epsilon(self) -> float:
        """The ε of the largest single Gaussian release that it still admits."""
        return self.filter.left(self.spent)


def find_allowances(
    lineage: Lineage, charge: Charge, *, now: str, signer_epsilon: float, policy: Policy | None
) -> Iterator[Allowance]:
    """Every allowance that a charge falls under, narrowest first.

    Args:
        now: the ledger's time, RFC 3339 in UTC.
        signer_epsilon: of the charge's signer.
        policy: None where nothing but the signer's allowance holds.
    """
    yield limit_signer(lineage, charge.signer, signer_epsilon)
    if policy is None:
        return
    earlier = limit_study(lineage, charge, policy.study_epsilon, policy.study_delta)
    if earlier.spent:  # A study's first release is held to its own, exact ε by the admission.
        yield earlier
    if policy.yearly_epsilon is not None:
        yield limit_year(lineage, read_year(now), policy.yearly_epsilon)
    if policy.total_epsilon < lineage.epsilon:
        # The steward may lower the total at any time; it never rises above the ledger's.
        what, spent = f"data set {lineage.name}", lineage.charges
        yield _make_allowance(lineage, "budget", what, policy.total_epsilon, spent)


def limit_signer(lineage: Lineage, signer: str, epsilon: float) -> Allowance:
    """What one analyst may ever spend on a data set."""
    spent = (c for c in lineage.charges if c.signer == signer)
    return _make_allowance(lineage, "signer-budget", "the signer's allowance", epsilon, spent)


def limit_study(lineage: Lineage, charge: Charge, epsilon: float, delta: float) -> Allowance:
    """What a charge's study may cost, over all its releases and all versions of the data.

    Args:
        epsilon, delta: of one study; the only allowance with a δ of its own.
    """
    spent = (c for c in lineage.charges if identify_study(c) == identify_study(charge))
    what = "the study's allowance, over all its releases"
    return _make_allowance(lineage, "study-budget", what, epsilon, spent, delta=delta)


def limit_year(lineage: Lineage, year: int, epsilon: float) -> Allowance:
    """What a data set may cost in one calendar year (UTC)."""
    spent = (c for c in lineage.charges if read_year(c.time) == year)
    renews = f", or again from {year + 1}-01-01 (UTC)"
    what = f"the allowance of {year}"
    return _make_allowance(lineage, "yearly-budget", what, epsilon, spent, renews=renews)


def identify_study(charge: Charge) -> tuple[str, str]:
    """What makes two charges one study: its name and its signer; without a name, its id.

    Not the id, which covers the release's index as well.
    """
    return (charge.study, charge.signer) if charge.study else (charge.study_id, "")


def read_year(time: str) -> int:
    """The calendar year of an RFC 3339 time in UTC."""
    return int(time[:4])


def _make_allowance(
    lineage: Lineage,
    reason: RefusalCode,
    what: str,
    epsilon: float,
    spent: Iterable[Charge],
    *,
    delta: float | None = None,
    renews: str = "",
) -> Allowance:
    """An allowance of at most what the data set may cost at all.

    Raises:
        AllowanceExceeded: it is so small that it holds no release.
    """
    epsilon = min(epsilon, lineage.epsilon)
    delta = lineage.delta if delta is None else delta
    aside = min(lineage.approximate_delta, delta / 2)
    try:
        order = best_order(epsilon, delta - aside)
        held = Filter(epsilon, delta, order, approximate_delta=aside)
    except InvalidEvent:
        remedy = "ask for a larger allowance"
        none = BudgetExceeded(f"{what} holds no release at all", value=epsilon, remedy=remedy)
        raise AllowanceExceeded(reason, none) from None
    return Allowance(reason, what, held, tuple(e for c in spent for e in c.events), renews)
