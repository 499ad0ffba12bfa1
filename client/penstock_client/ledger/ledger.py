"""The privacy ledger: append-only, hash-chained, signed, recomputed at every decision.

How its records are kept is in :mod:`penstock_client.ledger.records`, what they mean in
:mod:`penstock_client.ledger.chain`, and what they cost in :mod:`penstock_client.ledger.budget`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from penstock.base.documents import Json
from penstock.base.errors import LedgerError
from penstock.privacy.events import RELATION, to_dict
from penstock.privacy.filters import Filter, best_order
from penstock.wire.signatures import public_hex
from penstock_client.ledger.chain import OPTIONAL_TEXTS
from penstock_client.ledger.records import SignedRecords
from penstock_client.ledger.reservation import admit_charge
from penstock_client.ledger.state import Charge, State, Unit
from penstock_client.site.policy import Policy


class Ledger(SignedRecords):
    """What is recorded of data sets, and what is charged to them."""

    def open_for(self, site: str) -> State:
        """Write the first records."""
        if self._key is None:
            raise LedgerError("this ledger was opened for reading only")
        return self.append(
            "open", site=site, id=secrets.token_hex(16), gate_key=public_hex(self._key)
        )

    def add_lineage(
        self,
        name: str,
        total_epsilon: float,
        delta: float,
        *,
        unit: Unit,
        approximate_delta: float = 0.0,
        strata: Iterable[str] = (),
        orders: Iterable[float] = (),
        disjoint: bool = False,
        new_data: bool = False,
        reason: str = "",
    ) -> State:
        """Begin a data set's life with its total budget; what is given here is fixed for good.

        Args:
            unit: whom it protects.
            approximate_delta: the part of ``delta`` set aside for events that take δ off the top.
            strata: names of parts of the persons: nobody is in two, and nobody ever moves.
            orders: the filter's Rényi orders; by default the one that suits the budget best.
            disjoint: the steward declares that nobody in it is in another data set of the site.
                Needed for every one but the first: the same persons under another name would get
                their budget a second time.
            new_data: the steward declares that these rows were in no data set before. Needed
                once records were lost: a data set of the same rows may have been begun, and
                charged, in one of them, under this name or another.
            reason: of the declaration, in the steward's words.

        Raises:
            InvalidEvent: no budget, or no room in it for any release.
            LedgerError: a second data set, not declared disjoint; or records were lost, and the
                rows are not declared to be new.
        """
        state = self.state()
        if state.recovered and not new_data:
            raise LedgerError(
                "records of this ledger were lost: a data set of these rows may have been begun, "
                "and charged, in one of them",
                value=name,
                remedy="only if no row was ever in a data set of this site: --new-data",
            )
        if state.lineages and not (disjoint or new_data):
            raise LedgerError(
                "this site has a data set, and what was spent on it is never reset",
                value=name,
                bound=f"its name is {' or '.join(state.lineages)}",
                remedy="write that name in site.toml, for new and for corrected rows alike; only "
                "if not one person is in both: --disjoint",
            )
        declared: Json = {"unit": unit.to_dict()}
        declared |= {k: True for k, v in (("new_data", new_data), ("disjoint", disjoint)) if v}
        if reason:
            declared["reason"] = reason
        if approximate_delta:
            declared["approximate_delta"] = approximate_delta
        if names := list(strata):
            declared["strata"] = names
        grid = tuple(orders) or (best_order(total_epsilon, delta - approximate_delta),)
        _ = Filter(total_epsilon, delta, grid, approximate_delta=approximate_delta)
        order = list(grid) if len(grid) > 1 else grid[0]
        return self.append(
            "lineage", lineage=name, epsilon=total_epsilon, delta=delta, order=order, **declared
        )

    def fix_unit(self, lineage: str, unit: Unit) -> None:
        """Record the unit of a data set that began before units were recorded.

        Nothing is written where it is known and the same.

        Raises:
            LedgerError: it is known, and another.
        """
        self.refuse_another_unit(lineage, unit)
        if self.state().lineages[lineage].unit is None:
            self.append("unit", lineage=lineage, unit=unit.to_dict())

    def refuse_another_unit(self, lineage: str, unit: Unit) -> None:
        """A data set protects one unit for good.

        Raises:
            LedgerError: it protects another.
        """
        found = self.state().lineages.get(lineage)
        if found is None or found.unit in (None, unit):
            return
        raise LedgerError(
            f"{lineage} protects another unit, and all that was spent on it was spent on that",
            value=unit,
            bound=found.unit,
            remedy="set `person` and `max_rows_per_person` in dictionary.toml as they were",
        )

    def refuse_another_frame(self, lineage: str, persons: int, new_frame: bool) -> None:
        """The public number of persons stays as it is, but for a declared new frame.

        Raises:
            LedgerError: it changed, and was not declared to.
        """
        found = self.state().lineages.get(lineage)
        before = found.versions[-1] if found and found.versions else None
        if before is None or new_frame or persons == before.persons:
            return
        raise LedgerError(
            "the declared frame of a data set stays as it is: its size is public, and would tell "
            "who joined and who left",
            value=f"{persons} persons",
            bound=f"{before.persons} persons, as in version {before.number}",
            remedy="declare the same number; only if other people may now be in it: --new-frame",
        )

    def add_version(
        self,
        lineage: str,
        persons: int,
        fingerprint: str,
        *,
        new_frame: bool = False,
        reason: str = "",
    ) -> int:
        """Record certified rows; nothing that was spent is reset. Returns the version's number.

        Args:
            persons: the declared frame, at least the count of persons. It is public, so that a
                number which followed the rows would tell who joined.
            new_frame: the steward declares that this version is of another frame.
            reason: of the declaration, in the steward's words.

        Raises:
            LedgerError: the frame changed, and was not declared to be a new one.
        """
        with self.database.transaction():
            self.refuse_another_frame(lineage, persons, new_frame)
            number = len(self.state().lineages[lineage].versions) + 1
            declared: Json = {"new_frame": True} if new_frame else {}
            if new_frame and reason:
                declared["reason"] = reason
            self.append(
                "version",
                lineage=lineage,
                version=number,
                persons=persons,
                fingerprint=fingerprint,
                **declared,
            )
        return number

    def reserve(
        self, charge: Charge, *, signer_epsilon: float, policy: Policy | None = None
    ) -> State:
        """Reserve a charge, if the lineage's filter and every allowance admit it.

        Atomic with respect to every other writer: two studies at once never overspend.

        Args:
            charge: its worst case; ``id`` is the request id, and is charged at most once.
            signer_epsilon: the signer's own total at this lineage's δ.
            policy: the steward's other allowances; without one there are none.

        Raises:
            BudgetExceeded: it does not fit; nothing was written.
            InvalidEvent: it is on a stratum that was not declared, or charges nothing.
            LedgerError: the id was charged before, or the version is not the certified one; or it
                does not say what was asked.
        """
        for name in ("study_digest", "plan_digest", "decisions"):
            if not getattr(charge, name):
                raise LedgerError("a reservation that cannot be recomputed", bound=f"needs {name}")
        with self.database.transaction():
            state = self.state()
            now = self._now(state)  # the year that is checked is the one that is written
            admit_charge(state, charge, now=now, signer_epsilon=signer_epsilon, policy=policy)
            fields: Json = {
                "charge": charge.id,
                "lineage": charge.lineage,
                "version": charge.version,
                "study_id": charge.study_id,
                "signer": charge.signer,
                "mechanism": charge.mechanism,
                "events": [to_dict(e) for e in charge.events],
                "delta": charge.delta,
                "relation": RELATION,
            }
            texts = {name: getattr(charge, name) for name in OPTIONAL_TEXTS}
            fields |= {name: text for name, text in texts.items() if text}
            return self._write("reserve", now, fields)

    def commit(self, charge_id: str) -> State:
        """The release was kept."""
        return self._settle("commit", charge=charge_id)

    def burn(self, charge_id: str, reason: str) -> State:
        """The run ended without a release; the charge stays."""
        return self._settle("burn", charge=charge_id, reason=reason)

    def _settle(self, kind: str, **fields: str) -> State:
        # When a run ended is private, and heads are published: without a salt, who knows the rest
        # of the record could find its time by trying every microsecond.
        return self.append(kind, salt=secrets.token_hex(16), **fields)
