"""A study that was signed for an older wire version is answered as that version would have been."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conftest import DONE, TestSite, World, rows_csv
from tests.support.here import GateHere

from penstock.mechanisms import Maf
from penstock.study.study import Study
from penstock.wire.manifest import Manifest, read_manifest
from penstock.wire.messages import JobState
from penstock_server.intake.uploads import read_upload
from penstock_server.mechanisms.delivery import Upload

QUICK = Maf(copies=2, refits=1, steps=3, flows=1, hidden=(4,))


def answer(site: TestSite, world: World, wire: str) -> tuple[Study, Manifest, bytes]:
    """What a site of a test seed collects for a study of this wire version."""
    signed, here = (
        world.signed(mechanism=QUICK, wire=wire, sites=(site.name,)),
        GateHere(site.paths),
    )
    try:
        request = here.gate.submit(signed.to_bytes()).request_id
        until = time.monotonic() + 60
        while (seen := here.gate.poll(request)).state not in DONE and time.monotonic() < until:
            time.sleep(0.02)
        assert seen.state is JobState.DELIVERED
        manifest, _, pieces = here.gate.collect(request)
        return signed.study, read_manifest(manifest, site.paths.gate_public()), b"".join(pieces)
    finally:
        here.close()


def received(given: tuple[Study, Manifest, bytes], folder: Path) -> Upload:
    """The same at a coordinator."""
    study, manifest, data = given
    path = folder / f"{manifest.site}.arrow"
    path.write_bytes(data)
    return read_upload(manifest.site, manifest, path, study)


@pytest.mark.parametrize("older", ["1.0", "1.1"])
def test_it_is_the_same_release_in_the_form_of_before(
    world: World, tmp_path: Path, older: str
) -> None:
    """Of one seed, and so to the last bit: sites are upgraded before their coordinator."""
    given = {"csv": rows_csv(200, seed=1), "settings": "insecure_seed = 3\n"}
    sites = [world.site(name, **given) for name in ("old", "new")]
    old, new = (answer(s, world, wire) for s, wire in zip(sites, (older, "1.2"), strict=True))
    assert (old[1].wire, old[1].parts, new[1].wire) == ("1.1", (), "1.2")
    assert "parts" not in old[1].to_dict()
    table = pa.ipc.open_stream(io.BytesIO(old[2])).read_all()
    assert table.column_names[0] == "_copy"
    assert set(table["_copy"].to_pylist()) == {1, 2, -1}
    assert [p.name for p in new[1].parts] == ["tables/copy-1", "tables/copy-2", "refits/1"]
    before, after = received(old, tmp_path), received(new, tmp_path)
    assert old[1].rows == new[1].rows
    assert tuple(before.parts) == tuple(after.parts)
    assert all(before.part(name).equals(after.part(name)) for name in before.parts)
