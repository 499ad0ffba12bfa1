"""Every message of a sum: read back as it was written, and anything else is refused by type."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.summing import Summing, make_draw, make_terms

from penstock.aggregation.adverts import read_introduction, read_meeting, read_posting
from penstock.aggregation.envelopes import pack_parts, unpack_parts
from penstock.aggregation.exchanges import (
    find_context,
    read_asking,
    read_masked,
    read_opening,
    read_reveal,
    write_asking,
)
from penstock.aggregation.roster import Roster
from penstock.base.errors import PenstockError, SignatureError, UploadRejected
from penstock.wire.canonical import canonical

TERMS = make_terms()
Reader = Callable[[bytes, Roster, str], object]
READERS: dict[str, Reader] = {
    "introduction": lambda data, roster, _: read_introduction(data, roster),
    "meeting": lambda data, roster, _: read_meeting(data, roster),
    "posting": lambda data, roster, _: read_posting(data, roster, 0),
    "opening": lambda data, roster, _: read_opening(data, roster, 0),
    "masked": lambda data, roster, context: read_masked(data, roster, context, TERMS),
    "asking": lambda data, roster, _: read_asking(data, roster),
    "reveal": lambda data, roster, context: read_reveal(data, roster, context),
}
SIGNED = ("introduction", "posting", "masked", "reveal")


@pytest.fixture(scope="module")
def said(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Roster, str, dict[str, bytes]]:
    """A roster, the context of round 0, and one message of each kind."""
    folder: Path = tmp_path_factory.mktemp("sums")
    world = Summing(folder, 4, 1, 1)
    meeting = world.meet()
    collector = world.gather(TERMS)
    opening = collector.next_messages()["s01"]
    member = world.members["s01"]
    adverts = read_opening(opening, world.roster, 0).adverts
    found = {
        "introduction": member.introduce(),
        "meeting": meeting,
        "posting": member.advertise(0),
        "opening": opening,
        "masked": member.contribute(opening, TERMS, make_draw([1, 2, 3], TERMS)),
        "asking": write_asking(world.roster.sites),
    }
    found["reveal"] = member.reveal(found["asking"], 0)
    assert set(found) == set(READERS)
    return world.roster, find_context(world.roster, TERMS, adverts), found


@pytest.mark.parametrize("kind", READERS)
def test_a_message_is_read(kind: str, said: tuple[Roster, str, dict[str, bytes]]) -> None:
    roster, context, found = said
    READERS[kind](found[kind], roster, context)


@pytest.mark.parametrize("kind", READERS)
def test_no_other_bytes_are_this_message(
    kind: str, said: tuple[Roster, str, dict[str, bytes]]
) -> None:
    """Cut short, made longer, or with a byte changed: refused, or (in what is not signed, such as
    another site's letter) read as something else."""
    roster, context, found = said
    data, read, chance = found[kind], READERS[kind], random.Random(kind)
    right = read(data, roster, context)
    changed = [data[:end] for end in chance.sample(range(len(data)), min(40, len(data)))]
    changed += [data + b"\0", data + data, b"", b"\0" + data]
    for place in chance.sample(range(len(data)), min(300, len(data))):
        flipped = bytes([data[place] ^ 1 << chance.randrange(8)])
        changed.append(data[:place] + flipped + data[place + 1 :])
    for other in changed:
        try:
            seen = read(other, roster, context)
        except (UploadRejected, SignatureError):
            continue
        assert kind not in SIGNED
        assert seen != right


@pytest.mark.parametrize("kind", SIGNED)
def test_a_message_is_of_one_study(kind: str, said: tuple[Roster, str, dict[str, bytes]]) -> None:
    roster, context, found = said
    other = Roster("study-2", roster.sites, roster.keys, roster.dropouts, roster.colluders)
    with pytest.raises(UploadRejected, match="another study"):
        READERS[kind](found[kind], other, context)


@pytest.mark.parametrize("kind", READERS)
def test_one_kind_is_no_other(kind: str, said: tuple[Roster, str, dict[str, bytes]]) -> None:
    roster, context, found = said
    for other, data in found.items():
        if other != kind:
            with pytest.raises((UploadRejected, SignatureError)):
                READERS[kind](data, roster, context)


@given(st.sampled_from(sorted(READERS)), st.binary(max_size=300), st.booleans())
def test_any_bytes_are_refused_by_type(kind: str, data: bytes, framed: bool) -> None:
    roster = Roster("study", ("a", "b"), ("0" * 64, "1" * 64), 0, 1)
    if framed:
        data = len(data).to_bytes(4, "big") + data
    with pytest.raises(PenstockError):
        READERS[kind](data, roster, "0" * 64)


def test_a_message_has_one_form() -> None:
    head = {"a": 1}
    data = pack_parts(head, [b"x", b""])
    assert unpack_parts(data, "message", 1000).parts == (b"x", b"")
    header = b'{"parts":[1,0],"head":{"a":1},"signature":""}'
    with pytest.raises(UploadRejected, match="one form"):
        unpack_parts(len(header).to_bytes(4, "big") + header + b"x", "message", 1000)
    for sizes in ([2], [-1, 2], [True], [1.0], "1", [10**30]):
        header = canonical({"head": head, "parts": sizes, "signature": ""})
        with pytest.raises(UploadRejected, match="one form"):
            unpack_parts(len(header).to_bytes(4, "big") + header + b"x", "message", 1000)
    with pytest.raises(UploadRejected, match="too large"):
        unpack_parts(data, "message", len(data) - 1)
