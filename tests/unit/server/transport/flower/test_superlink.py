"""What a SuperLink answers where its database is locked: to ask again, and not that it failed."""

import asyncio
import sqlite3

import httpx
import pytest
from sqlalchemy.exc import OperationalError

from penstock_server.store.folder import Folder
from penstock_server.transport.flower.superlink import make_app

PATH = "/v1/fleet/push-messages-of-a-test"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        # Flower's SuperNode tries again after 502, 503 and 504; of 500 it drops what it had to say.
        (OperationalError("UPDATE", {}, sqlite3.OperationalError("database is locked")), 503),
        (OperationalError("INSERT", {}, sqlite3.OperationalError("disk is full")), 503),
        (RuntimeError("a mistake"), 500),
    ],
)
def test_a_database_that_cannot_be_written_to_is_a_reason_to_ask_again(tmp_path, error, status):
    folder = Folder(tmp_path)
    folder.secret.parent.mkdir(parents=True, exist_ok=True)
    folder.secret.write_bytes(bytes(32))
    app = make_app(folder)

    @app.post(PATH)
    def fail() -> None:
        raise error

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://flower") as client:
            return await client.post(PATH)

    answer = asyncio.run(ask())
    assert answer.status_code == status
    assert "database" not in answer.text
