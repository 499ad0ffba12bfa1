"""The routes: what an analyst and an admin can ask. What blocks runs in threads."""

from __future__ import annotations

import logging
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Depends, Request
from fastapi.responses import FileResponse
from starlette.concurrency import run_in_threadpool

from penstock import __version__
from penstock.analyst import RESULT_FILES
from penstock.errors import CoordinatorError
from penstock.wire.canonical import read_json
from penstock.wire.messages import (
    MAX_STUDY_BYTES,
    SERVED_MAJORS,
    WIRE_VERSION,
    SiteState,
    StudyState,
)
from penstock.wire.signatures import fingerprint
from penstock.wire.signed import read_signed_cancel, read_signed_study
from penstock_server import service
from penstock_server.api.auth import Admin, Answer, Person, admin, body, person
from penstock_server.api.files import ResultFiles
from penstock_server.lifecycle import Coordinator, now, stamp
from penstock_server.store import StudyRow
from penstock_server.tokens import Tokens

log = logging.getLogger("penstock.api")

MAX_CANCEL_BYTES = 10_000
MAX_JOIN_BYTES = 10_000_000

Copies = Literal["one", "all"]
Signed = Annotated[bytes, Depends(body("signed study", MAX_STUDY_BYTES))]
Cancellation = Annotated[bytes, Depends(body("cancellation", MAX_CANCEL_BYTES))]
Join = Annotated[bytes, Depends(body("join record", MAX_JOIN_BYTES))]

public = APIRouter(prefix="/api/v1")
# The token is looked at before a body is read.
analyst = APIRouter(prefix="/api/v1", dependencies=[Depends(person)])
federation = APIRouter(prefix="/api/v1", dependencies=[Depends(admin)])


def _coordinator(request: Request) -> Coordinator:
    return cast(Coordinator, request.app.state.coordinator)


Studies = Annotated[Coordinator, Depends(_coordinator)]


def _row(study: str, coordinator: Studies) -> StudyRow:
    """The study of a path: by id, beginning of an id, or name."""
    exact = coordinator.store.study(study)
    if exact is not None:
        return exact
    rows = coordinator.store.studies()
    if not any(r.id.startswith(study) or r.name == study for r in rows):
        raise Answer(404, CoordinatorError("no such study", value=study[:80]))
    return coordinator.find(study)


Row = Annotated[StudyRow, Depends(_row)]


@public.get("/about")
def about() -> dict[str, Any]:
    """What this is, and what time it has: for clients that look before they log in."""
    return {
        "penstock": __version__,
        "wire": WIRE_VERSION,
        "wire_majors": list(SERVED_MAJORS),
        "time": stamp(now()),
    }


@analyst.get("/me")
def me(token: Person) -> dict[str, Any]:
    """Whose token this is."""
    return {"name": token.name, "role": str(token.role), "expires": token.expires}


# -- studies -----------------------------------------------------------------------------------


@analyst.post("/studies")
def submit(signed: Signed, token: Person, coordinator: Studies) -> dict[str, Any]:
    """Hand in a signed study; the same one again changes nothing."""
    study_id = coordinator.submit(signed)
    log.info("study %s handed in by %s", study_id[:12], token.name)
    return {"study": study_id}


@analyst.get("/studies")
def studies(coordinator: Studies) -> list[dict[str, Any]]:
    """All studies, oldest first."""
    return [coordinator.status(row.id) for row in coordinator.store.studies()]


@analyst.get("/studies/{study}")
def status(row: Row, coordinator: Studies) -> dict[str, Any]:
    """One study with each site's state."""
    return coordinator.status(row.id)


@analyst.post("/studies/{study}/cancel")
def cancel(row: Row, signed: Cancellation, token: Person, coordinator: Studies) -> dict[str, Any]:
    """Hand in a signed cancellation; the same one again changes nothing."""
    wish = read_signed_cancel(signed)
    if wish.study_id != row.id:
        raise CoordinatorError(
            "the cancellation is of another study", value=wish.study_id[:64], bound=row.id
        )
    again = row.state is StudyState.CANCELLED
    if not (again and read_signed_study(row.signed).signer == wish.signer):
        coordinator.cancel(signed)
        log.info("study %s cancelled through %s", row.id[:12], token.name)
    return {"study": row.id}


# -- results -----------------------------------------------------------------------------------


def _results(request: Request) -> ResultFiles:
    return cast(ResultFiles, request.app.state.results)


Results = Annotated[ResultFiles, Depends(_results)]


@analyst.get("/studies/{study}/files")
async def files(row: Row, kept: Results, copies: Copies = "one") -> dict[str, Any]:
    """The result files with size and SHA-256; the first to ask waits until they are made."""
    return {"study": row.id, "files": await kept.listing(row, all_copies=copies == "all")}


@analyst.get("/studies/{study}/files/{name}")
async def file(row: Row, name: str, kept: Results, copies: Copies = "one") -> FileResponse:
    """One result file, or a range of it."""
    path = None
    if name in RESULT_FILES:
        path = await kept.path(row, name, all_copies=copies == "all")
    if path is None:
        raise Answer(404, CoordinatorError("no such file", value=name[:80]))
    return FileResponse(path, filename=f"{row.name}-{name}")


@analyst.get("/studies/{study}/uploads/{site}")
async def upload(row: Row, site: str, coordinator: Studies) -> FileResponse:
    """What a site delivered: its synthetic table as an Arrow stream, with all copies and refits."""
    parts = await run_in_threadpool(coordinator.store.parts, row.id)
    delivered = [p.site for p in parts if p.state is SiteState.DELIVERED]
    # Only a name that the store knows becomes part of a path.
    if site not in delivered:
        error = CoordinatorError(
            "the site has not delivered", value=site[:80], bound=", ".join(delivered) or None
        )
        raise Answer(404, error)
    path = coordinator.table_path(row.id, site)
    kind = "application/vnd.apache.arrow.stream"
    return FileResponse(path, media_type=kind, filename=f"{row.name}-{site}.arrow")


# -- sites and tokens --------------------------------------------------------------------------


@analyst.get("/sites")
def sites(coordinator: Studies) -> list[dict[str, Any]]:
    """The enrolled sites."""
    return [
        {
            "site": site.name,
            "federation": site.federation,
            "persons": site.persons,
            "gate_key": site.gate_key,
            "gate_fingerprint": fingerprint(site.gate_key),
        }
        for site in coordinator.store.sites().values()
    ]


@federation.post("/sites")
def enrol(record: Join, token: Admin, coordinator: Studies) -> dict[str, Any]:
    """Enrol a site by its join record; answers with its invitation."""
    join = read_json(record, what="join record", limit=MAX_JOIN_BYTES)
    service.enrol(coordinator, join)
    log.info("site %s enrolled by %s", join["site"], token.name)
    invited: dict[str, Any] = service.invite(coordinator, join["site"])
    return invited


@federation.get("/tokens")
def tokens(request: Request) -> list[dict[str, Any]]:
    """Who holds a token, and until when; never the tokens."""
    moment = stamp(now())
    return [
        {
            "name": t.name,
            "role": str(t.role),
            "created": t.created,
            "expires": t.expires,
            "revoked": t.revoked,
            "good": t.good(moment),
        }
        for t in cast(Tokens, request.app.state.tokens).list()
    ]
