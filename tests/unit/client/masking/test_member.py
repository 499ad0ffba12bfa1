"""A gate in sums: it says each thing once, goes on after a crash, and keeps no secret it used."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.summing import (
    Summing,
    add_up,
    make_draw,
    make_terms,
    make_vectors,
)

from penstock.aggregation.adverts import read_posting, write_meeting, write_posting
from penstock.aggregation.envelopes import pack_parts, unpack_parts
from penstock.aggregation.exchanges import (
    SumTerms,
    read_opening,
    write_asking,
    write_opening,
)
from penstock.base.errors import (
    MaskingRefused,
    PenstockError,
    SignatureError,
    UploadRejected,
)
from penstock.wire.signatures import generate_key
from penstock_client.ledger.sqlite_file import Database
from penstock_client.masking.member import Member
from penstock_server.sums.collector import Collector

TERMS = make_terms()


@pytest.fixture
def world(tmp_path: Path) -> Summing:
    made = Summing(tmp_path, 4, 1, 1)
    made.meet()
    return made


def open_round(world: Summing, terms: SumTerms = TERMS) -> tuple[Collector, bytes]:
    collector = world.gather(terms)
    return collector, collector.next_messages()["s01"]


def test_the_same_question_has_the_same_bytes_and_draws_no_noise_again(world: Summing) -> None:
    member = world.members["s01"]
    assert member.introduce() == member.introduce()
    assert member.advertise(0) == member.advertise(0)
    _, opening = open_round(world)
    draw, again = make_draw([1, 2, 3], TERMS), make_draw([4, 5, 6], TERMS)
    first = member.contribute(opening, TERMS, draw)
    assert member.contribute(opening, TERMS, again) == first
    assert (draw.calls, again.calls) == (1, 0)
    asking = write_asking(world.roster.sites)
    assert member.reveal(asking, 0) == member.reveal(asking, 0)
    world.databases["s01"].close()
    world.open("s01")
    member = world.members["s01"]
    assert member.contribute(opening, TERMS, again) == first
    assert member.reveal(asking, 0) == member.reveal(asking, 0)
    assert again.calls == 0


def test_another_transcript_roster_size_or_opening_is_refused(world: Summing) -> None:
    member = world.members["s01"]
    _, opening = open_round(world)
    first = member.contribute(opening, TERMS, make_draw([1, 2, 3], TERMS))
    found = read_opening(opening, world.roster, 0)
    fewer = write_opening(found.adverts[:3], {name: found.letters[name] for name in ("s02", "s03")})
    again = make_draw([4, 5, 6], TERMS)
    for other, terms in [
        (opening, make_terms(told="another plan")),
        (opening, make_terms(size=4)),
        (opening, make_terms(bits=64)),
        (fewer, TERMS),
    ]:
        with pytest.raises(MaskingRefused, match="answered for another"):
            member.contribute(other, terms, again)
    assert again.calls == 0
    assert member.contribute(opening, TERMS, again) == first


def test_other_survivors_are_refused(world: Summing) -> None:
    member = world.members["s01"]
    _, opening = open_round(world)
    with pytest.raises(MaskingRefused, match="no vector of this site"):
        member.reveal(write_asking(world.roster.sites), 0)
    member.contribute(opening, TERMS, make_draw([1, 2, 3], TERMS))
    with pytest.raises(UploadRejected, match="too few"):
        member.reveal(write_asking(["s01", "s02"]), 0)
    with pytest.raises(MaskingRefused, match="this one is among them"):
        member.reveal(write_asking(["s02", "s03", "s04"]), 0)
    member.reveal(write_asking(["s01", "s02", "s03"]), 0)
    with pytest.raises(MaskingRefused, match="other survivors"):
        member.reveal(write_asking(world.roster.sites), 0)


def test_survivors_are_of_the_round(world: Summing) -> None:
    collector = world.gather(TERMS, absent=["s04"])
    member = world.members["s01"]
    member.contribute(collector.next_messages()["s01"], TERMS, make_draw([1, 2, 3], TERMS))
    with pytest.raises(MaskingRefused, match="sites of the round"):
        member.reveal(write_asking(["s01", "s02", "s04"]), 0)


def change_adverts(world: Summing, change: Callable[[dict[str, bytes]], dict[str, bytes]]) -> bytes:
    """An opening of round 0 to s01 with other adverts, as a coordinator would write it."""
    _, opening = open_round(world)
    found = read_opening(opening, world.roster, 0)
    adverts = change({advert.site: advert.data for advert in found.adverts})
    senders = [name for name in adverts if name in found.letters]
    return pack_parts(
        {"senders": senders},
        [*adverts.values(), *(found.letters[name] for name in senders)],
    )


def read_data(world: Summing, site: str, round_: int) -> bytes:
    return read_posting(world.members[site].advertise(round_), world.roster, round_).advert.data


def test_a_replayed_or_forged_advert_is_refused(world: Summing, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Summing(tmp_path / "other", 4, 1, 1, study="other")
    other.meet()
    posting = read_posting(world.members["s02"].advertise(0), world.roster, 0)
    advert = posting.advert
    signed_by_stranger = write_posting(
        world.roster,
        0,
        "s02",
        generate_key(),
        mask_key=advert.mask_key,
        commitment=advert.commitment,
        tags=advert.tags,
        letters=posting.letters,
    )
    cases: list[tuple[bytes, type[PenstockError]]] = [
        (read_data(world, "s02", 1), UploadRejected),  # of another round
        (read_data(other, "s02", 0), UploadRejected),  # of another study
        (read_data(world, "s03", 0), UploadRejected),  # of another site, twice
        (take_advert(signed_by_stranger), SignatureError),
        (advert.data[:-1] + bytes([advert.data[-1] ^ 1]), SignatureError),
    ]
    draw = make_draw([1, 2, 3], TERMS)
    for data, error in cases:
        opening = change_adverts(world, lambda found, data=data: {**found, "s02": data})  # type: ignore[misc]
        with pytest.raises(error):
            world.members["s01"].contribute(opening, TERMS, draw)
    without = change_adverts(world, lambda found: {k: v for k, v in found.items() if k != "s01"})
    with pytest.raises(UploadRejected, match="own advert"):
        world.members["s01"].contribute(without, TERMS, draw)
    few = change_adverts(world, lambda found: {k: found[k] for k in ("s01", "s02")})
    with pytest.raises(UploadRejected, match="at least 3"):
        world.members["s01"].contribute(few, TERMS, draw)
    assert draw.calls == 0


def take_advert(posting: bytes) -> bytes:
    return unpack_parts(posting, "posting", len(posting)).parts[0]


def test_one_meeting_and_with_this_site_in_it(tmp_path: Path) -> None:
    world = Summing(tmp_path, 4, 1, 1)
    said = [world.members[name].introduce() for name in world.roster.sites]
    member = world.members["s01"]
    with pytest.raises(MaskingRefused, match="send the meeting first"):
        member.advertise(0)
    with pytest.raises(UploadRejected, match="without this site"):
        member.meet(write_meeting(said[1:]))
    with pytest.raises(UploadRejected, match="at least 3"):
        member.meet(write_meeting(said[:2]))
    with pytest.raises(UploadRejected, match="in their order"):
        member.meet(write_meeting(said[::-1]))
    member.meet(write_meeting(said[:3]))
    member.meet(write_meeting(said[:3]))
    with pytest.raises(MaskingRefused, match="other sites were introduced"):
        member.meet(write_meeting(said))


def test_a_study_keeps_its_roster_and_a_site_its_key(world: Summing, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Summing(tmp_path / "other", 5, 1, 1)
    with pytest.raises(MaskingRefused, match="not in the roster"):
        Member(world.databases["s01"], other.roster, "s01", world.keys["s01"])
    with pytest.raises(MaskingRefused, match="have other sites"):
        Member(world.databases["s01"], other.roster, "s01", other.keys["s01"])


def test_a_vector_of_another_shape_is_no_answer(world: Summing) -> None:
    _, opening = open_round(world)
    with pytest.raises(MaskingRefused, match="2 numbers of 72 bits"):
        world.members["s01"].contribute(opening, TERMS, make_draw([1, 2], TERMS))


def test_rounds_are_bounded(world: Summing) -> None:
    for round_ in (-1, 2**63):
        with pytest.raises(MaskingRefused, match="no round"):
            world.members["s01"].advertise(round_)


def read_secrets(path: Path) -> list[bytes]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT self_seed, pair_seed, own_shares FROM sum_round")
        letters = connection.execute("SELECT letter_seed FROM sum_study")
        return [value for row in [*rows, *letters] for value in row if value is not None]


def test_secrets_are_gone_from_the_file_when_they_were_used(world: Summing, tmp_path: Path) -> None:
    path, member = tmp_path / "s01.db", world.members["s01"]
    collector, opening = open_round(world)
    *used, letter = read_secrets(path)
    assert len(used) == 3
    assert all(secret in path.read_bytes() for secret in [*used, letter])
    member.contribute(opening, TERMS, make_draw([1, 2, 3], TERMS))
    assert not any(secret in path.read_bytes() for secret in used)
    (shares,) = sqlite3.connect(path).execute("SELECT shares FROM sum_round").fetchone()
    assert shares.encode()[:200] in path.read_bytes()
    member.reveal(write_asking(collector.members), 0)
    assert shares.encode()[10:200] not in path.read_bytes()
    member.advertise(1)
    member.leave()
    assert letter not in path.read_bytes()
    assert read_secrets(path) == []
    said = member.contribute(opening, TERMS, make_draw([], TERMS))
    assert said == member.contribute(opening, TERMS, make_draw([], TERMS))
    with pytest.raises(MaskingRefused, match="erased"):
        member.advertise(2)


# -- crashes -----------------------------------------------------------------------------------


class Killed(Exception):
    """The process is gone."""


class Mortal(Database):
    """A database whose process is killed just before, or just after, a commit."""

    budget = 10**9
    after = False

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        self.budget -= 1
        with super().transaction() as connection:
            yield connection
            if self.budget < 0 and not self.after:
                raise Killed
        if self.budget < 0:
            raise Killed


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_commit_loses_nothing_and_says_nothing_twice(
    tmp_path: Path, after: bool
) -> None:
    kills = 0
    for survived in range(20):
        folder = tmp_path / str(survived)
        folder.mkdir()
        died = run_with_kill(folder, survived, after)
        kills += died
        if not died:
            break
    else:
        pytest.fail("it is killed without an end")
    assert kills >= 6, "introduction, meeting, posting, vector, reveal, and the tables"


def run_with_kill(folder: Path, survived: int, after: bool) -> bool:
    """Two rounds in which s01 dies at its commit of that number, and starts again."""
    world = Summing(folder, 4, 1, 1)
    world.databases["s01"].close()
    database = Mortal(folder / "s01.db")
    database.budget, database.after = survived, after
    died = False
    said: dict[str, set[bytes]] = {}

    def ask(what: str, step: Callable[[Member], bytes]) -> bytes:
        nonlocal died, database
        for _ in range(2):
            try:
                if world.members["s01"] is not alive.get("member"):
                    world.open("s01", database)
                    alive["member"] = world.members["s01"]
                data = step(world.members["s01"])
            except Killed:
                died = True
                database.close()
                database = Mortal(folder / "s01.db")
                alive.clear()
                continue
            said.setdefault(what, set()).add(data)
            return data
        pytest.fail("it dies again")

    alive: dict[str, Member] = {}
    others = world.roster.sites[1:]
    introductions = [ask("introduction", lambda m: m.introduce())]
    introductions += [world.members[name].introduce() for name in others]
    meeting = write_meeting(introductions)
    ask("meeting", lambda m: m.meet(meeting) or b"")
    for name in others:
        world.members[name].meet(meeting)
    for round_ in range(2):
        terms = make_terms(round_)
        vectors = make_vectors(world.roster.sites, terms)
        collector = Collector(world.roster, terms)
        for name in others:
            collector.take_posting(name, world.members[name].advertise(round_))
        for _ in range(2):  # and once more, as after a lost answer
            data = ask(f"posting {round_}", lambda m, r=round_: m.advertise(r))  # type: ignore[misc]
        collector.take_posting("s01", data)
        collector.open_round()
        openings = collector.next_messages()
        for name in others:
            world.members[name].contribute(openings[name], terms, make_draw(vectors[name], terms))
            collector.take_masked(
                name,
                world.members[name].contribute(openings[name], terms, make_draw([], terms)),
            )
        draw = make_draw(vectors["s01"], terms)
        for _ in range(2):
            data = ask(
                f"vector {round_}",
                lambda m, d=draw, t=terms, o=openings["s01"]: m.contribute(o, t, d),  # type: ignore[misc]
            )
        collector.take_masked("s01", data)
        collector.ask_survivors()
        asking = collector.next_messages()["s01"]
        for _ in range(2):
            data = ask(f"reveal {round_}", lambda m, a=asking, r=round_: m.reveal(a, r))  # type: ignore[misc]
        collector.take_reveal("s01", data)
        world.reveal(collector, round_, absent=["s01"])
        assert collector.survivors == world.roster.sites
        assert collector.find_sum() == add_up(vectors, world.roster.sites)
    assert {what: len(each) for what, each in said.items()} == dict.fromkeys(said, 1)
    return died
