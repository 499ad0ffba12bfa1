"""Rounds at the coordinator: whatever is lost, killed or late, a sum is of one set of sites."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.support.adders import Adder, BadLine
from tests.support.lifecycle import ANALYST, SCHEMA, START, STUDY

from penstock.aggregation.exchanges import read_sum
from penstock.base.errors import CoordinatorError
from penstock.mechanisms import Scoring
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.study.scope import GLOBAL, LEAST_WIRE, Scope
from penstock.wire.messages import StudyState
from penstock.wire.signatures import generate_key, public_hex
from penstock.wire.signed import SignedStudy, sign_cancel, sign_study
from penstock_server.install.enrolment import enrol_site
from penstock_server.store.database import sqlite_url
from penstock_server.store.folder import Folder
from penstock_server.store.sql_tables import summation_table
from penstock_server.store.store import Store
from penstock_server.studies.coordinator import Coordinator
from penstock_server.studies.summation_course import scale_sum
from penstock_server.transport.pump import Pump

SIZE = 3


def tell(site: str, number: int) -> list[int]:
    """Numbers that differ between sites and rounds."""
    place = int(site[1:])
    return [(-1) ** (place + at) * (10**9 * place**3 + 7 * number + at) for at in range(SIZE)]


class World:
    """A coordinator of sites without gates, with a clock that a test turns."""

    def __init__(
        self, folder: Path, sites: int, dropouts: int, rounds: int, *, seed: int = 1, **line: object
    ) -> None:
        names = tuple(f"s{i:02}" for i in range(1, sites + 1))
        keys = {name: generate_key() for name in names}
        self.persons = {name: 100 * (i + 1) for i, name in enumerate(names)}
        self.folder, self.now, self.rounds = folder, START, rounds
        self.adders = {name: Adder(folder, name, keys[name], tell, rounds - 1) for name in names}
        self.line = BadLine(self.adders, random.Random(seed), **line)  # type: ignore[arg-type]
        Store.create(sqlite_url(folder)).close()
        Folder(folder).make()
        self.begin()
        for name in names:
            join = {
                "site": name,
                "federation": "main",
                "gate_key": public_hex(keys[name]),
                "persons": self.persons[name],
                "dictionary": SCHEMA.to_dict(),
                "node_key": "ecdsa-sha2-nistp384 AAAA",
            }
            enrol_site(self.c, join)
        public = tuple((name, public_hex(key)) for name, key in keys.items())
        scope = Scope(GLOBAL, dropouts, 1, tuple(self.persons.items()), public)
        self.signed = self.sign(names, scope)

    def sign(self, names: tuple[str, ...], scope: Scope) -> SignedStudy:
        study = replace(
            STUDY,
            sites=names,
            mechanism=Scoring(),
            estimands=(Estimand("age", "mean", "age"),),
            privacy=PrivacyRequest(3.0, 1e-6),
            aggregation=scope,
            wire=LEAST_WIRE,
            deadline_hours=100.0,
        )
        return sign_study(study, ANALYST)

    def clock(self) -> datetime:
        return self.now

    def begin(self) -> None:
        """As after a kill."""
        self.store = Store(sqlite_url(self.folder))
        self.c = Coordinator(self.store, Folder(self.folder), clock=self.clock)
        self.pump = Pump(self.c, self.line, clock=lambda: self.now.timestamp())

    def submit(self) -> str:
        study_id = self.c.submit(self.signed)
        with self.store.begin() as c:
            c.execute(sa.update(summation_table).values(rounds=self.rounds))
        return study_id

    def turn(self, seconds: float = 1.0) -> None:
        self.pump.turn()
        self.now += timedelta(seconds=seconds)

    def turn_to_end(self, study_id: str, most: int, *, killed: float = 0.0) -> None:
        rng = random.Random(2)
        for _ in range(most):
            if self.state(study_id) is not StudyState.OPEN:
                return
            self.turn(rng.choice((0.0, 1.0, 20.0)))
            if rng.random() < killed:
                self.store.close()
                self.begin()
        raise AssertionError(self.c.studies())

    def state(self, study_id: str) -> StudyState:
        row = self.store.studies.find(study_id)
        assert row is not None
        return row.state

    def check_sums(self, study_id: str) -> list[tuple[str, ...]]:
        """Each sum is that of its survivors, as large as if all of the first one were there."""
        sums = self.store.summing.sums(study_id)
        assert len(sums) == self.rounds
        for number, found in enumerate(sums):
            said = [tell(site, number) for site in found.survivors]
            frames = [sum(self.persons[s] for s in e.survivors) for e in (sums[0], found)]
            added = [sum(column) for column in zip(*said, strict=True)]
            assert read_sum(found.data) == scale_sum(added, (frames[0], frames[1])), number
        return [each.survivors for each in sums]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., World]:
    return lambda *args, **line: World(tmp_path, *args, **line)


@pytest.mark.thorough
def test_sixty_rounds_over_a_bad_line_with_kills_and_a_site_that_is_gone(
    make: Callable[..., World],
) -> None:
    def away(site: str, turn: int) -> bool:
        return site == "s05" and turn > 400

    world = make(5, 1, 60, lost=0.1, away=away)
    study_id = world.submit()
    world.turn_to_end(study_id, 20_000, killed=0.05)
    survivors = world.check_sums(study_id)
    assert survivors[0] == tuple(world.adders)
    assert survivors[-1] == tuple(world.adders)[:4]
    assert world.store.summing.said(study_id, 59) == {}
    status = world.c.status(study_id)
    assert status["rounds"] == {**status["rounds"], "done": 60, "of": 60, "stage": "done"}
    assert status["sites"][4]["code"] == "sum-left"


@pytest.mark.thorough
def test_sites_that_come_and_go_are_in_some_sums_and_never_twice(
    make: Callable[..., World],
) -> None:
    """Of eight sites two may be away, and another two are in turn."""

    def away(site: str, turn: int) -> bool:
        return turn > 30 and (int(site[1:]) - 1) // 2 == (turn // 80) % 4

    world = make(8, 2, 15, away=away)
    study_id = world.submit()
    world.turn_to_end(study_id, 20_000, killed=0.02)
    survivors = world.check_sums(study_id)
    assert min(map(len, survivors)) == 6
    assert len(set(survivors)) > 2
    back = [site for site in world.adders if any(site not in each for each in survivors)]
    assert any(site in survivors[-1] for site in back)


def test_below_the_quorum_all_wait_for_those_who_come_back(make: Callable[..., World]) -> None:
    def away(site: str, turn: int) -> bool:
        return site in ("s01", "s02") and 30 < turn < 300

    world = make(5, 1, 20, away=away)
    study_id = world.submit()
    while world.line.turn < 280:
        world.turn(2.0)
    assert world.state(study_id) is StudyState.OPEN
    assert len(world.store.summing.sums(study_id)) < 20
    world.turn_to_end(study_id, 5000)
    world.check_sums(study_id)


@pytest.mark.parametrize(("hours", "kept"), [(0.5, True), (2.0, False)])
def test_a_site_at_work_is_waited_for_longer_than_one_that_is_silent(
    make: Callable[..., World], hours: float, kept: bool
) -> None:
    """Patience is 300 s without a word, and an hour with the word that it works."""
    world = make(5, 1, 3)
    slow, begun = world.adders["s02"], world.now
    slow.busy = lambda number: number == 1 and world.now - begun < timedelta(hours=hours)
    study_id = world.submit()
    world.turn_to_end(study_id, 20_000)
    survivors = world.check_sums(study_id)
    assert ("s02" in survivors[1]) is kept


def test_a_study_that_says_another_frame_or_key_is_refused_before_any_site_is_asked(
    make: Callable[..., World],
) -> None:
    world = make(4, 1, 3)
    scope, names = world.signed.study.aggregation, tuple(world.adders)
    persons = ((names[0], 99), *scope.persons[1:])
    with pytest.raises(CoordinatorError, match=r"persons is not what s01 declared.*99.*100"):
        world.c.submit(world.sign(names, replace(scope, persons=persons)))
    other = public_hex(generate_key())
    keys = ((names[0], other), *scope.keys[1:])
    with pytest.raises(CoordinatorError, match="keys is not what s01 declared"):
        world.c.submit(world.sign(names, replace(scope, keys=keys)))
    assert world.c.studies() == []


def test_one_release_cannot_be_closed_early_and_its_end_leaves_nothing_behind(
    make: Callable[..., World],
) -> None:
    world = make(4, 1, 30)
    study_id = world.submit()
    for _ in range(40):
        world.turn()
    assert world.store.summing.sums(study_id)
    wish = sign_cancel(study_id, ANALYST)
    with pytest.raises(CoordinatorError, match="before its last round"):
        world.c.close(wish)
    world.c.cancel(wish)
    done = len(world.store.summing.sums(study_id))
    for _ in range(40):
        world.turn()
    assert world.state(study_id) is StudyState.CANCELLED
    assert len(world.store.summing.sums(study_id)) == done
    assert not any(world.store.summing.said(study_id, number) for number in range(-1, 30))


def test_at_the_deadline_unfinished_sums_have_no_results(make: Callable[..., World]) -> None:
    def away(site: str, turn: int) -> bool:
        return site in ("s01", "s02") and turn > 60

    world = make(4, 1, 30, away=away)
    study_id = world.submit()
    for _ in range(100):
        world.turn()
    world.now += timedelta(hours=101)
    world.turn_to_end(study_id, 10)
    assert world.state(study_id) is StudyState.FAILED
    assert "ended in round" in world.c.status(study_id)["note"]


@pytest.mark.parametrize("number", [0, 7])
def test_what_a_site_says_that_is_not_its_own_is_not_taken(
    make: Callable[..., World], number: int
) -> None:
    """Another site's messages, and bytes that are none, in its place: it is as if it were late."""
    world = make(5, 1, 12)
    liar, honest = world.adders["s03"], world.adders["s04"]
    plain = Adder.answer

    def lie(call: object) -> object:
        found = plain(liar, call)  # type: ignore[arg-type]
        step = call.step  # type: ignore[attr-defined]
        if found.stepped.message and step.round >= number:
            stolen = plain(honest, call).stepped.message  # type: ignore[arg-type]
            found.stepped.message = stolen if step.round % 2 else found.stepped.message[:-1]
        return found

    liar.answer = lie  # type: ignore[method-assign, assignment]
    study_id = world.submit()
    world.turn_to_end(study_id, 5000)
    if number == 0:  # it was never introduced
        assert all("s03" not in each for each in world.check_sums(study_id))
    else:
        survivors = world.check_sums(study_id)
        assert all(("s03" in each) == (at < number) for at, each in enumerate(survivors))


def test_a_scaled_sum_is_the_nearest_whole_number() -> None:
    assert scale_sum([10, -10, 3, 0], (300, 200)) == [15, -15, 5, 0]
    assert scale_sum([7], (5, 5)) == [7]
    big = 2**90 + 1
    assert scale_sum([big], (3, 2)) == [(3 * big + 1) // 2]
