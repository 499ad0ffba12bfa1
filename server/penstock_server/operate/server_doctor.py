"""`penstock server doctor`: what keeps a coordinator from working."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.errors import PenstockError
from penstock.base.times import read_stamp, stamp, stamp_now, utc_now
from penstock.cli.console import friendly
from penstock.processes import certificates, reachability
from penstock.processes.checkup import (
    FAIL,
    OK,
    WARN,
    Check,
    Row,
    check_disk,
    check_modes,
    check_versions,
    report_trouble,
    run,
    show,
)
from penstock.wire.messages import StudyState
from penstock_server.access.access_chain import AccessLog, verify_chain
from penstock_server.access.tokens import Role, Tokens
from penstock_server.install import tls
from penstock_server.install.configuration import read_settings
from penstock_server.install.founding import open_coordinator
from penstock_server.operate.options import CoordinatorDir
from penstock_server.store.folder import Folder
from penstock_server.studies.coordinator import Coordinator

ONLINE = timedelta(minutes=5)  # a connected site is greeted far more often
WRONG_SINCE, WRONG_MANY = timedelta(days=7), 100
"""People mistype; so many wrong tokens are a program's."""


def check_coordinator(folder: Path) -> list[Row]:
    """Everything a coordinator needs on its own machine.

    Args:
        folder: the coordinator's directory.
    """
    root = folder.resolve()
    here = Folder(root)
    checks: list[tuple[str, Check]] = [
        ("coordinator", lambda: _check_settings(root)),
        ("modes", lambda: check_modes(_list_private(here))),
        ("disk", lambda: check_disk(root)),
        ("versions", lambda: check_versions(torch=False)),
    ]
    if here.settings.exists():
        checks += [
            ("store", lambda: _check_store(root)),
            ("port", lambda: _check_port(root)),
            ("certificate", lambda: _check_certificate(root)),
            ("authority", lambda: _check_authority(here.tls)),
            ("clock", lambda: _check_clock(root)),
            ("sites", lambda: _check_sites(root)),
        ]
    return run(checks)


def _list_private(here: Folder) -> list[Path]:
    keys = [
        here.tls / tls.CA_KEY,
        here.tls / tls.KEY,
        here.secret,
        here.settings,
        here.access_key,
    ]
    return [here.root, here.home, *keys]


def _check_settings(root: Path) -> Row:
    settings = read_settings(root)
    return Row("coordinator", OK, f"reached at {settings.address}")


@contextlib.contextmanager
def _open(root: Path) -> Iterator[Coordinator]:
    """The coordinator, only to look: a store of the version before stays as it is."""
    coordinator = open_coordinator(root, upgrade=False)
    try:
        yield coordinator
    finally:
        coordinator.store.close()


def _check_store(root: Path) -> Sequence[Row]:
    with _open(root) as coordinator:
        count = len(coordinator.store.sites.all())
        answers = Row("store", OK, f"answers, {count} site{'' if count == 1 else 's'} enrolled")
        rows = [answers, *_check_accounts(coordinator), *_check_access(coordinator.access)]
        return [*rows, *_check_results(coordinator)]


def _check_accounts(coordinator: Coordinator) -> Sequence[Row]:
    """Who can hand in studies. Right after an upgrade nobody can: keys were not bound before."""
    tokens, moment = Tokens(coordinator.store, coordinator.access), stamp_now()
    analysts = [t.name for t in tokens.list() if t.good(moment) and t.role is Role.ANALYST]
    signing = tokens.keys().keys() & set(analysts)
    if not analysts:
        return []
    if not signing:
        remedy = "Run `penstock server token key add NAME THEIR.pub`."
        what = f"no signing key is bound to any of {', '.join(analysts)}: none can hand in a study"
        return [Row("accounts", WARN, what, remedy)]
    reading = len(analysts) - len(signing)
    return [Row("accounts", OK, f"{len(signing)} sign and hand in studies, {reading} read only")]


def _check_results(coordinator: Coordinator) -> Sequence[Row]:
    """Studies whose results something keeps from being made."""
    known = {row.id: row.name for row in coordinator.store.studies.in_state(StudyState.POOLING)}
    found = {name: coordinator.leases.read_pooling(study_id) for study_id, name in known.items()}
    remedy = "Mend it: they are tried again by themselves. More is in log/builder.log."
    return [
        Row("results", WARN, f"those of {name} are late, because {pooling.trouble}", remedy)
        for name, pooling in found.items()
        if pooling is not None and pooling.trouble
    ]


def _check_access(chain: AccessLog) -> Sequence[Row]:
    """Whether the access log is whole and can be written, and whether somebody tries tokens."""
    try:
        chain.check_key()
        count = len(verify_chain(chain.rows()))
    except (PenstockError, OSError) as error:
        return [report_trouble("access", error)]
    rows = [Row("access", OK, f"{count} records, chain and signatures whole")]
    wrong = chain.wrong_tokens(stamp(utc_now() - WRONG_SINCE))
    tried = f"{wrong} wrong tokens in the last {WRONG_SINCE.days} days"
    if wrong >= WRONG_MANY:
        remedy = "See `penstock server access` for the addresses; no token can be guessed."
        rows.append(Row("tokens", WARN, tried, remedy))
    elif wrong:
        rows.append(Row("tokens", OK, tried))
    return rows


def _is_answering(root: Path) -> bool:
    """Whether this coordinator's api answers on its port, with the certificate that is here."""
    settings = read_settings(root)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.bind, settings.bind)
    context = certificates.make_client_context(tls.read_authority(Folder(root).tls))
    context.check_hostname = False  # reached by address; the authority is what tells
    try:
        with socket.create_connection((host, settings.port), timeout=reachability.SECONDS) as raw:
            with context.wrap_socket(raw):
                return True
    except (OSError, ValueError):
        return False


def _check_port(root: Path) -> Row:
    settings = read_settings(root)
    family = socket.AF_INET6 if ":" in settings.bind else socket.AF_INET
    place = f"{settings.bind} port {settings.port}"
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((settings.bind, settings.port))
    except PermissionError:
        remedy = "Choose a port above 1023 in coordinator.json."
        return Row("port", FAIL, f"{place} may not be used by this user", remedy)
    except OSError as error:
        if _is_answering(root):
            return Row("port", OK, f"this coordinator answers on {place}")
        remedy = "Stop what listens there, or change `port` or `bind` in coordinator.json."
        return Row("port", FAIL, f"{place}: {error.strerror}", remedy)
    remedy = "Run `penstock server start`."
    return Row("port", WARN, f"{place} is free: the coordinator does not run", remedy)


def _check_certificate(root: Path) -> Row:
    settings, folder = read_settings(root), Folder(root).tls
    tls.server_context(folder)  # raises unless key and certificate belong together
    pem = certificates.read_certificate(folder / tls.CERT)
    names, left = certificates.list_names(pem), certificates.count_days_left(pem)
    last = f"{certificates.find_end(pem):%Y-%m-%d}"
    renew = "Run `penstock server start` anew: it renews the certificate."
    if tls.is_adopted(folder):
        renew = "Ask who issued it for a new one."
    if left < 0:
        return Row("certificate", FAIL, f"expired on {last}", renew)
    host = settings.names[0]
    problem = tls.find_problem(folder, host)
    if problem:
        what = f"clients refuse it as {host} ({problem}); it is for {', '.join(names)}"
        return Row("certificate", FAIL, what, renew)
    if left < tls.RENEW_DAYS:
        return Row("certificate", WARN, f"ends on {last}, in {left} days", renew)
    odd = tls.find_problem(folder, host, strict=True)
    if odd:
        what = f"clients with Python 3.13 or later refuse it ({odd})"
        return Row("certificate", WARN, what, "Ask who issued it for one that follows RFC 5280.")
    return Row("certificate", OK, f"for {', '.join(names)}, until {last}")


def _check_authority(folder: Path) -> Row:
    pem = tls.read_authority(folder)
    left, last = certificates.count_days_left(pem), f"{certificates.find_end(pem):%Y-%m-%d}"
    if left < tls.SERVER_DAYS:
        state = FAIL if left < 0 else WARN
        remedy = "Plan a new authority: every site has to join again with a new invite."
        return Row("authority", state, f"ends on {last}", remedy)
    whose = "the institution's" if tls.is_adopted(folder) else "our own"
    return Row("authority", OK, f"{whose}, until {last}; {certificates.fingerprint(pem)}")


def _check_clock(root: Path) -> Row:
    """This machine alone cannot tell the time; it can tell that time went backwards."""
    moment = utc_now()
    pem = certificates.read_certificate(Folder(root).tls / tls.CERT)
    known = {"the certificate was made": certificates.find_begin(pem)}
    with contextlib.suppress(PenstockError):
        with _open(root) as coordinator:
            seen = [s.seen for s in coordinator.store.sites.all().values() if s.seen]
        if seen:
            known["a site was last seen"] = read_stamp(max(seen))
    what, latest = max(known.items(), key=lambda item: item[1])
    shown = f"{moment:%Y-%m-%d %H:%M} UTC"
    if moment + timedelta(minutes=1) < latest:
        remedy = "Let this machine's clock follow NTP: sites refuse a clock that is 300 s off."
        return Row("clock", FAIL, f"{shown}, before {what} ({latest:%Y-%m-%d %H:%M})", remedy)
    return Row("clock", OK, f"{shown}; sites compare theirs with it")


def _check_sites(root: Path) -> Sequence[Row]:
    """Which sites were heard of lately; asked only while the coordinator runs."""
    if not _is_answering(root):
        return []
    with _open(root) as coordinator:
        sites = coordinator.store.sites.all().values()
    moment = utc_now()
    away = [s.name for s in sites if not s.seen or moment - read_stamp(s.seen) > ONLINE]
    found = f"{len(sites) - len(away)} of {len(sites)} online"
    if not away:
        return [Row("sites", OK, found)]
    remedy = "Ask their stewards to run `penstock site doctor`."
    return [Row("sites", WARN, f"{found}; away: {', '.join(away)}", remedy)]


@friendly
def doctor(
    directory: CoordinatorDir = Path("coordinator"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Find what keeps this coordinator from working, and say what to do. Changes nothing."""
    raise typer.Exit(show(check_coordinator(directory), as_json))
