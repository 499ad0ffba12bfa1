"""A coordinator over HTTPS. Foreign errors become typed ones here, each with what to do."""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlsplit

import httpx

from penstock import __version__
from penstock.analyst import ALWAYS, RESULT_FILES, Received, trouble
from penstock.analyst.logins import check_token, is_loopback, read_address
from penstock.base.checks import NAME
from penstock.base.documents import Json
from penstock.base.errors import CoordinatorError, InvalidInput, Problem, Unreachable
from penstock.base.printable import make_printable
from penstock.base.shapes import has_fields, has_keys, is_list_of_objects, is_object
from penstock.wire.messages import WIRE_VERSION, Copies, is_newer, names_parts

TIMEOUT = httpx.Timeout(connect=10.0, read=60.0, write=60.0, pool=10.0)
MAKING_SECONDS = 900.0
"""The first to ask for a study's files waits until they are made."""
RETRIES = 2
RETRY_SECONDS = 0.5
MAX_ANSWER = 64 << 20
"""Bytes of a JSON answer that are read; files are bounded by their announced size."""

T = TypeVar("T")


class Remote:
    """The analyst's view (:class:`penstock.analyst.Coordinator`) of a coordinator's API.

    Args:
        url: ``https://HOST:PORT``.
        token: whose it is decides what may be asked.
        ca: the authority to trust, in PEM; None for the system's.

    Raises:
        InvalidInput: not such an address, or not a certificate.
        NotAllowed: not a token.
    """

    poll_seconds = 2.0

    def __init__(self, url: str, token: str, *, ca: str | None = None) -> None:
        self.url = read_address(url)
        parts = urlsplit(self.url)
        self._place = trouble.Place.of(self.url)
        headers = {
            "Authorization": f"Bearer {check_token(token)}",
            "Penstock-Wire": WIRE_VERSION,
            "User-Agent": f"penstock/{__version__}",
            "Accept-Encoding": "identity",  # sizes are checked as they come
        }
        try:
            self._client = httpx.Client(
                verify=_make_context(ca),
                # Proxies of the environment; never for this machine itself.
                trust_env=not is_loopback(parts.hostname or ""),
                timeout=TIMEOUT,
                headers=headers,
                follow_redirects=False,  # the token is for this address only
            )
        except (ValueError, ImportError, httpx.InvalidURL):
            raise Unreachable(
                "the proxy that the environment names cannot be used",
                value=self._place.proxy,
                remedy="correct HTTPS_PROXY: http://HOST:PORT",
            ) from None

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Remote:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    # -- what can be asked -----------------------------------------------------------------------

    def about(self) -> Json:
        """Versions and the server's time; needs no valid token."""
        return self._record("GET", "about", keys=("penstock", "wire", "time"))

    def me(self) -> Json:
        """Whose token this is: name, role, expires."""
        return self._record("GET", "me", keys=("name", "role", "expires"))

    def require_wire(self, wire: str) -> None:
        if names_parts(wire) and is_newer(wire, theirs := str(self.about()["wire"])):
            raise CoordinatorError(
                "the study's wire version is newer than the coordinator",
                value=wire,
                bound=f"up to {theirs}",
                remedy=f'ask who runs it to upgrade it, or write wire = "{theirs}" at the top of '
                "the study, and hand it in again",
            )

    def submit(self, signed: bytes) -> str:
        return str(self._record("POST", "studies", signed, keys=("study",))["study"])

    def studies(self) -> list[Json]:
        return [self._study(s) for s in self._list("studies")]

    def status(self, study: str) -> Json:
        return self._study(self._json("GET", f"studies/{_name(study)}"))

    def cancel(self, signed: bytes) -> None:
        study = json.loads(signed)["cancel"]
        self._record("POST", f"studies/{_name(study)}/cancel", signed, keys=("study",))

    def close_study(self, signed: bytes) -> None:
        study = json.loads(signed)["cancel"]
        self._record("POST", f"studies/{_name(study)}/close", signed, keys=("study",))

    def sites(self) -> list[Json]:
        """The enrolled sites."""
        return self._list("sites")

    def enrol(self, join: bytes) -> Json:
        """Enrol a site (admins only); returns its invitation."""
        return self._record("POST", "sites", join, keys=("site", "address", "ca"))

    # -- files -----------------------------------------------------------------------------------

    def pull(self, study: str, out: Path, *, copies: Copies) -> list[Path]:
        return self.fetch(study, None, out, copies=copies)

    def fetch(
        self,
        study: str,
        names: Collection[str] | None,
        out: Path,
        *,
        copies: Copies,
        received: Received | None = None,
    ) -> list[Path]:
        """Write these files into ``out``; what was there before stays until all have come whole.

        Raises:
            Unreachable: the connection was lost, and lost again when tried anew.
            CoordinatorError: no results, or what came is not what was announced.
        """
        params: dict[str, str] = {"copies": copies}
        base = f"studies/{_name(study)}/files"
        listing = self._json("GET", base, params=params, seconds=MAKING_SECONDS)
        files = self._listed(listing, names)
        out.mkdir(parents=True, exist_ok=True)
        with ExitStack() as parts:
            made = []
            for name, (size, sha256) in files.items():
                part = _find_part_file(out, name)
                parts.callback(_discard, part)
                with open(part, "wb") as file:
                    self._download(f"{base}/{name}", params, file, name, size, received)
                _check(part, name, size, sha256)
                made.append((part, out / name))
            for part, target in made:
                os.replace(part, target)
        return [target for _, target in made]

    def _listed(self, listing: Any, names: Collection[str] | None) -> dict[str, tuple[int, str]]:
        """Announced size and SHA-256 of the files wanted; other names are not looked at."""
        found = {}
        wanted = RESULT_FILES if names is None else names
        try:
            for entry in listing["files"]:
                if entry["name"] in RESULT_FILES and entry["name"] in wanted:
                    size, sha256 = entry["size"], entry["sha256"]
                    if not isinstance(size, int) or not isinstance(sha256, str) or size < 0:
                        raise TypeError
                    found[str(entry["name"])] = (size, sha256)
        except (KeyError, TypeError):
            raise self._place.stranger("a listing of another form") from None
        missing = [n for n in (ALWAYS if names is None else names) if n not in found]
        if missing:
            raise CoordinatorError("the coordinator has no such file", value=", ".join(missing))
        return {name: found[name] for name in RESULT_FILES if name in found}

    def _download(
        self,
        path: str,
        params: dict[str, str],
        file: BinaryIO,
        name: str,
        size: int,
        received: Received | None,
    ) -> None:
        """Stream into ``file``; after a loss go on where it broke off."""
        self._retry(lambda: self._stream(path, params, file, name, size, received))

    def _stream(
        self,
        path: str,
        params: dict[str, str],
        file: BinaryIO,
        name: str,
        size: int,
        received: Received | None,
    ) -> None:
        start = file.tell()
        headers = {"Range": f"bytes={start}-"} if start else {}
        with self._client.stream("GET", self._url(path), params=params, headers=headers) as answer:
            if answer.status_code == 416 and start == size:
                return
            if answer.status_code not in (200, 206):
                raise self._place.refusal(answer.status_code, answer.headers, _read_bounded(answer))
            if answer.status_code == 200:
                file.seek(0)
                file.truncate()
            elif not answer.headers.get("content-range", "").startswith(f"bytes {start}-"):
                raise self._place.stranger("another part of a file than was asked for")
            for chunk in answer.iter_raw():
                file.write(chunk)
                if file.tell() > size:
                    raise _report_changed(name, f"more than {size} bytes")
                if received is not None:
                    received(name, file.tell(), size)

    # -- requests --------------------------------------------------------------------------------

    def _retry(self, attempt: Callable[[], T]) -> T:
        """What an idempotent attempt gives, made again a few times after a lost connection."""
        tries = 0
        while True:
            try:
                return attempt()
            except httpx.HTTPError as error:
                if tries == RETRIES or not trouble.is_lost(error):
                    raise self._place.explain(error) from None
            time.sleep(RETRY_SECONDS * 2**tries)
            tries += 1

    def _url(self, path: str) -> str:
        return f"{self.url}/api/v1/{path}"

    def _record(
        self, method: str, path: str, content: bytes | None = None, *, keys: Collection[str]
    ) -> Json:
        found = self._json(method, path, content)
        if not (is_object(found) and has_keys(found, keys)):
            raise self._place.stranger("JSON of another form")
        return found

    def _list(self, path: str) -> list[Json]:
        found = self._json("GET", path)
        if not is_list_of_objects(found):
            raise self._place.stranger("JSON of another form")
        return found

    def _study(self, found: Any) -> Json:
        """A study's status with the fields that are shown; more may come from newer versions."""
        good = has_fields(found, str, "study", "name", "state", "created", "note")
        good = good and has_fields(found, int, "quorum") and has_fields(found, list, "sites")
        for part in found["sites"] if good else ():
            good = good and has_fields(part, str, "site", "state", "code", "meaning", "remedy")
            good = good and has_fields(part, int, "step", "steps")
        if not good:
            raise self._place.stranger("a study's status of another form")
        study: Json = found
        return study

    def _json(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        *,
        params: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> Any:
        """One request, tried again after a lost connection: all of them are idempotent."""
        timeout = (
            TIMEOUT if seconds is None else httpx.Timeout(**{**TIMEOUT.as_dict(), "read": seconds})
        )

        def ask() -> tuple[httpx.Response, bytes]:
            with self._client.stream(
                method, self._url(path), content=content, params=params, timeout=timeout
            ) as answer:
                return answer, _read_bounded(answer)

        answer, body = self._retry(ask)
        if answer.status_code != 200:
            raise self._place.refusal(answer.status_code, answer.headers, body)
        try:
            return printable(json.loads(body))
        except (ValueError, RecursionError):
            raise self._place.stranger(answer.headers.get("content-type", "no JSON")) from None


def printable(value: Any) -> Any:
    """JSON whose texts a terminal can show: control characters are others' to send, not to rule."""
    if isinstance(value, str):
        return make_printable(value, keep="\n")
    if isinstance(value, list):
        return [printable(v) for v in value]
    if isinstance(value, dict):
        return {printable(k): printable(v) for k, v in value.items()}
    return value


def _make_context(ca: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=ca)
    except (ssl.SSLError, ValueError):
        problem = Problem("", "no certificate that can be used", remedy="Ask for ca.crt again")
        raise InvalidInput("--ca", [problem]) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _name(study: str) -> str:
    """A study's id, its beginning, or its name, as one segment of a path."""
    if not (NAME.fullmatch(study) or (study.isalnum() and study.isascii() and len(study) <= 64)):
        raise CoordinatorError("no such study", value=study[:80])
    return study


def _read_bounded(answer: httpx.Response) -> bytes:
    data = bytearray()
    for chunk in answer.iter_raw():
        data += chunk
        if len(data) > MAX_ANSWER:
            raise CoordinatorError("the answer is too large", bound=f"at most {MAX_ANSWER} bytes")
    return bytes(data)


def _find_part_file(folder: Path, name: str) -> Path:
    descriptor, part = tempfile.mkstemp(prefix=f".{name}.", suffix=".part", dir=folder)
    os.close(descriptor)
    os.chmod(part, 0o644)
    return Path(part)


def _discard(part: Path) -> None:
    with suppress(FileNotFoundError):
        part.unlink()


def _check(part: Path, name: str, size: int, sha256: str) -> None:
    with open(part, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if part.stat().st_size != size:
        raise _report_changed(name, f"{part.stat().st_size} of {size} bytes")
    if found != sha256:
        raise _report_changed(name, "another SHA-256")


def _report_changed(name: str, what: str) -> CoordinatorError:
    return CoordinatorError(
        f"{name} is not what the coordinator announced",
        value=what,
        remedy="try again; if it stays so, something on the way changes files",
    )
