"""What Flower's own app answers where its database cannot be written to now: to ask again."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from sqlalchemy.exc import OperationalError

log = logging.getLogger("penstock.superlink")

AGAIN_SECONDS = 1


class Busy(Exception):
    """What was asked cannot be done now, and nothing of it is done."""


def ask_again(app: FastAPI) -> FastAPI:
    """The same app, which answers 503 where its database is locked, or its disk full.

    It would answer 500, as to a mistake of its own; nodes try again after 503 alone.
    """
    for kind in (OperationalError, Busy):
        app.add_exception_handler(kind, _answer_busy)
    return app


def _answer_busy(request: Request, error: Exception) -> JSONResponse:
    log.warning("%s has to wait: %s", request.url.path, getattr(error, "orig", error))
    return JSONResponse({"detail": "busy"}, 503, {"Retry-After": str(AGAIN_SECONDS)})
