"""A study is run on synthetic rows before it is charged: what would fail costs nothing.

On earlier versions an error of ours, such as a ``LinAlgError`` for every categorical column of two
levels, came after the reservation, at every site.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import SCHEMA, World
from tests.support.timed import Slow, Timed

from penstock.mechanisms import MECHANISMS, Gibbs, Maf, Structured
from penstock.mechanisms.released import Kind
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding
from penstock_client.rows.snapshot import arrange_by_person, load_rows, recode_levels
from penstock_client.work import rehearsal
from penstock_client.work.rehearsal import LONG, SHORT, Timing, seconds, shortened

# The real service; an error is planted in what its workers import.
PLANTED = """
import logging, sys
from pathlib import Path
from penstock_client.gate import service
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import read_settings

folder = Path(sys.argv[1]).parent / "planted"
folder.mkdir()
(folder / "sitecustomize.py").write_text({planted!r})
sys.path.insert(0, str(folder))
logging.basicConfig(level=logging.INFO)
paths = SitePaths(Path(sys.argv[1]))
service.serve_gate(paths, read_settings(paths))
"""

BUG = """
import numpy as np
from penstock.mechanisms.tables import run as mechanism
def draw(*args, **kwargs):
    raise np.linalg.LinAlgError("Singular matrix")
    yield
mechanism.draw = draw
"""
NO_ROW = """
from penstock.mechanisms.tables import run as mechanism
real = mechanism.draw
def draw(*args, **kwargs):
    for label, table in real(*args, **kwargs):
        yield label, table[:0]
mechanism.draw = draw
"""
MISSING = """
import sys
sys.modules["penstock.mechanisms.tables.fitting"] = None
"""


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        (BUG, "LinAlgError"),
        (NO_ROW, "not what was planned"),
        (MISSING, "ModuleNotFoundError"),
    ],
    ids=["an error", "a table of another shape", "a missing module"],
)
def test_what_would_fail_on_real_rows_costs_nothing(world, planted, said):
    site = world.site()
    before = site.ledger().seq
    gate = site.start(driver=PLANTED.format(planted=planted))
    end = site.wait(site.submit(world.signed()).request_id)
    assert (end.state, end.code) == ("failed", "rehearsal")
    assert site.ledger().seq == before
    assert not any(site.paths.work.iterdir())
    gate.terminate()
    output = gate.stdout.read().decode()
    assert said in output
    assert "Singular" not in output


KINDS = Schema(
    (
        Column("c", "continuous", lower=-1, upper=2),
        Column("grid", "continuous", lower=0, upper=1, decimals=2, spike=0.5),
        Column("i", "integer", lower=0, upper=9, nullable=True),
        Column("b", "binary"),
        Column("two", "categorical", levels=("x", "y")),
        Column("many", "categorical", levels=tuple("abcdefg"), nullable=True),
        Column("o", "ordered", levels=("low", "mid", "high")),
        Column("t", "duration", upper=5, event="e"),
        Column("e", "event"),
    ),
    person="id",
    max_rows_per_person=3,
)


def test_synthetic_rows_are_of_all_kinds_with_values_missing_and_persons_absent():
    data = rehearsal.synthetic_rows(KINDS, 2000, 3)
    coded, person = load_rows(data)
    assert set(coded) == set(KINDS.names)
    for column in KINDS.columns:
        values = coded[column.name]
        there = values[~np.isnan(values)]
        assert 0 < len(there) < len(values)
        assert np.array_equal(column.snap(there), there)
        if column.levels:
            assert set(there) == set(range(len(column.levels)))
    assert set(coded["grid"][~np.isnan(coded["grid"])]) >= {0.5}
    assert set(range(2000)) - set(person.tolist())
    rng = np.random.default_rng(0)
    _, present = arrange_by_person(
        recode_levels(coded, KINDS, KINDS), person, 2000, Encoding(KINDS), rng
    )
    assert 0.6 < present.mean() < 0.95


def test_a_wide_table_keeps_whole_rows():
    wide = Schema(tuple(Column(f"x{i}", "continuous", lower=0, upper=1) for i in range(200)))
    coded, person = load_rows(rehearsal.synthetic_rows(wide, 50, 1))
    _, present = arrange_by_person(coded, person, 50, Encoding(wide), np.random.default_rng(0))
    assert present.any()


def test_a_rehearsal_has_the_studys_settings_but_for_their_number(world):
    study = world.study(
        schema=SCHEMA, sites=("a",), mechanism=Maf(steps=900, hidden=(7,), refits=3, copies=8)
    )
    short = shortened(study, MECHANISMS.of(study.mechanism), LONG)
    assert short.mechanism == Maf(steps=LONG, hidden=(7,), refits=1, copies=2)
    assert short.privacy == study.privacy
    whole = world.study(sites=("a",), mechanism=Gibbs())
    assert shortened(whole, MECHANISMS.of(whole.mechanism), SHORT) == whole


TIMES = st.tuples(*[st.floats(0.001, 100)] * 7)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.integers(1, 100), st.integers(0, 100), st.integers(1, 10_000), TIMES, st.booleans())
def test_the_estimate_holds_every_fit_refit_and_table(copies, refits, steps, times, told):
    """A release is prepared once; then a fit, refits, and a table of each and of each copy.

    ``told``: whether a mechanism tells of its steps one by one, or of all of them at the end.
    """
    once, fit, again, draw, one, paths, checking = times
    now = [3.0]

    def release(copies, refits, steps):
        """It takes its time, and tells of its steps and parts."""
        timing = Timing(lambda: now[0])
        now[0] += once + fit
        for step in range(1, steps + 1):
            now[0] += one
            if told or step == steps:
                timing.step(step, steps)
        for _ in range(copies):
            now[0] += draw
            timing.part(Kind.COPY)
        now[0] += paths
        timing.part(Kind.ONCE)
        for _ in range(refits):
            now[0] += again + one * steps + draw
            timing.part(Kind.REFIT)
        timing.part(Kind.ONCE)
        return timing

    few = min(copies, 2), min(refits, 1)
    if steps <= LONG:
        found = release(*few, steps).measured()
    else:
        found = release(*few, SHORT).measured(release(1, 0, LONG))
    began = now[0]
    release(copies, refits, steps)
    planned = seconds(
        _study(Maf(copies=copies, refits=refits, steps=steps)),
        MECHANISMS["maf"],
        replace(found, checked=checking * sum(few), pace=1.7),
    )
    truth = 1.7 * (now[0] - began) + checking * (copies + refits)
    assert planned == pytest.approx(truth, rel=1e-6)


OUTCOME = Schema(
    (
        Column("years", "duration", upper=10, event="died"),
        Column("died", "event"),
        Column("age", "integer", lower=18, upper=100),
    )
)
HAZARD = Estimand("hazard", "cox", "years", "age")


@pytest.mark.parametrize("planted", [0, 1, 12])
def test_the_estimate_holds_every_planted_run(planted):
    """Each a table with effects in it, a fit, and the table of that."""
    now = [0.0]

    def release(copies, refits, runs):
        timing = Timing(lambda: now[0])
        made = [(Kind.COPY, 5.0)] + [(Kind.COPY, 1.0)] * (copies - 1) + [(Kind.REFIT, 3.0)] * refits
        for kind, took in made + [(Kind.PLANTED, 4.0), (Kind.RECOVERED, 0.5)] * runs:
            now[0] += took
            timing.part(kind)
        timing.part(Kind.ONCE)
        return timing

    mechanism = Structured(copies=4, refits=8, planted=planted)
    study = World(Path()).study(
        sites=("a",), mechanism=mechanism, schema=OUTCOME, estimands=(HAZARD,)
    )
    short = shortened(study, MECHANISMS["structured"]).mechanism
    assert short == Structured(copies=2, refits=1, planted=min(1, planted))
    found = release(short.copies, short.refits, short.planted).measured()
    began = now[0]
    release(4, 8, planted)
    few = 2 + 1 + 2 * short.planted
    planned = seconds(study, MECHANISMS["structured"], replace(found, checked=0.1 * few))
    assert planned == pytest.approx(now[0] - began + 0.1 * (4 + 8 + 2 * planted))


def _study(mechanism):
    return World(Path()).study(sites=("a",), mechanism=mechanism)


def test_noise_in_what_is_measured_never_shortens_the_estimate_below_one_run():
    short, long = Timing(lambda: 1.0), Timing(lambda: 0.5)
    for timing in (short, long):
        timing.part(Kind.COPY)
    found = replace(short.measured(long), first=1.0)
    assert found.step == 0
    assert seconds(_study(Maf()), MECHANISMS["maf"], found) >= 1.0


def test_a_rehearsal_is_kept_for_the_same_study_again(world):
    site, asked = world.site(total=100.0), []
    real = Slow.prepare

    def prepare(self, spec, *, rehearse=True):
        asked.append(rehearse)
        return real(self, spec, rehearse=rehearse)

    timed = Timed(site, world.analyst, [(2, "delivered")] * 3)
    Slow.prepare = prepare
    try:
        timed.submit(
            world.signed(),
            world.signed(release=2),
            world.signed(name="wider", mechanism=Maf(copies=3, refits=2, steps=12, hidden=(9,))),
        )
        timed.run(150)
    finally:
        Slow.prepare = real
        timed.gate.stores.database.close()
    assert asked == [True, False, True]


def test_synthetic_rows_are_a_snapshot():
    table = pa.ipc.open_file(rehearsal.synthetic_rows(SCHEMA, 10, 1)).read_all()
    assert table.column_names[1:] == list(SCHEMA.names)
