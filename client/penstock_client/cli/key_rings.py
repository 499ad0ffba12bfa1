"""What `trust` and `peers` have in common: keys that a steward pins, each with a fingerprint.

A key is pinned once somebody has compared its fingerprint with its owner, by voice: nothing else
says whose it is. Each change is on record before it takes effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import typer

from penstock.base.checks import Checks
from penstock.base.documents import Json
from penstock.cli.console import emit_json, say, table
from penstock_client.ledger.decisions import Who, file_digest, open_decisions
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import SiteSettings

Heard = Annotated[
    list[str] | None,
    typer.Option(
        "--fingerprint",
        help="What its owner read to you; a file with another key is refused. Repeat it.",
    ),
]


def require_heard(command: str, found: Mapping[str, str], heard: Sequence[str] | None) -> None:
    """Refuse keys that are not those which their owners read out, where the steward says these.

    Args:
        found: the fingerprint of each file's key, by whose it is.

    Raises:
        InvalidInput: of a key no fingerprint was heard, or a fingerprint is of no key.
    """
    if not heard:
        return
    check, said = Checks(command), {_plain(text) for text in heard}
    for whose, fingerprint in found.items():
        if _plain(fingerprint) not in said:
            remedy = "Do not pin it: ask its owner for the file again, on another way"
            check.add(whose, "has another fingerprint", value=fingerprint, remedy=remedy)
    for text in heard:
        if _plain(text) not in {_plain(each) for each in found.values()}:
            check.add("--fingerprint", "is of none of these keys", value=text)
    check.done()


def _plain(fingerprint: str) -> str:
    return fingerprint.strip().removeprefix("SHA256:").rstrip("=")


def keep_change(
    paths: SitePaths,
    settings: SiteSettings,
    kind: str,
    reason: str,
    *,
    text: bytes,
    write: Callable[[], None],
    **what: object,
) -> None:
    """Put a change on record, and then into effect.

    Args:
        text: what the file of keys holds after it.
        what: whose keys, for the record.
    """
    with open_decisions(paths, settings.name) as decisions:
        decisions.append(kind, Who.here(), reason, **what, digest=file_digest(text))
    write()


def tell_comparing(fingerprints: Sequence[str]) -> None:
    """What is still to be done about keys that were pinned as a file says them."""
    for fingerprint in fingerprints:
        say(f"compare this fingerprint by voice: {fingerprint}")


def show_keys(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    documents: Sequence[Json],
    *,
    nobody: str,
    as_json: bool,
) -> None:
    """The pinned keys, as a table or as JSON."""
    if as_json:
        emit_json(list(documents))
    elif not rows:
        say(nobody)
    else:
        table(title, tuple(columns), [tuple(row) for row in rows])
