"""Pinned gates of other sites: as files, as commands, and as decisions on record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import World
from typer.testing import CliRunner

from penstock.base.errors import InvalidInput
from penstock.wire.signatures import generate_key, public_hex
from penstock_client.cli.pinning import app
from penstock_client.ledger.decisions import read_decisions
from penstock_client.site.peer_keys import Peer, Peers, read_peers, write_peers

KEY, OTHER = public_hex(generate_key()), public_hex(generate_key())


def test_what_is_written_is_read_back_and_a_damaged_file_pins_nobody(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    assert read_peers(path) == Peers()
    peers = Peers().add(Peer("north", KEY)).add(Peer("south", OTHER))
    write_peers(path, peers)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_peers(path) == peers
    for text in ("[]", "{}", '{"peers": [{"site": "north"}]}', '{"peers": [{"site":1,"key":2}]}'):
        path.write_text(text)
        with pytest.raises(InvalidInput):
            read_peers(path)


def test_unknown_is_who_is_not_pinned_with_that_very_key() -> None:
    peers = Peers({"north": KEY, "south": OTHER})
    assert peers.find_unknown({"north": KEY}) == ()
    assert peers.find_unknown({"north": OTHER, "west": KEY}) == ("north", "west")
    assert peers.remove("north").keys == {"south": OTHER}
    assert peers.remove(Peer("south", OTHER).fingerprint).keys == {"north": KEY}
    with pytest.raises(InvalidInput, match="known: north, south"):
        peers.remove("west")


def twin(folder: Path, name: str, key: str) -> Path:
    path = folder / f"{name}-2.json"
    path.write_text(json.dumps({"site": name, "gate_key": key, "federation": "main"}))
    return path


def test_a_steward_pins_lists_and_unpins(world: World, tmp_path: Path) -> None:
    site = world.site("east")

    def run(*args: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, [*args, "--dir", str(site.paths.root)])
        assert done.exit_code == code, done.output
        return done.output

    def join(name: str, key: str, federation: str = "main") -> str:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"site": name, "gate_key": key, "federation": federation}))
        return str(path)

    assert "no other site" in run("list")
    south, print_ = join("south", OTHER), Peer("south", OTHER).fingerprint
    run("add", south, "--fingerprint", Peer("north", KEY).fingerprint, code=2)
    said = run("add", south, join("north", KEY), "--fingerprint", print_, code=2)
    assert "north: has another fingerprint" in said
    assert read_peers(site.paths.peers).keys == {}  # all of them, or none
    own = join("east", site.paths.gate_public())
    said = run("add", own, south, "--fingerprint", print_)  # among all sites' files it is left out
    assert "by voice" not in said
    assert read_peers(site.paths.peers).keys == {"south": OTHER}
    assert "had another key before" in run("add", join("south", public_hex(generate_key())))
    run("add", own, code=2)
    run("add", join("north", KEY), str(twin(tmp_path, "north", OTHER)), code=2)
    forged = tmp_path / "forged.json"
    forged.write_text(
        json.dumps(
            {"site": "n", "gate_key": KEY, "federation": "main", "fingerprint": print_},
        )
    )
    assert "not that of the file" in " ".join(run("add", str(forged), code=2).split())
    run("remove", "south")
    assert Peer("north", KEY).fingerprint in run("add", join("north", KEY))
    run("add", join("east", KEY), code=2)  # itself
    run("add", join("west", OTHER, federation="another"), code=2)
    run("add", join("west", "no key"), code=2)
    assert "north" in run("list")
    assert read_peers(site.paths.peers).keys == {"north": KEY}
    run("remove", "north", "--reason", "rotated")
    assert read_peers(site.paths.peers).keys == {}
    kinds = [one["kind"] for one in read_decisions(site.paths)]
    assert kinds[-2:] == ["peer-add", "peer-remove"]
