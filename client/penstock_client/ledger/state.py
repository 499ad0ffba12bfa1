"""What a ledger's records fold to: data sets, what was charged to them, and who shares persons.

Two data sets are *disjoint* if the steward declared, when the later one began, that nobody is in
both. All that were not so declared may hold the same persons (a ledger of the first format asked
for no declaration, so that one word in the settings bought a fresh budget): their charges add up,
and each charge must stay within the guarantee of every one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.base.documents import Json
from penstock.base.errors import BudgetExceeded, InvalidEvent
from penstock.privacy.events import Event, OnStratum, is_unbounded
from penstock.privacy.filters import Filter
from penstock.schema import MAX_ROWS_PER_PERSON

GENESIS = "0" * 64


@dataclass(frozen=True, slots=True)
class Unit:
    """Whom a data set's guarantee protects: a person, with all the rows that may be used of them.

    Attributes:
        person: the column that names persons; None where every row is a person.
        rows: how many rows of one person may be used.

    Raises:
        InvalidEvent: no such unit.
    """

    person: str | None
    rows: int

    def __post_init__(self) -> None:
        named = isinstance(self.person, str) and bool(self.person)
        if not (self.person is None or named):
            raise InvalidEvent("a person column needs a name", value=type(self.person).__name__)
        whole = isinstance(self.rows, int) and not isinstance(self.rows, bool)
        most = MAX_ROWS_PER_PERSON if named else 1
        if not (whole and 1 <= self.rows <= most):
            raise InvalidEvent("rows per person", value=self.rows, bound=f"1 to {most}")

    def __str__(self) -> str:
        if self.person is None:
            return "each row is a person"
        return f"persons by {self.person!r}, at most {self.rows} rows each"

    def to_dict(self) -> Json:
        """Its form in a record."""
        return {"person": self.person, "rows": self.rows}


@dataclass(frozen=True, slots=True)
class Charge:
    """One release's cost.

    ``delta`` is the study's; the ledger composes events, not ε. ``study`` is the study's name, the
    same for all its releases, whose ids differ.

    Records of older versions have neither a study's name nor what comes after it, which is empty.

    Attributes:
        study_digest: SHA-256 of the canonical study as it was signed.
        plan_digest: SHA-256 of the public inputs of its plan, from which the events follow.
        ready_at: when the end of its run may show outside, at the earliest; planned from public
            numbers before the run.
        decisions: the head of the site's chain of decisions when this was reserved.
        alone_epsilon: of a part in many sites' sums, ε at ``delta`` if all other sites collude.
        settled_at, settled_seq: when the run truly ended, and the record that says so; nothing of
            either shows outside before its time.
    """

    id: str
    lineage: str
    version: int
    study_id: str
    signer: str
    mechanism: str
    events: tuple[Event, ...]
    delta: float
    status: str = "reserved"
    time: str = ""
    reason: str = ""
    study: str = ""
    study_digest: str = ""
    plan_digest: str = ""
    ready_at: str = ""
    decisions: str = ""
    alone_epsilon: str = ""
    settled_at: str = ""
    settled_seq: int = 0

    @property
    def unbounded(self) -> bool:
        """Whether it has no finite ε."""
        return any(is_unbounded(e) for e in self.events)


@dataclass(frozen=True, slots=True)
class Version:
    """Certified rows.

    Attributes:
        persons: the declared frame, null persons included: the public n.
        new_frame: the steward declared that another frame begins here.
    """

    number: int
    persons: int
    fingerprint: str
    time: str
    new_frame: bool = False


@dataclass(frozen=True, slots=True)
class Lineage:
    """A data set along its life, and everything that was charged to it.

    Attributes:
        order: the Rényi order of its filter, or a grid of them.
        approximate_delta: the part of δ set aside for events that take δ off the top.
        strata: parts of the persons that nobody is in two of, and nobody moves between.
        exhausted: records were lost, and everything that was left is charged for them.
        unit: whom it protects, for good; None in a ledger of the first format, until the rows are
            certified again.
        disjoint: the steward declared that nobody in it is in another data set of the site.
    """

    name: str
    epsilon: float
    delta: float
    order: float | tuple[float, ...]
    versions: tuple[Version, ...] = ()
    charges: tuple[Charge, ...] = ()
    exhausted: bool = False
    approximate_delta: float = 0.0
    strata: tuple[str, ...] = ()
    unit: Unit | None = None
    disjoint: bool = False

    @property
    def filter(self) -> Filter:
        """The guarantee: what all charges together must stay within."""
        return Filter(
            self.epsilon, self.delta, self.order, approximate_delta=self.approximate_delta
        )

    @property
    def closed(self) -> bool:
        """Whether an ``empirical`` release ended the formal budget."""
        return any(c.unbounded for c in self.charges)

    @property
    def over(self) -> bool:
        """Whether more was charged than its guarantee admits; only together with others."""
        return not self.closed and not self.filter.admits((), self.events())

    def events(self) -> tuple[Event, ...]:
        """Everything charged: reserved, committed and burnt."""
        return tuple(e for c in self.charges for e in c.events)

    def check(self, events: Sequence[Event]) -> None:
        """Whether the guarantee admits a charge on top of everything charged.

        Raises:
            BudgetExceeded: naming what is spent and what is left.
            InvalidEvent: it is on a stratum that was not declared.
        """
        if self.exhausted:
            # Without exception: also what the policy would let go without a guarantee.
            raise BudgetExceeded(
                f"records of {self.name} were lost, and all that was left of its ε is charged for "
                "them",
                remedy="nothing more can be released of this data set",
            )
        if self.closed:
            raise BudgetExceeded(f"the formal budget of {self.name} has ended (ε = ∞ was spent)")
        undeclared = self.undeclared(events)
        if undeclared is not None:
            raise InvalidEvent(
                "a stratum that was not declared when the data set began",
                value=undeclared,
                bound=", ".join(self.strata) or "it has none",
            )
        # The policy allows an unbounded release or not; no filter can hold ε = ∞.
        if not any(is_unbounded(e) for e in events):
            self.filter.check(self.events(), events, what=f"data set {self.name}")

    def undeclared(self, events: Iterable[Event]) -> str | None:
        """A stratum that events are on and that this data set has not, if there is one."""
        named = (e.stratum for e in events if isinstance(e, OnStratum))
        return next((stratum for stratum in named if stratum not in self.strata), None)


@dataclass(frozen=True, slots=True)
class State:
    """The ledger, folded.

    ``recovered`` is the position of the last ``recover`` record, 0 where there is none: whatever
    is known of positions before it has been paid for. ``format`` is what its newest records must
    hold.
    """

    site: str = ""
    seq: int = 0
    head: str = GENESIS
    time: str = ""
    recovered: int = 0
    format: int = 1
    lineages: Mapping[str, Lineage] = field(default_factory=dict)
    charges: Mapping[str, Charge] = field(default_factory=dict)

    def together(self, name: str) -> tuple[Lineage, ...]:
        """A data set, and all others that may hold the same persons."""
        lineage = self.lineages[name]
        if lineage.disjoint:
            return (lineage,)
        return tuple(each for each in self.lineages.values() if not each.disjoint)

    def joint(self, name: str) -> Lineage:
        """A data set with all that its persons may have paid, in whichever data set, in order.

        What another data set charged on a stratum of its own may have been anybody's here.
        """
        group = self.together(name)
        if len(group) == 1:
            return group[0]
        names = {each.name for each in group}
        charges = tuple(
            charge
            if charge.lineage == name
            else replace(charge, events=_take_off_strata(charge.events))
            for charge in self.charges.values()
            if charge.lineage in names
        )
        exhausted = any(each.exhausted for each in group)
        return replace(self.lineages[name], charges=charges, exhausted=exhausted)

    def closed(self, name: str) -> bool:
        """Whether nothing can ever be charged to a data set again."""
        whole = [self.joint(each.name) for each in self.together(name)]
        return any(each.closed or each.exhausted or each.over for each in whole)

    def check(self, name: str, events: Sequence[Event]) -> None:
        """Whether a charge to a data set fits the guarantee of all who may be in it.

        Raises:
            BudgetExceeded: naming what is spent and what is left.
            InvalidEvent: it is on a stratum that was not declared.
        """
        group = self.together(name)
        others = ", ".join(each.name for each in group)
        for each in sorted(group, key=lambda each: each.name != name):
            joint = self.joint(each.name)
            if len(group) > 1 and joint.over:
                raise BudgetExceeded(
                    f"{others} were never declared disjoint, and are together above the ε of "
                    f"{each.name}",
                    value=f"{joint.filter.spent(joint.events()):.4g}",
                    bound=f"{each.epsilon:g}",
                    remedy="nothing more can be released of them",
                )
            joint.check(events if each.name == name else _take_off_strata(events))


def _take_off_strata(events: Iterable[Event]) -> tuple[Event, ...]:
    """Events of another data set, as they may cost a person of this one."""
    return tuple(e.event if isinstance(e, OnStratum) else e for e in events)
