"""Who asks, what they may ask, and how much they may send."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Annotated, cast

from fastapi import Depends, Request

from penstock.base.errors import InvalidInput, NotAllowed, PenstockError, Problem
from penstock.base.times import stamp_now
from penstock_server.access.access_chain import Visitor
from penstock_server.access.tokens import TOKEN, Role, Token, Tokens
from penstock_server.api.bodies import Gone, TooLarge, read_paced
from penstock_server.api.strangers import Strangers
from penstock_server.api.visitors import introduce


class Answer(Exception):
    """An error with the HTTP status and headers that it is answered with."""

    def __init__(
        self, status: int, error: PenstockError, headers: dict[str, str] | None = None
    ) -> None:
        self.status = status
        self.error = error
        self.headers = headers or {}
        super().__init__(error.message)


def require_person(request: Request) -> Token:
    """The token that a request carries; the answer is the same whatever is wrong with it.

    A right one opens at once, however many wrong ones came from its address.
    """
    given = request.headers.getlist("authorization")
    scheme, _, secret = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    ended = None
    if scheme.lower() == "bearer" and TOKEN.fullmatch(secret):
        tokens = cast(Tokens, request.app.state.tokens)
        found = tokens.find(secret, stamp_now())
        if found is not None:
            introduce(request.scope, f"token {found.name}")
            return found
        ended = tokens.ever(secret)
    headers = {"WWW-Authenticate": 'Bearer realm="penstock"'}
    wait, account = 0.0, "" if ended is None else ended.name
    if given:
        wait = cast(Strangers, request.app.state.strangers).count_wrong(
            find_origin(request), account
        )
    remedy = (
        "ask who runs the coordinator for one (`penstock server token add NAME`), and enter it at "
        "the prompt of `penstock login`"
    )
    if wait > 0:
        error = NotAllowed(
            "no valid token, and too many that are none came from this address", remedy=remedy
        )
        raise Answer(429, error, {**headers, "Retry-After": str(math.ceil(wait))})
    raise Answer(401, NotAllowed("no valid token", remedy=remedy), headers)


def find_origin(request: Request) -> str:
    """The address of the other side; a proxy's own words about it are not believed."""
    return request.client.host if request.client is not None else ""


Person = Annotated[Token, Depends(require_person)]


def require_admin(token: Person) -> Token:
    """A token that may change the federation."""
    if token.role is not Role.ADMIN:
        error = NotAllowed("this token may not do that", value=token.role, bound=Role.ADMIN)
        raise Answer(403, error)
    return token


def name_visitor(token: Person, request: Request) -> Visitor:
    """Who asks, as the access log has it."""
    return Visitor(token.name, find_origin(request))


Caller = Annotated[Visitor, Depends(name_visitor)]


def take_body(what: str, limit: int) -> Callable[[Request], Awaitable[bytes]]:
    """A dependency: the request's body, given up when it is too long or too slow."""

    async def read(request: Request) -> bytes:
        declared = request.headers.get("content-length", "")
        data = bytearray()
        try:
            if declared.isdecimal() and int(declared[:20]) > limit:
                raise TooLarge
            async for part in read_paced(request.receive, limit):
                data += part
        except TooLarge:
            problem = Problem("", "too large", bound=f"at most {limit} bytes")
            raise Answer(413, InvalidInput(what, [problem])) from None
        except TimeoutError:
            raise Answer(408, InvalidInput(what, [Problem("", "arrived too slowly")])) from None
        except Gone:
            problem = Problem("", "ended before it was whole")
            raise Answer(400, InvalidInput(what, [problem])) from None
        return bytes(data)

    return read
