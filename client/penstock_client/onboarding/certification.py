"""Certifying checked rows as a version of a data set: in the ledger, and in the gate's own file."""

from __future__ import annotations

import json
from dataclasses import dataclass

from penstock.base.errors import LedgerError, PenstockError
from penstock.base.files import write_atomic
from penstock.study.toml import write_dictionary
from penstock.wire.canonical import canonical
from penstock.wire.signatures import private_to_pem, public_hex
from penstock_client.gate.facts import locate_dictionary
from penstock_client.gate.recovery import STOPPED, find_contradiction
from penstock_client.ledger.decisions import Who, check_reason, open_decisions
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database, hold_exclusively
from penstock_client.ledger.state import State, Unit
from penstock_client.onboarding.join_file import declared_frame, describe_site, read_node_line
from penstock_client.onboarding.kept_recodings import fingerprint_recoding, keep_recoding
from penstock_client.rows.identities import Identities, keep_identities, load_identities
from penstock_client.rows.snapshot import encode_rows, keyed_fingerprint, locate_rows, save_rows
from penstock_client.rows.validation import Checked, require_clean
from penstock_client.site.policy import read_policy
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import SiteSettings


@dataclass(frozen=True, slots=True)
class Declared:
    """What the steward says of rows, and nothing in them can tell; it is recorded.

    Attributes:
        disjoint: nobody is in another data set of this site; asked for a second data set.
        new_data: no row was ever in a data set of this site; asked for a new lineage once records
            of the ledger were lost.
        new_frame: other people may now be in the data set; asked where the declared number of
            persons changes.
        reason: why, in the steward's words.
    """

    disjoint: bool = False
    new_data: bool = False
    new_frame: bool = False
    reason: str = ""

    def said(self) -> list[str]:
        """The names of what was declared."""
        return [n for n in ("disjoint", "new_data", "new_frame") if getattr(self, n)]


NOTHING_DECLARED = Declared()


def certify_rows(
    paths: SitePaths,
    settings: SiteSettings,
    checked: Checked,
    *,
    accept: bool,
    declared: Declared = NOTHING_DECLARED,
) -> int:
    """Record checked rows as a version of the lineage; returns the version's number.

    The same rows under the same dictionary are the same version. A new version leaves what was
    spent where it is.

    Args:
        declared: what the steward says of the rows; what nothing in them can tell.

    Raises:
        InvalidInput: findings that stand in the way; LedgerLocked: the gate runs.
        LedgerError: the ledger must be recovered first; a second data set that is not disjoint, or
            shares persons with another; another unit, or another frame, than before.
    """
    require_clean(checked.source, checked, accept=accept)
    check_reason(declared.reason)
    policy = read_policy(paths.policy)
    persons = declared_frame(checked)
    public = None
    if checked.public is not None:
        require_clean(checked.public.source, checked.public, accept=accept)
        public = encode_rows(checked.public)
    data = encode_rows(checked)
    key = paths.key()
    meaning = canonical(checked.dictionary.to_dict())
    # A site that could not be enrolled is told before anything is recorded.
    _ = read_node_line(paths)
    secret = private_to_pem(key)
    print_of_rows = keyed_fingerprint(data + meaning, secret)
    unit = Unit(checked.dictionary.person, checked.dictionary.max_rows_per_person)
    everybody = checked.everybody
    if everybody is None:
        raise PenstockError(
            "these rows were checked without the gate's key, and cannot be certified"
        )
    with hold_exclusively(paths.lock):
        database = Database(paths.database)
        try:
            ledger = Ledger(database, key)
            state = ledger.verify(public_hex(key))
            _refuse_if_restored(paths, ledger)
            lineage = state.lineages.get(settings.lineage)
            latest = lineage.versions[-1] if lineage and lineage.versions else None
            # The frame is no part of the print: the same rows in another frame are a new version.
            same = (print_of_rows, persons)
            known = latest is not None and (latest.fingerprint, latest.persons) == same
            number = (latest.number if latest else 0) + (0 if known else 1)
            # All that can be refused is, before anything is written.
            ledger.refuse_another_unit(settings.lineage, unit)
            ledger.refuse_another_frame(settings.lineage, persons, declared.new_frame)
            _refuse_overlap(paths, state, settings.lineage, everybody, declared)
            if lineage is None:
                ledger.add_lineage(
                    settings.lineage,
                    policy.total_epsilon,
                    policy.total_delta,
                    unit=unit,
                    disjoint=declared.disjoint,
                    new_data=declared.new_data,
                    reason=declared.reason,
                )
            ledger.fix_unit(settings.lineage, unit)
            recoding = checked.recoding.text
            prints = (print_of_rows, fingerprint_recoding(recoding, secret))
            _record_decision(paths, settings, number, persons, prints, declared)
            # First: who is in a version that the ledger holds is always known.
            keep_identities(paths.identities, settings.lineage, everybody)
            # Without its dictionary the gate answers "not ready": rows are never read with
            # another version's levels, wherever this is interrupted.
            certified = locate_dictionary(paths)
            certified.unlink(missing_ok=True)
            # Rows first, record second: a version in the ledger always has its rows.
            save_rows(paths.snapshots, settings.lineage, number, data)
            keep_recoding(paths.snapshots, settings.lineage, number, recoding)
            if not known:
                ledger.add_version(
                    settings.lineage,
                    persons,
                    print_of_rows,
                    new_frame=declared.new_frame,
                    reason=declared.reason,
                )
            if public is None:
                (paths.snapshots / "public.arrow").unlink(missing_ok=True)
            else:
                write_atomic(paths.snapshots / "public.arrow", public)
            text = write_dictionary(checked.dictionary, persons, checked.others)
            write_atomic(certified, text.encode())
            _forget_older_rows(paths, settings.lineage, number)
        finally:
            database.close()
    join = describe_site(paths, settings, checked)
    write_atomic(paths.join, json.dumps(join, indent=2).encode() + b"\n", mode=0o644)
    return number


def _record_decision(
    paths: SitePaths,
    settings: SiteSettings,
    number: int,
    persons: int,
    prints: tuple[str, str | None],
    declared: Declared,
) -> None:
    """The steward's word, and whose it was; of the rows nothing but what the ledger holds.

    Args:
        prints: keyed fingerprints of the rows, and of the recoding by which they were read.
    """
    with open_decisions(paths, settings.name) as decisions:
        decisions.notice(paths)
        decisions.append(
            "certify",
            Who.here(),
            declared.reason,
            lineage=settings.lineage,
            version=number,
            persons=persons,
            fingerprint=prints[0],
            recoding=prints[1],
            declared=declared.said(),
        )


def _refuse_overlap(
    paths: SitePaths, state: State, name: str, everybody: Identities, declared: Declared
) -> None:
    """Nobody may be in two data sets that were declared disjoint, in any of their versions.

    Raises:
        LedgerError: somebody is, or nobody knows.
    """
    own = state.lineages.get(name)
    apart = own.disjoint if own else declared.disjoint or declared.new_data
    for other in state.lineages.values():
        if other.name == name or not (apart or other.disjoint) or not other.versions:
            continue
        theirs = load_identities(paths.identities, other.name)
        if theirs is None and other.exhausted and declared.new_data:
            continue  # its rows may be lost with the records; its budget is
        if theirs is None:
            raise LedgerError(
                f"nobody knows who is in {other.name}: an older Penstock certified it",
                value=name,
                bound=f"disjoint from {other.name}",
                remedy=f"first run `penstock site check` with lineage = {other.name!r} and its "
                "rows",
            )
        shared = everybody.shared(theirs)
        if shared:
            raise LedgerError(
                f"{shared} persons of these rows are, or were, in {other.name}, and the two are "
                "declared disjoint: they would be given a second budget",
                value=name,
                bound=f"nobody of {other.name}",
                remedy=f"leave them out, or write lineage = {other.name!r}; where two sources only "
                "number their persons alike, make the ids distinct",
            )


def _refuse_if_restored(paths: SitePaths, ledger: Ledger) -> None:
    """A record more would part a restored ledger from the records that it lost."""
    if find_contradiction(paths, ledger, paths.gate_public()) is not None:
        raise LedgerError(STOPPED, value=paths.root)


def _forget_older_rows(paths: SitePaths, lineage: str, number: int) -> None:
    """Rows of earlier versions are no longer needed, and are not kept; their recodings are."""
    for older in range(1, number):
        locate_rows(paths.snapshots, lineage, older).unlink(missing_ok=True)
