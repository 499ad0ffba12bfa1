"""A coordinator whose sites are scripted: what tests of several rooms begin with."""

from __future__ import annotations

import os
from functools import cache

import pytest
import sqlalchemy as sa
from tests.support.lifecycle import World

from penstock.privacy.accounting import accountant
from penstock_server.intake import uploads
from penstock_server.store.sql_tables import metadata


@pytest.fixture
def fast_pld(monkeypatch):
    monkeypatch.setattr(uploads, "epsilon_pld", cache(accountant.epsilon_pld))


@pytest.fixture
def world(tmp_path, fast_pld):
    made = World(tmp_path)
    yield made
    made.c.store.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def any_world(request, tmp_path, fast_pld):
    url = None
    if request.param == "postgresql":
        url = os.environ.get("PENSTOCK_TEST_POSTGRES")
        if not url:
            pytest.skip("PENSTOCK_TEST_POSTGRES holds no URL of an empty database")
        engine = sa.create_engine(url)
        metadata.drop_all(engine)
        engine.dispose()
    made = World(tmp_path, url)
    yield made
    made.c.store.close()
