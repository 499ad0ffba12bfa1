"""`penstock server access`: who came to a coordinator, and what was read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.documents import Json
from penstock.cli.console import done, emit_json, friendly, say, table
from penstock.wire.signatures import fingerprint
from penstock_server.access.access_chain import verify_chain
from penstock_server.install.founding import open_coordinator
from penstock_server.operate.options import CoordinatorDir

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


@friendly
def access(
    directory: CoordinatorDir = Path("coordinator"),
    last: Annotated[int, typer.Option(min=1, help="How many of the newest are shown.")] = 30,
    export: Annotated[
        Path | None, typer.Option(help="Write the whole chain there, for an auditor.")
    ] = None,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Go on with a new key: access.key is lost.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Who came and what was read: tokens, keys, studies, results, wrong tokens. Verifies it all."""
    chain = open_coordinator(directory).access
    if new_key:
        done(f"records are signed with {fingerprint(chain.renew_key())} from now on")
    rows = chain.rows()
    records = verify_chain(rows)
    head = rows[-1][1] if rows else ""
    if export is not None:
        with export.open("x", encoding="utf-8") as file:
            file.write(json.dumps(chain.export(), indent=1) + "\n")
    if as_json:
        emit_json({"head": head, "records": records})
        return
    if not records:
        say("nothing yet")
        return
    table(
        "",
        ("record", "time (UTC)", "who", "from", "what"),
        [_access_row(record) for record in records[-last:]],
    )
    key = next(r["key"] for r in reversed(records) if r["kind"] in ("open", "key"))
    done(f"{len(records)} records, chain and signatures whole; head {head[:16]}…")
    say(f"signed with {fingerprint(key)}")
    if export is not None:
        done(f"{len(rows)} records in {export}")


def _access_row(record: Json) -> tuple[object, ...]:
    known = ("seq", "prev", "time", "kind", "by", "origin")
    more = ", ".join(f"{k} {_short(v)}" for k, v in record.items() if k not in known)
    who = record.get("by") or ("admin" if "by" in record else "")
    moment = str(record["time"])[:19].replace("T", " ")
    return record["seq"], moment, who, record.get("origin", ""), f"{record['kind']}: {more}"


def _short(value: object) -> str:
    if isinstance(value, list):
        return " ".join(_short(v) for v in value) or "none"
    if isinstance(value, dict):
        return "×".join(str(v) for v in value.values())
    text = str(value)
    return text[:12] if len(text) == 64 else text
