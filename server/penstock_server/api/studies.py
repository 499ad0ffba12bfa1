"""The routes: what an analyst and an admin can ask. What blocks runs in threads."""

from __future__ import annotations

import logging
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Request
from fastapi.responses import FileResponse
from starlette.concurrency import run_in_threadpool

from penstock import __version__
from penstock.analyst import RESULT_FILES
from penstock.base.documents import Json
from penstock.base.errors import CoordinatorError
from penstock.base.times import stamp_now
from penstock.wire.canonical import read_json
from penstock.wire.messages import (
    MAX_STUDY_BYTES,
    SERVED_MAJORS,
    WIRE_VERSION,
    Copies,
    SiteState,
    StudyState,
)
from penstock.wire.signatures import fingerprint
from penstock.wire.signed import SignedCancel, read_signed_cancel, read_signed_study
from penstock_server.access.tokens import Role, Token, Tokens
from penstock_server.api.auth import (
    Answer,
    Caller,
    Person,
    require_admin,
    require_person,
    take_body,
)
from penstock_server.api.enrolled import list_sites
from penstock_server.api.reads import Reads
from penstock_server.api.result_files import ResultFiles
from penstock_server.install.enrolment import enrol_site, make_invite
from penstock_server.store.register import StudyRow
from penstock_server.studies.coordinator import Coordinator, NoSuchStudy

log = logging.getLogger("penstock.api")

MAX_CANCEL_BYTES = 10_000
MAX_JOIN_BYTES = 10_000_000

Signed = Annotated[bytes, Depends(take_body("signed study", MAX_STUDY_BYTES))]
Cancellation = Annotated[bytes, Depends(take_body("cancellation", MAX_CANCEL_BYTES))]
Join = Annotated[bytes, Depends(take_body("join record", MAX_JOIN_BYTES))]

public = APIRouter(prefix="/api/v1")
# The token is looked at before a body is read.
analyst = APIRouter(prefix="/api/v1", dependencies=[Depends(require_person)])
federation = APIRouter(prefix="/api/v1", dependencies=[Depends(require_admin)])


def _coordinator(request: Request) -> Coordinator:
    return cast(Coordinator, request.app.state.coordinator)


Studies = Annotated[Coordinator, Depends(_coordinator)]


def _tokens(request: Request) -> Tokens:
    return cast(Tokens, request.app.state.tokens)


Accounts = Annotated[Tokens, Depends(_tokens)]


def _name_reader(token: Token) -> str | None:
    """As whom a token reads: an admin reads everything."""
    return None if token.role is Role.ADMIN else token.name


def _find_study(study: str, token: Person, coordinator: Studies) -> StudyRow:
    """The study of a path: by id, beginning of an id, or name.

    One that the token may not read is answered like one that does not exist.
    """
    try:
        return coordinator.find(study, _name_reader(token))
    except NoSuchStudy as error:
        raise Answer(404, error) from None


Row = Annotated[StudyRow, Depends(_find_study)]


@public.get("/about")
def about() -> Json:
    """What this is, and what time it has: for clients that look before they log in."""
    return {
        "penstock": __version__,
        "wire": WIRE_VERSION,
        "wire_majors": list(SERVED_MAJORS),
        "time": stamp_now(),
    }


@analyst.get("/me")
def me(token: Person, accounts: Accounts) -> Json:
    """Whose token this is, and the fingerprints of the keys that the account signs with."""
    keys = [fingerprint(key) for key in accounts.keys().get(token.name, ())]
    return {"name": token.name, "role": str(token.role), "expires": token.expires, "keys": keys}


# -- studies -----------------------------------------------------------------------------------


@analyst.post("/studies")
def submit(signed: Signed, caller: Caller, coordinator: Studies, accounts: Accounts) -> Json:
    """Hand in a study signed with a key of one's own; the same one again changes nothing."""
    found = read_signed_study(signed)
    accounts.check_signer(caller.account, found.signer)
    accounts.check_readers(found.study.readers)
    study_id = coordinator.submit(found, caller)
    log.info("study %s handed in by %s", study_id[:12], caller.account)
    return {"study": study_id}


@analyst.get("/studies")
def studies(token: Person, coordinator: Studies) -> list[Json]:
    """All studies that the token may read, oldest first."""
    return coordinator.studies(_name_reader(token))


@analyst.get("/studies/{study}")
def status(row: Row, coordinator: Studies) -> Json:
    """One study with each site's state."""
    return coordinator.status(row.id)


@analyst.post("/studies/{study}/cancel")
def cancel(
    row: Row, signed: Cancellation, caller: Caller, coordinator: Studies, accounts: Accounts
) -> Json:
    """Hand in a signed cancellation; the same one again changes nothing."""
    wish = _read_wish(row, signed, caller, accounts)
    again = row.state is StudyState.CANCELLED
    if not (again and row.signed.signer == wish.signer):
        coordinator.cancel(wish, caller)
        log.info("study %s cancelled through %s", row.id[:12], caller.account)
    return {"study": row.id}


@analyst.post("/studies/{study}/close")
def close(
    row: Row, signed: Cancellation, caller: Caller, coordinator: Studies, accounts: Accounts
) -> Json:
    """Have results made of what was delivered; sites that have not begun are cancelled."""
    coordinator.close(_read_wish(row, signed, caller, accounts), caller)
    log.info("study %s closed through %s", row.id[:12], caller.account)
    return {"study": row.id}


def _read_wish(row: StudyRow, signed: bytes, caller: Caller, accounts: Accounts) -> SignedCancel:
    """A signed cancellation of this study, by a key that is bound to the account."""
    wish = read_signed_cancel(signed)
    if wish.study_id != row.id:
        raise CoordinatorError(
            "the cancellation is of another study", value=wish.study_id[:64], bound=row.id
        )
    accounts.check_signer(caller.account, wish.signer)
    return wish


# -- results -----------------------------------------------------------------------------------


def _results(request: Request) -> ResultFiles:
    return cast(ResultFiles, request.app.state.results)


Results = Annotated[ResultFiles, Depends(_results)]


def _reads(request: Request) -> Reads:
    return cast(Reads, request.app.state.reads)


Traced = Annotated[Reads, Depends(_reads)]


@analyst.get("/studies/{study}/files")
async def files(row: Row, kept: Results, copies: Copies = "one") -> Json:
    """The result files with size and SHA-256; the first to ask waits until they are made."""
    return {"study": row.id, "files": await kept.listing(row, copies=copies)}


@analyst.get("/studies/{study}/files/{name}")
async def file(
    row: Row, name: str, kept: Results, reads: Traced, caller: Caller, copies: Copies = "one"
) -> FileResponse:
    """One result file, or a range of it."""
    path = None
    if name in RESULT_FILES:
        path = await kept.path(row, name, copies=copies)
    if path is None:
        raise Answer(404, CoordinatorError("no such file", value=name[:80]))
    await run_in_threadpool(reads.trace, caller, row.id, name, copies)
    return FileResponse(path, filename=f"{row.name}-{name}")


@analyst.get("/studies/{study}/uploads/{site}")
async def upload(
    row: Row, site: str, coordinator: Studies, reads: Traced, caller: Caller
) -> FileResponse:
    """What a site delivered: its synthetic table as an Arrow stream, with all copies and refits."""
    parts = await run_in_threadpool(coordinator.store.studies.parts, row.id)
    delivered = [p.site for p in parts if p.state is SiteState.DELIVERED]
    # Only a name that the store knows becomes part of a path.
    if site not in delivered:
        error = CoordinatorError(
            "the site has not delivered", value=site[:80], bound=", ".join(delivered) or None
        )
        raise Answer(404, error)
    await run_in_threadpool(reads.trace, caller, row.id, f"uploads/{site}", "all")
    path = coordinator.folder.table(row.id, site)
    kind = "application/vnd.apache.arrow.stream"
    return FileResponse(path, media_type=kind, filename=f"{row.name}-{site}.arrow")


# -- sites and tokens --------------------------------------------------------------------------


@analyst.get("/sites")
def sites(coordinator: Studies) -> list[Json]:
    """The enrolled sites."""
    return list_sites(coordinator)


@federation.post("/sites")
def enrol(record: Join, caller: Caller, coordinator: Studies) -> Json:
    """Enrol a site by its join record; answers with its invitation."""
    join = read_json(record, what="join record", limit=MAX_JOIN_BYTES)
    enrol_site(coordinator, join, caller)
    log.info("site %s enrolled by %s", join["site"], caller.account)
    invited: Json = make_invite(coordinator, join["site"])
    return invited


@federation.get("/tokens")
def tokens(accounts: Accounts) -> list[Json]:
    """Who holds a token, until when, and with which keys; never the tokens."""
    moment, keys = stamp_now(), accounts.keys()
    return [
        {
            "name": t.name,
            "role": str(t.role),
            "created": t.created,
            "expires": t.expires,
            "revoked": t.revoked,
            "good": t.good(moment),
            "keys": [fingerprint(key) for key in keys.get(t.name, ())],
        }
        for t in accounts.list()
    ]
