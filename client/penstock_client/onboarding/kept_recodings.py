"""By which recoding a version's rows were made: its text, kept beside them for the steward.

``recoding.toml`` may be edited, or go, as soon as rows are certified; then nobody could tell what
was meant by 1 and 2 in the rows that were released. So its text stays at the site, in a file of
mode 0600 that no gate reads, and the steward's decision to certify has its fingerprint. It is keyed
by the gate's key: exported decisions confirm no guess of what is in the site's file.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path

from penstock.base.errors import InvalidInput, LedgerError, PenstockError, Problem
from penstock.base.files import write_atomic
from penstock.wire.signatures import private_to_pem
from penstock_client.ledger import decisions
from penstock_client.site.site_paths import SitePaths


@dataclass(frozen=True, slots=True)
class KeptRecoding:
    """How a version came about.

    Attributes:
        lineage, version: of the data set; time: when it was certified, the last time.
        text: of ``recoding.toml`` then; None where there was none, and columns were read as they
            are.
    """

    lineage: str
    version: int
    time: str
    text: str | None


def recoding_path(folder: Path, lineage: str, version: int) -> Path:
    """The recoding beside a version's rows; it stays when newer rows replace them."""
    return folder / f"{lineage}-{version}.recoding.toml"


def fingerprint_recoding(text: str | None, secret: bytes) -> str | None:
    """HMAC-SHA256 of a recoding's text; None where there is none."""
    if text is None:
        return None
    return hmac.new(secret, b"penstock/recoding\x00" + text.encode(), hashlib.sha256).hexdigest()


def keep_recoding(folder: Path, lineage: str, version: int, text: str | None) -> None:
    """Keep a recoding with its version, mode 0600."""
    path = recoding_path(folder, lineage, version)
    if text is None:
        path.unlink(missing_ok=True)
    else:
        write_atomic(path, text.encode())


def find_recoding(paths: SitePaths, lineage: str, version: int | None = None) -> KeptRecoding:
    """By which recoding a version was made, the newest one where none is named.

    Raises:
        InvalidInput: no such version was certified.
        PenstockError: nothing was certified, or nobody kept the recoding: an older Penstock
            certified the version, or the file is gone.
        LedgerError: the file is not the one that was certified by.
    """
    made = {
        one["version"]: one  # the newest decision of each
        for one in decisions.read_decisions(paths)
        if one["kind"] == "certify" and one["lineage"] == lineage
    }
    if not made:
        raise PenstockError(
            "nothing has been certified yet", value=lineage, remedy="run `penstock site check`"
        )
    number = max(made) if version is None else version
    if number not in made:
        known = ", ".join(map(str, sorted(made)))
        problem = Problem("", "was not certified here", value=str(number), bound=known)
        raise InvalidInput(f"version of {lineage}", [problem])
    one, path = made[number], recoding_path(paths.snapshots, lineage, number)
    if one.get("recoding", "") == "":
        raise PenstockError(
            "an older Penstock certified this version, and kept no recoding",
            value=f"{lineage} version {number}",
            remedy="if it is the newest, `penstock site check` on the same file keeps it now",
        )
    text = None
    if one["recoding"] is not None:
        try:
            text = path.read_bytes().decode()
        except FileNotFoundError:
            raise PenstockError(
                "the recoding that was kept is gone", value=path, remedy="restore a backup of it"
            ) from None
    if fingerprint_recoding(text, private_to_pem(paths.key())) != one["recoding"]:
        raise LedgerError(
            "this is not the recoding by which the version was certified",
            value=path,
            bound="the fingerprint in the decision",
            remedy="restore a backup of it",
        )
    return KeptRecoding(lineage, number, one["time"], text)
