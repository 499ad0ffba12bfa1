"""Which node keys the coordinator hands to Flower."""

from __future__ import annotations

import logging

import pytest

from penstock.base.errors import SignatureError
from penstock_client.site.network_paths import NetworkPaths
from penstock_server.transport.flower.control import read_node_key
from penstock_server.transport.flower.runner import _select_usable


def test_one_sites_bad_key_does_not_stop_the_others(tmp_path, caplog):
    line = NetworkPaths(tmp_path).make_key()
    with caplog.at_level(logging.ERROR, logger="penstock.coordinator"):
        found = _select_usable({"a": line, "b": "ecdsa-sha2-nistp384 AAAA", "c": line})
    assert found == {"a": read_node_key(line)}
    assert "b cannot connect" in caplog.text
    assert "c cannot connect" in caplog.text


@pytest.mark.parametrize(
    "line", ["", "ssh-rsa AAAA", "ssh-dss AAAA", "ecdsa-sha2-nistp384 AAAA", "\x00"]
)
def test_what_is_no_node_key_is_refused(line):
    with pytest.raises(SignatureError):
        read_node_key(line)
