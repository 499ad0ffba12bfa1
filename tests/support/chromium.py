"""A headless Chromium that is spoken to over two pipes: no driver, no port, no library."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
AS_ROOT = ("--no-sandbox",)
"""It does not start without, and opens no page but tests' own."""
NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 120.0
"""For an answer: a machine may be busy with other tests."""


def find_chromium() -> str | None:
    """The program, or None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@dataclass
class Chromium:
    """One browser; its messages are JSON, each with a null byte at its end.

    The protocol: https://chromedevtools.github.io/devtools-protocol.
    """

    reading: int
    writing: int
    waiting: bytes = b""
    sent: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    def call(self, method: str, session: str | None = None, **given: Any) -> dict[str, Any]:
        """What a method answers; the events before it are kept."""
        self.sent += 1
        message: dict[str, Any] = {"id": self.sent, "method": method, "params": given}
        if session is not None:
            message["sessionId"] = session
        rest = memoryview(json.dumps(message).encode() + b"\0")
        while rest:
            rest = rest[os.write(self.writing, rest) :]
        until = time.monotonic() + SECONDS
        while True:
            told = self.read(until)
            if told.get("id") == self.sent:
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']['message']}")
                answer: dict[str, Any] = told["result"]
                return answer
            self.events.append(told)

    def await_event(self, method: str, session: str) -> dict[str, Any]:
        """The next one of these; it is kept, too."""
        until = time.monotonic() + SECONDS
        while True:
            for told in self.events:
                if told.get("method") == method and told.get("sessionId") == session:
                    return told
            self.events.append(self.read(until))

    def read(self, until: float) -> dict[str, Any]:
        while b"\0" not in self.waiting:
            ready, _, _ = select.select([self.reading], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError("Chromium does not answer")
            more = os.read(self.reading, 1 << 20)
            if not more:
                raise RuntimeError("Chromium has ended")
            self.waiting += more
        line, _, self.waiting = self.waiting.partition(b"\0")
        told: dict[str, Any] = json.loads(line)
        return told

    @contextlib.contextmanager
    def open(self, address: str, width: int, *, dark: bool = False) -> Iterator[Tab]:
        """A page in a window of this width, loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        tab.resize(width)
        tab.show_media("screen", dark=dark)
        self.events.clear()
        tab.call("Page.navigate", url=address)
        self.await_event("Page.loadEventFired", session)
        try:
            yield tab
        finally:
            self.call("Target.closeTarget", targetId=target)
            self.events.clear()


@dataclass(frozen=True)
class Tab:
    """One page of it."""

    browser: Chromium
    session: str

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **given)

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript, or what its promise brings."""
        told = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in told:
            raise RuntimeError(json.dumps(told["exceptionDetails"])[:2000])
        return told["result"].get("value")

    def resize(self, width: int) -> None:
        """The window; a narrow one is a phone's."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def show_media(self, media: str, *, dark: bool = False) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def list_complaints(self) -> list[str]:
        """What the console has been told, whatever was thrown, and what the page asked for."""
        self.run("0")  # whatever was told before is read by now
        found = []
        for event in self.browser.events:
            method, told = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                thrown = told["exceptionDetails"]
                found.append(thrown.get("exception", {}).get("description", thrown["text"]))
            elif method == "Runtime.consoleAPICalled":
                found.append(f"{told['type']}: {json.dumps(told['args'])[:500]}")
            elif method == "Log.entryAdded":
                found.append(f"{told['entry']['level']}: {told['entry']['text']}")
            elif method == "Network.requestWillBeSent":
                address = told["request"]["url"]
                if told["type"] != "Document":
                    found.append(f"asked for {address}")
        return found

    def print_pdf(self, path: Path) -> None:
        """On A4, with the browser's own margins."""
        told = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)
        path.write_bytes(base64.b64decode(told["data"]))

    def take_picture(self, path: Path) -> None:
        """All of the page, as a PNG: for people who look at it."""
        told = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(told["data"]))


@contextlib.contextmanager
def start_chromium(program: str) -> Iterator[Chromium]:
    """A browser with a folder of its own; both are gone afterwards."""
    profile = tempfile.mkdtemp(prefix="pk-chromium-")
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # It reads from 3 and writes to 4: neither may be in the way of the other.
    theirs = (theirs_in, theirs_out)
    high_in, high_out = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in theirs)
    root = AS_ROOT if os.geteuid() == 0 else ()
    silent = os.open(os.devnull, os.O_RDWR)
    try:
        process = os.posix_spawn(
            program,
            [program, *FLAGS, *root, f"--user-data-dir={profile}"],
            {**os.environ, "HOME": profile},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, high_in, 3),
                (os.POSIX_SPAWN_DUP2, high_out, 4),
                *((os.POSIX_SPAWN_DUP2, silent, fd) for fd in (0, 1, 2)),
            ],
            setsid=True,
        )
    finally:
        for fd in (*theirs, high_in, high_out, silent):
            os.close(fd)
    browser = Chromium(ours_in, ours_out)
    try:
        yield browser
    finally:
        with contextlib.suppress(RuntimeError, OSError):
            browser.call("Browser.close")
        _end(process)
        os.close(ours_in)
        os.close(ours_out)
        shutil.rmtree(profile, ignore_errors=True)


def _end(process: int) -> None:
    """Wait for it, and end it with its children where it does not."""
    until = time.monotonic() + 20
    while os.waitpid(process, os.WNOHANG) == (0, 0):
        if time.monotonic() > until:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return
        time.sleep(0.05)
