"""What might be asked of a data set: one number, a release, or a study that is not signed yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.aggregation.exchanges import fits_wire
from penstock.base.checks import shown
from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.joint.consortium import Consortium
from penstock.mechanisms.joint.plan import JointPlan
from penstock.mechanisms.protocol import Asked, Settings
from penstock.mechanisms.refusals import refusals
from penstock.mechanisms.registry import MECHANISMS
from penstock.privacy.accounting.renyi import check_budget
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Event, Gaussian
from penstock.schema import Schema
from penstock.study.charges import carry, plan_release
from penstock.study.study import Study
from penstock.wire.messages import RefusalCode
from penstock_client.site.signers import Signer, Trust

Events = tuple[Event, ...]

PLAIN_NUMBER = "gaussian"
"""A single number with Gaussian noise, which `ledger what-if` can price and no study can ask."""


def _list_nothing() -> list[tuple[RefusalCode, str]]:
    return []


@dataclass(frozen=True, slots=True)
class Priced:
    """What an ε would buy.

    Attributes:
        events: what would be charged for it.
        refusals: asked when they are wanted, why it would be refused before any charge is looked
            at, as an admission says it: codes and details.
    """

    events: Events
    refusals: Callable[[], list[tuple[RefusalCode, str]]] = _list_nothing


@dataclass(frozen=True, slots=True)
class Machine:
    """What a site's runs have: its dictionary, and the limits that it sets them."""

    dictionary: Schema
    memory_gb: float
    threads: int


@dataclass(frozen=True, slots=True)
class Prospect:
    """What might be asked.

    Attributes:
        epsilon, delta: asked, zero-out with public n.
        price: from an ε to what would be charged for it, and what speaks against it.
        mechanism, guarantee: as in a study.
        study: its name, for the allowance that a study has over all its releases; or empty.
        signer: who would sign it; without one no signer's allowance is looked at.
    """

    epsilon: float
    delta: float
    price: Callable[[float], Priced]
    mechanism: str
    guarantee: str = "formal"
    study: str = ""
    signer: Signer | None = None


def price_number(epsilon: float, delta: float, signer: Signer | None = None) -> Prospect:
    """A single number with Gaussian noise, such as a count: the plainest release there is.

    Raises:
        InvalidEvent: not a budget.
    """
    check_budget(epsilon, delta)

    def price(at: float) -> Priced:
        scale = smallest_scale(lambda s: (Gaussian(s),), at, delta)
        return Priced((Gaussian(scale, label="one number"),))

    return Prospect(epsilon, delta, price, PLAIN_NUMBER, signer=signer)


def price_release(
    asked: Asked[Settings],
    persons: int,
    machine: Machine,
    *,
    study: str = "",
    signer: Signer | None = None,
    consortium: Consortium | None = None,
) -> Prospect:
    """A release by one of Penstock's mechanisms, priced as an admission prices it."""
    mechanism, privacy = MECHANISMS.of(asked.settings), asked.privacy

    def price(at: float) -> Priced:
        changed = replace(asked, privacy=replace(privacy, epsilon=at))
        planned = plan_release(mechanism, changed, persons, consortium)
        run, carried = carry(changed, planned)

        def refused() -> list[tuple[RefusalCode, str]]:
            found = refusals(
                mechanism,
                run,
                carried,
                dictionary=machine.dictionary,
                memory_gb=machine.memory_gb,
                threads=machine.threads,
                persons=persons,
            )
            joint = planned if isinstance(planned, JointPlan) else None
            if joint is None or fits_wire(joint.rounds, joint.largest):
                return list(found)
            return [*found, ("wire-limit", "its sums are too many or too large")]

        return Priced(planned.events, refused)

    return Prospect(
        privacy.epsilon,
        privacy.delta,
        price,
        mechanism.name,
        privacy.guarantee,
        study,
        signer,
    )


def price_study(
    study: Study, persons: int, machine: Machine, signer: Signer | None = None
) -> Prospect:
    """What a study would ask of a site with so many persons."""
    return price_release(
        study.asked,
        persons,
        machine,
        study=study.name,
        signer=signer,
        consortium=study.consortium,
    )


def find_signer(trust: Trust, text: str) -> Signer:
    """The pinned signer whose label, fingerprint or key is ``text``.

    Raises:
        InvalidInput: nobody, or two with one label.
    """
    found = [s for s in trust.signers.values() if text in (s.label, s.fingerprint, s.key)]
    if len(found) != 1:
        known = ", ".join(s.label for s in trust.signers.values()) or "none"
        message = "not trusted" if not found else "a label of several: give the fingerprint"
        problem = Problem("", message, value=shown(text), bound=f"known: {known}")
        raise InvalidInput("--signer", [problem])
    return found[0]
