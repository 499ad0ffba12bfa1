"""Addresses and saved logins."""

from __future__ import annotations

import stat

import pytest
from tests.support.web_servers import TOKEN

from penstock.analyst import logins
from penstock.analyst.logins import Login, Logins, read_address
from penstock.analyst.remote import Remote
from penstock.base.errors import InvalidInput, NotAllowed, PenstockError


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("https://Coordinator.Example", "https://coordinator.example"),
        ("https://c.example:8443/", "https://c.example:8443"),
        ("https://c.example/penstock/", "https://c.example/penstock"),
        ("https://[::1]:8443", "https://[::1]:8443"),
        ("  https://c.example\n", "https://c.example"),
    ],
)
def test_addresses(given, found):
    assert read_address(given) == found


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("http://c.example", "is not encrypted"),
        ("http://127.0.0.1:1", "is not encrypted"),
        ("c.example:8443", "is no web address"),
        ("ftp://c.example", "is no web address"),
        ("https://", "is no web address"),
        ("https://c.example:99999", "cannot be read"),
        ("https://ada:hunter2@c.example", "holds a user name or password"),
        ("https://c.example/?token=hunter2", "has more than host, port and path"),
    ],
)
def test_addresses_that_are_none(given, words):
    with pytest.raises(InvalidInput, match=words) as error:
        read_address(given)
    assert "hunter2" not in str(error.value)


def test_plain_http_needs_this_machine_and_the_ugly_flag(monkeypatch):
    monkeypatch.setenv("PENSTOCK_INSECURE_HTTP", "1")
    assert read_address("http://127.0.0.1:8080") == "http://127.0.0.1:8080"
    for url in ("http://c.example", "http://10.0.0.1", "http://localhost.example"):
        with pytest.raises(InvalidInput, match="is not encrypted"):
            read_address(url)
    monkeypatch.setenv("PENSTOCK_INSECURE_HTTP", "yes")
    with pytest.raises(InvalidInput, match="is not encrypted"):
        read_address("http://127.0.0.1:8080")


def test_logins_by_address_name_and_default(monkeypatch):
    first = Login("one", "https://one.example", TOKEN, "-----BEGIN CERTIFICATE-----")
    second = Login("two", "https://two.example", TOKEN + "2")
    path = logins.save(Logins().add(first).add(second))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["logins.json"]
    assert logins.find(None) == second
    assert logins.find("one") == logins.find("https://ONE.example/") == first
    assert logins.find("three") is None
    with pytest.raises(NotAllowed, match="penstock login https://three"):
        logins.find("https://three.example")
    monkeypatch.setenv("PENSTOCK_TOKEN", TOKEN + "3")
    assert logins.find("one").token == TOKEN + "3"
    assert logins.find("https://three.example").token == TOKEN + "3"
    assert TOKEN not in repr(first)


def test_logins_where_xdg_says(monkeypatch, tmp_path):
    monkeypatch.delenv("PENSTOCK_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert logins.find_file() == tmp_path / "penstock" / "logins.json"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert logins.find_file() == tmp_path / "home" / ".config" / "penstock" / "logins.json"


def test_the_default_moves_only_where_it_is_plain():
    three = Logins()
    for name in ("a", "b", "c"):
        three = three.add(Login(name, f"https://{name}.example", TOKEN))
    assert three.default == "c"
    assert three.remove("a").default == "c"
    assert three.remove("c").default == ""
    assert three.remove("c").remove("b").default == "a"
    with pytest.raises(PenstockError, match=r"no such login \(got z; saved: a, b, c\)"):
        three.remove("z")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"format": "penstock-logins/2", "default": "", "logins": {}}',
        '{"format": "penstock-logins/1", "default": "", "logins": {"x": {"url": "ftp://x"}}}',
    ],
)
def test_damaged_logins_are_said_and_kept(text):
    path = logins.save(Logins())
    path.write_text(text)
    with pytest.raises(PenstockError, match="cannot be read"):
        logins.load()
    assert path.read_text() == text


def test_a_private_key_is_no_authority(tmp_path):
    for text, words in (
        ("-----BEGIN PRIVATE KEY-----", "holds a private key"),
        ("hello", "no certificate in PEM"),
    ):
        (tmp_path / "ca.crt").write_text(text)
        with pytest.raises(InvalidInput, match=words):
            logins.read_ca(tmp_path / "ca.crt")
    with pytest.raises(InvalidInput, match="No such file"):
        logins.read_ca(tmp_path / "none")
    with pytest.raises(InvalidInput, match="no certificate that can be used"):
        Remote("https://c.example", TOKEN, ca="-----BEGIN CERTIFICATE-----\nx")
