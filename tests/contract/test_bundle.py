"""The bundle that Flower carries: what ships is what its source says, and sites accept it."""

from __future__ import annotations

import hashlib
import io
import zipfile

from flwr.cli.build import build_fab_from_disk
from tests.support.bundle import SOURCE

from penstock.wire.messages import SERVED_MAJORS
from penstock_client.operate.flower.runner import read_accepted
from penstock_server.transport.flower.control import read_bundle


def unpacked(content):
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_the_shipped_bundle_holds_what_its_source_says():
    # Not byte for byte: another zlib may pack the same files otherwise.
    assert unpacked(read_bundle()) == unpacked(build_fab_from_disk(SOURCE))


def test_sites_of_this_version_accept_it():
    version = read_accepted()[hashlib.sha256(read_bundle()).hexdigest()]
    assert int(version.split(".")[0]) in SERVED_MAJORS


def test_it_holds_no_code_that_does_anything():
    names = [name for name in unpacked(read_bundle()) if name.endswith(".py")]
    assert names == ["penstock_bundle/__init__.py"]
    source = unpacked(read_bundle())[names[0]].decode()
    assert "import" not in source
