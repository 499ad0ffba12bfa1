"""Whoever is in a data set has one budget, one unit and one frame, under whatever name."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from tests.conftest import SCHEMA, TestSite, rows_csv
from tests.support.ledgers import DIGESTS, ROWS

from penstock.base.errors import (
    BudgetExceeded,
    InvalidEvent,
    InvalidInput,
    LedgerCorrupt,
    LedgerError,
    Refused,
)
from penstock.base.times import stamp_now
from penstock.privacy.events import Gaussian, OnStratum
from penstock.privacy.filters import Filter
from penstock.wire.canonical import canonical
from penstock.wire.signatures import generate_key, private_to_pem, public_hex
from penstock_client.gate.admission import consider
from penstock_client.gate.facts import read_facts
from penstock_client.ledger.chain import apply_record
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database
from penstock_client.ledger.state import Charge, State, Unit
from penstock_client.onboarding.certification import Declared, certify_rows
from penstock_client.onboarding.inspection import inspect_rows
from penstock_client.rows import identities
from penstock_client.rows.sources.registry import SOURCES
from penstock_client.rows.sources.source import read_batches
from penstock_client.site.site_settings import read_settings

KEY = generate_key()
PUBLIC = public_hex(KEY)
ID_SCHEMA = replace(SCHEMA, person="id")


def charge(name: str, sigma: float = 3.0, **more) -> Charge:
    values = {
        "lineage": "main",
        "version": 1,
        "study_id": "s",
        "signer": "ann",
        "mechanism": "maf",
        "events": (Gaussian(sigma),),
        "delta": 1e-5,
    }
    return Charge(id=name, **{**DIGESTS, **values, **more})


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(Database.create(tmp_path / "gate.db"), KEY)
    made.open_for("here")
    made.add_lineage("main", 5.0, 1e-5, unit=Unit("id", 4))
    made.add_version("main", 100, "f")
    return made


def with_ids(numbers: range, seed: int = 1) -> str:
    head, *rows = rows_csv(len(numbers), seed).splitlines()
    return "\n".join([f"id,{head}", *(f"p{i},{row}" for i, row in zip(numbers, rows, strict=True))])


def certify(
    site: TestSite,
    csv: str | None = None,
    lineage: str = "",
    persons: int | None = None,
    **declared,
) -> int:
    """What `penstock site check --accept` does, after edits of settings, file and dictionary."""
    if persons is not None:
        text = site.paths.dictionary.read_text()
        site.paths.dictionary.write_text(re.sub(r"(?m)^persons = .*", f"persons = {persons}", text))
    if csv is not None:
        (site.paths.root.parent / f"{site.name}.csv").write_text(csv + "\n")
    if lineage:
        text = site.paths.settings.read_text()
        before = read_settings(site.paths).lineage
        site.paths.settings.write_text(
            text.replace(f'lineage = "{before}"', f'lineage = "{lineage}"')
        )
    settings = read_settings(site.paths)
    checked, _ = inspect_rows(site.paths, settings, new_frame=declared.get("new_frame", False))
    return certify_rows(site.paths, settings, checked, accept=True, declared=Declared(**declared))


# -- a name ------------------------------------------------------------------------------------


def test_renaming_the_lineage_bought_a_fresh_budget(world):
    site = world.site("a")
    seq = site.ledger().seq
    with pytest.raises(LedgerError, match="never reset") as told:
        certify(site, lineage="renamed")
    assert "its name is main" in str(told.value)
    assert site.ledger().seq == seq
    assert set(site.ledger().lineages) == {"main"}


def test_the_same_persons_were_declared_disjoint(world):
    site = world.site("a", csv=with_ids(range(200)) + "\n", schema=ID_SCHEMA, persons=300)
    certify(site, with_ids(range(500, 700), seed=2))  # others, in the same data set
    # Other rows and other columns' order, but 3 persons of the first version.
    with pytest.raises(LedgerError, match="3 persons"):
        certify(site, with_ids(range(197, 400), seed=3), "second", disjoint=True)
    assert set(site.ledger().lineages) == {"main"}
    assert certify(site, with_ids(range(200, 400), seed=3), "second", disjoint=True) == 1
    second = site.ledger().lineages["second"]
    assert second.disjoint
    assert second.unit == Unit("id", 1)
    # A later version of the first may not take them in either.
    with pytest.raises(LedgerError, match="1 persons of these rows are, or were, in second"):
        certify(site, with_ids(range(399, 599), seed=4), "main")


def test_the_same_rows_without_a_person_column_were_declared_disjoint(world):
    site = world.site("a", csv=rows_csv(200, seed=9))
    head, *rows = rows_csv(200, seed=9).splitlines()
    names = head.split(",")
    turned = [",".join(reversed(row.split(","))) for row in (",".join(names), *rows)]
    with pytest.raises(LedgerError, match="declared disjoint"):
        certify(site, "\n".join(turned), "second", disjoint=True)


def test_hashes_of_persons_are_keyed_private_and_never_forgotten(tmp_path, world):
    site = world.site("a", csv=with_ids(range(200)) + "\n", schema=ID_SCHEMA)
    kept = identities.load_identities(site.paths.identities, "main")
    (file,) = site.paths.identities.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(kept.persons) == len(kept.rows) == 200
    (batch,) = read_batches(SOURCES.open(site.paths.root.parent / "a.csv"))
    own = private_to_pem(site.paths.key())
    for secret, shared in ((own, 200), (own + b"x", 0)):  # another key
        found = identities.IdentityGatherer(secret)
        found.add(batch, batch.read_text("id"))
        assert found.done().shared(kept) == shared
    certify(site, with_ids(range(300, 500)))
    assert len(identities.load_identities(site.paths.identities, "main").persons) == 400


def test_a_second_data_set_that_is_not_disjoint_breaks_the_chain(ledger):
    body = {"epsilon": 5.0, "delta": 1e-5, "order": 8.0, "unit": {"person": None, "rows": 1}}
    for more, broken in (({}, True), ({"disjoint": True}, False)):
        state = ledger.state()
        record = {"kind": "lineage", "lineage": "b", **body, **more}
        record |= {"seq": state.seq + 1, "prev": state.head, "time": state.time}
        if broken:
            with pytest.raises(LedgerCorrupt):
                apply_record(state, canonical(record).decode(), "0" * 64)
        else:
            assert apply_record(state, canonical(record).decode(), "0" * 64).lineages["b"].disjoint


# -- a unit ------------------------------------------------------------------------------------


def test_the_unit_changed_within_a_lineage(world):
    site = world.site("a", csv=with_ids(range(200)) + "\n", schema=ID_SCHEMA)
    dictionary = site.paths.dictionary.read_text()
    assert "max_rows_per_person = 1" in dictionary
    seq = site.ledger().seq
    for changed in (
        dictionary.replace("max_rows_per_person = 1", "max_rows_per_person = 5"),
        dictionary.replace('person = "id"\n', ""),
    ):
        assert changed != dictionary
        site.paths.dictionary.write_text(changed)
        with pytest.raises(LedgerError, match="another unit"):
            certify(site)
    assert site.ledger().seq == seq
    site.paths.dictionary.write_text(dictionary)
    assert certify(site) == 1  # nothing was touched


def test_a_study_used_more_rows_of_a_person_than_the_data_set_protects(world):
    site = world.site("a", csv=with_ids(range(200)) + "\n", schema=ID_SCHEMA)
    facts = read_facts(site.paths, read_settings(site.paths), site.ledger(), stamp_now())
    assert consider(world.signed(schema=ID_SCHEMA), facts)
    # Whatever dictionary is certified beside it, the ledger's unit holds.
    wide = replace(facts, dictionary=replace(ID_SCHEMA, max_rows_per_person=9))
    many = world.signed(schema=replace(ID_SCHEMA, max_rows_per_person=2))
    with pytest.raises(Refused) as refused:
        consider(many, wide)
    assert refused.value.reason == "schema"


# -- a frame -----------------------------------------------------------------------------------


def test_n_told_who_joined(world):
    site = world.site("a", csv=with_ids(range(200)) + "\n", schema=ID_SCHEMA, persons=300)
    seq = site.ledger().seq
    with pytest.raises(InvalidInput, match="everybody sees it change"):
        certify(site, with_ids(range(201)), persons=301)
    # The ledger holds it too, whoever asks.
    ledger = Ledger(Database(site.paths.database), site.paths.key())
    with pytest.raises(LedgerError, match="who joined"):
        ledger.add_version("main", 301, "f")
    ledger.database.close()
    assert site.ledger().seq == seq
    assert certify(site, with_ids(range(201)), persons=300) == 2
    said = {"new_frame": True, "reason": "a new ward"}
    assert certify(site, with_ids(range(201)), persons=301, **said) == 3
    versions = site.ledger().lineages["main"].versions
    assert [v.persons for v in versions] == [300, 300, 301]
    assert versions[-1].new_frame


def test_a_frame_that_changed_undeclared_breaks_the_chain(ledger):
    state = ledger.state()
    record = {"kind": "version", "lineage": "main", "version": 2, "persons": 101}
    record |= {"fingerprint": "g", "seq": state.seq + 1, "prev": state.head, "time": state.time}
    with pytest.raises(LedgerCorrupt):
        apply_record(state, canonical(record).decode(), "0" * 64)
    told = canonical({**record, "new_frame": True}).decode()
    assert apply_record(state, told, "0" * 64).lineages["main"].versions[-1].new_frame


# -- a charge ----------------------------------------------------------------------------------


def test_an_empty_charge_was_accepted(ledger):
    with pytest.raises(InvalidEvent, match="nothing"):
        ledger.reserve(charge("a", events=()), signer_epsilon=5.0)
    assert not ledger.state().charges


def test_an_uncertified_version_was_charged(ledger):
    for version in (0, 2, 17):
        with pytest.raises(LedgerError, match="certified"):
            ledger.reserve(charge("a", version=version), signer_epsilon=5.0)
    ledger.add_version("main", 100, "g")
    with pytest.raises(LedgerError, match="certified"):  # its rows are gone
        ledger.reserve(charge("a", version=1), signer_epsilon=5.0)
    ledger.add_lineage("bare", 5.0, 1e-5, unit=ROWS, disjoint=True)
    with pytest.raises(LedgerError, match="none is certified"):
        ledger.reserve(charge("a", lineage="bare"), signer_epsilon=5.0)
    assert not ledger.state().charges


def test_a_reservation_could_not_be_recomputed_from_the_request(ledger):
    for name in DIGESTS:
        with pytest.raises(LedgerError, match=name):
            ledger.reserve(charge("a", **{name: ""}), signer_epsilon=5.0)
    ledger.reserve(charge("a"), signer_epsilon=5.0)
    kept = ledger.verify(PUBLIC).charges["a"]
    assert {name: getattr(kept, name) for name in DIGESTS} == DIGESTS


def test_a_settled_records_time_cannot_be_found_from_its_hash(ledger):
    ledger.reserve(charge("a", sigma=9.0), signer_epsilon=5.0)
    ledger.commit("a")
    ledger.reserve(charge("b", sigma=9.0), signer_epsilon=5.0)
    ledger.burn("b", "failed")
    ends = [json.loads(b) for _, b, _, _ in ledger.records()]
    salts = [r["salt"] for r in ends if r["kind"] in ("commit", "burn")]
    assert len(set(salts)) == 2
    assert all(len(bytes.fromhex(salt)) == 16 for salt in salts)


# -- what is not disjoint adds up --------------------------------------------------------------


def joined(*spent: float) -> State:
    """An old ledger's data sets, each within its own ε."""
    from penstock_client.ledger.state import Lineage, Version

    lineages, charges = {}, {}
    for place, sigma in enumerate(spent):
        name = f"rows-{place}"
        made = charge(f"c{place}", sigma, lineage=name, status="committed")
        one = Version(1, 100, "f", "2026-01-01T00:00:00Z")
        lineages[name] = Lineage(name, 3.0, 1e-5, 8.0, (one,), (made,), strata=("n",))
        charges[made.id] = made
    return State(lineages=lineages, charges=charges)


def test_charges_of_data_sets_that_are_not_disjoint_add_up():
    state = joined(4.0, 4.0)
    whole = Filter(3.0, 1e-5, 8.0)
    both = (Gaussian(4.0), Gaussian(4.0))
    for name in state.lineages:
        assert sorted(map(str, state.joint(name).events())) == sorted(map(str, both))
        assert not state.closed(name)
    fits = Gaussian(20.0)
    assert whole.admits(both, (fits,))
    state.check("rows-0", (fits,))
    alone = Gaussian(1.69)  # would fit into either by itself
    assert whole.admits((Gaussian(4.0),), (alone,))
    assert not whole.admits(both, (alone,))
    with pytest.raises(BudgetExceeded):
        state.check("rows-0", (alone,))
    apart = {n: replace(x, disjoint=True) for n, x in state.lineages.items()}
    replace(state, lineages=apart).check("rows-0", (alone,))


def test_a_stratum_of_another_data_set_is_paid_by_everybody():
    state = joined(4.0, 4.0)
    other = replace(state.charges["c1"], events=(OnStratum("n", Gaussian(4.0)),))
    one = replace(state.lineages["rows-1"], charges=(other,))
    lineages = {**state.lineages, "rows-1": one}
    state = replace(state, lineages=lineages, charges={**state.charges, "c1": other})
    assert state.joint("rows-0").events() == (Gaussian(4.0), Gaussian(4.0))
    assert state.joint("rows-1").events()[1] == OnStratum("n", Gaussian(4.0))


def test_two_data_sets_that_are_together_over_budget_are_closed():
    state = joined(2.0, 2.0)
    assert all(not each.over for each in state.lineages.values())
    for name in state.lineages:
        assert state.joint(name).over
        assert state.closed(name)
        with pytest.raises(BudgetExceeded, match="never declared disjoint"):
            state.check(name, (Gaussian(1e6),))


# -- δ -----------------------------------------------------------------------------------------


def test_delta_was_no_small_chance_among_so_many(world):
    site = world.site("a")
    facts = read_facts(site.paths, read_settings(site.paths), site.ledger(), stamp_now())
    policy = replace(facts.policy, study_delta=0.01, total_delta=0.01)
    facts = replace(facts, policy=policy)
    most = 1 / (10 * 200)
    for delta, reason in ((most * 1.01, "delta"), (most, None)):
        asked = world.signed(privacy=replace(world.study().privacy, delta=delta))
        try:
            consider(asked, facts)
            assert reason is None
        except Refused as refused:
            assert refused.reason == reason  # noqa: PT017
            assert "0.0005" in str(refused)  # noqa: PT017
    lax = replace(facts, policy=replace(policy, delta_times_persons=1.0))
    assert consider(world.signed(privacy=replace(world.study().privacy, delta=1 / 200)), lax)
