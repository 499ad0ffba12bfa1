"""Trouble that passes: gates that are away, tables in pieces, a full disk."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.support.lifecycle import START, UNAVAILABLE

from penstock.base.times import stamp
from penstock.wire.messages import PIECE_BYTES
from penstock_server.store.mailbox import Reply
from penstock_server.transport import packets
from penstock_server.transport.packets import add_piece


def test_a_gate_that_is_away_is_asked_ever_more_rarely_and_then_delivers(world):
    asked = []

    def away(message, table):
        asked.append((world.clock.now - START).total_seconds())
        return UNAVAILABLE

    world.network.sites["b"] = away
    study = world.submit(deadline_hours=2.0)
    world.run(pumps=600, seconds=1)
    gaps = np.diff(asked)
    assert gaps[:7].tolist() == [1, 2, 4, 8, 16, 32, 60]
    assert set(gaps[7:]) == {60}
    world.network.sites["b"] = world.gates["b"]
    world.run(pumps=70, seconds=1)
    assert world.states(study) == {"a": "delivered", "b": "delivered"}


@pytest.mark.parametrize("attempts", [1_000, 100_000])
def test_a_gate_that_was_away_for_weeks_does_not_stop_the_coordinator(world, attempts):
    world.network.sites["b"] = [UNAVAILABLE]
    world.submit()
    for message in world.waiting():
        world.c.store.mailbox.postpone(replace(message, attempts=attempts), stamp(START))
    world.pump.turn()
    assert [m.attempts for m in world.waiting() if m.site == "b"] == [attempts + 2]


@pytest.mark.parametrize("code", ["internal", "busy", "ledger", "not-yet-valid"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_gates_own_trouble_is_waited_for(world, code, at):
    """Whichever call it hits: submit, poll or collect."""
    calls = []

    def stumbles(message, table):
        calls.append(message.verb)
        return Reply(False, code) if len(calls) == at + 1 else world.gates["a"](message, table)

    world.network.sites["a"] = stumbles
    study = world.submit()
    world.run(pumps=20)
    assert world.states(study)["a"] == "delivered"
    assert calls[at] == calls[at + 1] == ("submit", "poll", "collect")[at]
    assert world.site(study)["code"] == ""


def test_a_full_disk_postpones_a_collection(world, monkeypatch):
    full = [OSError(28, "No space left on device")]

    def write(*args):
        if full:
            raise full.pop()
        return add_piece(*args)

    monkeypatch.setattr(packets, "add_piece", write)
    study = world.submit()
    world.run()
    assert world.states(study) == {"a": "delivered", "b": "delivered"}


def test_a_table_that_vanished_is_collected_again(world, monkeypatch):
    lost = []

    def write(table, *args):
        whole = add_piece(table, *args)
        if whole and table.stem == "a" and not lost:
            lost.append(table)
            table.unlink()
        return whole

    monkeypatch.setattr(packets, "add_piece", write)
    study = world.submit()
    world.run()
    assert world.states(study)["a"] == "delivered"
    assert [verb for site, verb in world.network.calls if site == "a"].count("collect") == 2


def test_a_table_in_pieces_goes_on_where_it_stopped(world):
    """A lost answer costs a piece, and nothing else."""
    world.network.piece = 100
    gate, offsets = world.gates["a"], []

    def loses(message, table):
        reply = gate(message, table)
        if message.verb == "collect":
            offsets.append(1)
            if len(offsets) in (2, 5):
                raise UNAVAILABLE
        return reply

    world.network.sites["a"] = loses
    study = world.submit()
    world.run(pumps=60)
    assert world.states(study)["a"] == "delivered"
    sent = [
        c.collect.offset
        for site, batch in world.network.packets
        for c in batch.calls
        if site == "a" and c.WhichOneof("verb") == "collect"
    ]
    assert len(sent) > 8
    assert sent == sorted(sent)
    assert len(set(sent)) == len(sent) - 2


def test_the_tables_of_several_studies_share_an_answer(world):
    """One packet asks for as many tables as there are, and for no more bytes than one piece."""
    studies = [world.submit(name=f"trial-{i}") for i in range(5)]
    world.run()
    assert {world.states(study)["a"] for study in studies} == {"delivered"}
    asked = [
        [c.collect.length for c in batch.calls if c.WhichOneof("verb") == "collect"]
        for site, batch in world.network.packets
        if site == "a"
    ]
    lengths = max(asked, key=len)
    assert len(lengths) == len(studies)
    assert 0 < sum(lengths) <= PIECE_BYTES


def test_pieces_that_came_before_a_crash_are_not_trusted(world):
    table = world.c.folder.table("s", "a")
    table.parent.mkdir(parents=True)
    packets.partial_path(table).write_bytes(b"half")
    packets.drop_pieces(world.c.folder)
    assert packets.count_received(table) == 0
